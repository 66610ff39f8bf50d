"""Requests go out at their times whatever became of earlier ones, and each leaves a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from twinpool.bench.load import Load
from twinpool.bench.prompts import Prompt
from twinpool.bench.records import Answered
from twinpool.errors import QueueFull

LONG_S = 1000.0


@dataclass
class ScriptedSender:
    """By prompt: `answer` has two tokens, `full` is refused, `endless` never ends."""

    sent: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    is_endless: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: bool = False

    async def send(self, prompt: Prompt, saw_tokens: Callable[[], None]) -> Answered:
        assert isinstance(prompt.content, str)
        self.sent.append(prompt.content)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._answer(prompt.content, saw_tokens)
        finally:
            self.at_once -= 1

    async def _answer(self, words: str, saw_tokens: Callable[[], None]) -> Answered:
        if words == "full":
            raise QueueFull("the queue is full")
        saw_tokens()
        if words == "endless":
            self.is_endless.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise
        for _ in range(20):  # turns of the loop, in which others may come
            await asyncio.sleep(0)
        saw_tokens()
        return Answered(3, 2)


def load_of(
    sender: ScriptedSender,
    *words: str,
    due_s: list[float] | None = None,
    most: int | None = None,
    timeout_s: float = LONG_S,
) -> Load:
    prompts = [Prompt(each, 2) for each in words]
    return Load(sender, prompts, due_s or [0.0] * len(words), max_concurrency=most, timeout_s=timeout_s)


async def test_every_request_leaves_a_record() -> None:
    ended: list[None] = []
    load = load_of(ScriptedSender(), "answer", "full", "answer")
    await load.run(lambda: ended.append(None))
    assert [record.answered for record in load.records] == [Answered(3, 2), None, Answered(3, 2)]
    assert [record.error for record in load.records] == ["", "QUEUE_FULL: the queue is full", ""]
    assert [len(record.chunks_s) for record in load.records] == [2, 0, 2]
    assert len(ended) == 3
    for record in load.records:
        assert record.begun_s is not None
        assert record.sent_s is not None
        assert record.ended_s is not None
        times = [record.due_s, record.begun_s, record.sent_s, *record.chunks_s, record.ended_s]
        assert times == sorted(times)
    assert load.effort.duration_s >= max(record.ended_s or 0.0 for record in load.records)


async def test_they_are_sent_in_the_order_in_which_they_are_due_and_not_before() -> None:
    sender = ScriptedSender()
    load = load_of(sender, "answer", "full", due_s=[0.03, 0.01])
    await load.run(lambda: None)
    assert sender.sent == ["full", "answer"]
    assert [record.due_s for record in load.records] == [0.03, 0.01]
    assert all(record.begun_s is not None and record.begun_s >= record.due_s for record in load.records)


async def test_an_answer_that_does_not_end_holds_up_nobody() -> None:
    sender = ScriptedSender()
    load = load_of(sender, "endless", "answer", due_s=[0.0, 0.01], timeout_s=0.05)
    await load.run(lambda: None)
    assert [bool(record.answered) for record in load.records] == [False, True]
    assert load.records[0].error == "DEADLINE_EXCEEDED: no whole answer within 0.05 s"
    assert sender.was_cancelled


async def test_no_more_at_once_than_allowed() -> None:
    sender = ScriptedSender()
    await load_of(sender, *["answer"] * 7, most=2).run(lambda: None)
    assert sender.most_at_once == 2
    free = ScriptedSender()
    await load_of(free, *["answer"] * 7).run(lambda: None)
    assert free.most_at_once > 2


async def test_a_run_that_is_cut_short_keeps_what_it_has() -> None:
    sender = ScriptedSender()
    load = load_of(sender, "answer", "endless", most=1)
    running = asyncio.create_task(load.run(lambda: None))
    await sender.is_endless.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [record.ended_s is not None for record in load.records] == [True, False]
    assert load.effort.duration_s > 0
    assert sender.was_cancelled
