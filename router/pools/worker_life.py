"""One life of a worker, from the first word of its session to its end.

session open ─► warming, ready (the scheduler knows) ─► session lost, process gone, drained, or taken over
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

from router.dispatch.dispatcher import RunningDispatcher
from router.dispatch.seats import Seat
from router.dispatch.worker_session import WorkerSession
from router.pools.launcher import Launcher, StartedWorker
from twinpool.errors import StartFailed, TakenOver

log = logging.getLogger(__name__)
SESSION_TIMEOUT_S = 10.0
EXIT_KNOWN_S = 2.0
"""How long a lost session waits to hear why: the process's end has the reason, and so has a takeover."""


class WorkerLife:
    """told: called, in words, once it is up. drain_timeout_s: for a worker that is to empty itself."""

    def __init__(
        self,
        seat: Seat,
        worker: StartedWorker,
        launcher: Launcher,
        dispatcher: RunningDispatcher,
        told: Callable[[str], None],
        drain_timeout_s: float,
    ) -> None:
        self._seat = seat
        self._worker = worker
        self._launcher = launcher
        self._dispatcher = dispatcher
        self._told = told
        self._drain_timeout_s = drain_timeout_s

    async def run(self) -> str:
        """Why it ended, in words. The process may still be there.

        Raises StartFailed where no session opens, TakenOver where another router has the worker now.
        """
        session = WorkerSession(self._worker.address, self._launcher.secret)
        try:
            await self._open(session)
            return await self._serve(session)
        finally:
            await session.close()

    async def _open(self, session: WorkerSession) -> None:
        seat, worker = self._seat, self._worker
        hello = await session.open(SESSION_TIMEOUT_S)
        if (hello.pool, hello.incarnation) != (worker.pool, worker.incarnation):
            # Its process is gone, and its port another's.
            raise StartFailed(f"{hello.incarnation} answers at {worker.address}, not {worker.incarnation}")
        blocks, size = hello.blocks_total, hello.block_size
        how = "was up and is taken over" if worker.attached else "is up"
        self._told(f"{seat.worker_id} {how}: {blocks} blocks, {blocks * size} tokens")
        about = seat.about | {"incarnation": worker.incarnation, "node": worker.node}
        log.info(
            "worker %s %s as %s, at %s", seat.worker_id, how, worker.incarnation, worker.node, extra=about
        )
        self._dispatcher.worker_up(seat.worker_id, hello, session)
        seat.in_session = True

    async def _serve(self, session: WorkerSession) -> str:
        listener = functools.partial(
            self._dispatcher.worker_said, self._worker.worker_id, self._worker.incarnation
        )
        talk = asyncio.create_task(session.run(listener))
        exit_ = asyncio.create_task(self._launcher.wait_for_exit(self._worker))
        drained = asyncio.create_task(self._until_drained())
        try:
            await asyncio.wait({talk, exit_, drained}, return_when=asyncio.FIRST_COMPLETED)
            self._down()
            if talk.done() and not exit_.done():
                await asyncio.wait({exit_}, timeout=EXIT_KNOWN_S)
            ended = [end for end in (drained, exit_, talk) if end.done()]
            for end in ended:
                error = end.exception()
                if isinstance(error, TakenOver):
                    if await self._launcher.is_taken_over():
                        raise error
                    return "an older router of this deployment has disturbed its session"
                if error is not None:
                    log.error("worker %s", self._worker.worker_id, exc_info=error, extra=self._seat.about)
            return ended[0].result()
        finally:
            self._down()
            for task in (talk, exit_, drained):
                task.cancel()
            # Gathered, not awaited one by one: our own cancellation must get through.
            await asyncio.gather(talk, exit_, drained, return_exceptions=True)

    def _down(self) -> None:
        """At once: its requests go on elsewhere while we still learn why."""
        if self._seat.in_session:
            self._seat.in_session = False
            reason = "the worker is gone"
            self._dispatcher.worker_down(self._worker.worker_id, self._worker.incarnation, reason)

    async def _until_drained(self) -> str:
        await self._seat.draining.wait()
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await self._seat.empty.wait()
        except TimeoutError:
            return "it was to drain, and still held something long after its grace period"
        return "it was drained"
