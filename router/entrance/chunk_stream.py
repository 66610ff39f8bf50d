"""One request's way out of the router: chunks go in as they come, and come out as fast as they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from router.entrance.chunks import Chunk, Summary
from twinpool.types import Token


@dataclass(slots=True)
class _Waiting:
    """What was not read yet of one choice."""

    texts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    summary: Summary | None = None


class ChunkStream:
    """The `AsyncIterator[Chunk]` of one request; ends after the last choice's last chunk, or fails.

    Putting never waits: chunks that come while nobody reads merge into one of each choice. So a slow reader
    holds at most its own answer, which max_tokens bounds, and a face one message of it beside the client's
    window; once the answer is complete, at most two writes are left for each choice.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._complete = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def put(self, chunk: Chunk, *, last: bool = False) -> None:
        """Take new text and tokens of a choice, or its end. last: nothing of any choice follows."""
        waiting = self._waiting.setdefault(chunk.choice_index, _Waiting())
        waiting.texts.append(chunk.text)
        waiting.tokens.extend(chunk.tokens)
        waiting.summary = chunk.summary
        self._complete = last
        self._news.set()

    def fail(self, error: Exception) -> None:
        """End with an error, after the text there is."""
        self._error = error
        self._news.set()

    @property
    def ended(self) -> bool:
        """Whether the last chunk, or the error, is in."""
        return self._complete or self._error is not None

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        await self._news.wait()
        if not self._waiting:
            error, self._error, self._complete = self._error, None, True
            raise error or StopAsyncIteration
        index = next(iter(self._waiting))
        waiting = self._waiting.pop(index)
        if not self._waiting and not self.ended:
            self._news.clear()
        return Chunk(index, "".join(waiting.texts), tuple(waiting.tokens), waiting.summary)
