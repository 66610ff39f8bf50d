"""Computes a step of any described model in one native call; see csrc/twinpool_native.h."""
