"""Where ids of hand-offs and attempts are made."""

from __future__ import annotations

import itertools

from twinpool.types import AttemptId, HandoffId


class Ids:
    """Draws ids that are unique for all time. epoch: this router's life, in a word that no other has."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._handoffs = itertools.count(1)
        self._attempts = itertools.count(1)

    def handoff(self) -> HandoffId:
        """A new hand-off's."""
        return HandoffId(f"{self._epoch}-h{next(self._handoffs)}")

    def attempt(self) -> AttemptId:
        """A new attempt's."""
        return AttemptId(f"{self._epoch}-a{next(self._attempts)}")
