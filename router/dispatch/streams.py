"""One request's way out of the router: tokens go in as they come, and come out as fast as they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

from router.scheduling.values import Ending, Output
from twinpool.errors import TwinpoolError


class Outputs(Protocol):
    """What comes of one request; see `OutputStream`."""

    def __aiter__(self) -> AsyncIterator[Output]: ...

    async def __anext__(self) -> Output: ...

    async def aclose(self) -> None:
        """The reader leaves; a request that has not ended is cancelled."""
        ...


class OutputStream:
    """The `AsyncIterator[Output]` of one request.

    Putting never waits: tokens that come while nobody reads merge into one Output of each choice. So a slow
    reader holds at most its own answer, which max_tokens bounds, and gRPC one message of it beside the
    client's window; once the answer is complete, at most two writes are left for each choice. left: called
    once when the reader leaves before the end.
    """

    def __init__(self, left: Callable[[], None]) -> None:
        self._left: Callable[[], None] | None = left
        self._tokens: dict[int, list[int]] = {}
        self._endings: dict[int, Ending | None] = {}
        self._complete = False
        self._error: TwinpoolError | None = None
        self._news = asyncio.Event()
        self._outputs = self._read()

    def put(self, output: Output, *, last: bool = False) -> None:
        """Take new tokens of a choice, or its end. last: nothing of any choice follows."""
        self._tokens.setdefault(output.choice_index, []).extend(output.token_ids)
        self._endings[output.choice_index] = output.ending
        self._complete = last
        self._news.set()

    def fail(self, error: TwinpoolError) -> None:
        """End with an error, after the tokens there are."""
        self._error = error
        self._news.set()

    @property
    def ended(self) -> bool:
        """Whether the terminal event is in."""
        return self._complete or self._error is not None

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        return await anext(self._outputs)

    async def aclose(self) -> None:
        """The reader leaves; a request that has not ended is cancelled."""
        await self._outputs.aclose()
        left, self._left = self._left, None
        if left is not None and not self.ended:
            left()

    async def _read(self) -> AsyncGenerator[Output, None]:
        while True:
            await self._news.wait()
            self._news.clear()
            # Taken before the yields: more may be put while the reader works on these outputs.
            tokens, self._tokens = self._tokens, {}
            endings, self._endings = self._endings, {}
            complete, error = self._complete, self._error
            for index, token_ids in tokens.items():
                yield Output(index, tuple(token_ids), endings[index])
            if complete:
                return
            if error is not None:
                raise error
