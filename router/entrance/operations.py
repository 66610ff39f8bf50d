"""The one way in for operators: the system's state, tests of pairs and blocks, and changes of the pools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import product

from router.entrance import admission
from router.entrance.ports import Overseer, PairChecker, PoolScaler
from twinpool.types import Pool, WorkerState
from twinpool.views import PairCheck, Snapshot, Verification


class Operations:
    """Raises typed errors. Belongs to the event loop's thread."""

    def __init__(self, overseer: Overseer, pairs: PairChecker, pools: PoolScaler) -> None:
        self._overseer = overseer
        self._pairs = pairs
        self._pools = pools

    def status(self) -> Snapshot:
        """The state now."""
        return self._overseer.snapshot()

    async def watch(self, interval_s: float) -> AsyncGenerator[Snapshot, None]:
        """The state now and again, until the reader leaves. Raises InvalidRequest."""
        admission.check_interval(interval_s)
        while True:
            yield self._overseer.snapshot()
            await asyncio.sleep(interval_s)

    async def check_pairs(self) -> AsyncGenerator[PairCheck, None]:
        """One canary through each pair in turn, so that they do not wait for one another."""
        for prefill, decode in product(self._worker_ids(Pool.PREFILL), self._worker_ids(Pool.DECODE)):
            yield await self._pairs.check(prefill, decode)

    async def verify(self) -> Verification:
        """Who holds which blocks, and what is wrong with it."""
        return await self._overseer.verify()

    def set_pool_size(self, pool: Pool, size: int) -> int:
        """Grow or shrink a pool; the size before. Raises InvalidRequest."""
        return self._pools.set_size(pool, size)

    def drain(self, worker_id: str) -> None:
        """Have a worker leave. Raises UnknownWorker, InvalidRequest where it is its pool's last."""
        self._pools.drain(worker_id)

    def restart(self, which: Pool | str) -> AsyncGenerator[tuple[str, str], None]:
        """New lives for a pool or one worker, one after the other; each one's id and new incarnation.

        Raises UnknownWorker before the first, StartFailed if one does not become ready again.
        """
        return self._pools.renew(self._pools.all_of(which) if isinstance(which, Pool) else [which])

    def _worker_ids(self, pool: Pool) -> list[str]:
        """Workers that may take a canary."""
        views = self._overseer.snapshot().workers
        return [view.id for view in views if view.pool is pool and view.state is not WorkerState.DRAINING]
