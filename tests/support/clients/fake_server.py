"""A server that answers by script: what the client meets on the wire, without any engine.

The prompt's text chooses what happens; see FakeInference.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from router.faces.grpc.errors import call_status
from twinpool.errors import TwinpoolError
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import operations_pb2 as ops
from twinpool.v1 import types_pb2
from twinpool.v1.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server
from twinpool.v1.operations_pb2_grpc import OperationsServicer, add_OperationsServicer_to_server

_SERVER_OPTIONS = [("grpc.max_receive_message_length", 2**24), ("grpc.max_send_message_length", 2**24)]

SUMMARY = pb.Summary(
    usage=pb.Usage(prompt_tokens=3, completion_tokens=3),
    timing=pb.Timing(queue_s=0.5, prefill_s=0.25, handoff_wait_s=0.125, decode_s=1),
    workers=pb.ServedBy(prefill="prefill-0", decode="decode-0"),
    seed=2**64 - 1,
    prompt_token_ids=[1, 2, 3],
    num_resumes=2,
)
CHUNKS = (
    pb.Chunk(text="caf", token_ids=[7]),
    pb.Chunk(text="", token_ids=[8]),
    pb.Chunk(text="é", token_ids=[9], finish_reason=types_pb2.FINISH_REASON_LENGTH, summary=SUMMARY),
)


class FakeInference(InferenceServicer):
    """Streams CHUNKS, but for these prompts.

    endless: one chunk, then silence, and `silent` is set. cut: no last chunk. fail: the error set as `error`.
    bare: a status without details. broken: details that are no protobuf. echo: the text as one chunk.
    """

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self.silent = threading.Event()
        self.cancelled = threading.Event()
        self.error: TwinpoolError | None = None

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        async for chunk in self._act(request.text, context):
            yield pb.GenerateResponse(request_id=request.request_id, chunk=chunk)

    async def Chat(
        self, request: pb.ChatRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ChatResponse]:
        self.requests.append(request)
        async for chunk in self._act(request.messages[-1].content, context):
            yield pb.ChatResponse(request_id=request.request_id, chunk=chunk)

    async def Abort(
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AbortResponse:
        self.requests.append(request)
        outcomes = {"running": pb.ABORT_OUTCOME_ABORTED}
        return pb.AbortResponse(
            results=[
                pb.AbortResult(request_id=id_, outcome=outcomes.get(id_, pb.ABORT_OUTCOME_NOT_IN_FLIGHT))
                for id_ in request.request_ids
            ]
        )

    async def Tokenize(
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.TokenizeResponse:
        self.requests.append(request)
        return pb.TokenizeResponse(token_ids=request.text.encode())

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DetokenizeResponse:
        self.requests.append(request)
        return pb.DetokenizeResponse(text=bytes(request.token_ids).decode())

    async def ListModels(
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListModelsResponse:
        self.requests.append(request)
        model = pb.Model(
            name="tiny", max_context_tokens=64, vocab_size=256, eos_token_ids=[2], dtype="float32"
        )
        return pb.ListModelsResponse(models=[model])

    async def _act(self, text: str, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[pb.Chunk]:
        match text.partition(" ")[0]:
            case "endless":
                try:
                    yield CHUNKS[0]
                    self.silent.set()
                    await asyncio.Event().wait()
                except (asyncio.CancelledError, GeneratorExit):
                    # Whether it waits, or its chunk is still being written.
                    self.cancelled.set()
                    raise
            case "cut":
                yield CHUNKS[0]
            case "fail" if self.error is not None:
                status = call_status(self.error)
                await context.abort(status.code, status.message, status.trailers)
            case "bare":
                await context.abort(grpc.StatusCode.DATA_LOSS, "no details")
            case "broken":
                trailers = (("grpc-status-details-bin", b"\xff\xff"),)
                await context.abort(grpc.StatusCode.INTERNAL, "broken details", trailers)
            case "echo":
                yield pb.Chunk(text=text, finish_reason=types_pb2.FINISH_REASON_STOP, summary=SUMMARY)
            case _:
                for chunk in CHUNKS:
                    yield chunk


class FakeOperations(OperationsServicer):
    """A system of one pair; `checks` is what its canaries find."""

    def __init__(self) -> None:
        pair = ops.PairStatus(prefill="prefill-0", decode="decode-0", transport="shm", ready=True)
        worker = ops.WorkerStatus(
            id="decode-0",
            pool=types_pb2.POOL_DECODE,
            state=ops.WORKER_STATE_READY,
            pid=42,
            node="127.0.0.1",
            incarnation="abc",
            running=3,
            waiting=1,
            blocks_used=10,
            blocks_cached=5,
            blocks_total=100,
        )
        self.status = ops.Status(
            model="tiny",
            serving=True,
            queue=ops.QueueStatus(requests=2, tokens=30),
            requests=5,
            workers=[worker],
            pairs=[pair],
            handoffs_in_flight=1,
        )
        self.checks = [ops.CheckPairsResponse(pair=pair, queue_s=0.5, prefill_s=0.25)]
        self.verified = ops.VerifyResponse(
            at_rest=False,
            workers=[
                ops.WorkerVerification(
                    id="decode-0",
                    pool=types_pb2.POOL_DECODE,
                    incarnation="abc",
                    answered=True,
                    blocks_total=100,
                    blocks=ops.BlockUsage(free=87, reserved=2, rows=5, cached=4, quarantined=2),
                    held=[ops.BlockHolding(holder="try-1", stage="admitted", blocks=5, age_s=1.5)],
                )
            ],
        )
        self.intervals: list[float] = []
        self.asked: list[object] = []

    async def GetStatus(
        self, request: ops.GetStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> ops.GetStatusResponse:
        return ops.GetStatusResponse(status=self.status)

    async def WatchStatus(
        self, request: ops.WatchStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[ops.WatchStatusResponse]:
        self.intervals.append(request.interval_s)
        for _ in range(2):
            yield ops.WatchStatusResponse(status=self.status)

    async def CheckPairs(
        self, request: ops.CheckPairsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[ops.CheckPairsResponse]:
        for check in self.checks:
            yield check

    async def Verify(
        self, request: ops.VerifyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> ops.VerifyResponse:
        return self.verified

    async def SetPoolSize(
        self, request: ops.SetPoolSizeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> ops.SetPoolSizeResponse:
        self.asked.append(request)
        return ops.SetPoolSizeResponse(previous_size=1)

    async def DrainWorker(
        self, request: ops.DrainWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> ops.DrainWorkerResponse:
        self.asked.append(request)
        return ops.DrainWorkerResponse()

    async def RestartWorkers(
        self, request: ops.RestartWorkersRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[ops.RestartWorkersResponse]:
        self.asked.append(request)
        for number in range(2):
            yield ops.RestartWorkersResponse(worker_id=f"decode-{number}", incarnation=f"decode-{number}-new")


class FakeServer:
    """Both services on one free port."""

    def __init__(self) -> None:
        self.inference = FakeInference()
        self.operations = FakeOperations()
        self.target = ""

    async def start(self, address: str) -> grpc.aio.Server:
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        add_InferenceServicer_to_server(self.inference, server)
        add_OperationsServicer_to_server(self.operations, server)
        self.target = f"127.0.0.1:{server.add_insecure_port(address)}"
        await server.start()
        return server


@contextmanager
def running_server(address: str = "127.0.0.1:0") -> Iterator[FakeServer]:
    """A fake server on a loop and thread of its own, so that blocking clients can be tested too."""
    fake, loop = FakeServer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake server")
    thread.start()
    server = asyncio.run_coroutine_threadsafe(fake.start(address), loop).result(timeout=10)
    try:
        yield fake
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(grace=None), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()
