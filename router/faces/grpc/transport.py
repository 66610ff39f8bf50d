"""What one client's connection may ask of the transport: sizes, streams, pings and silence.

These are gRPC's own limits, for both servers; what a message may contain is the entrance's affair.
"""

from __future__ import annotations

from router.entrance.open_calls import MAX_MESSAGE_BYTES

Options = tuple[tuple[str, int], ...]

MAX_METADATA_BYTES = 16 * 1024
"""Of a call's metadata together. gRPC refuses by chance between a soft and a hard limit; ours are equal."""

MAX_STREAMS = 4096
"""Open calls of one connection; a client keeps further ones back. Four times the default queue, since a full
queue must be told to clients, not hidden in a gateway that sends everybody's calls over one connection."""

MIN_PING_INTERVAL_MS = 5_000
"""A client may ping this often while nothing is sent to it. Common clients allow 10 s at the least, and a
timer that fires a little early is no offence."""

MAX_PING_STRIKES = 2
"""Pings too early before the connection is closed (GOAWAY, ENHANCE_YOUR_CALM); data sent forgives them."""

MAX_IDLE_MS = 10 * 60_000
"""A connection that has had no call for so long is closed, pings or not; its client opens another one with
the next call. There is no limit of age: it would serve to spread clients over several routers."""

MAX_HANDSHAKE_MS = 20_000
"""A connection that has not begun to speak HTTP/2 by then is closed."""

SERVER_OPTIONS: Options = (
    # A port in use must be an error, not a second server that takes half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ("grpc.http2.max_ping_strikes", MAX_PING_STRIKES),
    # Many clients ping every 30 s even without a call; the default would close their connections.
    ("grpc.keepalive_permit_without_calls", 1),
    # Finds clients whose machine or network is gone, so that their requests end.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", MAX_IDLE_MS),
    ("grpc.server_handshake_timeout_ms", MAX_HANDSHAKE_MS),
)
