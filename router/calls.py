"""The calls now open on the servers, so that a stop can wait for streams and then end the rest, typed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from twinpool.errors import TooManyCalls

# Calls that a stopping server lets finish; the others end at once.
AWAITED_METHODS = frozenset({"Generate", "Chat"})

MOST_AT_ONCE: Mapping[str, int] = MappingProxyType(
    {
        # Canaries go before everybody's requests.
        "CheckPairs": 1,
        # Each builds and sends a whole status, up to ten times a second.
        "WatchStatus": 64,
        # Each has every engine stop for a moment to read its books.
        "Verify": 4,
        # Each renews workers one at a time, and so waits for the others.
        "RestartWorkers": 4,
    }
)
"""Calls of a method that may be open together, over all clients. Others are bounded elsewhere: requests by
the queue, text work by its threads; the rest is answered at once."""
RETRY_S = 1.0
"""When one of them may have ended."""


@dataclass(slots=True, eq=False)
class OpenCall:
    """One call. ended: the server, not the client, has cancelled its task."""

    method: str
    task: asyncio.Task[object]
    ended: bool = False


class OpenCalls:
    """Registers calls; belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._calls: set[OpenCall] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def opened(self, method: str) -> Iterator[OpenCall]:
        """Register the current task's call while it runs."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call runs in a task")
        call = OpenCall(method, task)
        self._calls.add(call)
        self._update()
        try:
            yield call
        finally:
            self._calls.discard(call)
            self._update()

    def require_room(self, method: str) -> None:
        """Raise TooManyCalls if more calls of this method are open than may be, the current one included."""
        most = MOST_AT_ONCE.get(method)
        if most is not None and sum(call.method == method for call in self._calls) > most:
            words = f"{method} is running as often as it may, which is {most}"
            raise TooManyCalls(words, retry_after_s=RETRY_S)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no awaited call is open; False if the time ran out first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def end_all(self) -> None:
        """Cancel every open call's task, marked as ended by the server."""
        for call in self._calls:
            call.ended = True
            call.task.cancel()

    def _update(self) -> None:
        if any(call.method in AWAITED_METHODS for call in self._calls):
            self._idle.clear()
        else:
            self._idle.set()
