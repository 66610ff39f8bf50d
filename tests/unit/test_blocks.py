"""A block has one owner at a time, and changes hands only as the table allows."""

from __future__ import annotations

from itertools import product

import pytest

from twinpool.kv.blocks import BlockPool, IllegalTransfer, Owner, blocks_for, reservation_tokens

LEGAL = {
    ("free", "reservation"),
    ("free", "row"),
    ("reservation", "row"),
    ("reservation", "quarantine"),
    ("reservation", "free"),
    ("quarantine", "free"),
    ("row", "free"),
}
MOVES = list(product(Owner, Owner))


def pool_with(owner: Owner) -> tuple[BlockPool, tuple[int, ...]]:
    """A pool of three blocks, of which two have come to this owner the legal way; those two."""
    pool = BlockPool(3)
    if owner is Owner.FREE:
        return pool, (0, 1)
    first = Owner.ROW if owner is Owner.ROW else Owner.RESERVATION
    blocks = pool.allocate(first, "a", 2)
    assert blocks is not None
    if owner is Owner.QUARANTINE:
        pool.transfer(blocks, "a", Owner.RESERVATION, Owner.QUARANTINE)
    return pool, blocks


def move(pool: BlockPool, blocks: tuple[int, ...], source: Owner, target: Owner) -> None:
    """Change the owner by the method made for it."""
    if source is Owner.FREE:
        pool.allocate(target, "a", len(blocks))
    elif target is Owner.FREE:
        pool.free(blocks, "a", source)
    else:
        pool.transfer(blocks, "a", source, target)


@pytest.mark.parametrize(("source", "target"), [each for each in MOVES if each in LEGAL])
def test_a_legal_move_changes_owner_and_counts(source: Owner, target: Owner) -> None:
    pool, blocks = pool_with(source)
    move(pool, blocks, source, target)
    attempt = "" if target is Owner.FREE else "a"
    assert [pool.owners()[block] for block in blocks] == [(target, attempt)] * 2
    assert pool.count(target) == (3 if target is Owner.FREE else 2)
    assert sum(pool.count(owner) for owner in Owner) == pool.num_blocks == 3


@pytest.mark.parametrize(("source", "target"), [each for each in MOVES if each not in LEGAL])
def test_any_other_move_raises(source: Owner, target: Owner) -> None:
    pool, blocks = pool_with(source)
    with pytest.raises(IllegalTransfer, match="not a legal transfer"):
        move(pool, blocks, source, target)


def test_blocks_are_allocated_all_or_none() -> None:
    pool = BlockPool(4)
    assert pool.allocate(Owner.RESERVATION, "a", 3) == (0, 1, 2)
    before = pool.owners()
    assert pool.allocate(Owner.RESERVATION, "b", 2) is None
    assert pool.owners() == before
    assert pool.allocate(Owner.ROW, "b", 1) == (3,)
    assert pool.count(Owner.FREE) == 0


def test_freed_blocks_are_taken_again_last() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(Owner.ROW, "a", 2)
    assert blocks == (0, 1)
    pool.free(blocks, "a", Owner.ROW)
    assert pool.allocate(Owner.ROW, "b", 4) == (2, 3, 0, 1)


def test_nobody_moves_the_blocks_of_another_attempt() -> None:
    pool, blocks = pool_with(Owner.RESERVATION)
    with pytest.raises(IllegalTransfer, match="belongs to"):
        pool.free(blocks, "b", Owner.RESERVATION)
    with pytest.raises(IllegalTransfer, match="belongs to"):
        pool.transfer(blocks, "b", Owner.RESERVATION, Owner.ROW)


def test_nobody_moves_blocks_from_an_owner_they_do_not_have() -> None:
    pool, blocks = pool_with(Owner.RESERVATION)
    with pytest.raises(IllegalTransfer, match="belongs to"):
        pool.free(blocks, "a", Owner.QUARANTINE)


@pytest.mark.parametrize("freed", [(0, 1), (0, 0)], ids=["twice in turn", "twice at once"])
def test_a_block_is_not_freed_twice(freed: tuple[int, ...]) -> None:
    pool, blocks = pool_with(Owner.ROW)
    if freed == blocks:
        pool.free(freed, "a", Owner.ROW)
    before = pool.owners()
    with pytest.raises(IllegalTransfer, match=r"belongs to|named twice"):
        pool.free(freed, "a", Owner.ROW)
    assert pool.owners() == before


def test_a_move_that_is_refused_for_one_block_moves_none() -> None:
    pool, blocks = pool_with(Owner.RESERVATION)
    pool.allocate(Owner.ROW, "b", 1)
    before = pool.owners()
    with pytest.raises(IllegalTransfer, match="belongs to"):
        pool.transfer((*blocks, 2), "a", Owner.RESERVATION, Owner.ROW)
    assert pool.owners() == before
    assert (pool.count(Owner.RESERVATION), pool.count(Owner.ROW)) == (2, 1)


def test_an_allocation_that_is_illegal_takes_no_block() -> None:
    pool = BlockPool(2)
    with pytest.raises(IllegalTransfer):
        pool.allocate(Owner.QUARANTINE, "a", 1)
    assert pool.allocate(Owner.ROW, "a", 2) == (0, 1)


def test_owners_are_a_copy() -> None:
    pool = BlockPool(1)
    pool.owners()[0] = (Owner.ROW, "a")
    assert pool.owners() == [(Owner.FREE, "")]


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_a_block_begun_is_a_block_taken(num_tokens: int, num_blocks: int) -> None:
    assert blocks_for(num_tokens, 16) == num_blocks


def test_a_reservation_covers_what_is_known_and_the_first_token() -> None:
    assert reservation_tokens(10) == 11
