"""A worker's audit finds what differs between pool, attempts and batch, and nothing where nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from decode_worker.audit import audit_decode
from twinpool.kv.audit import Claim, audit_blocks, count_blocks
from twinpool.kv.pool import BlockPool, Owner
from twinpool.kv.reservations import Reservations
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Admit, Audited, BlockCounts, HeldStage, Holding
from twinpool.types import AttemptId, HandoffId

WRITER = "p0-1"


def pool_of_two() -> tuple[BlockPool, list[Claim]]:
    """Eight blocks: two of row a, three of reservation b, three free."""
    pool = BlockPool(8)
    row, reserved = pool.lease("a", Owner.ROW, 2), pool.lease("b", Owner.RESERVATION, 3)
    assert row is not None
    assert reserved is not None
    return pool, [Claim("a", Owner.ROW, row.own), Claim("b", Owner.RESERVATION, reserved.own)]


def test_a_pool_whose_blocks_are_all_claimed_as_the_ledger_says_has_no_problem() -> None:
    pool, claims = pool_of_two()
    assert audit_blocks(pool, claims) == []
    assert count_blocks(pool) == BlockCounts(free=3, reserved=3, rows=2)
    assert audit_blocks(pool, [*claims, Claim("waiting", Owner.ROW, ())]) == []
    assert audit_blocks(BlockPool(4), []) == []


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (None, "2 blocks (0, 1) belong to row a, which nobody holds"),
        (Claim("a", Owner.ROW, (0,)), "holds 1 blocks (0), but the ledger gives it 2 blocks (0, 1)"),
        (Claim("a", Owner.ROW, (0, 1, 1)), "holds 3 blocks (0, 1, 1), but"),
        (Claim("a", Owner.ROW, (0, 1, 7)), "holds 3 blocks (0, 1, 7), but"),
        (Claim("a", Owner.ROW, (0, 1, 2)), "holds 3 blocks (0, 1, 2), but"),
        (Claim("a", Owner.QUARANTINE, (0, 1)), "a (quarantine) holds 2 blocks"),
        (
            Claim("c", Owner.ROW, (0, 1)),
            "c (row) holds 2 blocks (0, 1), but the ledger gives it 0 blocks",
        ),
    ],
    ids=["leaked", "too few", "twice", "a free one", "another's", "as something else", "by a stranger"],
)
def test_a_claim_that_differs_from_the_ledger_is_named(first: Claim | None, problem: str) -> None:
    pool, claims = pool_of_two()
    problems = audit_blocks(pool, [*([first] if first else []), claims[1]])
    assert any(problem in each for each in problems)


def test_a_damaged_free_list_is_found() -> None:
    pool, claims = pool_of_two()
    pool._free.append(5)
    (twice,) = audit_blocks(pool, claims)
    assert twice == "the free list holds 4 blocks (5, 5, 6, 7), but the ledger has 3 blocks (5, 6, 7) free"
    pool._free.pop()
    pool._free.pop()
    (lost,) = audit_blocks(pool, claims)
    assert lost == "the free list holds 2 blocks (5, 6), but the ledger has 3 blocks (5, 6, 7) free"


def test_a_count_that_has_gone_astray_is_found() -> None:
    pool, claims = pool_of_two()
    pool._count[Owner.FREE] = 4
    assert audit_blocks(pool, claims) == ["4 blocks are counted as free, but 3 are"]


def pool_of_a_prefix() -> tuple[BlockPool, list[Claim]]:
    """Eight blocks: two that a row and a reservation share, and one more of each."""
    pool = BlockPool(8)
    row = pool.lease("a", Owner.ROW, 3)
    assert row is not None
    pool.publish(row, 2)
    reserved = pool.lease("b", Owner.RESERVATION, 1, row.shared)
    assert reserved is not None
    return pool, [Claim(each.holder, each.owner, each.own, each.shared) for each in (row, reserved)]


def test_shared_blocks_count_once_and_belong_to_all_who_pin_them() -> None:
    pool, claims = pool_of_a_prefix()
    assert audit_blocks(pool, claims) == []
    assert count_blocks(pool) == BlockCounts(free=4, reserved=1, rows=1, cached=2)


@pytest.mark.parametrize(
    ("shared", "problem"),
    [
        ((0,), "block 1 is pinned by 2 holders, but 1 share it"),
        ((0, 1, 1), "block 1 is pinned by 2 holders, but 3 share it"),
        ((0, 1, 2), "block 2 is pinned by 0 holders, but 1 share it"),
    ],
    ids=["leaked", "twice", "another's own"],
)
def test_a_claim_to_shared_blocks_that_differs_from_their_pins_is_named(
    shared: tuple[int, ...], problem: str
) -> None:
    pool, (row, reserved) = pool_of_a_prefix()
    assert audit_blocks(pool, [row, replace(reserved, shared=shared)]) == [problem]


def test_a_shared_block_that_belongs_to_somebody_is_found() -> None:
    pool, claims = pool_of_a_prefix()
    pool._owner[0] = (Owner.ROW, "a")
    problems = audit_blocks(pool, claims)
    assert "2 blocks (0, 1) are pinned, but the ledger has 1 blocks (1) shared" in problems


def test_a_problem_with_many_blocks_names_the_first() -> None:
    pool = BlockPool(50)
    pool.lease("a", Owner.ROW, 50)
    (problem,) = audit_blocks(pool, [])
    assert problem == "50 blocks (0, 1, 2, 3, 4, 5, 6, 7, …) belong to row a, which nobody holds"


ROW = AttemptId("admitted")


class Books:
    """A decode worker's: one reservation in each stage, and the batch that belongs to them."""

    def __init__(self) -> None:
        self.pool = BlockPool(16)
        self.held = Reservations(self.pool, block_size=4)
        for name in ("reserved", "writing", "written", "to be a row", "quarantined"):
            handoff, attempt = HandoffId(name), ROW if name == "to be a row" else AttemptId(f"of {name}")
            assert self.held.reserve(handoff, attempt, 2, WRITER, 30.0, 1.0)
            if name != "reserved":
                self.held.begin(handoff, WRITER, 2.0)
            if name in ("written", "to be a row"):
                self.held.written(handoff, WRITER, 2, 3.0)
        self.held.admit(Admit(ROW, HandoffId("to be a row"), 0, (1,) * 5, (1,), SamplingParams(9)), 4.0)
        self.held.revoke(HandoffId("quarantined"), 5.0)
        self.batch: dict[AttemptId, list[int]] = {ROW: [6, 7]}

    def audit(self) -> Audited:
        return audit_decode("audit", self.pool, self.held, self.batch, 10.0)


def test_a_decode_workers_books_name_every_holder_with_its_stage_blocks_and_age() -> None:
    audited = Books().audit()
    assert audited.blocks == BlockCounts(free=6, reserved=6, rows=2, quarantined=2)
    assert audited.held == (
        Holding(HandoffId("reserved"), HeldStage.RESERVED, 2, 9.0),
        Holding(HandoffId("writing"), HeldStage.WRITING, 2, 8.0),
        Holding(HandoffId("written"), HeldStage.WRITTEN, 2, 7.0),
        Holding(HandoffId("quarantined"), HeldStage.QUARANTINED, 2, 5.0),
        Holding(ROW, HeldStage.ADMITTED, 2, 6.0),
    )
    assert audited.problems == ()


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ({}, "attempt admitted is admitted and no row"),
        ({ROW: [6, 7], AttemptId("written"): [4, 5]}, "attempt written is a row and not admitted"),
        ({ROW: [7, 6]}, "the row of attempt admitted has blocks [7, 6], its reservation [6, 7]"),
    ],
)
def test_a_batch_that_differs_from_the_reservations_is_found(
    batch: dict[AttemptId, list[int]], problem: str
) -> None:
    books = Books()
    books.batch = batch
    assert books.audit().problems == (problem,)


def test_a_block_lost_from_a_reservation_is_found() -> None:
    books = Books()
    next(iter(books.held)).lease.blocks = [0]
    (problem,) = books.audit().problems
    assert problem == "reserved (reservation) holds 1 blocks (0), but the ledger gives it 2 blocks (0, 1)"
