"""Has workers replaced that live and do not do their work: pure."""

from __future__ import annotations

from router.scheduling.commands import ReplaceCause, ReplaceWorker
from router.scheduling.fleet import Fleet, Worker
from router.scheduling.outbox import Outbox

OWN_STALL_S = 1.0
"""If no tick came for so long, it was this process that stood still, and nothing is known of the others."""
PATIENCE_S = 60.0
"""How long a replacement may take before it, or another one, is asked for again."""
OVERDUE_S = 3.0
"""How long a quarantine is held to last after its last report; longer than until the next one comes."""


class StuckWatch:
    """Has workers replaced whose engines stand still, or who do not let go of revoked blocks.

    One at a time, whatever the cause: a busy machine must start no cascade. A replacement is over when the
    seat is filled again, or the worker was to leave and has left. Next is one not asked for before; of those,
    one that keeps blocks from others, then the one that has stood still for longest. Whoever stands still
    gets nothing new, even while another one is replaced.
    """

    def __init__(self, fleet: Fleet, outbox: Outbox, stuck_after_s: float) -> None:
        self._fleet = fleet
        self._outbox = outbox
        self._stuck_after_s = stuck_after_s
        self._ticked_at: float | None = None
        self._replacing: tuple[str, float] | None = None

    def replaced(self, worker_id: str) -> None:
        """A seat is filled again, or will not be."""
        if self._replacing is not None and self._replacing[0] == worker_id:
            self._replacing = None

    def worker_left(self, worker: Worker) -> None:
        """A worker is gone. If it was to leave, nobody need come in its place."""
        if worker.draining:
            self.replaced(worker.worker_id)

    def tick(self, now: float) -> None:
        """Look at all workers."""
        stalled = self._ticked_at is not None and now - self._ticked_at > OWN_STALL_S
        self._ticked_at = now
        for worker in self._fleet.workers():
            if stalled:
                worker.progressed_at = now
            worker.stuck = worker.stuck or worker.stands_still(now, self._stuck_after_s)
        self._replace_next(now)

    def quarantine_overdue(self, attempt: str, writer: str, now: float) -> None:
        """A writer (an incarnation) does not let go of revoked blocks; said again while it lasts."""
        if worker := self._fleet.by_incarnation(writer):
            worker.overdue, worker.overdue_at = attempt, now

    def _replace_next(self, now: float) -> None:
        if self._replacing is not None and now - self._replacing[1] < PATIENCE_S:
            return
        overdue = [each for each in self._fleet.workers() if now - each.overdue_at < OVERDUE_S]
        still = [each for each in self._fleet.workers() if each.stands_still(now, self._stuck_after_s)]
        still.sort(key=lambda each: each.progressed_at)
        # The first of those that were asked for longest ago, or never.
        worker = min([*overdue, *still], key=lambda each: each.replaced_at, default=None)
        if worker is None:
            return
        cause, why = ReplaceCause.STUCK, f"its engine has stood still for {now - worker.progressed_at:.1f} s"
        if worker in overdue:
            cause = ReplaceCause.QUARANTINE_OVERDUE
            why = f"keeps writing to revoked blocks of {worker.overdue}"
        worker.stuck, worker.replaced_at = True, now
        self._replacing = (worker.worker_id, now)
        self._outbox.put(ReplaceWorker(worker.worker_id, worker.incarnation, why, cause))
