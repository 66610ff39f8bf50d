"""Real workers audit their own blocks: while they serve, at rest, and when a block is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.support.models.reference import reference_case
from tests.support.workers.router_double import DrivenSession, RouterDouble, greedy
from tests.support.workers.running_workers import NUM_BLOCKS, RunningWorkers
from tests.support.workers.scripted_transport import Fault
from twinpool.kv.pool import BlockPool, Owner
from twinpool.session.messages import (
    Audit,
    Audited,
    BlockCounts,
    Drop,
    HeldStage,
    Holding,
    Released,
)

SHORT = reference_case("33 tokens")
"""Three blocks of prompt; with its reservation for what follows, three as well."""


async def audit(session: DrivenSession) -> Audited:
    before = len(session.events_of(Audited))
    session.send(Audit("audit"))
    audited = await session.event(Audited, skip=before)
    return replace(audited, held=tuple(replace(each, age_s=0.0) for each in audited.held))


@contextmanager
def lost_block(pool: BlockPool) -> Iterator[None]:
    """A block that belongs to an attempt nobody knows."""
    lease = pool.lease("ghost", Owner.ROW, 1)
    assert lease is not None
    try:
        yield
    finally:
        pool.release(lease)


async def test_workers_at_rest_hold_nothing(router: RouterDouble) -> None:
    at_rest = Audited("audit", BlockCounts(free=NUM_BLOCKS), (), ())
    assert await audit(router.prefill) == await audit(router.decode) == at_rest


async def test_a_reservation_is_held_from_its_grant_to_its_revocation(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    await router.reserve(attempt, 40)
    audited = await audit(router.decode)
    assert audited.blocks == BlockCounts(free=NUM_BLOCKS - 3, reserved=3)
    assert audited.held == (Holding(attempt.handoff, HeldStage.RESERVED, 3, 0.0),)
    router.decode.send(Drop(attempt.handoff))
    assert (await audit(router.decode)).held == ()


async def test_a_hand_off_is_held_as_writing_until_its_last_word(
    workers: RunningWorkers, router: RouterDouble
) -> None:
    late = workers.script.plan("written", Fault.DELAY)
    attempt, _ = await router.start(SHORT.prompt_ids, 3)
    assert await asyncio.to_thread(late.reached.wait, 10.0)
    reading = asyncio.create_task(audit(router.prefill))
    assert (await audit(router.decode)).held == (Holding(attempt.id, HeldStage.WRITING, 3, 0.0),)
    late.let_go.set()
    assert not (await reading).problems
    router.decode.send(Drop(attempt.id))
    await router.decode.event(Released, attempt)


async def test_audits_while_rows_are_stepped_find_nothing_and_change_no_token(router: RouterDouble) -> None:
    cases = [reference_case(name) for name in ("5 tokens", "16 tokens", "129 tokens", "33 tokens")]
    answering = asyncio.gather(*(router.answer(case.prompt_ids, 10) for case in cases))
    audits: list[Audited] = []
    while not answering.done():
        audits += [await audit(router.prefill), await audit(router.decode)]
    assert await answering == [case.output_ids[:10] for case in cases]
    assert any(held.stage == "admitted" for each in audits for held in each.held)
    assert [each.problems for each in audits if each.problems] == []


async def test_a_prompt_without_a_decode_worker_is_held_until_it_is_read(router: RouterDouble) -> None:
    attempt = router.new_attempt()
    router.read(attempt, SHORT.prompt_ids, greedy(1), hand_off=False)
    assert not (await audit(router.prefill)).problems
    assert not (await audit(router.prefill)).held


async def test_a_lost_block_is_found_on_a_decode_worker(
    workers: RunningWorkers, router: RouterDouble
) -> None:
    with lost_block(workers.decode.custody._pool):
        (problem,) = (await audit(router.decode)).problems
    assert problem.startswith("1 blocks (")
    assert problem.endswith("belong to row ghost, which nobody holds")
    assert not (await audit(router.decode)).problems


async def test_a_lost_block_is_found_on_a_prefill_worker(
    workers: RunningWorkers, router: RouterDouble
) -> None:
    with lost_block(workers.prefill.pool):
        (problem,) = (await audit(router.prefill)).problems
    assert problem.endswith("belong to row ghost, which nobody holds")
    assert not (await audit(router.prefill)).problems
