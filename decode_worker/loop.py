"""The decode engine's thread: steps the batch it has, over and over; changes apply at the next boundary.

    drain the inbox (rows enter, rows are evicted) ─► one step of all active rows ─► publish one message

It never waits for the router. A row that ends (end of sequence, length) is not stepped again, and keeps its
blocks until the router evicts it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from decode_worker.batch import Batch, Row, apply_tokens
from decode_worker.custody import Custody
from twinpool.engine.runner import Engine
from twinpool.inbox import Inbox
from twinpool.kv.reservations import RowReady
from twinpool.messages import Event, Evict, ReleaseReason, StepDone

log = logging.getLogger(__name__)
IDLE_WAIT_S = 0.25


@dataclass(frozen=True, slots=True)
class EvictAll:
    """The router is gone."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker leaves."""


Message = RowReady | Evict | EvictAll | Stop


class DecodeLoop:
    """Owns the engine and the batch; everything reaches it through its inbox."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox[Message],
        custody: Custody,
        *,
        max_rows: int,
        eos_token_ids: frozenset[int],
        publish: Callable[[Event], None],
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._custody = custody
        self._max_rows = max_rows
        self._eos_token_ids = eos_token_ids
        self._publish = publish
        self._batch = Batch()
        self._num_steps = 0
        self._stopping = False

    def run(self) -> None:
        """Work until `Stop`."""
        while not self._stopping:
            idle = not self._batch.active(most=1)
            for message in self._inbox.take(IDLE_WAIT_S if idle else 0.0):
                self._hear(message)
            rows = self._batch.active(self._max_rows)
            if rows:
                self._step(rows)

    def _hear(self, message: Message) -> None:
        match message:
            case RowReady():
                self._batch.enter(Row.of(message))
            case Evict(attempt):
                self._batch.leave(attempt)
                self._custody.evict(attempt, ReleaseReason.EVICTED)
            case EvictAll():
                for attempt in self._batch.attempts():
                    self._batch.leave(attempt)
                    self._custody.evict(attempt, ReleaseReason.EVICTED)
            case Stop():
                self._stopping = True

    def _step(self, rows: list[Row]) -> None:
        started = time.monotonic()
        try:
            tokens = self._engine.decode([row.next_step() for row in rows])
        except Exception as error:
            log.exception("a decode step failed")
            for row in rows:
                self._batch.leave(row.attempt)
                self._custody.evict(row.attempt, ReleaseReason.FAILED, type(error).__name__)
            return
        row_tokens = apply_tokens(rows, tokens, self._eos_token_ids)
        self._num_steps += 1
        step_s = time.monotonic() - started
        self._publish(StepDone(self._num_steps, row_tokens, step_s, self._custody.load()))
