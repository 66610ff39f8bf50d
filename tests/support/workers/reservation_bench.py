"""One reservation in a small pool, brought to whichever stage a test begins with."""

from __future__ import annotations

from twinpool.kv.pool import BlockPool, Owner
from twinpool.kv.reservations import Dropped, Opened, Reservations, Stage
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Admit, ReleaseReason

A, WRITER, OTHER = "attempt", "writer", "other writer"
NUM_BLOCKS, TOTAL_BLOCKS = 3, 8
BLOCK_SIZE = 4
TTL_S, REPORT_S = 30.0, 2.0
FOREVER = 1e9
ADMIT = Admit(A, 0, (1,) * 5, (1,), SamplingParams(9))
HELD = [Stage.RESERVED, Stage.WRITING, Stage.WRITTEN, Stage.ADMITTED, Stage.QUARANTINED]


class Bench:
    """One reservation of three blocks in a pool of eight, at second 0."""

    def __init__(self, stage: Stage | None = Stage.RESERVED) -> None:
        self.pool = BlockPool(TOTAL_BLOCKS)
        self.held = Reservations(self.pool, BLOCK_SIZE)
        if stage is None:
            return
        assert self.held.reserve(A, NUM_BLOCKS, WRITER, TTL_S, 0)
        if stage is not Stage.RESERVED:
            assert self.held.begin(A, WRITER, 0) == Opened((0, 1, 2))
        if stage in (Stage.WRITTEN, Stage.ADMITTED):
            self.held.written(A, WRITER, NUM_BLOCKS, 0)
        if stage is Stage.ADMITTED:
            self.held.admit(ADMIT, 0)
        if stage is Stage.QUARANTINED:
            self.held.revoke(A, 0)

    def owners(self) -> dict[Owner, int]:
        """Who owns blocks, but for the free ones."""
        counts = {owner: self.pool.count(owner) for owner in Owner if owner is not Owner.FREE}
        return {owner: count for owner, count in counts.items() if count}

    @property
    def all_free(self) -> bool:
        return self.pool.count(Owner.FREE) == TOTAL_BLOCKS and len(self.held) == 0


def gone(reason: ReleaseReason, detail: str = "") -> Dropped:
    return Dropped(A, reason, detail)
