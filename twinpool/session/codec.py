"""Turns what router and workers say to each other into protobuf and back.

The envelope of each direction of a stream has a oneof with one message for each dataclass, of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, get_args

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from twinpool.session.messages import ControlCommand, ControlEvent, WorkCommand, WorkEvent
from twinpool.v1 import worker_pb2 as pb
from twinpool.wire import Codec, UnknownMessage

Said = TypeVar("Said")
Envelope = TypeVar("Envelope", bound=Message)


class Direction(Generic[Said, Envelope]):
    """What is said in one direction of a stream. TypeError where the oneof does not hold just that."""

    def __init__(self, said: tuple[type, ...], envelope: type[Envelope], oneof: str) -> None:
        self._envelope, self._oneof = envelope, oneof
        fields: Sequence[Any] = envelope.DESCRIPTOR.oneofs_by_name[oneof].fields
        places = {each.message_type.name: each for each in fields}
        kinds = {each.__name__: each for each in said}
        if kinds.keys() != places.keys():
            raise TypeError(f"{oneof}s differ from what the wire holds: {kinds.keys() ^ places.keys()}")
        self._by_kind: dict[type, tuple[str, Codec[Any, Any]]] = {
            kind: (places[name].name, Codec(kind, GetMessageClass(places[name].message_type)))
            for name, kind in kinds.items()
        }
        self._by_place = dict(self._by_kind.values())

    def encode(self, said: Said) -> Envelope:
        """For the wire. Raises TypeError or ValueError where a value does not fit its field."""
        place, codec = self._by_kind[type(said)]
        return self._envelope(**{place: codec.fields(said)})

    def decode(self, envelope: Envelope) -> Said:
        """Off the wire. Raises UnknownMessage."""
        place = envelope.WhichOneof(self._oneof)
        if place is None:
            raise UnknownMessage(f"unknown {self._oneof}")
        said: Said = self._by_place[place].decode(getattr(envelope, place))
        return said


CONTROL_COMMANDS: Direction[ControlCommand, pb.ControlRequest] = Direction(
    get_args(ControlCommand), pb.ControlRequest, "command"
)
CONTROL_EVENTS: Direction[ControlEvent, pb.ControlResponse] = Direction(
    get_args(ControlEvent), pb.ControlResponse, "event"
)
WORK_COMMANDS: Direction[WorkCommand, pb.WorkRequest] = Direction(
    get_args(WorkCommand), pb.WorkRequest, "command"
)
WORK_EVENTS: Direction[WorkEvent, pb.WorkResponse] = Direction(get_args(WorkEvent), pb.WorkResponse, "event")
