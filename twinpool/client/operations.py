"""The clients of the operations service, blocking and asynchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from twinpool.client import operations_codec as codec
from twinpool.client.connections import AsyncConnection, Connection
from twinpool.client.status import PairCheck, Status
from twinpool.client.streams import AsyncStream, Stream
from twinpool.client.verification import Verification
from twinpool.types import Pool
from twinpool.v1 import operations_pb2 as pb
from twinpool.v1.operations_pb2_grpc import OperationsStub

if TYPE_CHECKING:
    from twinpool.v1.operations_pb2_grpc import OperationsAsyncStub

DEFAULT_TARGET = "127.0.0.1:50052"
DEFAULT_TIMEOUT_S = 10.0
# Every pair is driven in turn, and each may wait for busy workers.
CHECK_TIMEOUT_S = 600.0
# Two looks at workers that may not answer, and the time between them.
VERIFY_TIMEOUT_S = 30.0
# A watch goes on for as long as somebody looks.
_FOREVER: None = None


class OperationsClient:
    """Looks into a running system; may be shared between threads. Raises the errors of `twinpool.errors`."""

    def __init__(self, target: str = DEFAULT_TARGET, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        self._connection = Connection(target, _FOREVER)
        self._timeout = timeout
        self._stub = OperationsStub(self._connection.channel)

    def status(self) -> Status:
        """The state now."""
        response = self._connection.call(self._stub.GetStatus, pb.GetStatusRequest(), self._timeout)
        return codec.status_from(response)

    def watch(self, interval_s: float | None = None) -> Stream[Status]:
        """The state now and again at an interval (1 s), until the stream is left."""
        request = pb.WatchStatusRequest(interval_s=interval_s)
        return self._connection.stream(self._stub.WatchStatus, request, codec.status_from, _FOREVER)

    def check_pairs(self, *, timeout: float = CHECK_TIMEOUT_S) -> Stream[PairCheck]:
        """Drive a canary through every pair; one result for each."""
        request = pb.CheckPairsRequest()
        return self._connection.stream(self._stub.CheckPairs, request, codec.check_from, timeout)

    def verify(self, *, timeout: float = VERIFY_TIMEOUT_S) -> Verification:
        """Have every worker audit its blocks, and compare what workers hold with what the router knows."""
        response = self._connection.call(self._stub.Verify, pb.VerifyRequest(), timeout)
        return codec.verification_from(response)

    def set_pool_size(self, pool: Pool, size: int) -> int:
        """Change how many workers a pool has; the size before. Returns at once; see `watch`."""
        request = codec.size_to_pb(pool, size)
        return self._connection.call(self._stub.SetPoolSize, request, self._timeout).previous_size

    def drain_worker(self, worker_id: str) -> None:
        """Have one worker drain and leave. Returns at once."""
        request = pb.DrainWorkerRequest(worker_id=worker_id)
        self._connection.call(self._stub.DrainWorker, request, self._timeout)

    def restart(self, which: Pool | str, *, timeout: float | None = _FOREVER) -> Stream[tuple[str, str]]:
        """Drain, end and start anew one worker, or a pool's one by one: id and incarnation of each.

        Leaving the stream stops it after the present worker.
        """
        request = codec.restart_to_pb(which)
        return self._connection.stream(self._stub.RestartWorkers, request, codec.restarted_from, timeout)

    def close(self) -> None:
        """Cancel what is running and leave the server."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncOperationsClient:
    """OperationsClient's twin for asyncio: make it where the event loop runs, and use it there only."""

    def __init__(self, target: str = DEFAULT_TARGET, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        self._connection = AsyncConnection(target, _FOREVER)
        self._timeout = timeout
        self._stub: OperationsAsyncStub = OperationsStub(self._connection.channel)

    async def status(self) -> Status:
        """The state now."""
        response = await self._connection.call(self._stub.GetStatus, pb.GetStatusRequest(), self._timeout)
        return codec.status_from(response)

    def watch(self, interval_s: float | None = None) -> AsyncStream[Status]:
        """The state now and again at an interval (1 s), until the stream is left."""
        request = pb.WatchStatusRequest(interval_s=interval_s)
        return self._connection.stream(self._stub.WatchStatus, request, codec.status_from, _FOREVER)

    def check_pairs(self, *, timeout: float = CHECK_TIMEOUT_S) -> AsyncStream[PairCheck]:
        """Drive a canary through every pair; one result for each."""
        request = pb.CheckPairsRequest()
        return self._connection.stream(self._stub.CheckPairs, request, codec.check_from, timeout)

    async def verify(self, *, timeout: float = VERIFY_TIMEOUT_S) -> Verification:
        """Have every worker audit its blocks, and compare what workers hold with what the router knows."""
        response = await self._connection.call(self._stub.Verify, pb.VerifyRequest(), timeout)
        return codec.verification_from(response)

    async def set_pool_size(self, pool: Pool, size: int) -> int:
        """Change how many workers a pool has; the size before. Returns at once; see `watch`."""
        request = codec.size_to_pb(pool, size)
        response = await self._connection.call(self._stub.SetPoolSize, request, self._timeout)
        return response.previous_size

    async def drain_worker(self, worker_id: str) -> None:
        """Have one worker drain and leave. Returns at once."""
        request = pb.DrainWorkerRequest(worker_id=worker_id)
        await self._connection.call(self._stub.DrainWorker, request, self._timeout)

    def restart(self, which: Pool | str, *, timeout: float | None = _FOREVER) -> AsyncStream[tuple[str, str]]:
        """Drain, end and start anew one worker, or a pool's one by one: id and incarnation of each.

        Leaving the stream stops it after the present worker.
        """
        request = codec.restart_to_pb(which)
        return self._connection.stream(self._stub.RestartWorkers, request, codec.restarted_from, timeout)

    async def close(self) -> None:
        """Cancel what is running and leave the server."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
