"""A decode worker that keeps the protocol: the real custody, batch and moves around an invented model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from decode_worker.batch import Batch, Row, apply_tokens
from decode_worker.custody import Custody
from decode_worker.moves import Moves
from tests.property.simulated_loop import BLOCK_SIZE
from tests.property.simulated_pairs import Connection
from tests.property.simulated_workers import EOS, Action, Worker, World
from twinpool.config import HandoffConfig
from twinpool.kv.layout import KvLayout
from twinpool.kv.reservations import RowReady
from twinpool.session import messages as m
from twinpool.transfer.words import Accepted, Ended, PairLost, PairWord
from twinpool.types import Pool

LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_size=BLOCK_SIZE, dtype="float32")
CONFIG = HandoffConfig(quarantine_report_s=2.0)
COPIED_PER_STEP = 2
"""Blocks of rows that move away; few, so that they are stepped meanwhile."""


class SimulatedDecode(Worker):
    """connections: from other workers, by their incarnations. refuses_next: whatever is reserved.

    dozes: all its rows wait for a block, which it has said; until time passes or its inbox fills.
    """

    pool = Pool.DECODE

    def __init__(self, worker_id: str, incarnation: str, world: World) -> None:
        super().__init__(worker_id, incarnation, world)
        self.connections: dict[str, Connection] = {}
        self.refuses_next = False
        self.dozes = False
        self._inbox: deque[RowReady | m.Evict | m.MoveRow | PairWord] = deque()
        self._batch = Batch()
        ports = self.senders.ports
        self._moves = Moves(self._batch, ports, BLOCK_SIZE, self.publish, blocks_per_step=COPIED_PER_STEP)
        self.custody = Custody(
            self.blocks,
            LAYOUT,
            CONFIG,
            self.pulse,
            checksum=lambda block: block,
            enter=self._inbox.append,
            publish=self.publish,
            clock=world.clock,
        )
        self.custody.attach(self)

    @property
    def idle(self) -> bool:
        load = replace(self.custody.load(), progress=0)
        at_rest = not self._batch and not self._moves and self.senders.idle
        return load == m.LoadReport(blocks_free=self.world.num_blocks) and at_rest and not self._inbox

    def load(self) -> m.LoadReport:
        return self.custody.load()

    def time_passes(self) -> None:
        super().time_passes()
        self.dozes = False
        self.custody.expire()

    def obey(self, command: m.Command) -> None:
        match command:
            case m.Reserve(attempt) if self.refuses_next:
                self.refuses_next = False
                self.publish(m.Refused(attempt, self.custody.load()))
            case m.Reserve():
                self.custody.reserve(command)
            case m.Admit():
                self.custody.admit(command)
            case m.Revoke(attempt) | m.Evict(attempt):
                if not self.custody.give_up(attempt):
                    self._inbox.append(m.Evict(attempt))
            case m.MoveRow():
                self._inbox.append(command)
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
        if not self.stopped and (self._inbox or (self._batch.active(most=1) and not self.dozes)):
            yield self._step

    def stop(self, writer: str, attempt: str) -> None:
        """The custody wants a writer stopped."""
        if writer in self.connections:
            self.connections[writer].answers.append(("stop", attempt, ()))

    def close(self) -> None:
        raise AssertionError("nobody closes the receiver")

    def free_all(self) -> None:
        self.custody.session_lost()
        self._drain()
        for attempt in self._batch.attempts():
            self._evict(attempt, m.ReleaseReason.EVICTED)

    def die(self) -> None:
        if self.alive:
            super().die()
            for connection in self.connections.values():
                connection.answers.append(("end", "", ()))

    def hear(self, word: PairWord) -> None:
        self._inbox.append(word)

    def _hear(self, writer: str) -> None:
        connection = self.connections[writer]
        word, attempt, num_blocks = connection.words.popleft()
        match word:
            case "begin":
                blocks = self.custody.begin(writer, attempt)
                connection.answers.append(
                    ("refused" if blocks is None else "accepted", attempt, blocks or ())
                )
            case "progress":
                self.custody.progress(writer, attempt)
            case "written":
                self.custody.written(writer, attempt, num_blocks, ())
            case "stopped":
                self.custody.stopped(writer, attempt)
            case "end":
                del self.connections[writer]
                self.custody.connection_ended(writer)

    def _drain(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            match message:
                case RowReady():
                    self._batch.enter(Row.of(message))
                case m.Evict(attempt):
                    self._evict(attempt, m.ReleaseReason.EVICTED)
                case m.MoveRow():
                    self._moves.begin(message)
                case Accepted() | Ended() | PairLost():
                    self._moves.hear(message)

    def _evict(self, attempt: str, reason: m.ReleaseReason, detail: str = "") -> None:
        self._batch.leave(attempt)
        self._moves.row_left(attempt)
        self.custody.evict(attempt, reason, detail)

    def _step(self) -> None:
        self.pulse.beat()
        self._drain()
        self._moves.advance()
        active = self._batch.active(most=9)
        rows = [row for row in active if self._has_room(row)]
        paused = [row.attempt for row in active if row not in rows]
        if paused:
            self.custody.report_paused(tuple(paused))
            self.dozes = not rows
        if rows and self.engine.fails_next:
            self.engine.fails_next = False
            for row in rows:
                self._evict(row.attempt, m.ReleaseReason.FAILED, "as told")
        elif rows:
            tokens = self.engine.decode([row.next_step() for row in rows])
            row_tokens = apply_tokens(rows, tokens, frozenset({EOS}))
            self.publish(m.StepDone(1, row_tokens, 0.01, self.custody.load()))

    def _has_room(self, row: Row) -> bool:
        while row.length > len(row.blocks) * BLOCK_SIZE:
            block = self.custody.grow(row.attempt)
            if block is None:
                return False
            row.blocks.append(block)
        return True
