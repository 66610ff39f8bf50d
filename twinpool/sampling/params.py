"""What decides how tokens are chosen: `SamplingOptions` as clients ask it, `SamplingParams` complete.

A new field is written here, in `sampling.proto`, and where tokens are drawn. The command line's flags, the
client's options, the checks of both ends and the messages to workers follow from these two classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, get_args, get_type_hints

from twinpool.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from low to high, both included but for a low that is open."""

    low: float
    high: float = math.inf
    low_is_open: bool = False

    def __contains__(self, number: float) -> bool:
        # NaN fails every comparison, so it is in no range.
        return self.low <= number <= self.high and not (self.low_is_open and number == self.low)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"at least {self.low:g}"
        if self.low_is_open:
            return f"in ({self.low:g}, {self.high:g}]"
        return f"in {self.low:g}..{self.high:g}"


class SamplingOptions(TypedDict, total=False):
    """What a client may ask for. An absent or None value leaves the default."""

    max_tokens: int | None
    """Most tokens to produce; by default whatever still fits."""
    temperature: float | None
    """0 takes the most likely token; 1 by default."""
    top_k: int | None
    """Keep only this many of the most likely tokens; 0 keeps all, as by default."""
    top_p: float | None
    """Keep the smallest set of most likely tokens whose probability reaches this; 1 by default."""
    seed: int | None
    """The same seed gives the same tokens; drawn by the server by default."""
    ignore_eos: bool | None
    """Go on past the model's end-of-sequence token."""
    min_p: float | None
    """Drop tokens less likely than this share of the likeliest one, before top_k and top_p; 0 by default."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one choice's tokens are chosen and counted, complete.

    max_tokens: of the whole choice, earlier attempts' included. temperature: 0 takes the most likely token.
    top_k: 0 keeps all tokens. seed: a token's random number depends on (seed, choice, position) alone.
    """

    max_tokens: Annotated[int, Range(1)]
    temperature: Annotated[float, Range(0, 100)] = 1.0
    top_k: Annotated[int, Range(0)] = 0
    top_p: Annotated[float, Range(0, 1, low_is_open=True)] = 1.0
    seed: Annotated[int, Range(0)] = 0
    ignore_eos: bool = False
    min_p: Annotated[float, Range(0, 1)] = 0.0


RANGES: Mapping[str, Range] = {
    name: each
    for name, hint in get_type_hints(SamplingParams, include_extras=True).items()
    for each in get_args(hint)[1:]
    if isinstance(each, Range)
}


def check_ranges(asked: SamplingOptions, path: str = "sampling.") -> None:
    """Raise InvalidRequest for the first value out of its range. path: where the request has the fields."""
    given: Mapping[str, Any] = asked
    for name, range_ in RANGES.items():
        value = given.get(name)
        if value is not None and value not in range_:
            raise InvalidRequest(path + name, f"{path}{name} must be {range_}, not {value:g}")


def completed(asked: SamplingOptions, *, max_tokens: int, seed: int) -> SamplingParams:
    """With defaults for what was not asked. max_tokens: what will be served. seed: if none was asked."""
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return SamplingParams(**({"seed": seed} | given | {"max_tokens": max_tokens}))
