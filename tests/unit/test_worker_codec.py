"""Whatever router and workers can say to each other arrives as it was said."""

from __future__ import annotations

from enum import StrEnum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinpool.session import messages as m
from twinpool.session.codec import COMMANDS, EVENTS, Direction
from twinpool.v1 import worker_pb2 as pb
from twinpool.wire import UnknownMessage

COMMAND_KINDS: tuple[type, ...] = get_args(m.Command)
EVENT_KINDS: tuple[type, ...] = get_args(m.Event)
WIDE = {"seed", "place", "kv_bytes", "num_bytes", "step", "rss_bytes"}
SIGNED = {"max_tokens", "top_k"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def values(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Anything that a field of this type may hold."""
    if hint is int:
        return st.integers(0, 2**64 - 1 if name in WIDE else 2**31 - 1 if name in SIGNED else 2**32 - 1)
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


def filled(hint: Any) -> Any:
    """A value of this type in which no field has what an absent one would have."""
    if hint in (int, float, str, bool):
        return hint(7)
    if get_origin(hint) in (Union, UnionType):
        return filled(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return (filled(get_args(hint)[0]),)
    if issubclass(hint, StrEnum):
        return list(hint)[-1]
    return hint(*map(filled, get_type_hints(hint).values()))


@pytest.mark.parametrize("kind", COMMAND_KINDS)
def test_no_field_of_a_command_is_lost(kind: type) -> None:
    assert COMMANDS.decode(COMMANDS.encode(filled(kind))) == filled(kind)


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_no_field_of_an_event_is_lost(kind: type) -> None:
    assert EVENTS.decode(EVENTS.encode(filled(kind))) == filled(kind)


@pytest.mark.parametrize("kind", COMMAND_KINDS)
@settings(max_examples=25)
@given(st.data())
def test_every_command_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    command = data.draw(values(kind))
    wire = COMMANDS.encode(command).SerializeToString()
    assert COMMANDS.decode(pb.SessionRequest.FromString(wire)) == command


@pytest.mark.parametrize("kind", EVENT_KINDS)
@settings(max_examples=25)
@given(st.data())
def test_every_event_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    event = data.draw(values(kind))
    wire = EVENTS.encode(event).SerializeToString()
    assert EVENTS.decode(pb.SessionResponse.FromString(wire)) == event


def test_what_may_be_said_and_what_the_wire_holds_are_the_same() -> None:
    kinds = tuple(each for each in COMMAND_KINDS if each is not m.Audit)
    with pytest.raises(TypeError, match="Audit"):
        Direction(kinds, pb.SessionRequest, "command")


def test_an_unknown_message_is_refused_typed() -> None:
    with pytest.raises(UnknownMessage):
        COMMANDS.decode(pb.SessionRequest())
    with pytest.raises(UnknownMessage):
        EVENTS.decode(pb.SessionResponse())


@pytest.mark.parametrize(
    "response",
    [
        pb.SessionResponse(prefill_ended=pb.PrefillEnded(attempt="a")),
        pb.SessionResponse(prefill_ended=pb.PrefillEnded(attempt="a", outcome=99)),  # type: ignore[arg-type]
        pb.SessionResponse(released=pb.Released(attempt="a")),
        pb.SessionResponse(hello=pb.Hello()),
        pb.SessionResponse(first_token=pb.FirstToken(finish_reason=99)),  # type: ignore[arg-type]
    ],
)
def test_a_known_message_with_an_unknown_value_is_refused_typed(response: pb.SessionResponse) -> None:
    with pytest.raises(UnknownMessage):
        EVENTS.decode(response)
