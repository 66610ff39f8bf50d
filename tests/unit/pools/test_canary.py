"""A canary names the hop at which its pair is stuck, within its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from router.pools.canary import Canary
from tests.support.router.fakes import DECODE, PREFILL, TIMING, FakeDispatcher, FakeStream
from twinpool.errors import WorkerLost
from twinpool.session.messages import LoadReport
from twinpool.types import WorkerState
from twinpool.views import Hop

PAIR = ("prefill-0", "decode-0")


def canary(dispatcher: FakeDispatcher, timeout_s: float = 0.01) -> Canary:
    return Canary(dispatcher, prompt_ids=(1, 2, 3), timeout_s=timeout_s)


def sends(*outputs: int, ends: bool = False) -> Callable[[FakeStream], None]:
    """A stream that puts so many tokens in each output."""

    def play(stream: FakeStream) -> None:
        for num_tokens in outputs[: -1 if ends else None]:
            stream.put(*range(num_tokens))
        if ends:
            stream.end(*range(outputs[-1]))

    return play


async def test_a_canary_that_comes_back_whole_passes_with_its_timing() -> None:
    dispatcher = FakeDispatcher(on_submit=sends(1, 1, 2, ends=True))
    check = await canary(dispatcher, timeout_s=10).check(*PAIR)
    assert (check.failed_hop, check.detail, check.timing) == (Hop.NONE, "", TIMING)
    assert check.pair.transport == "shm"
    (stream,) = dispatcher.streams.values()
    assert stream.request.pair == PAIR
    assert (stream.request.params.max_tokens, stream.request.params.temperature) == (4, 0)
    assert stream.request.params.ignore_eos
    assert stream.closed.is_set()


@pytest.mark.parametrize(
    ("outputs", "hop"),
    [((), Hop.PREFILL), ((1,), Hop.HANDOFF), ((1, 1), Hop.DECODE), ((3,), Hop.DECODE)],
)
async def test_silence_is_blamed_on_the_hop_after_the_last_token(outputs: tuple[int, ...], hop: Hop) -> None:
    dispatcher = FakeDispatcher(on_submit=sends(*outputs))
    check = await canary(dispatcher).check(*PAIR)
    assert check.failed_hop is hop
    assert check.detail == f"{sum(outputs)} of 4 tokens came after 0.01 s"
    assert all(stream.closed.is_set() for stream in dispatcher.streams.values())


async def test_silence_of_a_decode_worker_without_room_is_its_refusal_to_reserve() -> None:
    dispatcher = FakeDispatcher()
    full = replace(DECODE, load=LoadReport(running=4, blocks_free=4))
    dispatcher.change(workers=(PREFILL, full))
    assert (await canary(dispatcher).check(*PAIR)).failed_hop is Hop.RESERVE


async def test_an_error_is_blamed_in_its_own_words() -> None:
    def play(stream: FakeStream) -> None:
        stream.put(1)
        stream.fail(WorkerLost("the hand-off broke"))

    check = await canary(FakeDispatcher(on_submit=play), timeout_s=10).check(*PAIR)
    assert (check.failed_hop, check.detail) == (Hop.HANDOFF, "the hand-off broke")


async def test_an_answer_cut_short_does_not_pass() -> None:
    check = await canary(FakeDispatcher(on_submit=sends(1, 1, ends=True)), timeout_s=10).check(*PAIR)
    assert check.failed_hop is Hop.DECODE


@pytest.mark.parametrize(
    ("decode", "state", "detail"),
    [
        ("decode-0", WorkerState.READY, "prefill-0 has no hand-off connection to decode-0"),
        ("decode-0", WorkerState.LOST, "decode worker decode-0 is lost"),
        ("decode-9", WorkerState.READY, "there is no decode worker decode-9"),
    ],
)
async def test_a_pair_that_is_not_joined_sends_no_canary(
    decode: str, state: WorkerState, detail: str
) -> None:
    dispatcher = FakeDispatcher()
    dispatcher.change(pairs=(), workers=(PREFILL, replace(DECODE, state=state)))
    check = await canary(dispatcher).check("prefill-0", decode)
    assert (check.failed_hop, check.detail) == (Hop.PAIR, detail)
    assert not dispatcher.streams


async def test_a_canary_that_is_cancelled_closes_its_request() -> None:
    dispatcher = FakeDispatcher()
    flight = asyncio.create_task(canary(dispatcher, timeout_s=10).check(*PAIR))
    await asyncio.wait_for(dispatcher.arrived.wait(), 10)
    flight.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flight
    assert all(stream.closed.is_set() for stream in dispatcher.streams.values())


@pytest.mark.parametrize("leaving", ["prefill-0", "decode-0"])
async def test_a_pair_with_a_draining_worker_sends_no_canary(leaving: str) -> None:
    dispatcher = FakeDispatcher()
    views = [replace(v, state=WorkerState.DRAINING) if v.id == leaving else v for v in (PREFILL, DECODE)]
    dispatcher.change(workers=tuple(views))
    check = await canary(dispatcher).check(*PAIR)
    pool = leaving.partition("-")[0]
    assert (check.failed_hop, check.detail) == (Hop.PAIR, f"{pool} worker {leaving} is draining")
    assert not dispatcher.streams
