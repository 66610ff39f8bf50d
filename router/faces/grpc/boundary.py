"""The boundary that every call to our gRPC services crosses: it is parsed, answered as a call, written.

Handlers are registered without a deserializer, so that bytes that do not parse become INVALID_ARGUMENT here
and not UNKNOWN inside gRPC. Where there is no room for a call, its message is not read.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from router.entrance.calls import Calls, Work
from router.faces.grpc.errors import call_status
from twinpool.errors import InvalidRequest, RequestCancelled, TooManyCalls, TwinpoolError

PREFIX = "/twinpool.v1."
# A status waits behind the messages that a slow reader has not read. gRPC keeps it; the task need not wait.
STATUS_FLUSH_S = 1.0

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class Boundary(grpc.aio.ServerInterceptor):
    """Wraps our services' handlers."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

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
            async def work() -> None:
                raise error

            await self._answer(method, b"", work, context)

        # gRPC reads the message of a call before it asks the handler, but for one that may have several.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrapped(self, handler: Any, method: str) -> Handler:
        # handler: Any, because grpc's types describe synchronous handlers only.
        async def unary(raw: bytes, context: Context) -> Message | None:
            async def work() -> Message:
                response: Message = await handler.unary_unary(_parsed(handler, raw), context)
                return response

            return await self._answer(method, raw, work, context)

        async def stream(raw: bytes, context: Context) -> None:
            async def work() -> None:
                messages = handler.unary_stream(_parsed(handler, raw), context)
                await self._calls.relay(messages, functools.partial(_write, context))

            await self._answer(method, raw, work, context)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(unary, None, handler.response_serializer)

    async def _answer(self, method: str, raw: bytes, work: Work[T], context: Context) -> T | None:
        time_left = cast("Callable[[], float | None]", context.time_remaining)
        tell = functools.partial(_abort, context)
        return await self._calls.answer(method, len(raw), work, time_left=time_left, tell=tell)


def _parsed(handler: Any, raw: bytes) -> Message:
    try:
        return cast("Message", handler.request_deserializer(raw))
    except DecodeError:
        # Protobuf's own words name Python types and no field.
        raise InvalidRequest(
            "", "the request is malformed: it is not the method's message, or its text is not UTF-8"
        ) from None


async def _write(context: Context, message: Message) -> None:
    try:
        await context.write(message)
    except grpc.aio.InternalError as error:
        # The write found the stream closed before our task was cancelled for it.
        raise RequestCancelled("the client has left") from error


async def _abort(context: Context, error: TwinpoolError) -> None:
    """End the call. Raises gRPC's AbortError, unless the reader is too slow for its status or gone."""
    status = call_status(error)
    with suppress(TimeoutError, grpc.aio.InternalError):
        async with asyncio.timeout(STATUS_FLUSH_S):
            await context.abort(status.code, status.message, status.trailers)
