"""Finds out in the first second, before anything slow is started, whether the ports can be had."""

from __future__ import annotations

import socket

from twinpool.config import ServeConfig
from twinpool.errors import StartFailed


def require_free_ports(config: ServeConfig) -> None:
    """Raise StartFailed, with the system's own reason, for the first port that cannot be listened on."""
    _require_free(config.host, config.port, "--port")
    _require_free(config.ops_host, config.ops_port, "--ops-port")
    _require_free(config.metrics_host, config.metrics_port, "--metrics-port")


def _require_free(host: str, port: int, flag: str) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise StartFailed(
            f"cannot listen on {host}:{port}: {error.strerror}; {flag} 0 takes a free port"
        ) from error
