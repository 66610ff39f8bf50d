"""Asks all workers for their books, and again where something does not fit."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable

from router.audit.verification import Books, Finding, books_of, compare, conclude
from router.scheduling.fleet import Worker
from router.scheduling.scheduler import Scheduler
from twinpool.session.messages import Audit, Audited
from twinpool.views import Verification

ANSWER_TIMEOUT_S = 5.0
"""A worker that takes longer is reported as one that does not answer."""
APART_S = 1.0
"""Between two looks: much longer than a message takes, so that both cannot catch it on its way."""

Send = Callable[[str, Audit], None]
"""A command to a worker's session, by worker id."""


class Auditor:
    """Belongs to the event loop's thread. Reads the scheduler, and changes nothing there."""

    def __init__(self, scheduler: Scheduler, send: Send, quarantine_report_s: float) -> None:
        self._scheduler = scheduler
        self._send = send
        self._quarantine_report_s = quarantine_report_s
        self._asked: dict[str, tuple[Worker, asyncio.Future[Finding]]] = {}

    async def verify(self) -> Verification:
        """Look at all workers; never takes longer than two answers and the time between them."""
        first = await self._look_at(self._scheduler.fleet.workers())
        in_doubt = [finding.books.worker_id for finding in first if finding.doubts]
        second: list[Finding] = []
        if in_doubt:
            await asyncio.sleep(APART_S)
            workers = (self._scheduler.fleet.worker(worker_id) for worker_id in in_doubt)
            second = await self._look_at(worker for worker in workers if worker)
        again = {finding.books.worker_id: finding for finding in second}
        return conclude(first, again, len(self._scheduler.requests), self._quarantine_report_s)

    def heard(self, audited: Audited) -> None:
        """A worker's books have come; those that nobody waits for any more are dropped."""
        worker, answer = self._asked.pop(audited.audit_id, (None, None))
        if worker and answer and not answer.done():
            answer.set_result(compare(self._books(worker), audited))

    async def _look_at(self, workers: Iterable[Worker]) -> list[Finding]:
        # All are asked before anything is awaited: until then, each of them has an open session.
        asked = {self._ask(worker): worker for worker in workers}
        try:
            if asked:
                await asyncio.wait(asked, timeout=ANSWER_TIMEOUT_S)
            return [
                answer.result() if answer.done() else Finding(self._books(worker), None)
                for answer, worker in asked.items()
            ]
        finally:
            for answer in asked:
                answer.cancel()

    def _ask(self, worker: Worker) -> asyncio.Future[Finding]:
        audit_id = uuid.uuid4().hex
        answer: asyncio.Future[Finding] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._asked.pop(audit_id, None))
        self._asked[audit_id] = (worker, answer)
        self._send(worker.worker_id, Audit(audit_id))
        return answer

    def _books(self, worker: Worker) -> Books:
        return books_of(worker, self._scheduler.choices)
