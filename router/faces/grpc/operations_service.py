"""The Operations service: what operators ask goes to their entrance, and what they are shown comes back."""

# gRPC names the methods and passes each a context.
# ruff: noqa: ARG002, N802

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from router.entrance.operations import Operations
from router.faces.grpc import operations_codec as codec
from twinpool.v1 import operations_pb2 as pb
from twinpool.v1 import operations_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class OperationsService(operations_pb2_grpc.OperationsServicer):
    """Raises typed errors; the boundary turns them into statuses and bounds each write."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The state now."""
        return pb.GetStatusResponse(status=codec.status(self._operations.status()))

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Context
    ) -> AsyncIterator[pb.WatchStatusResponse]:
        """The state now and again, until the client leaves."""
        async with aclosing(self._operations.watch(codec.interval_s(request))) as states:
            async for state in states:
                yield pb.WatchStatusResponse(status=codec.status(state))

    async def CheckPairs(
        self, request: pb.CheckPairsRequest, context: Context
    ) -> AsyncIterator[pb.CheckPairsResponse]:
        """One canary through each pair in turn."""
        async with aclosing(self._operations.check_pairs()) as checks:
            async for check in checks:
                yield codec.pair_check(check)

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        """Who holds which blocks, and what is wrong with it."""
        return codec.verification(await self._operations.verify())

    async def SetPoolSize(self, request: pb.SetPoolSizeRequest, context: Context) -> pb.SetPoolSizeResponse:
        """Grow or shrink a pool."""
        previous = self._operations.set_pool_size(codec.pool(request.pool), request.size)
        return pb.SetPoolSizeResponse(previous_size=previous)

    async def DrainWorker(self, request: pb.DrainWorkerRequest, context: Context) -> pb.DrainWorkerResponse:
        """Have a worker leave."""
        self._operations.drain(request.worker_id)
        return pb.DrainWorkerResponse()

    async def RestartWorkers(
        self, request: pb.RestartWorkersRequest, context: Context
    ) -> AsyncIterator[pb.RestartWorkersResponse]:
        """New lives for a worker or a pool, one after the other."""
        async with aclosing(self._operations.restart(codec.restarted(request))) as renewed:
            async for worker_id, incarnation in renewed:
                yield pb.RestartWorkersResponse(worker_id=worker_id, incarnation=incarnation)
