"""Whatever router and workers can say to each other arrives as it was said."""

from __future__ import annotations

from enum import StrEnum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinpool.session import messages as m
from twinpool.session.codec import CONTROL_COMMANDS, CONTROL_EVENTS, WORK_COMMANDS, WORK_EVENTS, Direction
from twinpool.v1 import worker_pb2 as pb
from twinpool.wire import UnknownMessage

DIRECTIONS: dict[str, tuple[Direction[Any, Any], Any, Any]] = {
    "control commands": (CONTROL_COMMANDS, m.ControlCommand, pb.ControlRequest),
    "control events": (CONTROL_EVENTS, m.ControlEvent, pb.ControlResponse),
    "work commands": (WORK_COMMANDS, m.WorkCommand, pb.WorkRequest),
    "work events": (WORK_EVENTS, m.WorkEvent, pb.WorkResponse),
}
each_message = pytest.mark.parametrize(
    ("direction", "envelope", "kind"),
    [
        pytest.param(direction, envelope, kind, id=f"{name}-{kind.__name__}")
        for name, (direction, said, envelope) in DIRECTIONS.items()
        for kind in get_args(said)
    ],
)
WIDE = {"seed", "place", "kv_bytes", "num_bytes", "step", "rss_bytes"}
SIGNED = {"max_tokens", "top_k"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def values(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Anything that a field of this type may hold."""
    hint = getattr(hint, "__supertype__", hint)
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
    hint = getattr(hint, "__supertype__", hint)
    if hint in (int, float, str, bool):
        return hint(7)
    if get_origin(hint) in (Union, UnionType):
        return filled(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return (filled(get_args(hint)[0]),)
    if issubclass(hint, StrEnum):
        return list(hint)[-1]
    return hint(*map(filled, get_type_hints(hint).values()))


@each_message
def test_no_field_is_lost(direction: Direction[Any, Any], envelope: Any, kind: type) -> None:
    wire = direction.encode(filled(kind)).SerializeToString()
    assert direction.decode(envelope.FromString(wire)) == filled(kind)


@each_message
@settings(max_examples=25)
@given(st.data())
def test_every_message_arrives_as_it_was_sent(
    direction: Direction[Any, Any], envelope: Any, kind: type, data: st.DataObject
) -> None:
    said = data.draw(values(kind))
    wire = direction.encode(said).SerializeToString()
    assert direction.decode(envelope.FromString(wire)) == said


def test_what_may_be_said_and_what_the_wire_holds_are_the_same() -> None:
    kinds = tuple(each for each in get_args(m.WorkCommand) if each is not m.Audit)
    with pytest.raises(TypeError, match="Audit"):
        Direction(kinds, pb.WorkRequest, "command")


def test_every_message_has_one_stream() -> None:
    kinds = [kind for _, said, _ in DIRECTIONS.values() for kind in get_args(said)]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == {*get_args(m.Command), *get_args(m.Event)}


@pytest.mark.parametrize(("direction", "said", "envelope"), DIRECTIONS.values(), ids=DIRECTIONS)
def test_an_unknown_message_is_refused_typed(
    direction: Direction[Any, Any], said: Any, envelope: Any
) -> None:
    with pytest.raises(UnknownMessage):
        direction.decode(envelope())


@pytest.mark.parametrize(
    "response",
    [
        pb.WorkResponse(prefill_ended=pb.PrefillEnded(handoff="a")),
        pb.WorkResponse(prefill_ended=pb.PrefillEnded(handoff="a", outcome=99)),  # type: ignore[arg-type]
        pb.WorkResponse(released=pb.Released(holder="a")),
        pb.ControlResponse(hello=pb.Hello()),
        pb.WorkResponse(first_token=pb.FirstToken(finish_reason=99)),  # type: ignore[arg-type]
    ],
)
def test_a_known_message_with_an_unknown_value_is_refused_typed(
    response: pb.WorkResponse | pb.ControlResponse,
) -> None:
    direction: Direction[Any, Any] = (
        CONTROL_EVENTS if isinstance(response, pb.ControlResponse) else WORK_EVENTS
    )
    with pytest.raises(UnknownMessage):
        direction.decode(response)
