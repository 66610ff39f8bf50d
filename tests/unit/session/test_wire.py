"""A dataclass and a message that differ are told apart before anything is said."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import pytest

from twinpool.types import FinishReason, Pool, Token
from twinpool.v1 import inference_pb2, operations_pb2, types_pb2, worker_pb2
from twinpool.views import Hop
from twinpool.wire import Codec, numbers


@dataclass(frozen=True)
class Leave:
    """Fits LeavePair."""

    decode: str


@dataclass(frozen=True)
class Longer:
    """A field too many."""

    decode: str
    why: str


@dataclass(frozen=True)
class Number:
    """A number where the wire has text."""

    decode: int


@dataclass(frozen=True)
class Several:
    """Several where the wire has one."""

    decode: tuple[str, ...]


@dataclass(frozen=True)
class Absent:
    """May be absent where the wire cannot say so."""

    decode: str | None


class AbortOutcome(StrEnum):
    """One value too few."""

    ABORTED = "aborted"


@dataclass(frozen=True)
class Result:
    """Its enum is not the wire's."""

    request_id: str
    outcome: AbortOutcome


@dataclass(frozen=True)
class Row:
    """Fits RowToken."""

    attempt: str
    position: int
    token: Token
    finish_reason: FinishReason | None


def test_what_fits_is_copied() -> None:
    message = Codec(Leave, worker_pb2.LeavePair).encode(Leave("d0"))
    assert message == worker_pb2.LeavePair(decode="d0")
    assert Codec(Leave, worker_pb2.LeavePair).decode(message) == Leave("d0")


@pytest.mark.parametrize("kind", [Longer, Number, Several, Absent])
def test_what_does_not_fit_has_no_codec(kind: type) -> None:
    with pytest.raises(TypeError, match="LeavePair"):
        Codec(kind, worker_pb2.LeavePair)


def test_an_enum_with_other_values_has_no_codec() -> None:
    with pytest.raises(TypeError, match="AbortOutcome"):
        Codec(Result, inference_pb2.AbortResult)


def test_an_enum_has_the_wires_numbers_by_name() -> None:
    assert numbers(Pool, types_pb2.Pool) == {Pool.PREFILL: 1, Pool.DECODE: 2}
    hops = numbers(Hop, operations_pb2.Hop, zero=Hop.NONE)
    assert list(hops.values()) == [0, 1, 2, 3, 4, 5]
    assert (hops[Hop.NONE], hops[Hop.DECODE]) == (0, 5)


@pytest.mark.parametrize("names", ["PREFILL", "PREFILL DECODE BOTH"])
def test_an_enum_with_a_name_that_one_side_lacks_has_no_numbers(names: str) -> None:
    with pytest.raises(TypeError, match="Pool"):
        numbers(cast("type[StrEnum]", StrEnum("Pool", names)), types_pb2.Pool)


def test_an_absent_enum_is_its_zero() -> None:
    codec = Codec(Row, worker_pb2.RowToken)
    assert codec.encode(Row("a", 1, Token(2), None)) == worker_pb2.RowToken(
        attempt="a", position=1, token=worker_pb2.Token(id=2)
    )
    assert codec.decode(worker_pb2.RowToken(attempt="a")).finish_reason is None


def test_a_value_that_does_not_fit_its_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="range"):
        Codec(Row, worker_pb2.RowToken).encode(Row("a", -1, Token(2), None))
