"""The boundary that every call to our services crosses: parsing, typed errors, slow readers, counts.

A call is: entered -> read -> opened -> parsed -> answered -> ended with exactly one status, which is counted.
Handlers are registered without a deserializer, so that bytes that do not parse become INVALID_ARGUMENT here
and not UNKNOWN inside gRPC. Where there is no room for a call, its message is not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from router.faces.grpc.calls import AWAITED_METHODS, OpenCalls
from router.faces.grpc.errors import CallStatus, call_status
from twinpool.errors import InvalidRequest, RequestCancelled, ServerDraining, SlowReader, TooManyCalls
from twinpool.logs import without_words

logger = logging.getLogger(__name__)

PREFIX = "/twinpool.v1."
# A status waits behind the messages that a slow reader has not read. gRPC keeps it; the task need not wait.
STATUS_FLUSH_S = 1.0
DRAIN_RETRY_S = 1.0
# The client watches the same deadline and starts it a little earlier.
DEADLINE_SLACK_S = 0.05

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class CallCounter(Protocol):
    """Counts ended calls. code: a gRPC status code's name."""

    def call_ended(self, method: str, code: str) -> None:
        """A call has ended."""
        ...

    def client_disconnected(self) -> None:
        """A client left a stream before its end."""
        ...


class Boundary(grpc.aio.ServerInterceptor):
    """Wraps our services' handlers. slow_reader_s: seconds one write may block before its call is ended."""

    def __init__(self, calls: OpenCalls, counter: CallCounter, slow_reader_s: float) -> None:
        self._calls = calls
        self._counter = counter
        self._slow_reader_s = slow_reader_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap a handler of ours; health, reflection and unknown methods (None) pass as they are."""
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None or not path.startswith(PREFIX):
            return handler
        method = path.rpartition("/")[2]
        try:
            self._calls.enter(method)
        except TooManyCalls as error:
            return self._refusing(error, method)
        return self._wrapped(handler, method)

    def _refusing(self, error: TooManyCalls, method: str) -> Handler:
        async def refuse(_: object, context: Context) -> None:
            async def answer() -> None:
                raise error

            await self._guarded(answer(), method, 0, context)

        # gRPC reads the message of a call before it asks the handler, but for one that may have several.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrapped(self, handler: Any, method: str) -> Handler:
        # handler: Any, because grpc's types describe synchronous handlers only.
        async def unary(raw: bytes, context: Context) -> Message | None:
            async def answer() -> Message:
                self._calls.require_bytes()
                response: Message = await handler.unary_unary(_parsed(handler, raw), context)
                return response

            return await self._guarded(answer(), method, len(raw), context)

        async def stream(raw: bytes, context: Context) -> None:
            async def answer() -> None:
                self._calls.require_bytes()
                await self._relay(handler.unary_stream(_parsed(handler, raw), context), context)

            await self._guarded(answer(), method, len(raw), context)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(unary, None, handler.response_serializer)

    async def _guarded(self, answer: Awaitable[T], method: str, num_bytes: int, context: Context) -> T | None:
        with self._calls.opened(method, num_bytes) as call:
            try:
                result = await answer
            except asyncio.CancelledError:
                if not call.ended:
                    self._count_departure(method, context)
                    raise
                status = call_status(ServerDraining("the server is stopping", retry_after_s=DRAIN_RETRY_S))
                self._counter.call_ended(method, status.code.name)
            except RequestCancelled as error:
                self._count_departure(method, context)
                status = call_status(error)
            except Exception as error:  # noqa: BLE001 - the last stop: every error becomes a status here
                status = _logged_status(error, method)
                self._counter.call_ended(method, status.code.name)
            else:
                self._counter.call_ended(method, grpc.StatusCode.OK.name)
                return result
            await _abort(context, status)
            return None

    async def _relay(self, messages: AsyncGenerator[Message, None], context: Context) -> None:
        async with aclosing(messages):
            async for message in messages:
                try:
                    async with asyncio.timeout(self._slow_reader_s):
                        await context.write(message)
                except TimeoutError:
                    raise SlowReader(f"nothing was read for {self._slow_reader_s:g} s") from None
                except grpc.aio.InternalError as error:
                    # The write found the stream closed before our task was cancelled for it.
                    raise RequestCancelled("the client has left") from error

    def _count_departure(self, method: str, context: Context) -> None:
        """Count a call that its client left, or whose deadline, which both sides watch, has passed."""
        remaining_s = cast("float | None", context.time_remaining())
        if remaining_s is not None and remaining_s < DEADLINE_SLACK_S:
            self._counter.call_ended(method, grpc.StatusCode.DEADLINE_EXCEEDED.name)
            return
        self._counter.call_ended(method, grpc.StatusCode.CANCELLED.name)
        if method in AWAITED_METHODS:
            self._counter.client_disconnected()


def _parsed(handler: Any, raw: bytes) -> Message:
    try:
        return cast("Message", handler.request_deserializer(raw))
    except DecodeError:
        # Protobuf's own words name Python types and no field.
        raise InvalidRequest(
            "", "the request is malformed: it is not the method's message, or its text is not UTF-8"
        ) from None


def _logged_status(error: Exception, method: str) -> CallStatus:
    status = call_status(error)
    if status.log_id is not None:
        logger.error("%s failed (%s):\n%s", method, status.log_id, without_words(error))
    return status


async def _abort(context: Context, status: CallStatus) -> None:
    """End the call. Raises gRPC's AbortError, unless the reader is too slow for its status or gone."""
    with suppress(TimeoutError, grpc.aio.InternalError):
        async with asyncio.timeout(STATUS_FLUSH_S):
            await context.abort(status.code, status.message, status.trailers)
