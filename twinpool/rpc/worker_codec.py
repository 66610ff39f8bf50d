"""Turns what router and workers say to each other into protobuf and back."""

from __future__ import annotations

from twinpool.rpc.command_codec import command_from_pb, command_to_pb
from twinpool.rpc.event_codec import event_from_pb, event_to_pb
from twinpool.rpc.wire_values import UnknownMessage

__all__ = ["UnknownMessage", "command_from_pb", "command_to_pb", "event_from_pb", "event_to_pb"]
