"""What a desk wants done next, and what comes of it: values, alike for both pools.

A desk is the pure part of a worker: it hears messages and decides; `twinpool.worker.loop` carries out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from twinpool.engine.apart import Failed
from twinpool.types import HandoffId, HolderId, Token

Holder = TypeVar("Holder", bound=HolderId)
Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
Message_co = TypeVar("Message_co", covariant=True)
Message_contra = TypeVar("Message_contra", contravariant=True)
Errand_co = TypeVar("Errand_co", covariant=True)
Errand_contra = TypeVar("Errand_contra", contravariant=True)
Word_co = TypeVar("Word_co", covariant=True)
Word_contra = TypeVar("Word_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy blocks into an accepted hand-off's blocks first, first + 1, …

    is_last: all are there then, and that is said.
    """

    decode: str
    handoff: HandoffId
    blocks: Sequence[int]
    first: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy is done, and its last word said where it was the last."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class CopyStopped:
    """The hand-off had ended before; its pair has said why, or will."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """The transport raised an error of this name; the hand-off has not ended."""

    copy: Copy
    detail: str


CopyEnd = Copied | CopyStopped | CopyFailed


@dataclass(frozen=True, slots=True)
class Turn(Generic[Word_co, Errand_co, Holder, Item]):
    """What to do now. First the words are said, in order: what they let go of may be overwritten after them.

    Then the errands are run, each one's end heard at once; or the step is computed, what each holder has in
    it, and applied. A turn has one of both at most, so that a step is made up by what came of the errands.
    """

    words: Sequence[Word_co] = ()
    errands: Sequence[Errand_co] = ()
    step: Mapping[Holder, Item] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stepped(Generic[Holder, Item]):
    """What came of a step: of each of its items the token drawn, None where none was to be, or why it failed.

    step_s: seconds that it took.
    """

    step: Mapping[Holder, Item]
    results: Sequence[Token | Failed | None]
    step_s: float

    def __iter__(self) -> Iterator[tuple[Holder, Item, Token | Failed | None]]:
        """Holders, with their items and results, in the step's order."""
        for (holder, item), result in zip(self.step.items(), self.results, strict=True):
            yield holder, item, result


class Desk(Protocol[Message_contra, Word_co, Errand_co, Holder, Item]):
    """Owned by its loop's thread. now: seconds on one clock; no decision depends on another.

    Messages are what others say, and how errands end.
    """

    def hear(self, message: Message_contra, now: float) -> None:
        """Take in a message."""
        ...

    def plan(self, now: float) -> Turn[Word_co, Errand_co, Holder, Item]:
        """Decide what is done next. An empty turn stays empty until something is heard, or time passes."""
        ...

    def apply(self, stepped: Stepped[Holder, Item]) -> None:
        """Take in what came of the planned step."""
        ...


class Hands(Protocol[Message_co, Word_contra, Errand_contra, Item_contra]):
    """What carries a desk's turns out; used by its loop's thread. Raises for its own bugs and no peer's."""

    def say(self, word: Word_contra) -> None:
        """Say a word to whom it is for."""
        ...

    def run(self, errand: Errand_contra) -> Message_co:
        """Run an errand; what goes wrong is its end."""
        ...

    def compute(self, step: Sequence[Item_contra]) -> Sequence[Token | None]:
        """Compute a step: for each item the token drawn, None where none is to be. Raises what goes wrong."""
        ...
