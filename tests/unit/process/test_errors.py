"""Every typed error survives pickle and copy, whatever its constructor asks for."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator

import pytest

import twinpool.client.errors  # noqa: F401 (more kinds)
from twinpool.config import ConfigError
from twinpool.errors import TwinpoolError
from twinpool.resources import ResourcesError


def _kinds(base: type[TwinpoolError] = TwinpoolError) -> Iterator[type[TwinpoolError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


def _made(kind: type[TwinpoolError]) -> TwinpoolError:
    """One with something in each field its constructor takes."""
    given: dict[str, object] = {
        "message": "m",
        "field": "f",
        "phase": "decode",
        "log_id": "1f",
        "retry_after_s": 2.5,
    }
    takes = inspect.signature(kind).parameters
    return kind(**{name: given[name] for name in takes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", sorted(set(_kinds()), key=str))
@pytest.mark.parametrize(
    "passed_on", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]
)
def test_an_error_says_the_same_on_the_other_side(kind: type[TwinpoolError], passed_on: object) -> None:
    assert callable(passed_on)
    error = _made(kind)
    error.add_note("where it was")
    there = passed_on(error)
    assert type(there) is kind
    assert (str(there), vars(there)) == (str(error), vars(error))


@pytest.mark.parametrize("kind", [ConfigError, ResourcesError])
def test_so_do_those_that_are_plain(kind: type[ValueError]) -> None:
    there = pickle.loads(pickle.dumps(kind("a knob")))
    assert (type(there), str(there)) == (kind, "a knob")
