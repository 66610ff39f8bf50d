"""The Inference service: what is asked goes to the entrance, chunks come back."""

# gRPC names the methods and passes each a context.
# ruff: noqa: ARG002, N802

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import grpc

from router.entrance.asked import GenerationAsked
from router.entrance.caller import Caller
from router.entrance.entrance import Answering, Entrance
from router.faces.grpc import inference_codec as codec
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import inference_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Raises typed errors; the boundary turns them into statuses and bounds each write."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Continue one prompt."""
        async with self._answering(codec.generate_asked(request), context) as answer:
            async for chunk in answer.chunks:
                yield pb.GenerateResponse(request_id=answer.request_id, chunk=codec.chunk(chunk))

    async def Chat(self, request: pb.ChatRequest, context: Context) -> AsyncIterator[pb.ChatResponse]:
        """Answer a conversation."""
        async with self._answering(codec.chat_asked(request), context) as answer:
            async for chunk in answer.chunks:
                yield pb.ChatResponse(request_id=answer.request_id, chunk=codec.chunk(chunk))

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """End requests by id."""
        outcomes = self._entrance.abort(request.request_ids)
        ids = request.request_ids
        return pb.AbortResponse(results=map(codec.abort_result, ids, outcomes))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Text to token ids."""
        add_special_tokens = codec.add_special_tokens(request)
        ids = await self._entrance.tokenize(
            request.model, request.text, add_special_tokens=add_special_tokens
        )
        return pb.TokenizeResponse(token_ids=ids)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """Token ids to text."""
        skip_special_tokens = codec.skip_special_tokens(request)
        text = await self._entrance.detokenize(
            request.model, request.token_ids, skip_special_tokens=skip_special_tokens
        )
        return pb.DetokenizeResponse(text=text)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """The models served."""
        return pb.ListModelsResponse(models=map(codec.model, self._entrance.models()))

    def _answering(self, asked: GenerationAsked, context: Context) -> AbstractAsyncContextManager[Answering]:
        time_left_s = cast("float | None", context.time_remaining())
        return self._entrance.answering(asked, Caller(context.peer()), time_left_s)
