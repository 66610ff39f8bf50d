"""Text threads are few, and so are the texts that may wait for one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from router.entrance.text import TextThreads
from tests.support.router.fakes import ByteTokenizer
from twinpool.errors import QueueFull


class SlowTokenizer(ByteTokenizer):
    def __init__(self) -> None:
        self.go = threading.Event()
        self.threads: set[str] = set()
        self.num_texts = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.threads.add(threading.current_thread().name)
        self.num_texts += 1
        assert self.go.wait(10)
        return super().encode(text, add_special_tokens)


async def test_too_many_texts_are_refused_with_a_hint_and_room_returns() -> None:
    tokenizer = SlowTokenizer()
    text = TextThreads(tokenizer, num_threads=2, max_waiting=5)
    waiting = [asyncio.create_task(text.encode("ab", add_special_tokens=False)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull) as caught:
        await text.encode("ab", add_special_tokens=False)
    assert caught.value.retry_after_s is not None
    tokenizer.go.set()
    assert await asyncio.gather(*waiting) == [(97, 98)] * 5
    assert await text.encode("c", add_special_tokens=True) == (256, 99)
    assert len(tokenizer.threads) <= 2
    text.close()


async def test_a_text_whose_client_leaves_is_dropped_before_its_turn_and_counts_no_more() -> None:
    tokenizer = SlowTokenizer()
    text = TextThreads(tokenizer, num_threads=1, max_waiting=2)
    running = asyncio.create_task(text.encode("a", add_special_tokens=False))
    for _ in range(100):
        waiting = asyncio.create_task(text.encode("x" * 1000, add_special_tokens=False))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert text._threads._work_queue.qsize() == 0
    tokenizer.go.set()
    assert await running == (97,)
    assert tokenizer.num_texts == 1
    text.close()


async def test_a_text_that_a_thread_has_begun_counts_until_the_thread_is_done() -> None:
    tokenizer = SlowTokenizer()
    text = TextThreads(tokenizer, num_threads=2, max_waiting=2)
    for _ in range(2):
        running = asyncio.create_task(text.encode("a", add_special_tokens=False))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with pytest.raises(QueueFull):
        await text.encode("b", add_special_tokens=False)
    tokenizer.go.set()
    async with asyncio.timeout(10):
        while text._num_waiting:
            await asyncio.sleep(0.01)
    assert await text.encode("c", add_special_tokens=False) == (99,)
    text.close()
