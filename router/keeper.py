"""Keeps every seat of both pools filled: starts workers, watches them, replaces those that are gone.

One seat's life, over and over:

    starting ─► session open: warming ─► a canary passed: ready ─► exit or session lost ─► (backoff) starting

A worker that fails to become ready crash_loop_limit times in a row is given up. Once another router of the
same deployment has taken a worker over, all are let go, alive.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from router.dispatcher import RunningDispatcher
from router.launcher import Launcher, StartedWorker
from router.metrics import Metrics
from router.scheduling.commands import ReplaceWorker
from router.snapshots import Roster, Seat
from router.worker_session import WorkerSession
from twinpool.config import ServeConfig
from twinpool.errors import StartFailed, TakenOver
from twinpool.types import Pool, WorkerState

log = logging.getLogger(__name__)
SESSION_TIMEOUT_S = 10.0
BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)

Progress = Callable[[str], None]
"""Told, in words, what has happened while the system starts."""


class PoolKeeper:
    """Fills the seats of a roster through a launcher.

    failed: set to the reason once a seat was given up. taken_over: set to the reason once another router has
    the workers. broken: called if a bug ends the keeping of a seat.
    """

    def __init__(
        self,
        config: ServeConfig,
        launcher: Launcher,
        dispatcher: RunningDispatcher,
        roster: Roster,
        metrics: Metrics,
        progress: Progress,
        broken: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._dispatcher = dispatcher
        self._roster = roster
        self._metrics = metrics
        self._progress = progress
        self._broken = broken
        self._running: dict[str, StartedWorker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._kills: set[asyncio.Task[None]] = set()
        self._leaves_alive = False
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.taken_over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for pool, size in ((Pool.PREFILL, config.prefill), (Pool.DECODE, config.decode)):
            for index in range(size):
                worker_id = f"{pool}-{index}"
                roster.seats[worker_id] = Seat(worker_id, pool)

    def start(self) -> None:
        """Begin to fill all seats, all at once; with what an older router left, where that fits."""
        self._run(self._fill())

    def replace(self, command: ReplaceWorker) -> None:
        """End one life of a worker; its seat is filled again as after any other end."""
        worker = self._running.get(command.worker_id)
        if worker is not None and worker.incarnation == command.incarnation:
            task = asyncio.create_task(self._launcher.kill(worker))
            self._kills.add(task)
            task.add_done_callback(self._kills.discard)
            task.add_done_callback(_log_failure)

    async def stop(self, *, leave_alive: bool = False) -> None:
        """Let go of all seats, and end all workers unless they are left alive for another router."""
        self._leaves_alive = self._leaves_alive or leave_alive
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fill(self) -> None:
        seats = list(self._roster.seats.values())
        await self._launcher.take_over({seat.worker_id: seat.pool for seat in seats})
        for seat in seats:
            self._run(self._keep(seat))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def _keep(self, seat: Seat) -> None:
        num_failures = 0
        while True:
            await asyncio.sleep(BACKOFF_S[min(num_failures, len(BACKOFF_S) - 1)])
            seat.state = WorkerState.STARTING
            was_ready, reason = await self._live(seat)
            seat.state = WorkerState.LOST
            num_failures = 0 if was_ready else num_failures + 1
            log.warning("worker %s: %s", seat.worker_id, reason)
            if num_failures >= self._config.router.crash_loop_limit:
                self._give_up(seat, reason)
                return
            self._metrics.worker_restarted(seat.pool, "exited" if was_ready else "start_failed")

    async def _live(self, seat: Seat) -> tuple[bool, str]:
        """One life of a seat's worker: whether it was ever ready, and why it ended."""
        try:
            worker = await self._launcher.start(seat.worker_id, seat.pool)
        except StartFailed as error:
            return False, f"did not start: {error.message}"
        self._running[seat.worker_id] = worker
        seat.node = worker.node
        session = WorkerSession(worker.address, self._launcher.secret)
        try:
            return await self._serve(seat, worker, session)
        except StartFailed as error:
            return False, error.message
        except TakenOver as error:
            self._let_go(error)
            raise asyncio.CancelledError from error
        except asyncio.CancelledError:
            await session.close()
            if not self._leaves_alive:
                await asyncio.shield(self._launcher.stop(worker))
            raise
        finally:
            del self._running[seat.worker_id]
            await session.close()
            if self._leaves_alive:
                self._launcher.release(worker)
            # A worker whose session is gone may still run: only its end makes room for the next.
            await asyncio.shield(self._launcher.kill(worker))

    async def _serve(self, seat: Seat, worker: StartedWorker, session: WorkerSession) -> tuple[bool, str]:
        hello = await session.open(SESSION_TIMEOUT_S)
        blocks, size = hello.blocks_total, hello.block_size
        how = "is up" if not worker.attached else "was up and is taken over"
        self._progress(f"{seat.worker_id} {how}: {blocks} blocks, {blocks * size} tokens")
        self._dispatcher.worker_up(seat.worker_id, hello, session)
        listener = functools.partial(self._dispatcher.worker_said, worker.worker_id, worker.incarnation)
        ends = [
            asyncio.create_task(session.run(listener)),
            asyncio.create_task(self._launcher.wait_for_exit(worker)),
        ]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            reason = next(iter(done)).result()
        finally:
            was_ready = self._was_ready(seat.worker_id)
            self._dispatcher.worker_down(seat.worker_id, worker.incarnation, "the worker is gone")
            for task in ends:
                task.cancel()
            # Gathered, not awaited one by one: our own cancellation must get through.
            await asyncio.gather(*ends, return_exceptions=True)
        return was_ready, reason

    def _was_ready(self, worker_id: str) -> bool:
        workers = self._dispatcher.snapshot().workers
        return any(view.id == worker_id and view.state is WorkerState.READY for view in workers)

    def _let_go(self, error: TakenOver) -> None:
        """Another router has a worker, and so will have all: none may be ended by us any more."""
        log.error("%s", error.message)
        self._leaves_alive = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._dispatcher.give_up(error.message)
        if not self.taken_over.done():
            self.taken_over.set_result(error.message)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A bug in the keeping of seats must not leave one empty in silence."""
        if not task.cancelled() and (error := task.exception()):
            log.error("a seat is kept no more", exc_info=error)
            self._broken(error)

    def _give_up(self, seat: Seat, reason: str) -> None:
        message = f"{seat.pool} worker {seat.worker_id} failed too often: {reason}"
        log.error("%s", message)
        others = [each for each in self._roster.seats.values() if each.pool is seat.pool and each is not seat]
        del self._roster.seats[seat.worker_id]
        if not others:
            self._dispatcher.give_up(f"the {seat.pool} pool has no worker: {message}")
        if not self.failed.done():
            self.failed.set_result(message)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("a worker could not be ended", exc_info=error)
