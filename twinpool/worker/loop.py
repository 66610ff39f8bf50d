"""The thread of an engine: takes the inbox to the desk, and carries out what the desk plans.

    beat ─► take the inbox: the desk hears ─► the desk plans ─► say ─► run errands: the desk hears,
        or compute a step: the desk applies ─► …

All that takes time or may fail is done here, one thing at a time, and the desk learns what came of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from twinpool.engine.apart import Failed, step_apart
from twinpool.types import HolderId
from twinpool.worker.inbox import Inbox
from twinpool.worker.pulse import Pulse
from twinpool.worker.turn import Desk, Hands, Stepped

log = logging.getLogger(__name__)
IDLE_WAIT_S = 0.25

Message = TypeVar("Message")
Word = TypeVar("Word")
Errand = TypeVar("Errand")
Holder = TypeVar("Holder", bound=HolderId)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker leaves."""


class Loop(Generic[Message, Word, Errand, Holder, Item]):
    """All that reaches the desk comes by its inbox, but for the ends of its own turns. clock: the desk's."""

    def __init__(
        self,
        desk: Desk[Message, Word, Errand, Holder, Item],
        inbox: Inbox[Message | Stop],
        hands: Hands[Message, Word, Errand, Item],
        pulse: Pulse,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._inbox = inbox
        self._hands = hands
        self._pulse = pulse
        self._clock = clock
        self._stopping = False

    def run(self) -> None:
        """Work until `Stop`."""
        moved = False
        while not self._stopping:
            moved = self.turn(0.0 if moved else IDLE_WAIT_S)

    def turn(self, wait_s: float) -> bool:
        """One turn, after a wait of at most wait_s for a message. Whether there may be more to do at once."""
        self._pulse.beat()
        for message in self._inbox.take(wait_s):
            if isinstance(message, Stop):
                self._stopping = True
            else:
                self._desk.hear(message, self._clock())
        turn = self._desk.plan(self._clock())
        for word in turn.words:
            self._hands.say(word)
        for errand in turn.errands:
            self._desk.hear(self._hands.run(errand), self._clock())
        if turn.step:
            self._desk.apply(self._step(turn.step))
        return bool(turn.errands or turn.step)

    def _step(self, step: Mapping[Holder, Item]) -> Stepped[Holder, Item]:
        started = self._clock()
        results = step_apart(self._hands.compute, list(step.values()), self._pulse.beat)
        self._pulse.step_s = self._clock() - started
        stepped = Stepped(step, results, self._pulse.step_s)
        for holder, _, result in stepped:
            if isinstance(result, Failed):
                log.error("%s: its step failed", holder, exc_info=result.error, extra={"holder": holder})
        return stepped
