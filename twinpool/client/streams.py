"""Streamed answers as iterators: leaving one, by whatever way, cancels its call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol, Self, TypeVar

import grpc

from twinpool.client.errors import typed_error
from twinpool.client.home_process import HomeProcess

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class BlockingCall(Protocol[R_co]):
    """What gRPC's blocking calls offer; the library names no public type for it."""

    def __next__(self) -> R_co: ...

    def cancel(self) -> bool:
        """Ask the server to stop."""
        ...


class Stream(Iterator[T]):
    """Values as they come. Ends by itself, or by close, the end of a `with`, or garbage collection.

    Each of the latter cancels the call, and after them the iterator is at its end. close may be
    called from any thread. Iterating raises the typed error of a call that failed.
    """

    def __init__(self, call: BlockingCall[R], decode: Callable[[R], T], request_id: str = "") -> None:
        self.request_id = request_id
        self._call = call
        self._decode = decode
        self._home = HomeProcess()
        self._closed = False

    def __next__(self) -> T:
        self._home.require()
        try:
            return self._decode(next(self._call))
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise typed_error(error) from error

    def close(self) -> None:
        """Cancel the call unless it is over. A forked child leaves it to its parent."""
        self._closed = True
        if self._home.is_here:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream(AsyncIterator[T]):
    """Stream's asynchronous twin, for one event loop; `aclose` ends it, and so does `async with`."""

    def __init__(
        self, call: grpc.aio.UnaryStreamCall[Any, R], decode: Callable[[R], T], request_id: str = ""
    ) -> None:
        self.request_id = request_id
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._messages = aiter(call)
        self._decode = decode
        self._home = HomeProcess()
        self._closed = False

    async def __anext__(self) -> T:
        self._home.require()
        try:
            return self._decode(await anext(self._messages))
        except grpc.aio.AioRpcError as error:
            raise typed_error(error) from error
        except asyncio.CancelledError:
            # gRPC reports our own cancel as if the reading task had been cancelled.
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise StopAsyncIteration from None
            raise

    async def aclose(self) -> None:
        """Cancel the call unless it is over. A forked child leaves it to its parent."""
        self._closed = True
        if self._home.is_here:
            self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Garbage is collected in any thread, and also after the loop has ended.
        if self._home.is_here and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call.cancel)
