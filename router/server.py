"""The router's outer side, composed: the entrance, and the faces through which clients come to it."""

from __future__ import annotations

import asyncio

from router.entrance.calls import Calls
from router.entrance.entrance import Entrance
from router.entrance.open_calls import OpenCalls
from router.entrance.operations import Operations
from router.entrance.ports import Dispatcher
from router.entrance.preprocessor import Preprocessor
from router.entrance.text import NewDetokenizer, TextThreads, Tokenizer
from router.faces.address import Address
from router.faces.grpc.face import GrpcFace
from router.faces.grpc.transport import SERVER_OPTIONS, Options
from router.telemetry.metrics import Metrics
from twinpool.config import RouterConfig
from twinpool.types import ModelCard


class RouterServer:
    """Life: built -> started (not serving) -> serving or not -> stopped."""

    def __init__(self, calls: Calls, entrance: Entrance, face: GrpcFace) -> None:
        self._calls = calls
        self._entrance = entrance
        self._face = face

    async def start(self, inference: Address, operations: Address) -> tuple[Address, Address]:
        """Listen on both addresses; return them with the ports taken. Raises StartFailed."""
        return await self._face.start(inference, operations)

    async def set_serving(self, serving: bool) -> None:
        """Tell health's clients whether prompts are served."""
        await self._face.set_serving(serving)

    def end_calls(self) -> None:
        """End all streams now, with ServerDraining; a stop that waits for them goes on."""
        self._calls.end_all()

    async def stop(self, grace_s: float) -> None:
        """Let streams finish for grace_s seconds, end the rest with ServerDraining, close the ports.

        Calls still get in until the streams are done, so that they are refused typed: have the
        dispatcher refuse new requests first.
        """
        await self._face.set_serving(False)
        await self._calls.drain(grace_s)
        await self._face.close()
        await asyncio.to_thread(self._entrance.close)


def build_server(
    *,
    dispatcher: Dispatcher,
    operations: Operations,
    tokenizer: Tokenizer,
    new_detokenizer: NewDetokenizer,
    card: ModelCard,
    metrics: Metrics,
    config: RouterConfig,
    options: Options = SERVER_OPTIONS,
) -> RouterServer:
    """Put the outer side of a dispatcher together. Every argument outlives the server. options: gRPC's."""
    calls = Calls(OpenCalls(config.queue_max_requests), metrics, config.slow_reader_s)
    preprocessor = Preprocessor(
        card, TextThreads(tokenizer), dispatcher.max_request_tokens, dispatcher.require_room
    )
    entrance = Entrance(dispatcher, preprocessor, new_detokenizer, metrics)
    return RouterServer(calls, entrance, GrpcFace(calls, entrance, operations, options))
