"""Measurements of a running system; nothing here is a test."""
