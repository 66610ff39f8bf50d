"""Whatever router and workers can say to each other arrives as it was said."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinpool.session import messages as m
from twinpool.session.command_codec import command_from_pb, command_to_pb
from twinpool.session.event_codec import event_from_pb, event_to_pb
from twinpool.session.wire_values import UnknownMessage
from twinpool.v1 import worker_pb2 as pb

COMMANDS: tuple[type, ...] = get_args(m.Command)
EVENTS: tuple[type, ...] = get_args(m.Event)
WIDE = {"seed", "arrival", "kv_bytes", "num_bytes", "step", "rss_bytes"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def values(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Anything that a field of this type may hold."""
    if hint is int:
        return st.integers(0, 2**64 - 1 if name in WIDE else 2**32 - 1)
    if hint is float:
        return st.floats(width=32, allow_nan=False)
    if hint is str:
        return TEXT
    if hint is bool:
        return st.booleans()
    if hint is type(None):
        return st.none()
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*(values(each, name) for each in get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    if issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    fields = {name: values(hint, name) for name, hint in get_type_hints(hint).items()}
    return st.builds(hint, **fields)


@pytest.mark.parametrize("kind", COMMANDS)
@settings(max_examples=25)
@given(st.data())
def test_every_command_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    command = data.draw(values(kind))
    wire = command_to_pb(command).SerializeToString()
    assert command_from_pb(pb.SessionRequest.FromString(wire)) == command


@pytest.mark.parametrize("kind", EVENTS)
@settings(max_examples=25)
@given(st.data())
def test_every_event_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    event = data.draw(values(kind))
    wire = event_to_pb(event).SerializeToString()
    assert event_from_pb(pb.SessionResponse.FromString(wire)) == event


def test_the_wire_has_a_place_for_every_message_and_for_nothing_else() -> None:
    assert len(pb.SessionRequest.DESCRIPTOR.oneofs_by_name["command"].fields) == len(COMMANDS)
    assert len(pb.SessionResponse.DESCRIPTOR.oneofs_by_name["event"].fields) == len(EVENTS)


@pytest.mark.parametrize("kind", [*COMMANDS, *EVENTS])
def test_the_wire_has_a_field_for_every_field(kind: type) -> None:
    wire = pb.DESCRIPTOR.message_types_by_name[kind.__name__]
    assert {field.name for field in dataclasses.fields(kind)} == set(wire.fields_by_name)


def test_an_unknown_message_is_refused_typed() -> None:
    with pytest.raises(UnknownMessage):
        command_from_pb(pb.SessionRequest())
    with pytest.raises(UnknownMessage):
        event_from_pb(pb.SessionResponse())


@pytest.mark.parametrize(
    "response",
    [
        pb.SessionResponse(prefill_ended=pb.PrefillEnded(attempt="a")),
        pb.SessionResponse(prefill_ended=pb.PrefillEnded(attempt="a", outcome=99)),  # type: ignore[arg-type]
        pb.SessionResponse(released=pb.Released(attempt="a")),
        pb.SessionResponse(hello=pb.Hello(pool="kitchen")),
        pb.SessionResponse(first_token=pb.FirstToken(finish_reason="boredom")),
    ],
)
def test_a_known_message_with_an_unknown_value_is_refused_typed(response: pb.SessionResponse) -> None:
    with pytest.raises(UnknownMessage):
        event_from_pb(response)
