"""The router's whole outer shell over real sockets, around a fake dispatcher, and what its clients see."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from router.entrance.operations import Operations
from router.entrance.text import Tokenizer
from router.faces.address import Address
from router.faces.grpc.transport import SERVER_OPTIONS
from router.server import RouterServer, build_server
from router.telemetry.metrics import Metrics
from tests.support.router.fakes import (
    CARD,
    ByteDetokenizer,
    ByteTokenizer,
    FakeDispatcher,
    FakePairs,
    FakePools,
)
from twinpool.config import RouterConfig
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1.inference_pb2_grpc import InferenceStub
from twinpool.v1.operations_pb2_grpc import OperationsStub

if TYPE_CHECKING:
    from twinpool.v1.inference_pb2_grpc import InferenceAsyncStub
    from twinpool.v1.operations_pb2_grpc import OperationsAsyncStub

Detail = TypeVar("Detail", bound=Message)
ANY_PORT = Address("127.0.0.1", 0)
# A client with these windows absorbs a few hundred messages before a write to it blocks, not many thousands.
SMALL_WINDOWS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384))


@dataclass(frozen=True)
class Shell:
    dispatcher: FakeDispatcher
    pairs: FakePairs
    pools: FakePools
    metrics: Metrics
    server: RouterServer
    channel: grpc.aio.Channel
    operations_channel: grpc.aio.Channel
    address: Address
    operations_address: Address

    @property
    def inference(self) -> InferenceAsyncStub:
        return InferenceStub(self.channel)

    @property
    def operations(self) -> OperationsAsyncStub:
        return OperationsStub(self.operations_channel)

    def count(self, name: str, **labels: str) -> float | None:
        """A counter's value now."""
        return self.metrics.registry.get_sample_value(f"twinpool_{name}", labels)


@asynccontextmanager
async def running_shell(
    *,
    tokenizer: Tokenizer | None = None,
    slow_reader_s: float = 30.0,
    queue_max_requests: int = 1024,
    operations: Address = ANY_PORT,
    options: Mapping[str, int] = MappingProxyType({}),
) -> AsyncIterator[Shell]:
    """options: of the transport, in place of the server's own."""
    dispatcher, pairs, pools, metrics = FakeDispatcher(), FakePairs(), FakePools(), Metrics()
    server = build_server(
        dispatcher=dispatcher,
        operations=Operations(dispatcher, pairs, pools),
        tokenizer=tokenizer or ByteTokenizer(),
        new_detokenizer=lambda skip_special_tokens: ByteDetokenizer(),
        card=CARD,
        metrics=metrics,
        config=RouterConfig(slow_reader_s=slow_reader_s, queue_max_requests=queue_max_requests),
        options=tuple((dict(SERVER_OPTIONS) | dict(options)).items()),
    )
    inference_bound, operations_bound = await server.start(ANY_PORT, operations)
    async with (
        grpc.aio.insecure_channel(str(inference_bound), SMALL_WINDOWS) as channel,
        grpc.aio.insecure_channel(str(operations_bound)) as operations_channel,
    ):
        try:
            addresses = (inference_bound, operations_bound)
            yield Shell(dispatcher, pairs, pools, metrics, server, channel, operations_channel, *addresses)
        finally:
            await server.stop(grace_s=0)


def token_prompt(ids: Sequence[int] = (1, 2, 3), request_id: str = "r") -> pb.GenerateRequest:
    return pb.GenerateRequest(request_id=request_id, token_ids=pb.TokenIds(ids=ids))


async def failure_of(call: AsyncIterable[object]) -> grpc.aio.AioRpcError:
    """The error that a stream ends with."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call ended well")


def rich_status(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """The google.rpc.Status in an error's trailers; empty if there is none."""
    raw = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    return status_pb2.Status.FromString(raw if isinstance(raw, bytes) else raw.encode())


def detail(error: grpc.aio.AioRpcError, kind: type[Detail]) -> Detail | None:
    """One kind of detail of an error, if it is there."""
    for packed in rich_status(error).details:
        unpacked = kind()
        if packed.Unpack(unpacked):
            return unpacked
    return None


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """ErrorInfo's reason, checking that it is ours."""
    info = detail(error, error_details_pb2.ErrorInfo)
    assert info is not None
    assert info.domain == "twinpool"
    return info.reason


def fields_of(error: grpc.aio.AioRpcError) -> list[str]:
    """The fields that BadRequest names."""
    bad = detail(error, error_details_pb2.BadRequest)
    return [] if bad is None else [violation.field for violation in bad.field_violations]
