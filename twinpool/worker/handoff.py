"""One hand-off as its writer sees it: how far it is, and what is said and copied next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from twinpool.transfer.words import Begin, GiveUp
from twinpool.worker.turn import Copy


class State(Enum):
    """OVER: it has been stopped, and its pair has said why, or will."""

    TO_BEGIN = auto()
    ASKED = auto()
    ACCEPTED = auto()
    OVER = auto()


@dataclass(slots=True)
class Handoff:
    """attempt: of the reservation that is written. num_copied: blocks, from the first on."""

    decode: str
    attempt: str
    state: State = State.TO_BEGIN
    num_copied: int = 0

    def begin(self) -> list[Begin]:
        """What is to be said to begin it, if that has not been said."""
        if self.state is not State.TO_BEGIN:
            return []
        self.state = State.ASKED
        return [Begin(self.decode, self.attempt)]

    def give_up(self) -> list[GiveUp]:
        """What is to be said to end it before it is whole, if it has begun."""
        begun = self.state in (State.ASKED, State.ACCEPTED)
        self.state = State.OVER
        return [GiveUp(self.decode, self.attempt)] if begun else []

    def copy(self, blocks: Sequence[int], end: int, *, is_last: bool) -> Copy | None:
        """The copy of what is not copied of blocks[:end], if there is any and the decode worker takes it."""
        if self.state is not State.ACCEPTED or end <= self.num_copied:
            return None
        return Copy(self.decode, self.attempt, blocks[self.num_copied : end], self.num_copied, is_last)
