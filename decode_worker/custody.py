"""A decode worker's reservations behind one lock, and the carrying out of what they decide.

Three kinds of threads meet here: the session's (router commands), the transports' (writers' words) and the
engine's (evictions). Effects are carried out under the lock too, so that their order is the order of the
decisions: an eviction can never reach the engine before the row that it evicts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from decode_worker.audit import audit_decode
from twinpool.config import HandoffConfig
from twinpool.kv.layout import KvLayout
from twinpool.kv.pool import BlockPool, Owner
from twinpool.kv.reservations import (
    BlocksFreed,
    CacheWritten,
    Dropped,
    Effect,
    Opened,
    Reservations,
    RowReady,
    Stage,
    StopWriter,
    WriterOverdue,
)
from twinpool.session.messages import (
    Admit,
    Event,
    Granted,
    LoadReport,
    QuarantineOverdue,
    Refused,
    Released,
    ReleaseReason,
    Reserve,
    RowsPaused,
    RowToken,
    StepDone,
    Written,
)
from twinpool.transfer.port import HandoffReceiver
from twinpool.types import AttemptId, HandoffId, HolderId
from twinpool.worker.pulse import Pulse

Checksum = Callable[[int], int]
"""The checksum of one block's bytes."""


class Custody:
    """Thread-safe reservations; see `twinpool.kv.reservations`. It is the transports' `ReceiverEvents`.

    enter: called with each row that may enter the batch. receivers: told to stop writers; set by `attach`.
    """

    def __init__(
        self,
        pool: BlockPool,
        layout: KvLayout,
        config: HandoffConfig,
        pulse: Pulse,
        *,
        checksum: Checksum,
        enter: Callable[[RowReady], None],
        publish: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.RLock()
        self._pool = pool
        self._held = Reservations(pool, layout.block_size)
        self._layout = layout
        self._config = config
        self._pulse = pulse
        self._checksum = checksum
        self._enter = enter
        self._publish = publish
        self._clock = clock
        self._receivers: list[HandoffReceiver] = []
        self._num_entered = 0

    def attach(self, receiver: HandoffReceiver) -> None:
        """A transport whose writers may have to be stopped."""
        self._receivers.append(receiver)

    def load(self) -> LoadReport:
        """Counts now."""
        with self.lock:
            return self._pulse.load(
                running=self._held.count(Stage.ADMITTED),
                waiting=self._held.count(Stage.RESERVED, Stage.WRITING, Stage.WRITTEN),
                blocks_free=self._pool.count(Owner.FREE),
                blocks_quarantined=self._pool.count(Owner.QUARANTINE),
                handoffs=self._held.count(Stage.WRITING, Stage.QUARANTINED),
            )

    # The router's commands.

    def reserve(self, command: Reserve) -> None:
        """Grant or refuse."""
        with self.lock:
            needed = self._layout.blocks_for(command.num_tokens)
            now = self._clock()
            (attempt,) = command.attempts
            if self._held.reserve(command.handoff, attempt, needed, command.writer, command.ttl_s, now):
                self._publish(Granted(command.handoff, self.load()))
            else:
                self._publish(Refused(command.handoff, self.load()))

    def admit(self, command: Admit) -> None:
        """Let a row in once it is written."""
        with self.lock:
            self._carry_out(self._held.admit(command, self._clock()))

    def give_up(self, holder: HolderId) -> AttemptId | None:
        """Drop what is not in the batch. If it is a row, that is left to the engine: the attempt."""
        with self.lock:
            row = self._held.row(holder)
            if row is None:
                self._carry_out(self._held.revoke(holder, self._clock()))
            return row

    def writer_gone(self, writer: str) -> None:
        """A prefill worker's process is gone."""
        with self.lock:
            self._carry_out(self._held.writer_gone(writer, self._clock()))

    # The engine.

    def grow(self, attempt: AttemptId) -> int | None:
        """One more block for a row; None if none is free."""
        with self.lock:
            return self._held.grow(attempt)

    def report_paused(self, attempts: tuple[AttemptId, ...]) -> None:
        """Rows wait for a block: the router makes room."""
        with self.lock:
            self._publish(RowsPaused(attempts, self.load()))

    def report_step(self, step: int, tokens: tuple[RowToken, ...], step_s: float) -> None:
        """One step is done. Under the lock, so that no newer count is overtaken by an older one."""
        with self.lock:
            self._publish(StepDone(step, tokens, step_s, self.load()))

    def report_load(self) -> None:
        """The counts now."""
        with self.lock:
            self._publish(self.load())

    def evict(self, attempt: AttemptId, reason: ReleaseReason, detail: str = "") -> None:
        """Free a row's blocks, now that it has left the batch."""
        with self.lock:
            known = self._held.evict(attempt)
            reason = reason if known else ReleaseReason.GONE
            self._publish(Released(attempt, reason, detail, self.load()))

    def report_audit(self, audit_id: str, batch: Mapping[AttemptId, Sequence[int]], num_entered: int) -> bool:
        """The books now. batch: each row's blocks, once num_entered rows have come to the engine.

        False, and nothing is said, where a row is on its way there, so that the books cannot agree.
        """
        with self.lock:
            if num_entered == self._num_entered:
                self._publish(audit_decode(audit_id, self._pool, self._held, batch, self._clock()))
            return num_entered == self._num_entered

    # The clock.

    def expire(self) -> None:
        """Drop what has outlived its time."""
        with self.lock:
            self._carry_out(self._held.expire(self._clock(), self._config.quarantine_report_s))

    # The writers, through their transports.

    def begin(self, writer: str, handoff: HandoffId) -> Opened | None:
        with self.lock:
            return self._held.begin(handoff, writer, self._clock())

    def progress(self, writer: str, handoff: HandoffId) -> None:
        with self.lock:
            self._held.progress(handoff, writer, self._clock())

    def written(self, writer: str, handoff: HandoffId, num_blocks: int, checksums: Sequence[int]) -> None:
        damaged = self._first_damaged(writer, handoff, checksums)
        with self.lock:
            if damaged is not None:
                detail = f"checksum of block {damaged} differs"
                effects = self._held.stopped(handoff, writer, ReleaseReason.DAMAGED, detail)
            else:
                effects = self._held.written(handoff, writer, num_blocks, self._clock())
            self._carry_out(effects)

    def stopped(self, writer: str, handoff: HandoffId) -> None:
        with self.lock:
            self._carry_out(self._held.stopped(handoff, writer))

    def connection_ended(self, writer: str) -> None:
        with self.lock:
            self._carry_out(self._held.connection_ended(writer))

    def _first_damaged(self, writer: str, handoff: HandoffId, checksums: Sequence[int]) -> int | None:
        """The index of the first block whose bytes are not those sent; read unlocked, as nobody writes."""
        if not self._config.checksum:
            return None
        with self.lock:
            blocks = self._held.blocks(handoff, writer)
        for index, (block, sent) in enumerate(zip(blocks or (), checksums, strict=False)):
            if self._checksum(block) != sent:
                return index
        return None

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case RowReady():
                    self._num_entered += 1
                    self._enter(effect)
                case StopWriter(writer, handoff):
                    for receiver in self._receivers:
                        receiver.stop(writer, handoff)
                case Dropped(holder, reason, detail):
                    self._publish(Released(holder, reason, detail, self.load()))
                case BlocksFreed():
                    self._publish(self.load())
                case CacheWritten(handoff, num_blocks, handoff_s):
                    self._publish(Written(handoff, num_blocks * self._layout.block_bytes, handoff_s))
                case WriterOverdue(handoff, writer):
                    self._publish(QuarantineOverdue(handoff, writer))
