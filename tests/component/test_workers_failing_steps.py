"""Steps of two workers that fail: they take their own rows and prompts, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.models.reference import reference_case
from tests.support.workers.router_double import RouterDouble, greedy
from tests.support.workers.running_workers import NUM_BLOCKS
from twinpool.engine.runner import Engine
from twinpool.session.messages import (
    Drop,
    FirstToken,
    PrefillEnded,
    PrefillOutcome,
    Released,
    ReleaseReason,
)

SHORT = reference_case("33 tokens")
LONG = reference_case("600 tokens")
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
