"""Keeps every seat of both pools filled: starts workers, watches them, replaces those that are gone.

One seat's life, over and over:

    starting ─► session open: warming ─► a canary passed: ready ─► exit or session lost ─► (backoff) starting
                                                           └───► draining ─► empty, ended ─► starting, or gone

A worker that fails to become ready crash_loop_limit times in a row is given up, until it is renewed. Once
another router of the same deployment has taken a worker over, all are let go, alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from router.dispatch.dispatcher import RunningDispatcher
from router.dispatch.seats import Roster, Seat
from router.pools.launcher import Launcher, Leave, StartedWorker
from router.pools.worker_life import WorkerLife
from router.scheduling.commands import Drained, ReplaceCause, ReplaceWorker
from router.telemetry.metrics import Metrics
from twinpool.backoff import backoff_s
from twinpool.config import ServeConfig
from twinpool.errors import NotPlaced, StartFailed, TakenOver
from twinpool.types import Pool

log = logging.getLogger(__name__)
BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)
DRAIN_MARGIN_S = 10.0
"""After the grace period, until a worker must have let go of what was set back."""

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
        self._tasks: dict[asyncio.Task[None], Seat | None] = {}
        self._causes: dict[str, ReplaceCause] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._leave = Leave.NONE
        self._filled = False
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.taken_over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for pool, size in ((Pool.PREFILL, config.prefill), (Pool.DECODE, config.decode)):
            roster.add(pool, size)

    def start(self) -> None:
        """Begin to fill all seats, all at once; with what an older router left, where that fits."""
        self._run(self._fill(), None)

    def add(self, pool: Pool, number: int) -> None:
        """So many more workers."""
        seats = self._roster.add(pool, number)
        self._dispatcher.take_back(pool)
        if self._filled:
            for seat in seats:
                self._run(self._keep(seat), seat)

    def remove(self, seat: Seat) -> None:
        """One worker less: it drains, and leaves."""
        seat.retired = True
        if self._drain(seat):
            return
        kept = [task for task, owner in self._tasks.items() if owner is seat]
        for task in kept:
            task.cancel()
        if not kept:
            self._roster.seats.pop(seat.worker_id, None)

    def renew(self, seat: Seat) -> None:
        """Have a worker drain, end, and be started anew; one that was given up is tried again."""
        if seat.given_up:
            seat.given_up = False
            self._dispatcher.take_back(seat.pool)
            self._run(self._keep(seat), seat)
        else:
            self._drain(seat)

    def drained(self, command: Drained) -> None:
        """A draining worker holds nothing any more."""
        worker = self._running.get(command.worker_id)
        seat = self._roster.seats.get(command.worker_id)
        if seat is not None and worker is not None and worker.incarnation == command.incarnation:
            seat.empty.set()

    def replace(self, command: ReplaceWorker) -> None:
        """End one life of a worker; its seat is filled again as after any other end."""
        worker = self._running.get(command.worker_id)
        if worker is not None and worker.incarnation == command.incarnation:
            self._causes[command.worker_id] = command.cause
            self._ending(self._end(worker, gently=False))

    async def stop(self, leave: Leave = Leave.NONE) -> None:
        """Let go of all seats, and end all workers but for those that are left alive for another router."""
        if self._leave is not Leave.ALL:
            self._leave = leave
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A seat that was cancelled while its worker was being ended has not waited for it.
        await asyncio.gather(*self._endings, return_exceptions=True)
        if self._leave is Leave.NONE:
            await self._launcher.end_survivors()

    async def _fill(self) -> None:
        await self._launcher.take_over({seat.worker_id: seat.pool for seat in self._roster.seats.values()})
        self._filled = True
        # Only now: until then operators may have added seats, or removed some.
        for seat in self._roster.seats.values():
            self._run(self._keep(seat), seat)
        await self._launcher.end_survivors(except_for=self._roster.seats)

    def _run(self, work: Coroutine[Any, Any, None], seat: Seat | None) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = seat
        task.add_done_callback(self._ended)

    def _drain(self, seat: Seat) -> bool:
        """Have a seat's worker empty itself; False if it has none."""
        if seat.worker_id not in self._running or not seat.in_session:
            return False
        seat.draining.set()
        log.info("worker %s is to drain", seat.worker_id, extra=seat.about)
        self._dispatcher.drain_worker(seat.worker_id, self._config.router.grace_s)
        return True

    async def _keep(self, seat: Seat) -> None:
        num_failures = 0
        while not seat.retired:
            await asyncio.sleep(backoff_s(BACKOFF_S, num_failures))
            seat.begin_life()
            try:
                reason = await self._live(seat)
            except NotPlaced as error:
                seat.lost(error.message)
                log.warning("worker %s: %s", seat.worker_id, error.message, extra=seat.about)
                continue  # the cluster's want of room is no fault of the worker's
            except StartFailed as error:
                num_failures += 1
                reason = error.message
            else:
                num_failures = 0 if seat.was_ready else num_failures + 1
            seat.lost(reason)
            cause = self._causes.pop(seat.worker_id, None) or _restart_reason(seat)
            level = logging.INFO if seat.draining.is_set() else logging.WARNING
            log.log(level, "worker %s: %s", seat.worker_id, reason, extra=seat.about)
            if num_failures >= self._config.router.crash_loop_limit:
                self._give_up(seat, reason)
                return
            if not seat.retired:
                self._metrics.worker_restarted(seat.pool, cause)

    async def _live(self, seat: Seat) -> str:
        """One life of a seat's worker; why it ended. Raises StartFailed."""
        try:
            worker = await self._launcher.start(seat.worker_id, seat.pool, seat.waits)
        except TakenOver as error:
            self._let_go(error)
            raise asyncio.CancelledError from error
        self._running[seat.worker_id] = worker
        seat.node = worker.node
        drain_timeout_s = self._config.router.grace_s + DRAIN_MARGIN_S
        life = WorkerLife(seat, worker, self._launcher, self._dispatcher, self._progress, drain_timeout_s)
        gently = True  # if we are told to stop
        try:
            reason = await life.run()
            gently = seat.empty.is_set()
            return reason
        except StartFailed:
            gently = False
            raise
        except TakenOver as error:
            self._let_go(error)
            raise asyncio.CancelledError from error
        finally:
            del self._running[seat.worker_id]
            await asyncio.shield(self._ending(self._end(worker, gently=gently)))

    def _ending(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A worker's end, which goes on whoever stops waiting for it."""
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        task.add_done_callback(_log_failure)
        return task

    async def _end(self, worker: StartedWorker, *, gently: bool) -> None:
        """A worker whose session is gone may still run: only its end makes room for the next."""
        if self._leave is Leave.ALL or (self._leave is Leave.ATTACHED and worker.attached):
            self._launcher.release(worker)
            return
        ended = await (self._launcher.stop(worker) if gently else self._launcher.kill(worker))
        if ended:
            self._dispatcher.worker_gone(worker.pool, worker.incarnation)

    def _let_go(self, error: TakenOver) -> None:
        """Another router has a worker, and so will have all: none may be ended by us any more."""
        log.error("%s", error.message)
        self._leave = Leave.ALL
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._dispatcher.give_up(None, error.message)
        if not self.taken_over.done():
            self.taken_over.set_result(error.message)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A bug in the keeping of seats must not leave one empty in silence."""
        seat = self._tasks.pop(task)
        if seat is not None and seat.retired:
            self._roster.seats.pop(seat.worker_id, None)
            self._dispatcher.seat_closed(seat.worker_id)
        if not task.cancelled() and (error := task.exception()):
            log.error("a seat is kept no more", exc_info=error)
            self._broken(error)

    def _give_up(self, seat: Seat, reason: str) -> None:
        message = f"{seat.pool} worker {seat.worker_id} is given up: it failed too often: {reason}"
        log.error("%s", message, extra=seat.about)
        seat.given_up, seat.reason = True, f"given up: {reason}"
        self._dispatcher.seat_closed(seat.worker_id)
        if all(each.given_up for each in self._roster.wanted(seat.pool)):
            self._dispatcher.give_up(seat.pool, f"the {seat.pool} pool has no worker: {message}")
        if not self.failed.done():
            self.failed.set_result(message)


def _restart_reason(seat: Seat) -> str:
    if seat.draining.is_set():
        return "renewed"
    return "exited" if seat.was_ready else "start_failed"


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("a worker could not be ended", exc_info=error)
