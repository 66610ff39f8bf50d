"""What carries out a prefill desk's turns: the engine, the open pairs, and the session. They are `Hands`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prefill_worker.desk import Word
from twinpool.engine.batch import PrefillChunk
from twinpool.engine.runner import Engine
from twinpool.session.messages import Event
from twinpool.transfer.words import Begin, GiveUp, Renew
from twinpool.worker.handoffs import Handoffs
from twinpool.worker.turn import Copy, CopyEnd


class PrefillHands:
    """Used by the engine's thread alone. publish: takes events to the router."""

    def __init__(self, engine: Engine, handoffs: Handoffs, publish: Callable[[Event], None]) -> None:
        self._engine = engine
        self._handoffs = handoffs
        self._publish = publish

    def say(self, word: Word) -> None:
        if isinstance(word, Begin | Renew | GiveUp):
            self._handoffs.say(word)
        else:
            self._publish(word)

    def copy(self, copy: Copy) -> CopyEnd:
        return self._handoffs.copy(copy)

    def compute(self, step: Sequence[PrefillChunk]) -> Sequence[int | None]:
        return self._engine.prefill(step)
