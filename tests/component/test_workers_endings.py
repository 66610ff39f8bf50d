"""Requests withdrawn at every point of their lives, routers that are lost, pairs that are left."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.models.reference import reference_case
from tests.support.workers.router_double import Attempt, RouterDouble, greedy
from tests.support.workers.running_workers import NUM_BLOCKS, RunningWorkers
from tests.support.workers.scripted_transport import Fault
from twinpool.errors import TakenOver
from twinpool.session.messages import (
    CancelPrefill,
    Drop,
    FirstToken,
    LeavePair,
    PrefillEnded,
    PrefillOutcome,
    Released,
    ReleaseReason,
    StepDone,
    Written,
)

NUM_TOKENS = 10
SHORT = reference_case("33 tokens")
LONG = reference_case("600 tokens")


async def test_reservation_is_revoked_before_the_prompt_is_sent(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    await router.reserve(attempt, 40)
    router.decode.send(Drop(attempt.handoff))
    released = await router.decode.event(Released, attempt)
    assert (released.reason, released.load.blocks_free) == (ReleaseReason.REVOKED, NUM_BLOCKS)


async def cancel(router: RouterDouble, attempt: Attempt) -> tuple[PrefillEnded, Released]:
    """Withdraw it from both workers; their answers."""
    router.prefill.send(CancelPrefill(attempt.handoff))
    router.decode.send(Drop(attempt.handoff))
    ended = await router.prefill.event(PrefillEnded, attempt)
    return ended, await router.decode.event(Released, attempt)


async def test_cancel_before_begin_is_answered(workers: RunningWorkers, router: RouterDouble) -> None:
    lost = workers.script.plan("begin", Fault.DROP)
    attempt = router.new_attempt()
    await router.reserve(attempt, 40)
    router.read(attempt, SHORT.prompt_ids, greedy(4))
    assert await asyncio.to_thread(lost.reached.wait, 10.0)
    ended, released = await cancel(router, attempt)
    assert ended.outcome is PrefillOutcome.STOPPED
    assert released.reason is ReleaseReason.REVOKED


@pytest.mark.parametrize("word", ["push", "written"])
async def test_cancel_while_the_cache_is_on_its_way(
    workers: RunningWorkers, router: RouterDouble, word: str
) -> None:
    slow = workers.script.plan(word, Fault.DELAY)
    attempt = router.new_attempt()
    await router.reserve(attempt, len(LONG.prompt_ids) + 4)
    router.read(attempt, LONG.prompt_ids, greedy(4))
    assert await asyncio.to_thread(slow.reached.wait, 10.0)
    # The engine is in the middle of a word, so the decode worker's `stop` meets it there.
    router.decode.send(Drop(attempt.handoff))
    released = await router.decode.event(Released, attempt)
    assert released.reason is ReleaseReason.REVOKED
    assert await asyncio.to_thread(workers.script.await_stop, attempt.handoff)
    router.prefill.send(CancelPrefill(attempt.handoff))
    slow.let_go.set()
    ended = await router.prefill.event(PrefillEnded, attempt)
    assert ended.outcome is PrefillOutcome.STOPPED
    assert bool(router.prefill.events_of(FirstToken, attempt)) == (word == "written")


async def test_cancel_after_the_first_token(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    await router.reserve(attempt, 40)
    router.read(attempt, SHORT.prompt_ids, greedy(4))
    await router.prefill.event(FirstToken, attempt)
    _, released = await cancel(router, attempt)
    assert released.reason in (ReleaseReason.REVOKED, ReleaseReason.HANDOFF_FAILED)


async def test_cancel_while_decoding(router: RouterDouble) -> None:
    attempt, _ = await router.start(SHORT.prompt_ids, 200)
    await router.decode.tokens(attempt, 3)
    router.decode.send(Drop(attempt.id))
    released = await router.decode.event(Released, attempt)
    assert (released.reason, released.load.blocks_free) == (ReleaseReason.EVICTED, NUM_BLOCKS)
    after = router.decode.events[router.decode.events.index(released) :]
    assert not [event for event in after if isinstance(event, StepDone)]


@pytest.mark.parametrize("point", ["reserved", "handing off", "written", "decoding"])
async def test_lost_router_frees_all_in_both_workers(workers: RunningWorkers, point: str) -> None:
    async with RouterDouble(workers) as router:
        match point:
            case "reserved":
                await router.reserve(router.new_attempt(), 40)
            case "handing off":
                slow = workers.script.plan("push", Fault.DELAY)
                attempt = router.new_attempt()
                await router.reserve(attempt, len(LONG.prompt_ids))
                router.read(attempt, LONG.prompt_ids, greedy(4))
                assert await asyncio.to_thread(slow.reached.wait, 10.0)
            case "written":
                attempt = router.new_attempt()
                await router.reserve(attempt, 40)
                router.read(attempt, SHORT.prompt_ids, greedy(4))
                await router.decode.event(Written, attempt)
            case _:
                attempt, _ = await router.start(SHORT.prompt_ids, 500)
                await router.decode.tokens(attempt, 2)
        assert workers.what_is_held()
    workers.script.clear()
    await workers.wait_until_at_rest()


async def test_newer_router_takes_over(workers: RunningWorkers, router: RouterDouble) -> None:
    attempt, _ = await router.start(SHORT.prompt_ids, 500)
    await router.decode.tokens(attempt, 2)
    async with RouterDouble(workers) as newer:
        for session in (router.decode, router.prefill):
            with pytest.raises(TakenOver):
                await session.end()
        assert await newer.answer(SHORT.prompt_ids, NUM_TOKENS) == SHORT.output_ids[:NUM_TOKENS]


async def test_left_pair_loses_its_prompts_and_may_be_joined_again(
    workers: RunningWorkers, router: RouterDouble
) -> None:
    lost = workers.script.plan("begin", Fault.DROP)
    attempt = router.new_attempt()
    await router.reserve(attempt, 40)
    router.read(attempt, SHORT.prompt_ids, greedy(4))
    assert await asyncio.to_thread(lost.reached.wait, 10.0)
    router.prefill.send(LeavePair(router.decode_hello.incarnation))
    ended = await router.prefill.event(PrefillEnded, attempt)
    assert (ended.outcome, ended.detail) == (PrefillOutcome.PAIR_LOST, "the pair was closed")
    router.decode.send(Drop(attempt.handoff))
    await router.decode.event(Released, attempt)
    await router.join_again()
    assert await router.answer(SHORT.prompt_ids, 3) == SHORT.output_ids[:3]
