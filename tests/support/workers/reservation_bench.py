"""One reservation in a small pool, brought to whichever stage a test begins with."""

from __future__ import annotations

from twinpool.kv.pool import BlockPool, Owner
from twinpool.kv.reservations import Dropped, Opened, Reservations, Stage
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Admit, ReleaseReason
from twinpool.types import AttemptId, HandoffId, HolderId

H, A = HandoffId("handoff"), AttemptId("attempt")
H2, A2 = HandoffId("other handoff"), AttemptId("other attempt")
WRITER, OTHER = "writer", "other writer"
NUM_BLOCKS, TOTAL_BLOCKS = 3, 8
BLOCK_SIZE = 4
TTL_S, REPORT_S = 30.0, 2.0
FOREVER = 1e9
ADMIT = Admit(A, H, 0, (1,) * 5, (1,), SamplingParams(9))
HELD = [Stage.RESERVED, Stage.WRITING, Stage.WRITTEN, Stage.ADMITTED, Stage.QUARANTINED]


class Bench:
    """One reservation of three blocks in a pool of eight, at second 0."""

    def __init__(self, stage: Stage | None = Stage.RESERVED) -> None:
        self.pool = BlockPool(TOTAL_BLOCKS)
        self.held = Reservations(self.pool, BLOCK_SIZE)
        if stage is None:
            return
        assert self.held.reserve(H, A, NUM_BLOCKS, WRITER, TTL_S, 0)
        if stage is not Stage.RESERVED:
            assert self.held.begin(H, WRITER, 0) == Opened((0, 1, 2))
        if stage in (Stage.WRITTEN, Stage.ADMITTED):
            self.held.written(H, WRITER, NUM_BLOCKS, 0)
        if stage is Stage.ADMITTED:
            self.held.admit(ADMIT, 0)
        if stage is Stage.QUARANTINED:
            self.held.revoke(H, 0)

    def owners(self) -> dict[Owner, int]:
        """Who owns blocks, but for the free ones."""
        counts = {owner: self.pool.count(owner) for owner in Owner if owner is not Owner.FREE}
        return {owner: count for owner, count in counts.items() if count}

    @property
    def all_free(self) -> bool:
        return self.pool.count(Owner.FREE) == TOTAL_BLOCKS and len(self.held) == 0


def stage_of(held: Reservations) -> Stage | None:
    """Where the reservation is, or the row that came of it."""
    return Stage.ADMITTED if held.row(A) else held.stage(H)


def gone(reason: ReleaseReason, detail: str = "", holder: HolderId = H) -> Dropped:
    return Dropped(holder, reason, detail)
