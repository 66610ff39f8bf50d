"""Finds out within seconds that nobody answers at a cluster's address: Ray itself would try for minutes."""

from __future__ import annotations

import os
import socket

import grpc

from twinpool.channels import cluster_channel
from twinpool.errors import StartFailed

ANSWER_TIMEOUT_S = 5.0


def require_answer(address: str) -> None:
    """Raise StartFailed, with the address, unless somebody listens there and speaks gRPC, as Ray does."""
    found = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    place = found.removeprefix("ray://")
    host, _, port = place.rpartition(":")
    if not port.isdecimal():
        return  # Ray looks on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise StartFailed(f"no Ray cluster answers at {found}: {error}") from error
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):  # else only Ray has the keys
        _require_grpc(found, place)


def _require_grpc(address: str, place: str) -> None:
    with cluster_channel(place, ()) as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER_TIMEOUT_S)
        except grpc.FutureTimeoutError as error:
            silent = f"who listens there has said nothing of gRPC within {ANSWER_TIMEOUT_S:g} s"
            raise StartFailed(f"no Ray cluster answers at {address}: {silent}") from error
