"""What carries out a decode desk's turns: engine, open pairs, custody and session. They are `Hands`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decode_worker.custody import Custody
from decode_worker.desk import Books, Errand, Grow, Grown, Paused, RowLeft, TokensDrawn, Word
from twinpool.engine.batch import DecodeRow
from twinpool.engine.runner import Engine
from twinpool.session.messages import Audit, Event, MoveFailed, RowMoved
from twinpool.transfer.words import Begin, GiveUp, Renew
from twinpool.types import Token
from twinpool.worker.courier import Courier
from twinpool.worker.turn import CopyEnd


class DecodeHands:
    """Used by the engine's thread alone. ask_again: takes an audit to the desk that cannot be answered yet.

    publish: takes events to the router.
    """

    def __init__(
        self,
        engine: Engine,
        courier: Courier,
        custody: Custody,
        ask_again: Callable[[Audit], None],
        publish: Callable[[Event], None],
    ) -> None:
        self._engine = engine
        self._courier = courier
        self._custody = custody
        self._ask_again = ask_again
        self._publish = publish

    def say(self, word: Word) -> None:
        match word:
            case Begin() | Renew() | GiveUp():
                self._courier.say(word)
            case RowMoved() | MoveFailed():
                self._publish(word)
            case RowLeft(attempt, reason, detail):
                self._custody.evict(attempt, reason, detail)
            case Paused(attempts):
                self._custody.report_paused(attempts)
            case TokensDrawn(step, tokens, step_s):
                self._custody.report_step(step, tokens, step_s)
            case Books(audit_id, batch, num_entered):
                if not self._custody.report_audit(audit_id, batch, num_entered):
                    self._ask_again(Audit(audit_id))

    def run(self, errand: Errand) -> Grown | CopyEnd:
        if isinstance(errand, Grow):
            return Grown(errand.attempt, self._custody.grow(errand.attempt))
        return self._courier.copy(errand)

    def compute(self, step: Sequence[DecodeRow]) -> Sequence[Token]:
        return self._engine.decode(step)
