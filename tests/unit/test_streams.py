"""One request's outputs on their way out: nothing waits, nothing is lost, and leaving is said once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from router.dispatch.streams import OutputStream
from router.scheduling.values import Ending, Output
from twinpool.errors import WorkerLost
from twinpool.types import FinishReason, ServedBy, Timing

ENDING = Ending(FinishReason.LENGTH, Timing(), ServedBy("prefill-0", "decode-0"))


class Reader:
    """A stream, its reader, and how often the stream said that the reader left."""

    def __init__(self) -> None:
        self.num_left = 0
        self.stream = OutputStream(left=self._left)

    def _left(self) -> None:
        self.num_left += 1

    def put(self, *token_ids: int, ending: Ending | None = None) -> None:
        self.stream.put(Output(0, token_ids, ending), last=ending is not None)

    async def next(self) -> Output:
        return await asyncio.wait_for(anext(self.stream), 5)

    async def rest(self) -> list[Output]:
        async with asyncio.timeout(5):
            return [output async for output in self.stream]


async def test_tokens_come_out_as_they_are_read() -> None:
    reader = Reader()
    reader.put(1)
    assert await reader.next() == Output(0, (1,))
    reader.put(2)
    assert await reader.next() == Output(0, (2,))


async def test_a_reader_waits_for_the_next_token() -> None:
    reader = Reader()
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    reader.put(1)
    assert await waiting == Output(0, (1,))


async def test_tokens_that_come_while_nobody_reads_merge_into_one_output() -> None:
    reader = Reader()
    reader.put(1)
    reader.put(2, 3)
    reader.put(4)
    assert await reader.next() == Output(0, (1, 2, 3, 4))


async def test_the_ending_comes_with_the_last_tokens_and_ends_the_stream() -> None:
    reader = Reader()
    reader.put(1)
    reader.put(2, ending=ENDING)
    assert await reader.rest() == [Output(0, (1, 2), ENDING)]
    with pytest.raises(StopAsyncIteration):
        await reader.next()


async def test_an_ending_without_tokens_comes_out() -> None:
    reader = Reader()
    reader.put(ending=ENDING)
    assert await reader.rest() == [Output(0, (), ENDING)]


async def test_an_ending_that_comes_while_the_reader_is_busy_is_not_lost() -> None:
    reader = Reader()
    reader.put(1)
    assert await reader.next() == Output(0, (1,))
    reader.put(2, ending=ENDING)
    assert await reader.rest() == [Output(0, (2,), ENDING)]


async def test_an_error_comes_after_the_tokens_there_are() -> None:
    reader = Reader()
    reader.put(1)
    reader.put(2)
    reader.stream.fail(WorkerLost("gone"))
    assert await reader.next() == Output(0, (1, 2))
    with pytest.raises(WorkerLost, match="gone"):
        await reader.next()


async def test_an_error_that_comes_while_the_reader_is_busy_comes_after_the_tokens_before_it() -> None:
    reader = Reader()
    reader.put(1)
    assert await reader.next() == Output(0, (1,))
    reader.put(2)
    reader.stream.fail(WorkerLost("gone"))
    assert await reader.next() == Output(0, (2,))
    with pytest.raises(WorkerLost, match="gone"):
        await reader.next()


async def test_an_error_wakes_a_reader_that_waits() -> None:
    reader = Reader()
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(0)
    reader.stream.fail(WorkerLost("gone"))
    with pytest.raises(WorkerLost, match="gone"):
        await waiting


async def test_a_reader_that_leaves_before_the_end_says_so_once() -> None:
    reader = Reader()
    async with aclosing(reader.stream) as outputs:
        reader.put(1)
        assert await anext(outputs) == Output(0, (1,))
    await reader.stream.aclose()
    assert reader.num_left == 1


async def test_a_reader_that_never_read_leaves_too() -> None:
    reader = Reader()
    await reader.stream.aclose()
    assert reader.num_left == 1


async def test_a_reader_whose_task_is_cancelled_leaves() -> None:
    reader = Reader()

    async def read() -> None:
        async with aclosing(reader.stream) as outputs:
            await anext(outputs)

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reader.num_left == 1


@pytest.mark.parametrize("read_it", [True, False], ids=["read", "unread"])
async def test_nobody_leaves_a_request_that_has_ended(read_it: bool) -> None:
    ended, failed = Reader(), Reader()
    ended.put(1, ending=ENDING)
    failed.stream.fail(WorkerLost("gone"))
    if read_it:
        await ended.rest()
        with pytest.raises(WorkerLost):
            await failed.rest()
    await ended.stream.aclose()
    await failed.stream.aclose()
    assert (ended.num_left, failed.num_left) == (0, 0)
    assert ended.stream.ended
    assert failed.stream.ended


async def test_a_stream_is_open_until_its_terminal_event() -> None:
    reader = Reader()
    reader.put(1)
    assert not reader.stream.ended


async def test_choices_merge_each_by_itself_and_the_stream_ends_with_the_last() -> None:
    reader = Reader()
    for output in (Output(1, (5,)), Output(0, (1,)), Output(1, (6,), ENDING), Output(0, (2,))):
        reader.stream.put(output)
    assert [await reader.next(), await reader.next()] == [Output(1, (5, 6), ENDING), Output(0, (1, 2))]
    reader.stream.put(Output(0, (3,), ENDING), last=True)
    assert reader.stream.ended
    assert await reader.rest() == [Output(0, (3,), ENDING)]
