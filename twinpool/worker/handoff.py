"""One hand-off as its writer sees it: how far it is, and what is said and copied next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from twinpool.transfer.words import Begin, GiveUp
from twinpool.types import HandoffId
from twinpool.worker.turn import Copy


class State(Enum):
    """OVER: it has been stopped, and its pair has said why, or will."""

    TO_BEGIN = auto()
    ASKED = auto()
    ACCEPTED = auto()
    OVER = auto()


@dataclass(slots=True)
class Handoff:
    """id: that of the reservation which is written.

    num_shared: blocks, from the first on, that were there before. num_copied: blocks behind those.
    """

    decode: str
    id: HandoffId
    state: State = State.TO_BEGIN
    num_shared: int = 0
    num_copied: int = 0

    @property
    def num_there(self) -> int:
        """Blocks, from the first on, that the decode worker has."""
        return self.num_shared + self.num_copied

    def begin(self) -> list[Begin]:
        """What is to be said to begin it, if that has not been said."""
        if self.state is not State.TO_BEGIN:
            return []
        self.state = State.ASKED
        return [Begin(self.decode, self.id)]

    def accept(self, num_shared: int) -> None:
        """The decode worker takes copies, of all but the first num_shared blocks."""
        self.state, self.num_shared = State.ACCEPTED, num_shared

    def give_up(self) -> list[GiveUp]:
        """What is to be said to end it before it is whole, if it has begun."""
        begun = self.state in (State.ASKED, State.ACCEPTED)
        self.state = State.OVER
        return [GiveUp(self.decode, self.id)] if begun else []

    def copy(self, blocks: Sequence[int], end: int, *, is_last: bool) -> Copy | None:
        """The copy of what is not there of blocks[:end], if it is taken. Only the last may be empty."""
        if self.state is not State.ACCEPTED or not (is_last or end > self.num_there):
            return None
        return Copy(self.decode, self.id, blocks[self.num_there : end], self.num_copied, is_last)
