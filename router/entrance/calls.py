"""The calls of every face, from their arrival to their one end.

A call is: entered -> read -> opened -> answered -> ended with exactly one code, which is counted. Where there
is no room for a call, its message is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

from router.entrance import deadlines
from router.entrance.codes import Code, code_of, tellable
from router.entrance.open_calls import AWAITED_METHODS, OpenCalls
from twinpool.errors import RequestCancelled, ServerDraining, SlowReader, TwinpoolError

DRAIN_RETRY_S = 1.0

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]
TimeLeft = Callable[[], float | None]
"""Seconds until the client's deadline; None: it has none."""
Tell = Callable[[TwinpoolError], Awaitable[None]]
"""Writes a call's error to its client; bounded, whatever the client does."""


class CallCounter(Protocol):
    """Counts ended calls. code: a `Code`."""

    def call_ended(self, method: str, code: str) -> None:
        """A call has ended."""
        ...

    def client_disconnected(self) -> None:
        """A client left a stream before its end."""
        ...


class Calls:
    """What a face does with each call: `enter` it, `answer` it, `relay` its messages.

    slow_reader_s: seconds one write may block before its call is ended. Belongs to the event loop's thread.
    """

    def __init__(self, open_calls: OpenCalls, counter: CallCounter, slow_reader_s: float) -> None:
        self._open = open_calls
        self._counter = counter
        self._slow_reader_s = slow_reader_s

    def enter(self, method: str) -> None:
        """Count the current task's call among the open ones; see `OpenCalls.enter`. Raises TooManyCalls.

        A call that is refused is still to be answered, with that error.
        """
        self._open.enter(method)

    async def answer(
        self, method: str, num_bytes: int, work: Work[T], *, time_left: TimeLeft, tell: Tell
    ) -> T | None:
        """Do a call's work in its task; None once its error is told. CancelledError: its client has left.

        num_bytes: of its message, which stays as long as the call; without room for it no work is begun.
        """
        with self._open.opened(method, num_bytes) as call:
            try:
                self._open.require_bytes()
                result = await work()
            except asyncio.CancelledError:
                if not call.ended:
                    self._count_departure(method, time_left())
                    raise
                error: TwinpoolError = ServerDraining("the server is stopping", retry_after_s=DRAIN_RETRY_S)
                self._counter.call_ended(method, code_of(error))
            except RequestCancelled as left:
                error = left
                self._count_departure(method, time_left())
            except Exception as failure:  # noqa: BLE001 - the last stop: every error becomes a code here
                error = tellable(failure, method)
                self._counter.call_ended(method, code_of(error))
            else:
                self._counter.call_ended(method, Code.OK)
                return result
            await tell(error)
            return None

    async def relay(self, messages: AsyncGenerator[T, None], write: Callable[[T], Awaitable[None]]) -> None:
        """Write a call's messages as fast as its client reads. Raises SlowReader.

        write: raises RequestCancelled where the client is found to have left.
        """
        async with aclosing(messages):
            async for message in messages:
                try:
                    async with asyncio.timeout(self._slow_reader_s):
                        await write(message)
                except TimeoutError:
                    raise SlowReader(f"nothing was read for {self._slow_reader_s:g} s") from None

    async def drain(self, grace_s: float) -> None:
        """Let streams finish for grace_s seconds, and end the rest with ServerDraining."""
        await self._open.wait_idle(grace_s)
        self._open.end_all()

    def end_all(self) -> None:
        """End every call now, with ServerDraining."""
        self._open.end_all()

    def _count_departure(self, method: str, time_left_s: float | None) -> None:
        """Count a call that its client left, or whose deadline has passed."""
        if deadlines.passed(time_left_s):
            self._counter.call_ended(method, Code.DEADLINE_EXCEEDED)
            return
        self._counter.call_ended(method, Code.CANCELLED)
        if method in AWAITED_METHODS:
            self._counter.client_disconnected()
