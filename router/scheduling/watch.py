"""Has workers replaced that live and do not do their work: pure."""

from __future__ import annotations

from router.scheduling.commands import ReplaceCause, ReplaceWorker
from router.scheduling.fleet import Fleet, Worker
from router.scheduling.outbox import Outbox
from twinpool.types import HandoffId, Pool

OWN_STALL_S = 1.0
"""If no tick came for so long, it was this process that stood still, and nothing is known of the others."""
PATIENCE_S = 60.0
"""How long a replacement may take before it, or another one, is asked for again."""
REPLACED_SHARE = 0.5
"""Of a pool, so much is replaced at a time; one worker in any case."""
OVERDUE_S = 3.0
"""How long a quarantine is held to last after its last report; longer than until the next one comes."""


class StuckWatch:
    """Has workers replaced whose engines stand still, or who do not let go of revoked blocks.

    A share of each pool at a time, whatever the cause: a busy machine must start no cascade. A replacement is
    over when the seat is filled again, or the worker was to leave and has left. Next is one not asked for
    before; of those, one that keeps blocks from others, then the one that has stood still for longest. One
    that stands still gets nothing new and loses what it has, its turn to be replaced come or not.
    """

    def __init__(self, fleet: Fleet, outbox: Outbox, stuck_after_s: float) -> None:
        self._fleet = fleet
        self._outbox = outbox
        self._stuck_after_s = stuck_after_s
        self._ticked_at: float | None = None
        self._replacing: dict[str, Worker] = {}

    def replaced(self, worker_id: str) -> None:
        """A seat is filled again, or will not be."""
        self._replacing.pop(worker_id, None)

    def worker_left(self, worker: Worker) -> None:
        """A worker is gone. If it was to leave, nobody need come in its place."""
        if worker.draining:
            self.replaced(worker.worker_id)

    def tick(self, now: float) -> list[Worker]:
        """Look at all workers; those that stand still, from which everything is to be taken."""
        stalled = self._ticked_at is not None and now - self._ticked_at > OWN_STALL_S
        self._ticked_at = now
        for worker in self._fleet.workers():
            if stalled:
                worker.progressed_at = now
        still = [each for each in self._fleet.workers() if each.stands_still(now, self._stuck_after_s)]
        for worker in still:
            worker.stuck = True
        for pool in Pool:
            self._replace_some(pool, [each for each in still if each.pool is pool], now)
        return still

    def quarantine_overdue(self, handoff: HandoffId, writer: str, now: float) -> None:
        """A writer (an incarnation) does not let go of revoked blocks; said again while it lasts."""
        if worker := self._fleet.by_incarnation(writer):
            worker.overdue, worker.overdue_at = handoff, now

    def _replace_some(self, pool: Pool, still: list[Worker], now: float) -> None:
        """As many of those to be replaced as may be at a time."""
        asked = self._replacing.items()
        self._replacing = {name: each for name, each in asked if now - each.replaced_at < PATIENCE_S}
        workers = self._fleet.pool(pool)
        under_way = {name for name, each in self._replacing.items() if each.pool is pool}
        num_seats = len(under_way | {each.worker_id for each in workers})
        most = max(1, int(num_seats * REPLACED_SHARE))
        overdue = [each for each in workers if now - each.overdue_at < OVERDUE_S]
        still = sorted(still, key=lambda each: each.progressed_at)
        due = [each for each in dict.fromkeys([*overdue, *still]) if each.worker_id not in under_way]
        # First those that were asked for longest ago, or never.
        due.sort(key=lambda each: each.replaced_at)
        for worker in due[: max(0, most - len(under_way))]:
            self._replace(worker, now, overdue=worker in overdue)

    def _replace(self, worker: Worker, now: float, *, overdue: bool) -> None:
        cause, why = ReplaceCause.STUCK, f"its engine has stood still for {now - worker.progressed_at:.1f} s"
        if overdue:
            cause = ReplaceCause.QUARANTINE_OVERDUE
            why = f"keeps writing to revoked blocks of {worker.overdue}"
        worker.stuck, worker.replaced_at = True, now
        self._replacing[worker.worker_id] = worker
        self._outbox.put(ReplaceWorker(worker.worker_id, worker.incarnation, why, cause))
