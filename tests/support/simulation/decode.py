"""A decode worker that keeps the protocol: the real custody, desk and loop around an invented engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from decode_worker.custody import Custody
from decode_worker.desk import DecodeDesk, Errand, Evict, Message, Word
from decode_worker.hands import DecodeHands
from tests.support.simulation.loop import BLOCK_SIZE, SimulatedLoop
from tests.support.simulation.pairs import NOBODY, Connection
from tests.support.simulation.workers import EOS, Action, Worker, World
from twinpool.config import HandoffConfig
from twinpool.engine.batch import DecodeRow
from twinpool.engine.runner import Engine
from twinpool.kv.layout import KvLayout
from twinpool.session import messages as m
from twinpool.transfer.words import PairWord
from twinpool.types import AttemptId, HandoffId, HolderId, Pool
from twinpool.worker.courier import Courier
from twinpool.worker.inbox import Inbox
from twinpool.worker.loop import Stop

LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_size=BLOCK_SIZE, dtype="float32")
CONFIG = HandoffConfig(quarantine_report_s=2.0)
COPIED_PER_STEP = 2
"""Blocks of rows that move away; few, so that they are stepped meanwhile."""


class SimulatedDecode(Worker):
    """connections: from other workers, by their incarnations. refuses_next: whatever is reserved."""

    pool = Pool.DECODE

    def __init__(self, worker_id: str, incarnation: str, world: World) -> None:
        super().__init__(worker_id, incarnation, world)
        self.connections: dict[str, Connection] = {}
        self.refuses_next = False
        inbox: Inbox[Message | Stop] = Inbox()
        self._loop: SimulatedLoop[Message, Word, Errand, AttemptId, DecodeRow] = SimulatedLoop(inbox)
        self._desk = DecodeDesk(
            BLOCK_SIZE, max_rows=9, eos_token_ids=frozenset({EOS}), copied_per_step=COPIED_PER_STEP
        )
        self.custody = Custody(
            self.blocks,
            LAYOUT,
            CONFIG,
            self.pulse,
            checksum=lambda block: block,
            enter=self._loop.post,
            publish=self.publish,
            clock=world.clock,
        )
        self.custody.attach(self)
        courier = Courier(self.senders.ports, self._loop.post)
        hands = DecodeHands(cast("Engine", self.engine), courier, self.custody, self._loop.post, self.publish)
        self._loop.drive(self._desk, hands, self.pulse, world.clock)

    @property
    def idle(self) -> bool:
        load = replace(self.custody.load(), progress=0)
        at_rest = self._desk.holds_nothing and self.senders.idle and not self._loop.due
        return load == m.LoadReport(blocks_free=self.world.num_blocks) and at_rest

    def load(self) -> m.LoadReport:
        return self.custody.load()

    def time_passes(self) -> None:
        super().time_passes()
        self._loop.due = True
        self.custody.expire()

    def obey(self, command: m.Command) -> None:
        match command:
            case m.Reserve(handoff) if self.refuses_next:
                self.refuses_next = False
                self.publish(m.Refused(handoff, self.custody.load()))
            case m.Reserve():
                self.custody.reserve(command)
            case m.Admit():
                self.custody.admit(command)
            case m.Drop(holder):
                if row := self.custody.give_up(holder):
                    self._loop.post(Evict(row))
            case m.MoveRow():
                self._loop.post(command)
            case m.JoinPair(decode):
                self.senders.join(decode)
            case m.LeavePair(decode):
                self.senders.leave(decode)
            case m.WriterGone(writer):
                if not self.world.closes and (connection := self.connections.pop(writer, None)):
                    connection.open.clear()
                    self.custody.connection_ended(writer)
                self.custody.writer_gone(writer)
            case _:
                raise AssertionError(f"{command} is not for a decode worker")

    def actions(self) -> Iterator[Action]:
        yield from super().actions()
        if not self.alive:
            return
        for writer, connection in self.connections.items():
            if connection.words:
                yield lambda writer=writer: self._hear(writer)  # type: ignore[misc]
        for decode in self.senders.waiting():
            yield lambda decode=decode: self.senders.hear(decode)  # type: ignore[misc]
        if self._loop.due and not self.stopped:
            yield self._loop.turn

    def stop(self, writer: str, handoff: HandoffId) -> None:
        """The custody wants a writer stopped."""
        if writer in self.connections:
            self.connections[writer].answers.append(("stop", handoff, None))

    def close(self) -> None:
        raise AssertionError("nobody closes the receiver")

    def drop(self, holder: HolderId) -> None:
        self.obey(m.Drop(holder))

    def die(self) -> None:
        if self.alive:
            super().die()
            for connection in self.connections.values():
                connection.answers.append(("end", NOBODY, None))

    def hear(self, word: PairWord) -> None:
        self._loop.post(word)

    def _hear(self, writer: str) -> None:
        connection = self.connections[writer]
        word, handoff, num_blocks = connection.words.popleft()
        match word:
            case "begin":
                opened = self.custody.begin(writer, handoff)
                connection.answers.append(("accepted" if opened else "refused", handoff, opened))
            case "progress":
                self.custody.progress(writer, handoff)
            case "written":
                self.custody.written(writer, handoff, num_blocks, ())
            case "stopped":
                self.custody.stopped(writer, handoff)
            case "end":
                del self.connections[writer]
                self.custody.connection_ended(writer)
