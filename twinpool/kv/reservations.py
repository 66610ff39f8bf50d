"""The life of a decode worker's reservations: pure, with time passed in.

    reserved ──begin──► writing ──written──► written ──admit──► admitted ──evict──► (released)
       │                   │                    │
       └─ revoke, expiry ──┼────────────────────┴──► (released)
                           └─ revoke, expiry ──► quarantined ──written, stopped, connection end──► (released)

A hand-off holds what is reserved; from its admit on, its attempt does. All that a writer says names the
hand-off. An admit may come before `written` and then waits with it. From `writing`, blocks are never freed by
time: only the writer's own last word, or the end of its connection, proves that no byte follows. A writer has
to do with the lease's own blocks alone: shared ones are there already, and nobody's to write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from twinpool.kv.blocks import blocks_for, leaves_rows_room
from twinpool.kv.pool import BlockPool, Lease, Owner
from twinpool.session.messages import Admit, ReleaseReason
from twinpool.types import AttemptId, HandoffId, HolderId


class Stage(StrEnum):
    """Where a reservation is in its life."""

    RESERVED = "reserved"
    WRITING = "writing"
    WRITTEN = "written"
    ADMITTED = "admitted"
    QUARANTINED = "quarantined"


LEGAL_STAGES = frozenset(
    {
        (Stage.RESERVED, Stage.WRITING),
        (Stage.WRITING, Stage.WRITTEN),
        (Stage.WRITING, Stage.QUARANTINED),
        (Stage.WRITTEN, Stage.ADMITTED),
    }
)

OWNER_IN = {
    Stage.RESERVED: Owner.RESERVATION,
    Stage.WRITING: Owner.RESERVATION,
    Stage.WRITTEN: Owner.RESERVATION,
    Stage.ADMITTED: Owner.ROW,
    Stage.QUARANTINED: Owner.QUARANTINE,
}


class IllegalStage(RuntimeError):
    """A reservation was about to skip a stage of its life: a bug."""


@dataclass(slots=True)
class Reservation:
    """A hand-off's blocks on a decode worker. expires_at and since are on the caller's clock.

    attempt: the one that it is for. num_written: own blocks that the writer says it has filled. reported_at:
    when its quarantine was last reported as overdue.
    """

    handoff: HandoffId
    attempt: AttemptId
    writer: str
    lease: Lease
    ttl_s: float
    expires_at: float
    stage: Stage = Stage.RESERVED
    since: float = 0.0
    admit: Admit | None = None
    num_written: int = 0
    reported_at: float = -math.inf

    @property
    def holder(self) -> HolderId:
        """Whose blocks they are: in quarantine the hand-off's again, which alone its writer knows."""
        is_admitted = self.admit is not None and self.stage is not Stage.QUARANTINED
        return self.attempt if is_admitted else self.handoff


@dataclass(frozen=True, slots=True)
class Opened:
    """What a writer fills: `blocks`, behind num_shared that are there already and are not sent."""

    blocks: tuple[int, ...]
    num_shared: int = 0


@dataclass(frozen=True, slots=True)
class StopWriter:
    """Tell the writer to stop; its blocks are quarantined until it answers."""

    writer: str
    handoff: HandoffId


@dataclass(frozen=True, slots=True)
class RowReady:
    """Both the cache and the router's admit are there: the row may enter the batch."""

    admit: Admit
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """What the holder has will not become a row, or was not there at all."""

    holder: HolderId
    reason: ReleaseReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BlocksFreed:
    """Quarantined blocks are free again."""

    handoff: HandoffId


@dataclass(frozen=True, slots=True)
class CacheWritten:
    """A cache of num_blocks has arrived whole, handoff_s after its `begin`."""

    handoff: HandoffId
    num_blocks: int
    handoff_s: float


@dataclass(frozen=True, slots=True)
class WriterOverdue:
    """A writer keeps quarantined blocks for too long."""

    handoff: HandoffId
    writer: str


Effect = StopWriter | RowReady | Dropped | BlocksFreed | CacheWritten | WriterOverdue


class Reservations:
    """All reservations of one decode worker, over its block pool, and the rows that have come of them.

    block_size: tokens that a block holds.

    Methods that return effects expect the caller to carry them out in order.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._reserved: dict[HandoffId, Reservation] = {}
        self._rows: dict[HolderId, Reservation] = {}

    def __len__(self) -> int:
        return len(self._reserved) + len(self._rows)

    def __iter__(self) -> Iterator[Reservation]:
        return chain(self._reserved.values(), self._rows.values())

    def stage(self, handoff: HandoffId) -> Stage | None:
        """The stage of a reservation; None where there is none, or none any more."""
        held = self._reserved.get(handoff)
        return held.stage if held else None

    def row(self, holder: HolderId) -> AttemptId | None:
        """The attempt, if this is one that has a row."""
        held = self._rows.get(holder)
        return held.attempt if held else None

    def count(self, *stages: Stage) -> int:
        """Reservations, and rows, in any of these stages."""
        return sum(held.stage in stages for held in self)

    def blocks(self, handoff: HandoffId, writer: str) -> tuple[int, ...] | None:
        """The own blocks that `writer` may write now; None unless the hand-off is in `writing` by it."""
        held = self._reserved.get(handoff)
        if held is None or held.writer != writer or held.stage is not Stage.WRITING:
            return None
        return held.lease.own

    # The router's commands.

    def reserve(
        self,
        handoff: HandoffId,
        attempt: AttemptId,
        num_own: int,
        writer: str,
        ttl_s: float,
        now: float,
        *,
        shared: Sequence[int] = (),
    ) -> bool:
        """Set num_own blocks aside, behind shared ones, all or nothing. What is already held is refused.

        So is one for which the rows would not have room left.
        """
        if handoff in self._reserved or attempt in self._rows:
            return False
        free, num_rows = self._pool.count(Owner.FREE), self.count(Stage.ADMITTED)
        if not leaves_rows_room(num_own, free=free, num_rows=num_rows):
            return False
        lease = self._pool.lease(handoff, Owner.RESERVATION, num_own, shared)
        if lease is None:
            return False
        self._reserved[handoff] = Reservation(handoff, attempt, writer, lease, ttl_s, now + ttl_s, since=now)
        return True

    def admit(self, admit: Admit, now: float) -> list[Effect]:
        """Let the row in as soon as its cache is written."""
        held = self._reserved.get(admit.handoff)
        if held is None or held.attempt != admit.attempt or held.stage is Stage.QUARANTINED:
            return [Dropped(admit.attempt, ReleaseReason.GONE)]
        held.admit = admit
        return self._enter_if_complete(held, now)

    def revoke(self, holder: HolderId, now: float) -> list[Effect]:
        """Give up what is not in the batch."""
        held = next((each for each in self._reserved.values() if each.holder == holder), None)
        if held is None or held.stage is Stage.QUARANTINED:
            return [Dropped(holder, ReleaseReason.GONE)]
        return self._drop(held, ReleaseReason.REVOKED, "", now)

    def grow(self, attempt: AttemptId) -> int | None:
        """One more block for a row; None if none is free, or if the attempt is no row."""
        held = self._rows.get(attempt)
        return None if held is None else self._pool.grow(held.lease)

    def evict(self, attempt: AttemptId) -> bool:
        """Free a row's blocks; the caller has taken it out of the batch. False if it holds none."""
        held = self._rows.pop(attempt, None)
        if held is None:
            return False
        self._pool.release(held.lease)
        return True

    # The writer's words.

    def begin(self, handoff: HandoffId, writer: str, now: float) -> Opened | None:
        """The writer wants to start; None if no reservation is there for it."""
        held = self._reserved.get(handoff)
        if held is None or held.writer != writer or held.stage is not Stage.RESERVED:
            return None
        self._advance(held, Stage.WRITING, now)
        held.expires_at = now + held.ttl_s
        return Opened(held.lease.own, held.lease.num_shared)

    def progress(self, handoff: HandoffId, writer: str, now: float) -> None:
        """The writer is alive, and writes or will; renews the expiry."""
        if self.blocks(handoff, writer) is not None:
            held = self._reserved[handoff]
            held.expires_at = now + held.ttl_s

    def written(self, handoff: HandoffId, writer: str, num_blocks: int, now: float) -> list[Effect]:
        """The writer's last word: so many of the own blocks are filled, and no byte follows."""
        held = self._by_writer(handoff, writer)
        if held is None:
            return []
        if held.stage is Stage.QUARANTINED:
            return self._leave_quarantine(held)
        began_at = held.since
        self._advance(held, Stage.WRITTEN, now)
        held.num_written = num_blocks
        held.expires_at = now + held.ttl_s
        return [CacheWritten(handoff, num_blocks, now - began_at), *self._enter_if_complete(held, now)]

    def stopped(
        self,
        handoff: HandoffId,
        writer: str,
        reason: ReleaseReason = ReleaseReason.HANDOFF_FAILED,
        detail: str = "the sender stopped",
    ) -> list[Effect]:
        """The writer's last word: the cache is incomplete or damaged, and no byte follows."""
        held = self._by_writer(handoff, writer)
        if held is None:
            return []
        if held.stage is Stage.QUARANTINED:
            return self._leave_quarantine(held)
        self._release(held)
        return [Dropped(held.holder, reason, detail)]

    def connection_ended(self, writer: str) -> list[Effect]:
        """The writer's connection is closed, which proves that no byte follows."""
        effects: list[Effect] = []
        ended = ReleaseReason.CONNECTION_ENDED
        for held in list(self._reserved.values()):
            if held.writer == writer:
                effects += self.stopped(held.handoff, writer, ended, "the hand-off connection ended")
        return effects

    def writer_gone(self, writer: str, now: float) -> list[Effect]:
        """The writer's process is gone: it will never begin what it has not begun."""
        effects: list[Effect] = []
        for held in list(self._reserved.values()):
            if held.writer == writer and held.stage is Stage.RESERVED:
                effects += self._drop(held, ReleaseReason.WRITER_GONE, "the prefill worker is gone", now)
        return effects

    # The clock.

    def expire(self, now: float, quarantine_report_s: float) -> list[Effect]:
        """Drop what has outlived its time; report quarantines every quarantine_report_s while they last."""
        effects: list[Effect] = []
        for held in list(self._reserved.values()):
            if held.stage is Stage.QUARANTINED:
                if now - max(held.since, held.reported_at) >= quarantine_report_s:
                    held.reported_at = now
                    effects.append(WriterOverdue(held.handoff, held.writer))
            elif now >= held.expires_at:
                reason, detail = ReleaseReason.EXPIRED, f"no progress for {held.ttl_s:g} s"
                if held.stage is Stage.RESERVED:
                    reason, detail = ReleaseReason.NEVER_BEGUN, "the hand-off did not begin in time"
                effects += self._drop(held, reason, detail, now)
        return effects

    def _by_writer(self, handoff: HandoffId, writer: str) -> Reservation | None:
        held = self._reserved.get(handoff)
        if held is None or held.writer != writer:
            return None
        return held if held.stage in (Stage.WRITING, Stage.QUARANTINED) else None

    def _enter_if_complete(self, held: Reservation, now: float) -> list[Effect]:
        if held.stage is not Stage.WRITTEN or held.admit is None:
            return []
        # The newest token is not in the cache yet: the row's first step puts it there.
        num_cached_tokens = len(held.admit.prompt_ids) + len(held.admit.output_ids) - 1
        needed = blocks_for(num_cached_tokens, self._block_size) - held.lease.num_shared
        if held.num_written < needed:
            detail = f"only {held.num_written} of {needed} blocks were written"
            return self._drop(held, ReleaseReason.HANDOFF_FAILED, detail, now)
        self._pool.transfer(held.lease, Owner.ROW, held.attempt)
        self._advance(held, Stage.ADMITTED, now)
        self._rows[held.attempt] = self._reserved.pop(held.handoff)
        return [RowReady(held.admit, tuple(held.lease.blocks))]

    def _drop(self, held: Reservation, reason: ReleaseReason, detail: str, now: float) -> list[Effect]:
        dropped = Dropped(held.holder, reason, detail)
        if held.stage is not Stage.WRITING:
            self._release(held)
            return [dropped]
        self._pool.transfer(held.lease, Owner.QUARANTINE)
        self._advance(held, Stage.QUARANTINED, now)
        return [dropped, StopWriter(held.writer, held.handoff)]

    def _leave_quarantine(self, held: Reservation) -> list[Effect]:
        self._release(held)
        return [BlocksFreed(held.handoff)]

    def _release(self, held: Reservation) -> None:
        self._pool.release(held.lease)
        del self._reserved[held.handoff]

    def _advance(self, held: Reservation, stage: Stage, now: float) -> None:
        if (held.stage, stage) not in LEGAL_STAGES:
            raise IllegalStage(f"hand-off {held.handoff}: {held.stage} to {stage}")
        held.stage = stage
        held.since = now
