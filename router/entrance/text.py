"""Text work off the event loop: tokenizing, detokenizing and chat templates in a few bounded threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from router.entrance.asked import Turn
from twinpool.errors import QueueFull

T = TypeVar("T")


class Tokenizer(Protocol):
    """What the router needs from a model's tokenizer. Called from several threads at once."""

    def encode(self, text: str, add_special_tokens: bool, /) -> Sequence[int]:
        """Text to token ids."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, /) -> str:
        """Token ids to text."""
        ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /) -> Sequence[int]:
        """Messages with role and content to a prompt's token ids. InvalidRequest if the template refuses."""
        ...


class IncrementalText(Protocol):
    """Writes one choice's text as its tokens come; the pieces concatenate to exactly the whole text."""

    def push(self, ids: Sequence[int], /) -> str:
        """Take new tokens; return the text that is certain now."""
        ...

    def finish(self) -> str:
        """Return what was held back."""
        ...


NewDetokenizer = Callable[[bool], IncrementalText]
"""Makes a choice's detokenizer; the argument is skip_special_tokens."""


class TextThreads:
    """Runs a tokenizer in num_threads threads; past max_waiting calls more are refused (QueueFull).

    A call waits for a thread here and not in the executor, which would keep the text of one whose client has
    left. One that a thread has begun counts until the thread is done with it, whoever waits for it still.
    """

    def __init__(self, tokenizer: Tokenizer, *, num_threads: int = 2, max_waiting: int = 1024) -> None:
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="text")
        self._idle = asyncio.Semaphore(num_threads)
        self._max_waiting = max_waiting
        self._num_waiting = 0

    async def encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """Text to token ids."""
        return await self._run(lambda: tuple(self._tokenizer.encode(text, add_special_tokens)))

    async def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Token ids to text."""
        return await self._run(lambda: self._tokenizer.decode(ids, skip_special_tokens))

    async def encode_chat(self, turns: Sequence[Turn]) -> tuple[int, ...]:
        """A conversation to its prompt's token ids."""
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        return await self._run(lambda: tuple(self._tokenizer.apply_chat_template(messages)))

    def close(self) -> None:
        """Drop what waits and end the threads; waits for calls that run."""
        self._threads.shutdown(cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._num_waiting >= self._max_waiting:
            raise QueueFull(f"{self._num_waiting} texts wait to be tokenized", retry_after_s=1.0)
        self._num_waiting += 1
        try:
            await self._idle.acquire()
        except asyncio.CancelledError:
            self._num_waiting -= 1
            raise
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, _: asyncio.Future[T]) -> None:
        self._idle.release()
        self._num_waiting -= 1
