"""The router's two gRPC servers: one for prompts, one for operations; health and reflection on both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health as health_service
from grpc_reflection.v1alpha import reflection

from router.entrance.ports import Dispatcher
from router.entrance.preprocessor import Preprocessor
from router.entrance.text import NewDetokenizer, TextThreads, Tokenizer
from router.faces.grpc.boundary import Boundary
from router.faces.grpc.calls import OpenCalls
from router.faces.grpc.health import INFERENCE, OPERATIONS, Health
from router.faces.grpc.inference_service import InferenceService
from router.faces.grpc.operations_service import OperationsService
from router.faces.grpc.transport import SERVER_OPTIONS, Options
from router.telemetry.metrics import Metrics
from twinpool.config import RouterConfig
from twinpool.errors import StartFailed
from twinpool.types import ModelCard
from twinpool.v1 import inference_pb2_grpc, operations_pb2_grpc

# Time for the last statuses to leave, once every call of ours has ended.
CLOSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class RouterServer:
    """Both servers. Life: built -> started (health: not serving) -> serving or not -> stopped."""

    def __init__(
        self,
        *,
        inference: InferenceService,
        operations: OperationsService,
        health: Health,
        boundary: Boundary,
        calls: OpenCalls,
        text: TextThreads,
        options: Options,
    ) -> None:
        self._inference = inference
        self._operations = operations
        self._health = health
        self._boundary = boundary
        self._calls = calls
        self._text = text
        self._options = options
        self._servers: list[grpc.aio.Server] = []

    async def start(self, inference: Address, operations: Address) -> tuple[Address, Address]:
        """Listen on both addresses; return them with the ports taken. Raises StartFailed."""
        await self._health.start()
        front, back = self._new_server(), self._new_server()
        inference_pb2_grpc.add_InferenceServicer_to_server(self._inference, front)
        operations_pb2_grpc.add_OperationsServicer_to_server(self._operations, back)
        _reflect(INFERENCE, front)
        _reflect(OPERATIONS, back)
        bound = (_bind(front, inference), _bind(back, operations))
        self._servers = [front, back]
        for server in self._servers:
            await server.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        """Tell health's clients whether prompts are served."""
        await self._health.set_serving(serving)

    def end_calls(self) -> None:
        """End all streams now, as UNAVAILABLE; a stop that waits for them goes on."""
        self._calls.end_all()

    async def stop(self, grace_s: float) -> None:
        """Let streams finish for grace_s seconds, end the rest as UNAVAILABLE, close both ports.

        Calls still get in until the streams are done, so that they are refused typed: have the
        dispatcher refuse new requests first.
        """
        await self._health.set_serving(False)
        await self._calls.wait_idle(grace_s)
        self._calls.end_all()
        await asyncio.gather(*(server.stop(CLOSE_S) for server in self._servers))
        await asyncio.to_thread(self._text.close)

    def _new_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[self._boundary], options=self._options)
        self._health.add_to(server)
        return server


def build_server(
    *,
    dispatcher: Dispatcher,
    operations: OperationsService,
    tokenizer: Tokenizer,
    new_detokenizer: NewDetokenizer,
    card: ModelCard,
    metrics: Metrics,
    config: RouterConfig,
    options: Options = SERVER_OPTIONS,
) -> RouterServer:
    """Put the shell around a dispatcher together. Every argument outlives the server. options: gRPC's."""
    text = TextThreads(tokenizer)
    preprocessor = Preprocessor(card, text, dispatcher.max_request_tokens, dispatcher.require_room)
    calls = OpenCalls(config.queue_max_requests)
    return RouterServer(
        inference=InferenceService(dispatcher, preprocessor, new_detokenizer, metrics),
        operations=operations,
        health=Health(),
        boundary=Boundary(calls, metrics, config.slow_reader_s),
        calls=calls,
        text=text,
        options=options,
    )


def _bind(server: grpc.aio.Server, address: Address) -> Address:
    try:
        return Address(address.host, server.add_insecure_port(str(address)))
    except RuntimeError as error:
        raise StartFailed(f"cannot listen on {address}: is the port in use?") from error


def _reflect(service: str, server: grpc.aio.Server) -> None:
    names = (service, health_service.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
