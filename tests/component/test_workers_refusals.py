"""What two workers cannot do: it is refused, and disturbs nothing else."""

from __future__ import annotations

import pytest

from tests.support.models.reference import reference_case
from tests.support.workers.router_double import Attempt, DrivenSession, RouterDouble, greedy
from tests.support.workers.running_workers import NUM_BLOCKS, RunningWorkers
from twinpool.errors import StartFailed
from twinpool.session.messages import Attempt as ReadAttempt
from twinpool.session.messages import (
    CancelPrefill,
    Command,
    Drop,
    LeavePair,
    Prefill,
    PrefillEnded,
    PrefillOutcome,
    Refused,
    Released,
    ReleaseReason,
    Reserve,
)
from twinpool.types import AttemptId, HandoffId, Pool

ONE, OTHER_ID = Attempt(AttemptId("an attempt"), HandoffId("a hand-off")), AttemptId("another")
READ_TWICE = (ReadAttempt(ONE.id, 0), ReadAttempt(OTHER_ID, 1))
SHORT = reference_case("33 tokens")
LONG = reference_case("600 tokens")


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
