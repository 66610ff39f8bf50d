"""Keeps both pools filled, scaled and proven."""
