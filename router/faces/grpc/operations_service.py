"""The Operations service: the system's state, tests of pairs and blocks, and changes of the pools."""

# gRPC names the methods and passes each a context.
# ruff: noqa: ARG002, N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import product
from typing import Any

import grpc

from router.entrance import admission
from router.entrance.ports import Overseer, PairChecker, PoolScaler
from router.faces.grpc import operations_codec as codec
from twinpool.types import Pool, WorkerState
from twinpool.v1 import operations_pb2 as pb
from twinpool.v1 import operations_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class OperationsService(operations_pb2_grpc.OperationsServicer):
    """Raises typed errors; the boundary turns them into statuses and bounds each write."""

    def __init__(self, overseer: Overseer, pairs: PairChecker, pools: PoolScaler) -> None:
        self._overseer = overseer
        self._pairs = pairs
        self._pools = pools

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The state now."""
        return pb.GetStatusResponse(status=codec.status(self._overseer.snapshot()))

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Context
    ) -> AsyncIterator[pb.WatchStatusResponse]:
        """The state now and again, until the client leaves."""
        interval_s = codec.interval_s(request)
        admission.check_interval(interval_s)
        while True:
            yield pb.WatchStatusResponse(status=codec.status(self._overseer.snapshot()))
            await asyncio.sleep(interval_s)

    async def CheckPairs(
        self, request: pb.CheckPairsRequest, context: Context
    ) -> AsyncIterator[pb.CheckPairsResponse]:
        """One canary through each pair in turn, so that they do not wait for one another."""
        for prefill, decode in product(self._worker_ids(Pool.PREFILL), self._worker_ids(Pool.DECODE)):
            yield codec.pair_check(await self._pairs.check(prefill, decode))

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        """Who holds which blocks, and what is wrong with it."""
        return codec.verification(await self._overseer.verify())

    async def SetPoolSize(self, request: pb.SetPoolSizeRequest, context: Context) -> pb.SetPoolSizeResponse:
        """Grow or shrink a pool."""
        previous = self._pools.set_size(codec.pool(request.pool), request.size)
        return pb.SetPoolSizeResponse(previous_size=previous)

    async def DrainWorker(self, request: pb.DrainWorkerRequest, context: Context) -> pb.DrainWorkerResponse:
        """Have a worker leave."""
        self._pools.drain(request.worker_id)
        return pb.DrainWorkerResponse()

    async def RestartWorkers(
        self, request: pb.RestartWorkersRequest, context: Context
    ) -> AsyncIterator[pb.RestartWorkersResponse]:
        """New lives for a worker or a pool, one after the other."""
        which = codec.restarted(request)
        worker_ids = self._pools.all_of(which) if isinstance(which, Pool) else [which]
        async with aclosing(self._pools.renew(worker_ids)) as renewed:
            async for worker_id, incarnation in renewed:
                yield pb.RestartWorkersResponse(worker_id=worker_id, incarnation=incarnation)

    def _worker_ids(self, pool: Pool) -> list[str]:
        """Workers that may take a canary."""
        views = self._overseer.snapshot().workers
        return [view.id for view in views if view.pool is pool and view.state is not WorkerState.DRAINING]
