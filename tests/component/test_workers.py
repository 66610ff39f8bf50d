"""A prefill and a decode worker as the router sees them: a request's tokens, and what is left of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.models.reference import reference_case
from tests.support.workers.router_double import Attempt, DrivenSession, RouterDouble, greedy
from tests.support.workers.running_workers import BLOCK_BYTES, NUM_BLOCKS, RunningWorkers
from tests.support.workers.scripted_transport import Fault
from twinpool.engine.runner import Engine
from twinpool.errors import StartFailed, TakenOver
from twinpool.session.messages import Attempt as ReadAttempt
from twinpool.session.messages import (
    CancelPrefill,
    Command,
    Drop,
    FirstToken,
    LeavePair,
    Prefill,
    PrefillEnded,
    PrefillOutcome,
    Refused,
    Released,
    ReleaseReason,
    Reserve,
    StepDone,
    Written,
)
from twinpool.types import AttemptId, FinishReason, HandoffId, Pool

NUM_TOKENS = 10
ONE, OTHER_ID = Attempt(AttemptId("an attempt"), HandoffId("a hand-off")), AttemptId("another")
READ_TWICE = (ReadAttempt(ONE.id, 0), ReadAttempt(OTHER_ID, 1))
SHORT = reference_case("33 tokens")
LONG = reference_case("600 tokens")


# Tokens.


@pytest.mark.parametrize("name", ["1 tokens", "16 tokens", "17 tokens", "257 tokens", "600 tokens"])
async def test_answer_is_the_references(router: RouterDouble, name: str) -> None:
    case = reference_case(name)
    attempt, first = await router.start(case.prompt_ids, NUM_TOKENS)
    rest = await router.decode.tokens(attempt, NUM_TOKENS - 1)
    assert (first, *rest) == case.output_ids[:NUM_TOKENS]
    tokens = router.decode.row_tokens(attempt)
    assert [token.position for token in tokens] == list(range(1, NUM_TOKENS))
    assert [token.finish_reason for token in tokens] == [None] * (NUM_TOKENS - 2) + [FinishReason.LENGTH]
    written = await router.decode.event(Written, attempt)
    assert written.num_bytes == -(-len(case.prompt_ids) // 16) * BLOCK_BYTES
    assert (await router.prefill.event(PrefillEnded, attempt)).outcome is PrefillOutcome.DONE
    router.decode.send(Drop(attempt.id))
    released = await router.decode.event(Released, attempt)
    assert (released.reason, released.load.blocks_free) == (ReleaseReason.EVICTED, NUM_BLOCKS)


async def test_answers_at_once_are_the_references(router: RouterDouble) -> None:
    cases = [reference_case(name) for name in ("5 tokens", "16 tokens", "129 tokens", "33 tokens")]
    answers = await asyncio.gather(*(router.answer(case.prompt_ids, NUM_TOKENS) for case in cases))
    assert answers == [case.output_ids[:NUM_TOKENS] for case in cases]


async def test_answer_that_resumes_goes_on_as_if_it_had_not_stopped(router: RouterDouble) -> None:
    rest = await router.answer(SHORT.prompt_ids, NUM_TOKENS, SHORT.output_ids[:4])
    assert rest == SHORT.output_ids[4:NUM_TOKENS]


async def test_only_token_needs_no_decode_worker(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    router.read(attempt, SHORT.prompt_ids, greedy(1), hand_off=False)
    first = await router.prefill.event(FirstToken, attempt)
    assert (first.token.id, first.finish_reason) == (SHORT.output_ids[0], FinishReason.LENGTH)
    assert (await router.prefill.event(PrefillEnded, attempt)).outcome is PrefillOutcome.DONE


async def test_row_may_be_admitted_before_its_cache_is_there(
    workers: RunningWorkers, router: RouterDouble
) -> None:
    late = workers.script.plan("written", Fault.DELAY)
    attempt, _ = await router.start(SHORT.prompt_ids, 3)
    assert await asyncio.to_thread(late.reached.wait, 10.0)
    assert not router.decode.row_tokens(attempt)
    late.let_go.set()
    assert await router.decode.tokens(attempt, 2) == SHORT.output_ids[1:3]
    router.decode.send(Drop(attempt.id))
    await router.decode.event(Released, attempt)


# Cancelled, at every point of its life.


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


# Commands that find nothing.


async def test_attempts_unknown_to_the_decode_worker_are_gone(router: RouterDouble) -> None:
    dropped, admitted = router.new_attempt(), router.new_attempt()
    router.decode.send(Drop(dropped.handoff))
    router.admit(admitted, (1, 2, 3), greedy(4), (1,))
    router.decode.send(Drop(dropped.id))
    for attempt, skip in ((dropped, 0), (admitted, 0), (dropped, 1)):
        assert (await router.decode.event(Released, attempt, skip=skip)).reason is ReleaseReason.GONE
    assert await router.answer(SHORT.prompt_ids, 3) == SHORT.output_ids[:3]


async def test_attempts_and_pairs_unknown_to_the_prefill_worker_are_nothing(router: RouterDouble) -> None:
    router.prefill.send(CancelPrefill(HandoffId("unknown")), LeavePair("unknown"))
    assert await router.answer(SHORT.prompt_ids, 3) == SHORT.output_ids[:3]


async def test_reservation_that_does_not_fit_is_refused_and_takes_nothing(router: RouterDouble) -> None:
    assert isinstance(await router.reserve(router.new_attempt(), (NUM_BLOCKS + 1) * 16), Refused)
    assert await router.answer(SHORT.prompt_ids, 3) == SHORT.output_ids[:3]


async def test_attempt_reserves_once(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    await router.reserve(attempt, 40)
    router.decode.send(Reserve(attempt.handoff, (attempt.id,), 40, router.prefill_hello.incarnation, 30.0))
    await router.decode.event(Refused, attempt)
    router.decode.send(Drop(attempt.handoff))
    await router.decode.event(Released, attempt)


async def test_prompt_without_a_reservation_is_dropped(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    router.read(attempt, LONG.prompt_ids, greedy(4))
    ended = await router.prefill.event(PrefillEnded, attempt)
    assert (ended.outcome, ended.load.blocks_free) == (PrefillOutcome.REFUSED, NUM_BLOCKS)


async def test_prompt_whose_reservation_expired_in_the_queue_is_dropped(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    await router.reserve(attempt, 40, ttl_s=0.01)
    assert (await router.decode.event(Released, attempt)).reason is ReleaseReason.NEVER_BEGUN
    router.read(attempt, SHORT.prompt_ids, greedy(4))
    assert (await router.prefill.event(PrefillEnded, attempt)).outcome is PrefillOutcome.REFUSED


async def test_prompt_without_a_pair_is_lost(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    attempts = (ReadAttempt(attempt.id, 0),)
    read = Prefill(attempt.handoff, attempts, SHORT.prompt_ids, (), greedy(4), "decode-0-other", 1)
    router.prefill.send(read)
    ended = await router.prefill.event(PrefillEnded, attempt)
    assert (ended.outcome, ended.detail) == (PrefillOutcome.PAIR_LOST, "no pair with decode-0-other")


@pytest.mark.parametrize("num_tokens", [0, NUM_BLOCKS * 16 + 1])
async def test_prompt_that_can_never_be_read_fails_and_holds_nobody_up(
    router: RouterDouble, num_tokens: int
) -> None:
    attempt = router.new_attempt()
    router.read(attempt, (1,) * num_tokens, greedy(4))
    ended = await router.prefill.event(PrefillEnded, attempt)
    assert (ended.outcome, ended.detail) == (
        PrefillOutcome.FAILED,
        f"{num_tokens} tokens do not fit this worker",
    )
    assert await router.answer(SHORT.prompt_ids, 3) == SHORT.output_ids[:3]


@pytest.mark.parametrize(
    ("pool", "command"),
    [(Pool.PREFILL, Drop(ONE.handoff)), (Pool.DECODE, CancelPrefill(ONE.handoff))],
    ids=["prefill", "decode"],
)
async def test_other_pools_command_ends_the_session(
    router: RouterDouble, pool: Pool, command: Command
) -> None:
    session = router.prefill if pool is Pool.PREFILL else router.decode
    session.send(command)
    assert (await session.end()).startswith("session lost")


@pytest.mark.parametrize(
    ("pool", "command"),
    [
        (Pool.PREFILL, Prefill(ONE.handoff, READ_TWICE, SHORT.prompt_ids, (), greedy(4), None, 1)),
        (Pool.DECODE, Reserve(ONE.handoff, (ONE.id, OTHER_ID), 40, "a writer", 30.0)),
    ],
    ids=["prefill", "decode"],
)
async def test_hand_off_of_several_attempts_ends_the_session(
    router: RouterDouble, pool: Pool, command: Command
) -> None:
    session = router.prefill if pool is Pool.PREFILL else router.decode
    session.send(command)
    assert (await session.end()).startswith("session lost")


@pytest.mark.parametrize("pool", list(Pool))
async def test_wrong_secret_is_unauthenticated(workers: RunningWorkers, pool: Pool) -> None:
    address = workers.prefill_address if pool is Pool.PREFILL else workers.decode_address
    with pytest.raises(StartFailed, match=r"UNAUTHENTICATED[\s\S]*wrong cluster secret"):
        await DrivenSession(address, "guessed").open()


# Steps that fail.

POISON = 666
"""The seed of a row whose steps fail."""


@pytest.fixture
def poisonous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with a poisoned row fail; others go well."""
    prefill, decode = Engine.prefill, Engine.decode

    def failing_prefill(engine: Engine, chunks: Any) -> Any:
        if any(chunk.sample and chunk.sample.params.seed == POISON for chunk in chunks):
            raise RuntimeError("poisoned")
        return prefill(engine, chunks)

    def failing_decode(engine: Engine, rows: Any) -> Any:
        if any(row.sample.params.seed == POISON for row in rows):
            raise RuntimeError("poisoned")
        return decode(engine, rows)

    monkeypatch.setattr(Engine, "prefill", failing_prefill)
    monkeypatch.setattr(Engine, "decode", failing_decode)


@pytest.mark.usefixtures("poisonous")
async def test_decode_step_that_fails_takes_only_its_rows(router: RouterDouble) -> None:
    healthy, params = router.new_attempt(), greedy(4)
    await router.reserve(healthy, 40)
    router.read(healthy, SHORT.prompt_ids, params)
    first = await router.prefill.event(FirstToken, healthy)
    poisoned, ill = router.new_attempt(), greedy(4, seed=POISON)
    await router.reserve(poisoned, 40)
    # The poison is for the decode worker alone.
    router.read(poisoned, SHORT.prompt_ids, params)
    await router.prefill.event(FirstToken, poisoned)
    router.admit(poisoned, SHORT.prompt_ids, ill, (first.token.id,))
    released = await router.decode.event(Released, poisoned)
    assert (released.reason, released.detail) == (ReleaseReason.FAILED_ALONE, "RuntimeError")
    router.admit(healthy, SHORT.prompt_ids, params, (first.token.id,))
    assert await router.decode.tokens(healthy, 3) == SHORT.output_ids[1:4]
    router.decode.send(Drop(healthy.id))
    await router.decode.event(Released, healthy)


@pytest.mark.usefixtures("poisonous")
async def test_prefill_step_that_fails_takes_only_its_prompts(router: RouterDouble) -> None:
    poisoned, waiting = router.new_attempt(), router.new_attempt()
    long = reference_case("257 tokens")
    await router.reserve(waiting, 300)
    # The second finds no room beside the first, so it is not in the step that fails.
    router.read(poisoned, LONG.prompt_ids, greedy(4, seed=POISON), hand_off=False)
    router.read(waiting, long.prompt_ids, greedy(4))
    ended = await router.prefill.event(PrefillEnded, poisoned)
    assert (ended.outcome, ended.detail) == (PrefillOutcome.FAILED_ALONE, "RuntimeError")
    assert (await router.prefill.event(FirstToken, waiting)).token.id == long.output_ids[0]
    router.decode.send(Drop(waiting.handoff))
    await router.decode.event(Released, waiting)


@pytest.mark.usefixtures("poisonous")
async def test_prefill_step_that_fails_frees_the_reservation(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    await router.reserve(attempt, len(LONG.prompt_ids))
    router.read(attempt, LONG.prompt_ids, greedy(4, seed=POISON))
    assert (await router.prefill.event(PrefillEnded, attempt)).outcome is PrefillOutcome.FAILED_ALONE
    released = await router.decode.event(Released, attempt)
    assert (released.reason, released.load.blocks_free) == (ReleaseReason.HANDOFF_FAILED, NUM_BLOCKS)


async def test_prompt_longer_than_its_reservation_fails_alone(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    await router.reserve(attempt, 16)
    router.read(attempt, SHORT.prompt_ids, greedy(4))
    ended = await router.prefill.event(PrefillEnded, attempt)
    assert (ended.outcome, ended.detail) == (PrefillOutcome.FAILED, "ValueError")
    assert (await router.decode.event(Released, attempt)).reason is ReleaseReason.HANDOFF_FAILED
    assert await router.answer(SHORT.prompt_ids, 3) == SHORT.output_ids[:3]


# Pairs.


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
