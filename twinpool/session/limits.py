"""Limits and names both ends of a worker session agree on."""

from __future__ import annotations

SECRET_KEY = "x-twinpool-secret"
"""Metadata key under which the router shows the cluster's secret."""

ROUTER_KEY = "x-twinpool-router"
"""Metadata key under which a session's streams show one name: work is taken from who holds control."""

MAX_SESSION_MESSAGE_BYTES = 16 * 1024 * 1024
"""A prompt of 128k ids is about 0.4 MB; a message this long is a fault."""

TAKEN_OVER = "another router has taken the worker over"
"""Why a worker ends a session with ABORTED."""

SESSION_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_SESSION_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_SESSION_MESSAGE_BYTES),
    # A peer whose machine is gone says nothing: noticed within ten seconds.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)
