"""A row moves from one decode worker to another while it goes on: every token is the reference's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from decode_worker.worker import DecodeWorker
from tests.support.models.reference import ReferenceCase, reference_case
from tests.support.workers.router_double import Attempt, DrivenSession, RouterDouble, greedy
from tests.support.workers.running_workers import NUM_BLOCKS, RunningWorkers
from twinpool.session.messages import (
    Admit,
    Drop,
    Granted,
    Hello,
    JoinPair,
    LeavePair,
    MoveFailed,
    MoveRow,
    PairJoined,
    Released,
    Reserve,
    RowMoved,
)
from twinpool.types import HandoffId, Pool

NUM_TOKENS = 24
MOST_TOKENS = 100


@dataclass
class Target:
    """The other decode worker, and the router's session with it."""

    session: DrivenSession
    hello: Hello


@pytest.fixture(scope="module")
def other(shared_workers: RunningWorkers) -> Iterator[str]:
    """The address of a second decode worker."""
    worker = DecodeWorker(shared_workers.spec(Pool.DECODE))
    yield f"127.0.0.1:{worker.start()}"
    worker.stop()


@pytest.fixture
async def target(router: RouterDouble, other: str) -> AsyncIterator[Target]:
    """Joined with the first one, which sends; at rest again after the test."""
    session = DrivenSession(other)
    hello = await session.open()
    router.decode.send(JoinPair(hello.incarnation, hello.endpoint))
    await router.decode.event(PairJoined)
    yield Target(session, hello)
    await session.reports(blocks_free=NUM_BLOCKS)
    await session.close()


async def reserve(router: RouterDouble, target: Target, num_tokens: int) -> Attempt:
    """Room for a row that comes from the first worker."""
    to = router.new_attempt()
    target.session.send(Reserve(to.handoff, (to.id,), num_tokens, router.decode_hello.incarnation, 30.0))
    await target.session.event(Granted, to)
    return to


def log_of(router: RouterDouble, attempt: Attempt, first: int) -> tuple[int, ...]:
    return (first, *(row.token.id for row in router.decode.row_tokens(attempt)))


@pytest.mark.parametrize("name", ["1 tokens", "16 tokens", "31 tokens", "257 tokens", "600 tokens"])
async def test_moved_row_goes_on_with_the_references_tokens(
    router: RouterDouble, target: Target, name: str
) -> None:
    case = reference_case(name)
    # More than are compared, so that it cannot end before it moves.
    attempt, first = await router.start(case.prompt_ids, MOST_TOKENS)
    await router.decode.tokens(attempt, 3)
    to = await reserve(router, target, len(case.prompt_ids) + MOST_TOKENS)
    router.decode.send(MoveRow(attempt.id, to.handoff, target.hello.incarnation))
    moved = await router.decode.event(RowMoved, attempt)
    log = log_of(router, attempt, first)
    assert (moved.to, moved.position) == (to.handoff, len(log))
    target.session.send(Admit(to.id, to.handoff, 0, tuple(case.prompt_ids), log, greedy(MOST_TOKENS)))
    router.decode.send(Drop(attempt.id))
    await router.decode.event(Released, attempt)
    rest = await target.session.tokens(to, max(1, NUM_TOKENS - len(log)))
    assert (*log, *rest)[:NUM_TOKENS] == case.output_ids
    target.session.send(Drop(to.id))
    await target.session.event(Released, to)


async def start_long_row(router: RouterDouble) -> tuple[ReferenceCase, Attempt, int]:
    case = reference_case("257 tokens")
    attempt, first = await router.start(case.prompt_ids, 200)
    await router.decode.tokens(attempt, 1)
    return case, attempt, first


async def require_going_on(router: RouterDouble, case: ReferenceCase, attempt: Attempt, first: int) -> None:
    """The row is stepped where it was."""
    tokens = await router.decode.tokens(attempt, NUM_TOKENS)
    assert (first, *tokens)[:NUM_TOKENS] == case.output_ids
    router.decode.send(Drop(attempt.id))
    await router.decode.event(Released, attempt)


async def test_row_goes_on_where_it_was_if_the_reservation_is_gone(
    router: RouterDouble, target: Target
) -> None:
    to = HandoffId("never reserved")
    case, attempt, first = await start_long_row(router)
    router.decode.send(MoveRow(attempt.id, to, target.hello.incarnation))
    failed = await router.decode.event(MoveFailed, attempt)
    assert (failed.to, failed.detail) == (to, "refused")
    await require_going_on(router, case, attempt, first)


async def test_row_goes_on_where_it_was_if_it_outgrows_the_reservation(
    router: RouterDouble, target: Target
) -> None:
    case, attempt, first = await start_long_row(router)
    to = await reserve(router, target, 100)
    router.decode.send(MoveRow(attempt.id, to.handoff, target.hello.incarnation))
    assert (await router.decode.event(MoveFailed, attempt)).detail == "ValueError"
    await require_going_on(router, case, attempt, first)


async def test_row_goes_on_where_it_was_if_there_is_no_pair(router: RouterDouble, target: Target) -> None:
    case, attempt, first = await start_long_row(router)
    to = await reserve(router, target, 400)
    router.decode.send(
        LeavePair(target.hello.incarnation), MoveRow(attempt.id, to.handoff, target.hello.incarnation)
    )
    assert "pair" in (await router.decode.event(MoveFailed, attempt)).detail
    target.session.send(Drop(to.handoff))
    await require_going_on(router, case, attempt, first)


async def test_evicted_row_leaves_nothing_on_either_side(router: RouterDouble, target: Target) -> None:
    case, attempt, _ = await start_long_row(router)
    to = await reserve(router, target, len(case.prompt_ids) + 100)
    router.decode.send(MoveRow(attempt.id, to.handoff, target.hello.incarnation), Drop(attempt.id))
    await router.decode.event(Released, attempt)
    target.session.send(Drop(to.handoff))
    await target.session.event(Released, to)


async def test_lost_session_frees_moving_rows_on_both_sides(router: RouterDouble, target: Target) -> None:
    case, attempt, _ = await start_long_row(router)
    to = await reserve(router, target, len(case.prompt_ids) + 100)
    router.decode.send(MoveRow(attempt.id, to.handoff, target.hello.incarnation))
    await router.decode.close()
    target.session.send(Drop(to.handoff))
