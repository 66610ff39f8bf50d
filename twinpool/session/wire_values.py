"""What commands and events have in common on the wire, and how an unknown value is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from twinpool.types import HandoffEndpoint
from twinpool.v1 import worker_pb2 as pb

Wire = TypeVar("Wire")
Value = TypeVar("Value")


class UnknownMessage(ValueError):
    """The other side said something this version does not know."""


def known(values: Mapping[Wire, Value], wire: Wire, name: str) -> Value:
    """The value of one off the wire, which errors call by that name. Raises UnknownMessage."""
    if wire not in values:
        raise UnknownMessage(f"unknown {name} {wire!r}")
    return values[wire]


def endpoint_to_pb(endpoint: HandoffEndpoint) -> pb.HandoffEndpoint:
    """Where a decode worker takes hand-offs, for the wire."""
    return pb.HandoffEndpoint(unix_path=endpoint.unix_path, actor_name=endpoint.actor_name)


def endpoint_from_pb(endpoint: pb.HandoffEndpoint) -> HandoffEndpoint:
    """Where a decode worker takes hand-offs, off the wire."""
    return HandoffEndpoint(endpoint.unix_path, endpoint.actor_name)
