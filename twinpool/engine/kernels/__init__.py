"""What computes an engine's steps: a port, and its implementations."""
