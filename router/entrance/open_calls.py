"""The calls now open, over all faces: how many there may be, and how a stop lets them end.

A call is: entered, before its message is read -> opened, with its message -> ended.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from twinpool.errors import TooManyCalls

# Calls that a stopping server lets finish; the others end at once.
AWAITED_METHODS = frozenset({"Generate", "Chat"})

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Of one message. A prompt of 128k ids is about 0.4 MB, so that one too long for any model still gets in
and is refused with the limit, by name."""

MOST_BESIDE_QUEUE = 4096
"""Requests that may run, arrive or be read while as many others wait as the queue takes."""
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
"""Calls of a method that may be open together, over all clients."""
MOST_OF_OTHERS = 1024
"""The same for each method not named, which are all answered soon. So none crowds out an Abort."""
MOST_BYTES = 64 * MAX_MESSAGE_BYTES
"""Of all open calls' messages together, which stay as long as their calls do."""
RETRY_S = 1.0
"""When one of them may have ended."""


@dataclass(slots=True, eq=False)
class OpenCall:
    """One call. ended: the server, not the client, has cancelled its task."""

    method: str
    task: asyncio.Task[object]
    ended: bool = False


class OpenCalls:
    """Registers calls; belongs to the event loop's thread.

    queue_max_requests: what may wait in the queue; MOST_BESIDE_QUEUE requests may be open beside.
    """

    def __init__(self, queue_max_requests: int) -> None:
        self._most_requests = queue_max_requests + MOST_BESIDE_QUEUE
        self._entered: Counter[str] = Counter()
        self._num_bytes = 0
        self._calls: set[OpenCall] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self, method: str) -> None:
        """Count the current task's call until the task ends. Raises TooManyCalls where there is no room.

        Here and not as a transport's own limit (grpc.aio's refuses health checks too), which says neither why
        nor when to come back.
        """
        kind = "requests" if method in AWAITED_METHODS else method
        most = self._most_requests if kind == "requests" else MOST_AT_ONCE.get(method, MOST_OF_OTHERS)
        if self._entered[kind] >= most:
            raise TooManyCalls(f"{most} {kind} calls are open, which is the limit", retry_after_s=RETRY_S)
        self._entered[kind] += 1
        # A client that leaves before its message is there is heard of in no other way.
        _current_task().add_done_callback(functools.partial(self._leave, kind))

    @contextmanager
    def opened(self, method: str, num_bytes: int) -> Iterator[OpenCall]:
        """Register the current task's call, and its message, while it runs."""
        call = OpenCall(method, _current_task())
        self._calls.add(call)
        self._num_bytes += num_bytes
        self._update()
        try:
            yield call
        finally:
            self._calls.discard(call)
            self._num_bytes -= num_bytes
            self._update()

    def require_bytes(self) -> None:
        """Raise TooManyCalls if open calls' messages take more memory than they may."""
        if self._num_bytes > MOST_BYTES:
            full = f"the messages of open calls have {self._num_bytes} bytes; the limit is {MOST_BYTES}"
            raise TooManyCalls(full, retry_after_s=RETRY_S)

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

    def _leave(self, kind: str, _: asyncio.Task[object]) -> None:
        self._entered[kind] -= 1


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a call runs in a task")
    return task
