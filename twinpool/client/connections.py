"""The choke point of all calls to a server: channel options, deadlines and errors are dealt with here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc

from twinpool.client.errors import typed_error
from twinpool.client.streams import AsyncStream, Stream

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_TIMEOUT_S = 600.0
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
]


class Connection:
    """A channel for blocking calls, safe to share between threads.

    timeout_s: for calls that bring none of their own; None leaves those without a deadline.
    """

    def __init__(self, target: str, timeout_s: float | None) -> None:
        self.channel = grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
        self._timeout_s = timeout_s

    def call(self, method: grpc.UnaryUnaryMultiCallable[Q, R], request: Q, timeout: float | None) -> R:
        """Call and wait. Raises the server's typed error."""
        try:
            return method(request, timeout=self._timeout_s if timeout is None else timeout)
        except grpc.RpcError as error:
            raise typed_error(error) from error

    def stream(
        self,
        method: grpc.UnaryStreamMultiCallable[Q, R],
        request: Q,
        decode: Callable[[R], T],
        timeout: float | None,
    ) -> Stream[T]:
        """Send the request at once and return its answers as they will come."""
        call = method(request, timeout=self._timeout_s if timeout is None else timeout)
        return Stream(call, decode, getattr(request, "request_id", ""))

    def close(self) -> None:
        """Cancel what is running and close the channel."""
        self.channel.close()


class AsyncConnection:
    """Connection's asynchronous twin. Make it where the event loop runs, and use it there only."""

    def __init__(self, target: str, timeout_s: float | None) -> None:
        self.channel = grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        self._timeout_s = timeout_s

    async def call(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Q, R], request: Q, timeout: float | None
    ) -> R:
        """Call and wait. Raises the server's typed error."""
        try:
            return await method(request, timeout=self._timeout_s if timeout is None else timeout)
        except grpc.aio.AioRpcError as error:
            raise typed_error(error) from error

    def stream(
        self,
        method: grpc.aio.UnaryStreamMultiCallable[Q, R],
        request: Q,
        decode: Callable[[R], T],
        timeout: float | None,
    ) -> AsyncStream[T]:
        """Send the request at once and return its answers as they will come."""
        call = method(request, timeout=self._timeout_s if timeout is None else timeout)
        return AsyncStream(call, decode, getattr(request, "request_id", ""))

    async def close(self) -> None:
        """Cancel what is running and close the channel."""
        await self.channel.close()
