"""The hand-off: the port through which caches move from prefill to decode workers, and its transports."""
