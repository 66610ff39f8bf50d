"""The choke point of all calls to a server: channel options, deadlines and errors are dealt with here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import grpc

from twinpool.channels import async_client_channel, client_channel
from twinpool.client.errors import typed_error
from twinpool.client.fields import shown
from twinpool.client.home_process import HomeProcess
from twinpool.client.streams import AsyncStream, Stream
from twinpool.errors import InvalidRequest

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_TIMEOUT_S = 600.0
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # A server that is back is found within two seconds, however long it was away; by default, minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_LONGEST_S = 365 * 24 * 3600.0
"""gRPC takes longer deadlines, infinity too, for ones that have passed."""


class Connection:
    """A channel for blocking calls, safe to share between threads.

    timeout_s: for calls that bring none of their own; None leaves those without a deadline.
    """

    def __init__(self, target: str, timeout_s: float | None) -> None:
        self.channel = client_channel(target, _CHANNEL_OPTIONS)
        self._timeout_s = timeout_s
        self._home = HomeProcess()

    def call(self, method: grpc.UnaryUnaryMultiCallable[Q, R], request: Q, timeout: float | None) -> R:
        """Call and wait. Raises the server's typed error."""
        self._home.require()
        try:
            return method(request, timeout=_bounded(self._timeout_s if timeout is None else timeout))
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
        self._home.require()
        call = method(request, timeout=_bounded(self._timeout_s if timeout is None else timeout))
        return Stream(call, decode, getattr(request, "request_id", ""))

    def close(self) -> None:
        """Cancel what is running and close the channel; in a forked child nothing is done."""
        if self._home.is_here:
            self.channel.close()


class AsyncConnection:
    """Connection's asynchronous twin. Make it where the event loop runs, and use it there only."""

    def __init__(self, target: str, timeout_s: float | None) -> None:
        self.channel = async_client_channel(target, _CHANNEL_OPTIONS)
        self._timeout_s = timeout_s
        self._home = HomeProcess()

    async def call(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Q, R], request: Q, timeout: float | None
    ) -> R:
        """Call and wait. Raises the server's typed error."""
        self._home.require()
        try:
            return await method(request, timeout=_bounded(self._timeout_s if timeout is None else timeout))
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
        self._home.require()
        call = method(request, timeout=_bounded(self._timeout_s if timeout is None else timeout))
        return AsyncStream(call, decode, getattr(request, "request_id", ""))

    async def close(self) -> None:
        """Cancel what is running and close the channel; in a forked child nothing is done."""
        if self._home.is_here:
            await self.channel.close()


def _bounded(timeout_s: float | None) -> float | None:
    """A timeout as gRPC understands it. Raises InvalidRequest for what is no number of seconds."""
    if timeout_s is None:
        return None
    given: object = timeout_s
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        raise InvalidRequest("timeout", f"timeout must be a number of seconds, not {shown(given)}")
    return min(timeout_s, _LONGEST_S)
