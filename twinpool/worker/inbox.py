"""The one way into an engine's thread: messages from any thread, taken in order at a step boundary."""

from __future__ import annotations

import queue
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Inbox(Generic[Message]):
    """An unbounded, ordered queue; who posts is bounded elsewhere (by blocks and by the router)."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def post(self, message: Message) -> None:
        """Leave a message; never blocks."""
        self._queue.put(message)

    def take(self, wait_s: float) -> list[Message]:
        """All messages there are; if there is none, wait up to wait_s for the first."""
        messages: list[Message] = []
        try:
            messages.append(self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait())
            while True:
                messages.append(self._queue.get_nowait())
        except queue.Empty:
            return messages
