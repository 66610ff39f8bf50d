"""A prefill and a decode worker as the router sees them: the tokens of requests."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.models.reference import reference_case
from tests.support.workers.router_double import RouterDouble, greedy
from tests.support.workers.running_workers import BLOCK_BYTES, NUM_BLOCKS, RunningWorkers
from tests.support.workers.scripted_transport import Fault
from twinpool.session.messages import (
    Drop,
    FirstToken,
    PrefillEnded,
    PrefillOutcome,
    Released,
    ReleaseReason,
    Written,
)
from twinpool.types import FinishReason

NUM_TOKENS = 10
SHORT = reference_case("33 tokens")


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
