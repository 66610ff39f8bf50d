"""The Inference service: parses, has requests made, relays the dispatcher's tokens as chunks of text."""

# gRPC names the methods and passes each a context.
# ruff: noqa: ARG002, N802

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any, Protocol, cast

import grpc

from router.dispatch.streams import Outputs
from router.entrance import admission
from router.entrance.answer import Answer
from router.entrance.arrivals import Arrivals
from router.entrance.asked import GenerationAsked
from router.entrance.ports import Dispatcher
from router.entrance.preprocessor import Preprocessor
from router.entrance.text import NewDetokenizer
from router.faces.grpc import inference_codec as codec
from router.scheduling.values import Request
from router.telemetry import request_log
from twinpool.errors import DeadlineExceeded, TwinpoolError
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import inference_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

TELL_S = 0.1
"""A deadline ends a request this much early, so that its client hears of the phase before it gives up."""


class RefusalCounter(Protocol):
    """Counts requests that were not admitted."""

    def request_rejected(self, reason: str) -> None:
        """A request was refused, by the rules of admission or the queue. reason: the error's."""
        ...

    def request_expired(self, phase: str) -> None:
        """A request's deadline passed before it came to the queue."""
        ...


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Raises typed errors; the boundary turns them into statuses and bounds each write."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        preprocessor: Preprocessor,
        new_detokenizer: NewDetokenizer,
        counter: RefusalCounter,
    ) -> None:
        self._dispatcher = dispatcher
        self._preprocessor = preprocessor
        self._new_detokenizer = new_detokenizer
        self._counter = counter
        self._arrivals = Arrivals()

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Continue one prompt."""
        arrived_at = time.monotonic()
        request_id = request.request_id or _new_request_id()
        with self._telling_refusals(request_id):
            admission.check_count("token_ids.ids", len(request.token_ids.ids), self._preprocessor.limits)
            answer, outputs = await self._admit(
                codec.generate_asked(request), request_id, context, arrived_at
            )
        async with aclosing(outputs):
            async for output in outputs:
                yield pb.GenerateResponse(request_id=request_id, chunk=codec.chunk(answer.chunk(output)))

    async def Chat(self, request: pb.ChatRequest, context: Context) -> AsyncIterator[pb.ChatResponse]:
        """Answer a conversation."""
        arrived_at = time.monotonic()
        request_id = request.request_id or _new_request_id()
        with self._telling_refusals(request_id):
            admission.check_count("messages", len(request.messages), self._preprocessor.limits)
            answer, outputs = await self._admit(codec.chat_asked(request), request_id, context, arrived_at)
        async with aclosing(outputs):
            async for output in outputs:
                yield pb.ChatResponse(request_id=request_id, chunk=codec.chunk(answer.chunk(output)))

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """End requests by id."""
        admission.check_abort_ids(request.request_ids)
        results = [codec.abort_result(id_, self._abort(id_)) for id_ in request.request_ids]
        return pb.AbortResponse(results=results)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Text to token ids."""
        self._preprocessor.check_model(request.model)
        admission.check_text("text", request.text, self._preprocessor.limits)
        ids = await self._preprocessor.text.encode(request.text, codec.add_special_tokens(request))
        return pb.TokenizeResponse(token_ids=ids)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """Token ids to text."""
        self._preprocessor.check_model(request.model)
        admission.check_count("token_ids", len(request.token_ids), self._preprocessor.limits)
        admission.check_token_ids("token_ids", request.token_ids, self._preprocessor.limits)
        text = await self._preprocessor.text.decode(
            tuple(request.token_ids), codec.skip_special_tokens(request)
        )
        return pb.DetokenizeResponse(text=text)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """The one model."""
        return pb.ListModelsResponse(models=[codec.model(self._preprocessor.card)])

    async def _admit(
        self, asked: GenerationAsked, request_id: str, context: Context, arrived_at: float
    ) -> tuple[Answer, Outputs]:
        """Submit a request. Its outputs must be closed; nothing may be awaited before that is sure."""
        admission.check_request_id(request_id)
        timeout_s = _time_left(context)
        with self._arrivals.arriving(request_id) as arrival:
            request = await _in_time(self._preprocessor.admit(asked, request_id), timeout_s)
            detokenizer = self._new_detokenizer(asked.skip_special_tokens)
            waited_s = time.monotonic() - arrived_at
            outputs = self._dispatcher.submit(replace(request, timeout_s=timeout_s, waited_s=waited_s))
        if arrival.aborted:
            self._dispatcher.abort(request_id)
        return Answer(request, detokenizer, return_prompt_ids=asked.return_prompt_token_ids), outputs

    @contextmanager
    def _telling_refusals(self, request_id: str) -> Iterator[None]:
        try:
            yield
        except TwinpoolError as error:
            if isinstance(error, DeadlineExceeded):
                self._counter.request_expired(error.phase)
            else:
                self._counter.request_rejected(error.reason)
            request_log.refused(request_id, error)
            raise

    def _abort(self, request_id: str) -> bool:
        return self._dispatcher.abort(request_id) or self._arrivals.abort(request_id)


async def _in_time(admitting: Awaitable[Request], timeout_s: float | None) -> Request:
    """A request whose text is tokenized in time. Raises DeadlineExceeded: so long it has been queued."""
    try:
        async with asyncio.timeout(timeout_s):
            return await admitting
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed while its text waited", phase="queue") from None


def _time_left(context: Context) -> float | None:
    """Seconds until the client's deadline, less what it takes to tell the client which phase it passed in."""
    remaining_s = cast("float | None", context.time_remaining())
    if remaining_s is None:
        return None
    return max(0.0, remaining_s - min(TELL_S, remaining_s * 0.2))


def _new_request_id() -> str:
    return uuid.uuid4().hex
