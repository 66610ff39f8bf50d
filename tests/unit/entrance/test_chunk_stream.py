"""A request's chunks on their way out: nothing waits, nothing is lost, and an error comes last."""

from __future__ import annotations

import asyncio

import pytest

from router.entrance.chunk_stream import ChunkStream
from router.entrance.chunks import Chunk, Summary
from twinpool.errors import WorkerLost
from twinpool.types import FinishReason, ServedBy, Timing, Token, Usage

SUMMARY = Summary(FinishReason.LENGTH, Usage(3, 2), Timing(), ServedBy("prefill-0", "decode-0"), seed=5)


class Reader:
    """A stream and its reader."""

    def __init__(self) -> None:
        self.stream = ChunkStream()

    def put(self, text: str, *token_ids: int, summary: Summary | None = None) -> None:
        self.stream.put(Chunk(0, text, tuple(map(Token, token_ids)), summary), last=summary is not None)

    async def next(self) -> Chunk:
        return await asyncio.wait_for(anext(self.stream), 5)

    async def rest(self) -> list[Chunk]:
        async with asyncio.timeout(5):
            return [chunk async for chunk in self.stream]


async def test_chunks_come_out_as_they_are_read() -> None:
    reader = Reader()
    reader.put("a", 1)
    assert await reader.next() == Chunk(0, "a", (Token(1),))
    reader.put("b", 2)
    assert await reader.next() == Chunk(0, "b", (Token(2),))


async def test_tokens_without_text_come_out() -> None:
    reader = Reader()
    reader.put("", 1)
    assert await reader.next() == Chunk(0, "", (Token(1),))


async def test_a_reader_waits_for_the_next_chunk() -> None:
    reader = Reader()
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    reader.put("a", 1)
    assert await waiting == Chunk(0, "a", (Token(1),))


async def test_chunks_that_come_while_nobody_reads_merge_into_one() -> None:
    reader = Reader()
    reader.put("a", 1)
    reader.put("bc", 2, 3)
    reader.put("", 4)
    assert await reader.next() == Chunk(0, "abc", (Token(1), Token(2), Token(3), Token(4)))


async def test_the_summary_comes_with_the_last_tokens_and_ends_the_stream() -> None:
    reader = Reader()
    reader.put("a", 1)
    reader.put("b", 2, summary=SUMMARY)
    assert await reader.rest() == [Chunk(0, "ab", (Token(1), Token(2)), SUMMARY)]
    with pytest.raises(StopAsyncIteration):
        await reader.next()


async def test_a_summary_without_tokens_comes_out() -> None:
    reader = Reader()
    reader.put("", summary=SUMMARY)
    assert await reader.rest() == [Chunk(0, "", (), SUMMARY)]


async def test_an_end_that_comes_while_the_reader_is_busy_is_not_lost() -> None:
    reader = Reader()
    reader.put("a", 1)
    assert await reader.next() == Chunk(0, "a", (Token(1),))
    reader.put("b", 2, summary=SUMMARY)
    assert await reader.rest() == [Chunk(0, "b", (Token(2),), SUMMARY)]


async def test_an_error_comes_after_what_there_is() -> None:
    reader = Reader()
    reader.put("a", 1)
    reader.put("b", 2)
    reader.stream.fail(WorkerLost("gone"))
    assert await reader.next() == Chunk(0, "ab", (Token(1), Token(2)))
    with pytest.raises(WorkerLost, match="gone"):
        await reader.next()
    with pytest.raises(StopAsyncIteration):
        await reader.next()


async def test_an_error_that_comes_while_the_reader_is_busy_comes_after_the_chunk_before_it() -> None:
    reader = Reader()
    reader.put("a", 1)
    assert await reader.next() == Chunk(0, "a", (Token(1),))
    reader.put("b", 2)
    reader.stream.fail(WorkerLost("gone"))
    assert await reader.next() == Chunk(0, "b", (Token(2),))
    with pytest.raises(WorkerLost, match="gone"):
        await reader.next()


async def test_an_error_wakes_a_reader_that_waits() -> None:
    reader = Reader()
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(0)
    reader.stream.fail(WorkerLost("gone"))
    with pytest.raises(WorkerLost, match="gone"):
        await waiting


async def test_a_stream_is_open_until_its_terminal_event() -> None:
    open_, ended, failed = ChunkStream(), ChunkStream(), ChunkStream()
    for stream in (open_, ended, failed):
        stream.put(Chunk(0, "a", (Token(1),)))
    ended.put(Chunk(0, "", (), SUMMARY), last=True)
    failed.fail(WorkerLost("gone"))
    assert (open_.ended, ended.ended, failed.ended) == (False, True, True)


async def test_choices_merge_each_by_itself_and_the_stream_ends_with_the_last() -> None:
    reader = Reader()
    reader.put("a", 1)
    reader.stream.put(Chunk(1, "x", (Token(7),), SUMMARY))
    reader.put("b", 2)
    assert await reader.next() == Chunk(0, "ab", (Token(1), Token(2)))
    assert await reader.next() == Chunk(1, "x", (Token(7),), SUMMARY)
    reader.put("c", 3, summary=SUMMARY)
    assert await reader.rest() == [Chunk(0, "c", (Token(3),), SUMMARY)]
