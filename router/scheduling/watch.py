"""Has workers replaced that live and do not do their work: pure."""

from __future__ import annotations

from router.scheduling.commands import ReplaceCause, ReplaceWorker
from router.scheduling.fleet import Fleet, Worker
from router.scheduling.outbox import Outbox

OWN_STALL_S = 1.0
"""If no tick came for so long, it was this process that stood still, and nothing is known of the others."""
PATIENCE_S = 60.0
"""How long a replacement may take before it, or another one, is asked for again."""


class StuckWatch:
    """Has workers replaced whose engines stand still, one at a time: a busy machine must start no cascade."""

    def __init__(self, fleet: Fleet, outbox: Outbox, stuck_after_s: float) -> None:
        self._fleet = fleet
        self._outbox = outbox
        self._stuck_after_s = stuck_after_s
        self._ticked_at: float | None = None
        self._replacing: tuple[str, float] | None = None

    def worker_up(self, worker_id: str) -> None:
        """A seat is filled again."""
        if self._replacing is not None and self._replacing[0] == worker_id:
            self._replacing = None

    def tick(self, now: float) -> None:
        """Look at all workers."""
        stalled = self._ticked_at is not None and now - self._ticked_at > OWN_STALL_S
        self._ticked_at = now
        if stalled:
            for worker in self._fleet.workers():
                worker.progressed_at = now
        if self._replacing is not None and now - self._replacing[1] < PATIENCE_S:
            return
        for worker in self._fleet.workers():
            if worker.is_stuck(now, self._stuck_after_s):
                stands_s = now - worker.progressed_at
                why = f"its engine has stood still for {stands_s:.1f} s"
                self._replace(worker, ReplaceCause.STUCK, why, now)
                self._replacing = (worker.worker_id, now)
                return

    def quarantine_overdue(self, attempt: str, writer: str, now: float) -> None:
        """A writer (an incarnation) does not let go of revoked blocks; said again while it lasts."""
        if worker := self._fleet.by_incarnation(writer):
            why = f"keeps writing to revoked blocks of {attempt}"
            self._replace(worker, ReplaceCause.QUARANTINE_OVERDUE, why, now)

    def _replace(self, worker: Worker, cause: ReplaceCause, why: str, now: float) -> None:
        if now - worker.replaced_at >= PATIENCE_S:
            worker.replaced_at = now
            self._outbox.put(ReplaceWorker(worker.worker_id, worker.incarnation, why, cause))
