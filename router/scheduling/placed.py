"""The current attempts, the hand-offs that they are of, and the rows that move: books, and no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router.scheduling.phases import Phase
from router.scheduling.requests import NO_ATTEMPT, Choice, Handoff, Move
from twinpool.types import AttemptId, HandoffId, HolderId


class Placed:
    """Finds choices by what workers call them: by attempt, by hand-off, by worker."""

    def __init__(self) -> None:
        self._current: dict[HolderId, Choice] = {}
        self._handoffs: dict[HolderId, Handoff] = {}
        self._moving: dict[HolderId, Choice] = {}
        # Those set back before their prefill worker's last word, which may say more than was known then.
        self._set_back: dict[HandoffId, Handoff] = {}

    def __len__(self) -> int:
        return len(self._current)

    # Finding.

    def current(self, attempt: AttemptId, *phases: Phase) -> Choice | None:
        """The choice whose current attempt this is, if it is in one of the phases (none given: in any)."""
        choice = self._current.get(attempt)
        return choice if choice is not None and (not phases or choice.phase in phases) else None

    def handoff(self, handoff: HandoffId) -> Handoff | None:
        """The hand-off, if it is current."""
        return self._handoffs.get(handoff)

    def held_by(self, holder: HolderId, *phases: Phase) -> list[Choice]:
        """The choices whose current attempts are of this hand-off, or the one whose attempt this is."""
        handoff = self._handoffs.get(holder)
        attempts: Iterable[HolderId] = handoff.choices if handoff else (holder,)
        choices = [self._current[attempt] for attempt in attempts if attempt in self._current]
        return [choice for choice in choices if not phases or choice.phase in phases]

    def read_for(self, handoff: HandoffId) -> Mapping[AttemptId, Choice]:
        """Attempts that a prompt is read for, with those set back that its prefill worker may not know of."""
        held = self._handoffs.get(handoff) or self._set_back.get(handoff)
        return held.choices if held else {}

    def on(self, worker_id: str) -> list[Choice]:
        """Choices whose current attempt uses a worker, the oldest first."""
        choices = self._current.values()
        placed = [choice for choice in choices if worker_id in (choice.prefill_id, choice.decode_id)]
        return sorted(placed, key=lambda choice: choice.place)

    def moving(self, handoff: HolderId) -> Choice | None:
        """The choice whose row is moving by this hand-off."""
        return self._moving.get(handoff)

    def moving_to(self, worker_id: str) -> list[Choice]:
        """Choices whose rows are moving to a worker, the oldest first."""
        choices = self._moving.values()
        moving = [choice for choice in choices if choice.move and choice.move.decode_id == worker_id]
        return sorted(moving, key=lambda choice: choice.place)

    # Keeping.

    def place(self, choice: Choice, handoff_id: HandoffId, attempt: AttemptId) -> Handoff:
        """This attempt of the choice is current from now on, and so is the hand-off."""
        handoff = Handoff(handoff_id, {attempt: choice})
        choice.handoff, choice.attempt = handoff, attempt
        self._handoffs[handoff_id] = handoff
        self._current[attempt] = choice
        return handoff

    def forget(self, choice: Choice) -> Handoff:
        """Its attempt is not current any more, nor is the hand-off once none of its attempts is."""
        handoff = choice.handoff
        assert handoff is not None  # noqa: S101 (it has an attempt)
        del self._current[choice.attempt]
        if not any(attempt in self._current for attempt in handoff.choices):
            del self._handoffs[handoff.id]
        choice.handoff, choice.attempt = None, NO_ATTEMPT
        return handoff

    def awaits_last_word(self, handoff: Handoff) -> None:
        """It was set back, and its prefill worker has not said its last word of it."""
        self._set_back[handoff.id] = handoff

    def no_word_follows(self, handoffs: Iterable[HandoffId]) -> None:
        """The prefill worker of these hand-offs has said its last of them, or will not."""
        for handoff in handoffs:
            self._set_back.pop(handoff, None)

    def moves(self, choice: Choice, move: Move) -> None:
        """The choice's row is moving."""
        choice.move = move
        self._moving[move.handoff] = choice

    def moves_no_more(self, choice: Choice) -> Move:
        """The row's move is over."""
        move = choice.move
        assert move is not None  # noqa: S101 (it moves)
        del self._moving[move.handoff]
        choice.move = None
        return move
