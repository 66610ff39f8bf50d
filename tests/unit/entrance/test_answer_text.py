"""Text is there as soon as its tokens are, whether anybody reads or not, and never in a worker's way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from router.entrance.answer_text import AnswerText
from router.entrance.chunk_stream import ChunkStream
from router.entrance.chunks import Chunk
from router.entrance.text import IncrementalText
from router.scheduling.values import Ending, Output
from tests.support.router.fakes import ByteDetokenizer
from tests.support.router.small_fleet import PROMPT, request
from twinpool.errors import WorkerLost
from twinpool.types import FinishReason, ServedBy, Timing, Token, Usage

EURO = "€".encode()


class Answer:
    """An answer of one choice, and the stream behind it. pushes: what its detokenizer was given."""

    def __init__(self) -> None:
        self.pushes: list[tuple[int, ...]] = []
        self._detokenizer = ByteDetokenizer()
        self.chunks = ChunkStream()
        detokenizer: IncrementalText = self
        self.text = AnswerText(request(), lambda: detokenizer, self.chunks, return_prompt_ids=True)

    def push(self, token_ids: Sequence[int]) -> str:
        self.pushes.append(tuple(token_ids))
        if 0 in token_ids:
            raise KeyError("a bug")
        return self._detokenizer.push(token_ids)

    def finish(self) -> str:
        return self._detokenizer.finish()

    def put(self, *token_ids: int) -> None:
        self.text.put(Output(0, tuple(map(Token, token_ids))), last=False)

    def end(self, *token_ids: int, num_tokens: int) -> None:
        usage = Usage(len(PROMPT), num_tokens)
        ending = Ending(FinishReason.STOP, usage, Timing(), ServedBy("p0", "d0"), num_resumes=1)
        self.text.put(Output(0, tuple(map(Token, token_ids)), ending), last=True)

    async def rest(self) -> list[Chunk]:
        async with asyncio.timeout(5):
            return [chunk async for chunk in self.chunks]


async def test_tokens_become_text_together_once_whoever_put_them_is_done_and_before_they_are_read() -> None:
    answer = Answer()
    answer.put(65)
    answer.put(66, 67)
    assert answer.pushes == []
    await asyncio.sleep(0)
    assert answer.pushes == [(65, 66, 67)]
    answer.put(68)
    await asyncio.sleep(0)
    assert answer.pushes == [(65, 66, 67), (68,)]
    assert await anext(answer.chunks) == Chunk(0, "ABCD", (Token(65), Token(66), Token(67), Token(68)))


@pytest.mark.parametrize("turns", [(), (0,), (1,), (0, 1), (0, 1, 2)])
async def test_whenever_it_is_read_chunks_add_up_to_all_text_and_tokens(turns: tuple[int, ...]) -> None:
    answer = Answer()
    read: list[Chunk] = []
    for number, byte in enumerate(EURO):
        answer.put(byte)
        if number in turns:
            read.append(await asyncio.wait_for(anext(answer.chunks), 5))
    answer.end(EURO[0], num_tokens=4)
    read += await answer.rest()
    assert "".join(chunk.text for chunk in read) == "€\ufffd"
    assert [token.id for chunk in read for token in chunk.tokens] == [*EURO, EURO[0]]
    assert len(read) == len(turns) + 1


async def test_the_last_chunk_sums_up_by_the_schedulers_count_of_tokens() -> None:
    answer = Answer()
    answer.put(65, 66)
    answer.end(num_tokens=1)  # cut after one
    (last,) = await answer.rest()
    assert last.summary is not None
    assert last.summary.usage == Usage(len(PROMPT), 1)
    assert last.summary.finish_reason is FinishReason.STOP
    assert last.summary.prompt_token_ids == PROMPT
    assert last.summary.num_resumes == 1


async def test_an_error_comes_after_the_text_before_it() -> None:
    answer = Answer()
    answer.put(65)
    answer.text.fail(WorkerLost("gone"))
    assert await anext(answer.chunks) == Chunk(0, "A", (Token(65),))
    with pytest.raises(WorkerLost, match="gone"):
        await anext(answer.chunks)


async def test_a_bug_in_the_text_is_the_readers_to_hear_and_ends_the_answer() -> None:
    answer = Answer()
    answer.put(65)
    await asyncio.sleep(0)
    answer.put(0)
    await asyncio.sleep(0)
    answer.put(66)
    await asyncio.sleep(0)
    assert await anext(answer.chunks) == Chunk(0, "A", (Token(65),))
    with pytest.raises(KeyError):
        await anext(answer.chunks)
    assert answer.pushes == [(65,), (0,)]


async def test_each_choice_has_a_text_of_its_own_and_the_last_end_is_the_answers() -> None:
    chunks = ChunkStream()
    text = AnswerText(request(), ByteDetokenizer, chunks, return_prompt_ids=False)
    ending = Ending(FinishReason.STOP, Usage(len(PROMPT), 2), Timing(), ServedBy("p0", "d0"))
    for byte, nth in zip("é".encode(), (0, 1), strict=True):
        text.put(Output(1, (Token(byte),), ending if nth else None), last=False)
        text.put(Output(0, (Token(65 + nth),)), last=False)
    text.put(Output(0, (), ending), last=True)
    async with asyncio.timeout(5):
        read = [(chunk.choice_index, chunk.text) async for chunk in chunks]
    assert read == [(1, "é"), (0, "AB")]
