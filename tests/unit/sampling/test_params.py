"""A sampling field is the same wherever it is named: asked, completed, on the wire, and as a flag."""

from __future__ import annotations

import math
from types import NoneType
from typing import get_args, get_type_hints

import pytest

from twinpool.errors import InvalidRequest
from twinpool.sampling.params import RANGES, SamplingOptions, SamplingParams, check_ranges, completed
from twinpool.v1 import sampling_pb2 as pb
from twinpool.wire import Codec, UnknownMessage

CODEC = Codec(SamplingParams, pb.SamplingParams)


def test_what_may_be_asked_is_what_is_completed() -> None:
    asked = {name: set(get_args(hint)) for name, hint in get_type_hints(SamplingOptions).items()}
    assert asked == {name: {hint, NoneType} for name, hint in get_type_hints(SamplingParams).items()}


def test_the_wire_has_the_same_fields_and_says_of_each_whether_it_is_there() -> None:
    fields = pb.SamplingParams.DESCRIPTOR.fields_by_name
    assert set(fields) == set(SamplingOptions.__annotations__)
    assert all(field.has_presence for field in fields.values())


def test_every_number_has_a_range_that_its_default_is_in() -> None:
    params = SamplingParams(max_tokens=1)
    numbers = {name for name, hint in get_type_hints(SamplingParams).items() if hint is not bool}
    assert set(RANGES) == numbers
    assert all(getattr(params, name) in RANGES[name] for name in RANGES)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (SamplingOptions(max_tokens=0), "sampling.max_tokens must be at least 1, not 0"),
        (SamplingOptions(temperature=-0.5), "sampling.temperature must be in 0..100, not -0.5"),
        (SamplingOptions(temperature=math.nan), "sampling.temperature must be in 0..100, not nan"),
        (SamplingOptions(temperature=math.inf), "sampling.temperature must be in 0..100, not inf"),
        (SamplingOptions(top_k=-1), "sampling.top_k must be at least 0, not -1"),
        (SamplingOptions(top_p=0.0), "sampling.top_p must be in (0, 1], not 0"),
        (SamplingOptions(top_p=1.5), "sampling.top_p must be in (0, 1], not 1.5"),
    ],
)
def test_a_refusal_names_field_range_and_value(asked: SamplingOptions, words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_ranges(asked)
    assert raised.value.message == words
    assert raised.value.field == words.partition(" ")[0]


def test_the_edges_of_a_range_are_in_it() -> None:
    check_ranges(SamplingOptions(max_tokens=1, temperature=0.0, top_k=0, top_p=1.0, seed=2**64 - 1))
    check_ranges(SamplingOptions(temperature=100.0, top_p=None))


def test_what_is_not_asked_takes_its_default() -> None:
    asked = SamplingOptions(temperature=0.0, top_p=None, seed=0)
    assert completed(asked, max_tokens=7, seed=3) == SamplingParams(7, temperature=0.0, seed=0)
    assert completed(SamplingOptions(max_tokens=9), max_tokens=7, seed=3) == SamplingParams(7, seed=3)


def test_a_field_the_other_side_does_not_know_yet_reads_as_its_default() -> None:
    assert CODEC.decode(pb.SamplingParams(max_tokens=7, top_k=0)) == SamplingParams(7)
    with pytest.raises(UnknownMessage, match="max_tokens"):
        CODEC.decode(pb.SamplingParams(temperature=0.5))
