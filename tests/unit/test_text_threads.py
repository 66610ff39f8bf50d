"""Text threads are few, and so are the texts that may wait for one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from router.text import TextThreads
from tests.contract.router.fakes import ByteTokenizer
from twinpool.errors import QueueFull


class SlowTokenizer(ByteTokenizer):
    def __init__(self) -> None:
        self.go = threading.Event()
        self.threads: set[str] = set()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.threads.add(threading.current_thread().name)
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
