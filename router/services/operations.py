"""The Operations service: the system's state, once or at an interval, and tests of pairs and of blocks."""

# gRPC names the methods and passes each a context.
# ruff: noqa: ARG002, N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import grpc

from router import admission
from router.canary import PairChecker
from router.codec import operations as codec
from router.ports import Dispatcher
from twinpool.types import Pool
from twinpool.v1 import operations_pb2 as pb
from twinpool.v1 import operations_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class OperationsService(operations_pb2_grpc.OperationsServicer):
    """Raises typed errors; the boundary turns them into statuses and bounds each write."""

    def __init__(self, dispatcher: Dispatcher, pairs: PairChecker) -> None:
        self._dispatcher = dispatcher
        self._pairs = pairs

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The state now."""
        return pb.GetStatusResponse(status=codec.status(self._dispatcher.snapshot()))

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Context
    ) -> AsyncIterator[pb.WatchStatusResponse]:
        """The state now and again, until the client leaves."""
        interval_s = codec.interval_s(request)
        admission.check_interval(interval_s)
        while True:
            yield pb.WatchStatusResponse(status=codec.status(self._dispatcher.snapshot()))
            await asyncio.sleep(interval_s)

    async def CheckPairs(
        self, request: pb.CheckPairsRequest, context: Context
    ) -> AsyncIterator[pb.CheckPairsResponse]:
        """One canary through each pair in turn, so that they do not wait for one another."""
        for prefill, decode in product(self._worker_ids(Pool.PREFILL), self._worker_ids(Pool.DECODE)):
            yield codec.pair_check(await self._pairs.check(prefill, decode))

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        """Who holds which blocks, and what is wrong with it."""
        return codec.verification(await self._dispatcher.verify())

    def _worker_ids(self, pool: Pool) -> list[str]:
        return [view.id for view in self._dispatcher.snapshot().workers if view.pool is pool]
