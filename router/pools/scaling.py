"""What operators do to the pools: change their sizes, drain a worker, renew workers one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from router.dispatch.seats import Roster, Seat
from router.pools.keeper import PoolKeeper
from router.telemetry.metrics import Metrics
from twinpool.config import ServeConfig
from twinpool.errors import InvalidRequest, StartFailed, UnknownWorker
from twinpool.types import Pool, WorkerState
from twinpool.views import Snapshot

log = logging.getLogger(__name__)
MOST_WORKERS = 256
"""Of one pool: a slip of the finger must not ask a cluster for a million nodes."""
POLL_S = 0.1
MARGIN_S = 30.0


class Scaling:
    """Changes the pools while they serve; no request fails by it. take: the state now."""

    def __init__(
        self,
        config: ServeConfig,
        roster: Roster,
        keeper: PoolKeeper,
        metrics: Metrics,
        take: Callable[[], Snapshot],
    ) -> None:
        self._config = config
        self._roster = roster
        self._keeper = keeper
        self._metrics = metrics
        self._take = take
        self._renewing = asyncio.Lock()

    def set_size(self, pool: Pool, size: int) -> int:
        """Start workers, or drain and end some; the size before. Raises InvalidRequest."""
        if not 1 <= size <= MOST_WORKERS:
            raise InvalidRequest("size", f"a pool has 1 to {MOST_WORKERS} workers, not {size}")
        wanted = self._roster.wanted(pool)
        before = len(wanted)
        if size > before:
            self._keeper.add(pool, size - before)
            self._metrics.scaled(pool, "up")
        for seat in self._least_worth(wanted)[: max(0, before - size)]:
            self._keeper.remove(seat)
        if size < before:
            self._metrics.scaled(pool, "down")
        log.info("%s pool: %d workers wanted instead of %d", pool, size, before)
        return before

    def drain(self, worker_id: str) -> None:
        """Have one worker leave; its pool is smaller by one then. Raises UnknownWorker, InvalidRequest."""
        seat = self._seat(worker_id)
        if seat.retired:
            return
        if not self._others_ready(seat):
            raise InvalidRequest(
                "worker_id", f"{worker_id} is its pool's only worker that is ready: add one, or restart it"
            )
        self._keeper.remove(seat)
        self._metrics.scaled(seat.pool, "down")

    async def renew(self, worker_ids: list[str]) -> AsyncGenerator[tuple[str, str], None]:
        """Drain, end and start anew these workers, one at a time; each one's id and new incarnation.

        Ends after the present one where nobody listens any more. Raises UnknownWorker before the first,
        StartFailed if one does not become ready again.
        """
        for worker_id in worker_ids:
            self._seat(worker_id)
        async with self._renewing:
            for worker_id in worker_ids:
                seat = self._roster.seats.get(worker_id)
                if seat is not None and not seat.retired:
                    yield worker_id, await self._renew(seat)

    def all_of(self, pool: Pool) -> list[str]:
        """The ids of a pool's workers."""
        return [seat.worker_id for seat in self._roster.wanted(pool)]

    async def _renew(self, seat: Seat) -> str:
        router = self._config.router
        try:
            await self._until_started(seat)
            before = self._incarnation(seat, WorkerState.READY, WorkerState.WARMING, WorkerState.DRAINING)
            self._keeper.renew(seat)
            async with asyncio.timeout(router.grace_s + router.start_timeout_s + MARGIN_S):
                while True:
                    now = self._incarnation(seat, WorkerState.READY)
                    if now and now != before:
                        return now
                    if seat.worker_id not in self._roster.seats:
                        what = "was removed meanwhile" if seat.retired else "was given up"
                        raise StartFailed(f"{seat.worker_id} {what}: {seat.reason}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise StartFailed(f"{seat.worker_id} is not ready again: {seat.reason}") from error

    def _others_ready(self, seat: Seat) -> bool:
        others = {each.worker_id for each in self._roster.wanted(seat.pool) if each is not seat}
        views = self._take().workers
        return any(view.id in others and view.state is WorkerState.READY for view in views)

    async def _until_started(self, seat: Seat) -> None:
        """A start that has begun already is not the one that is asked for."""
        async with asyncio.timeout(self._config.router.start_timeout_s):
            while True:
                states = {view.id: view.state for view in self._take().workers}
                if states.get(seat.worker_id) is not WorkerState.STARTING:
                    return
                await asyncio.sleep(POLL_S)

    def _incarnation(self, seat: Seat, *states: WorkerState) -> str:
        views = (view for view in self._take().workers if view.id == seat.worker_id)
        return next((view.incarnation for view in views if view.state in states), "")

    def _least_worth(self, seats: list[Seat]) -> list[Seat]:
        """Those that do not serve first, then the youngest names."""
        ready = {view.id for view in self._take().workers if view.state is WorkerState.READY}
        return sorted(seats, key=lambda seat: (seat.worker_id in ready, -_number(seat)))

    def _seat(self, worker_id: str) -> Seat:
        seat = self._roster.seats.get(worker_id)
        if seat is None:
            raise UnknownWorker(f"there is no worker {worker_id!r}")
        return seat


def _number(seat: Seat) -> int:
    return int(seat.worker_id.rpartition("-")[2])
