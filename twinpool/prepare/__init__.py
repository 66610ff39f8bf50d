"""Fetches a model once and converts it into the folder that router and workers read."""
