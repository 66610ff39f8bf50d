"""The decode engine's thread: steps the batch it has, over and over; changes apply at the next boundary.

    drain the inbox (rows enter, rows are evicted) ─► copy a few blocks of rows that move elsewhere ─► a
    block for each row that needs one (a row that gets none pauses) ─► one step of the others ─► publish
    one message

It never waits for the router. A row that ends (end of sequence, length) is not stepped again, and keeps its
blocks until the router evicts it. Paused rows are reported every time; if all are, it reports and idles.
If the engine fails a step, its rows are stepped one by one, and only those that fail alone are given up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from decode_worker.batch import Batch, Row, apply_tokens
from decode_worker.custody import Custody
from decode_worker.moves import Moves
from twinpool.engine.apart import step_apart
from twinpool.engine.runner import Engine
from twinpool.kv.reservations import RowReady
from twinpool.session.messages import Audit, Event, Evict, MoveRow, ReleaseReason
from twinpool.transfer.port import HandoffSender
from twinpool.transfer.words import Accepted, Ended, PairLost, PairWord
from twinpool.worker.inbox import Inbox
from twinpool.worker.pulse import Pulse

log = logging.getLogger(__name__)
IDLE_WAIT_S = 0.25


@dataclass(frozen=True, slots=True)
class EvictAll:
    """The router is gone."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker leaves."""


Message = RowReady | Evict | EvictAll | MoveRow | PairWord | Audit | Stop


class DecodeLoop:
    """Owns the engine and the batch; everything reaches it through its inbox.

    senders: open connections to other decode workers by incarnation, filled by whoever joins them.
    """

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox[Message],
        custody: Custody,
        pulse: Pulse,
        senders: Mapping[str, HandoffSender],
        publish: Callable[[Event], None],
        *,
        max_rows: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._custody = custody
        self._pulse = pulse
        self._block_size = engine.storage.layout.block_size
        self._max_rows = max_rows
        self._eos_token_ids = eos_token_ids
        self._batch = Batch()
        self._audits: list[str] = []
        self._moves = Moves(self._batch, senders, self._block_size, publish)
        self._num_steps = 0
        self._stopping = False

    def run(self) -> None:
        """Work until `Stop`."""
        rows: list[Row] = []
        while not self._stopping:
            self._pulse.beat()
            for message in self._inbox.take(0.0 if rows or self._moves.may_advance else IDLE_WAIT_S):
                self._hear(message)
            if self._audits:
                self._answer_audits()
            self._moves.advance()
            rows = self._rows_with_room()
            if rows:
                self._step(rows)

    def _hear(self, message: Message) -> None:
        match message:
            case RowReady():
                self._batch.enter(Row.of(message))
            case Evict(attempt):
                self._evict(attempt, ReleaseReason.EVICTED)
            case EvictAll():
                for attempt in self._batch.attempts():
                    self._evict(attempt, ReleaseReason.EVICTED)
            case MoveRow():
                self._moves.begin(message)
            case Accepted() | Ended() | PairLost():
                self._moves.hear(message)
            case Audit(audit_id):
                self._audits.append(audit_id)
            case Stop():
                self._stopping = True

    def _evict(self, attempt: str, reason: ReleaseReason, detail: str = "") -> None:
        self._batch.leave(attempt)
        self._moves.row_left(attempt)
        self._custody.evict(attempt, reason, detail)

    def _answer_audits(self) -> None:
        """Rows enter under custody's lock: while it is held and the inbox is empty, all books agree."""
        with self._custody.lock:
            for message in self._inbox.take(0.0):
                self._hear(message)
            for audit_id in self._audits:
                self._custody.report_audit(audit_id, self._batch.blocks())
        self._audits.clear()

    def _rows_with_room(self) -> list[Row]:
        """Rows that have, or get, a block for their newest token, the oldest in the batch first."""
        rows, paused = [], []
        for row in self._batch.active(self._max_rows):
            if self._has_room(row):
                rows.append(row)
            else:
                paused.append(row.attempt)
        if paused:
            self._custody.report_paused(tuple(paused))
        return rows

    def _has_room(self, row: Row) -> bool:
        if row.length <= len(row.blocks) * self._block_size:
            return True
        block = self._custody.grow(row.attempt)
        if block is not None:
            row.blocks.append(block)
        return block is not None

    def _step(self, rows: list[Row]) -> None:
        started = time.monotonic()
        outcomes = step_apart(self._engine.decode, [row.next_step() for row in rows], self._pulse.beat)
        stepped, tokens = [], []
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, Exception):
                log.error("attempt %s: its step failed", row.attempt, extra={"attempt": row.attempt})
                self._evict(row.attempt, ReleaseReason.FAILED, type(outcome).__name__)
            else:
                stepped.append(row)
                tokens.append(outcome)
        if not stepped:
            return
        row_tokens = apply_tokens(stepped, tokens, self._eos_token_ids)
        self._num_steps += 1
        self._pulse.step_s = time.monotonic() - started
        self._custody.report_step(self._num_steps, row_tokens, self._pulse.step_s)
