"""Compares what workers hold with what the scheduler knows."""
