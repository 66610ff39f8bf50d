"""A prefill worker that keeps the protocol: the real desk and loop around an invented engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from prefill_worker.desk import Message, PrefillDesk, PrefillLimits, Word
from prefill_worker.hands import PrefillHands
from tests.support.simulation.loop import BLOCK_SIZE, SimulatedLoop
from tests.support.simulation.workers import EOS, Action, Worker, World
from twinpool.engine.batch import PrefillChunk
from twinpool.engine.runner import Engine
from twinpool.session import messages as m
from twinpool.transfer.words import PairWord
from twinpool.types import HandoffId, HolderId, Pool
from twinpool.worker.courier import Courier
from twinpool.worker.inbox import Inbox
from twinpool.worker.turn import Copy

LIMITS = PrefillLimits(budget_tokens=3, accept_timeout_s=4.0, renewal_s=1.0)


class SimulatedPrefill(Worker):
    """Its engine's thread stands still with its pairs: in a copy, for which the pairs wait."""

    pool = Pool.PREFILL

    def __init__(self, worker_id: str, incarnation: str, world: World) -> None:
        super().__init__(worker_id, incarnation, world)
        self._desk = PrefillDesk(self.blocks, BLOCK_SIZE, LIMITS, self.pulse, eos_token_ids=frozenset({EOS}))
        self._loop: SimulatedLoop[Message, Word, Copy, HandoffId, PrefillChunk] = SimulatedLoop(Inbox())
        courier = Courier(self.senders.ports, self._loop.post)
        hands = PrefillHands(cast("Engine", self.engine), courier, self.publish)
        self._loop.drive(self._desk, hands, self.pulse, world.clock)

    @property
    def idle(self) -> bool:
        return not self._loop.due and self.senders.idle and self.holds_nothing

    def load(self) -> m.LoadReport:
        return self._desk.load()

    def time_passes(self) -> None:
        super().time_passes()
        self._loop.due = True

    def obey(self, command: m.Command) -> None:
        match command:
            case m.JoinPair(decode):
                self.senders.join(decode)
            case m.LeavePair(decode):
                self.senders.leave(decode)
            case m.Prefill() | m.CancelPrefill():
                self._loop.post(command)
            case _:
                raise AssertionError(f"{command} is not for a prefill worker")

    def actions(self) -> Iterator[Action]:
        if self.stopped:
            return
        yield from super().actions()
        if not self.alive:
            return
        for decode in self.senders.waiting():
            yield lambda decode=decode: self.senders.hear(decode)  # type: ignore[misc]
        if self._loop.due:
            yield self._turn

    def drop(self, holder: HolderId) -> None:
        self.obey(m.CancelPrefill(HandoffId(holder)))

    def hear(self, word: PairWord) -> None:
        self._loop.post(word)

    def _turn(self) -> None:
        self._loop.turn()
        assert not self._desk.load().waiting, "the router gives no prompt for which there is no room"
