"""What holds for a call of any face: it ends once, with one code, and its client reads in time or is cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from router.entrance.calls import Calls
from router.entrance.open_calls import OpenCalls
from twinpool.errors import (
    InvalidRequest,
    RequestCancelled,
    ServerDraining,
    SlowReader,
    TooManyCalls,
    TwinpoolError,
)

Work = Callable[[], Coroutine[Any, Any, str]]


class AFace:
    """A face without a transport: what its clients are told, and what is counted."""

    def __init__(self, queue_max_requests: int = 1, slow_reader_s: float = 10.0) -> None:
        self.told: list[TwinpoolError] = []
        self.codes: Counter[str] = Counter()
        self.num_disconnects = 0
        self.time_left_s: float | None = None
        self.open_calls = OpenCalls(queue_max_requests)
        self.calls = Calls(self.open_calls, self, slow_reader_s)

    def call_ended(self, method: str, code: str) -> None:
        self.codes[code] += 1

    def client_disconnected(self) -> None:
        self.num_disconnects += 1

    async def call(self, work: Work, num_bytes: int = 0) -> str | None:
        async def tell(error: TwinpoolError) -> None:
            self.told.append(error)

        return await self.calls.answer("Chat", num_bytes, work, time_left=lambda: self.time_left_s, tell=tell)


def raising(error: BaseException) -> Work:
    async def work() -> str:
        raise error

    return work


async def hanging() -> str:
    await asyncio.Event().wait()
    return "never"


async def test_a_call_that_goes_well_is_counted_and_told_nothing() -> None:
    async def work() -> str:
        return "said"

    face = AFace()
    assert await face.call(work) == "said"
    assert (face.codes, face.told) == ({"OK": 1}, [])


async def test_an_error_is_told_as_it_is_and_a_bug_without_its_words() -> None:
    face = AFace()
    refused = InvalidRequest("text", "text must not be empty")
    assert await face.call(raising(refused)) is None
    assert await face.call(raising(ValueError("secret"))) is None
    assert face.told[0] is refused
    assert "secret" not in face.told[1].message
    assert face.codes == {"INVALID_ARGUMENT": 1, "INTERNAL": 1}


@pytest.mark.parametrize(
    ("time_left_s", "codes", "num_disconnects"),
    [(None, {"CANCELLED": 1}, 1), (9.0, {"CANCELLED": 1}, 1), (0.01, {"DEADLINE_EXCEEDED": 1}, 0)],
)
@pytest.mark.parametrize("found_by", ["cancel", "write"])
async def test_a_client_that_leaves_is_counted_unless_its_deadline_passed(
    found_by: str, time_left_s: float | None, codes: dict[str, int], num_disconnects: int
) -> None:
    face = AFace()
    face.time_left_s = time_left_s
    if found_by == "cancel":
        task = asyncio.create_task(face.call(hanging))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await face.call(raising(RequestCancelled("the client has left")))
    assert (face.codes, face.num_disconnects) == (codes, num_disconnects)


async def test_a_drain_waits_for_streams_and_ends_what_lasts_longer_typed() -> None:
    face = AFace()
    task = asyncio.create_task(face.call(hanging))
    await asyncio.sleep(0)
    await face.calls.drain(0.01)
    assert await task is None
    assert isinstance(face.told[0], ServerDraining)
    assert (face.codes, face.num_disconnects) == ({"UNAVAILABLE": 1}, 0)


async def test_a_call_for_whose_message_there_is_no_room_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.entrance.open_calls.MOST_BYTES", 10)
    face = AFace()
    assert await face.call(raising(AssertionError("begun")), num_bytes=11) is None
    assert isinstance(face.told[0], TooManyCalls)
    assert face.codes == {"RESOURCE_EXHAUSTED": 1}


async def test_a_write_that_blocks_too_long_ends_the_stream_and_closes_its_source() -> None:
    closed = asyncio.Event()

    async def messages() -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                yield number
        finally:
            closed.set()

    async def write(number: int) -> None:
        if number == 1:
            await asyncio.Event().wait()

    face = AFace(slow_reader_s=0.01)
    with pytest.raises(SlowReader):
        await face.calls.relay(messages(), write)
    assert closed.is_set()
