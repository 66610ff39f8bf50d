"""Computes any described model in plain torch operations on the CPU."""
