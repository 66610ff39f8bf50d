"""What carries out a prefill desk's turns: the engine, the open pairs, and the session. They are `Hands`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prefill_worker.desk import Word
from twinpool.engine.batch import PrefillChunk
from twinpool.engine.runner import Engine
from twinpool.session.messages import Event
from twinpool.transfer.words import Begin, GiveUp, Renew
from twinpool.types import Token
from twinpool.worker.courier import Courier
from twinpool.worker.turn import Copy, CopyEnd


class PrefillHands:
    """Used by the engine's thread alone. publish: takes events to the router."""

    def __init__(self, engine: Engine, courier: Courier, publish: Callable[[Event], None]) -> None:
        self._engine = engine
        self._courier = courier
        self._publish = publish

    def say(self, word: Word) -> None:
        if isinstance(word, Begin | Renew | GiveUp):
            self._courier.say(word)
        else:
            self._publish(word)

    def run(self, errand: Copy) -> CopyEnd:
        return self._courier.copy(errand)

    def compute(self, step: Sequence[PrefillChunk]) -> Sequence[Token | None]:
        return self._engine.prefill(step)
