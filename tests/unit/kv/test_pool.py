"""A block has one owner at a time, or is shared by count, and changes hands only as the table allows."""

from __future__ import annotations

from itertools import product

import pytest

from twinpool.kv.pool import LEGAL_TRANSFERS, BlockPool, IllegalTransfer, Lease, Owner

LEGAL = {
    ("free", "reservation"),
    ("free", "row"),
    ("reservation", "row"),
    ("reservation", "quarantine"),
    ("reservation", "free"),
    ("quarantine", "free"),
    ("row", "free"),
    ("row", "shared"),
    ("shared", "free"),
}
LEASED = [Owner.RESERVATION, Owner.ROW, Owner.QUARANTINE]
MOVES = [*product([Owner.FREE], Owner), *product(LEASED, Owner)]


def taken(lease: Lease | None) -> Lease:
    """A lease that there was room for."""
    assert lease is not None
    return lease


def pool_with(owner: Owner) -> tuple[BlockPool, Lease]:
    """A pool of three blocks, and a lease of two that have come to this owner the legal way."""
    pool = BlockPool(3)
    lease = taken(pool.lease("a", Owner.ROW if owner in (Owner.ROW, Owner.FREE) else Owner.RESERVATION, 2))
    if owner is Owner.QUARANTINE:
        pool.transfer(lease, Owner.QUARANTINE)
    if owner is Owner.FREE:
        pool.release(lease)
    return pool, lease


def move(pool: BlockPool, lease: Lease, target: Owner) -> None:
    """Change the owner of a lease's blocks by the method made for it; of none, that of two free ones."""
    if lease.owner is Owner.FREE and target is not Owner.FREE:
        pool.lease("a", target, 2)
    elif target is Owner.FREE:
        pool.release(lease)
    elif target is Owner.SHARED:
        pool.publish(lease, 2)
    else:
        pool.transfer(lease, target)


def test_the_table_is_this() -> None:
    assert LEGAL == LEGAL_TRANSFERS


@pytest.mark.parametrize(("source", "target"), [each for each in MOVES if each in LEGAL])
def test_a_legal_move_changes_owner_and_counts(source: Owner, target: Owner) -> None:
    pool, lease = pool_with(source)
    blocks = lease.own or (2, 0)  # freed ones are taken again last
    move(pool, lease, target)
    holder = "" if target in (Owner.FREE, Owner.SHARED) else "a"
    assert [pool.owners()[block] for block in blocks] == [(target, holder)] * 2
    assert pool.count(target) == (3 if target is Owner.FREE else 2)
    assert sum(pool.count(owner) for owner in Owner) == pool.num_blocks == 3


@pytest.mark.parametrize(("source", "target"), [each for each in MOVES if each not in LEGAL])
def test_any_other_move_raises_and_changes_nothing(source: Owner, target: Owner) -> None:
    pool, lease = pool_with(source)
    before = pool.owners()
    with pytest.raises(IllegalTransfer, match="not a legal transfer"):
        move(pool, lease, target)
    assert pool.owners() == before
    assert lease.owner is source


@pytest.mark.parametrize("target", Owner)
def test_a_lease_that_is_over_stays_so(target: Owner) -> None:
    pool, lease = pool_with(Owner.FREE)
    with pytest.raises(IllegalTransfer, match="not a legal transfer"):
        pool.transfer(lease, target)
    with pytest.raises(IllegalTransfer, match="not a legal transfer"):
        pool.grow(lease)
    assert lease.blocks == []
    assert pool.count(Owner.FREE) == 3


def test_blocks_are_leased_all_or_none() -> None:
    pool = BlockPool(4)
    assert taken(pool.lease("a", Owner.RESERVATION, 3)).blocks == [0, 1, 2]
    before = pool.owners()
    assert pool.lease("b", Owner.RESERVATION, 2) is None
    assert pool.owners() == before
    assert taken(pool.lease("b", Owner.ROW, 1)).blocks == [3]
    assert pool.count(Owner.FREE) == 0


def test_freed_blocks_are_taken_again_last() -> None:
    pool = BlockPool(4)
    pool.release(taken(pool.lease("a", Owner.ROW, 2)))
    assert taken(pool.lease("b", Owner.ROW, 4)).blocks == [2, 3, 0, 1]


def test_a_lease_grows_block_by_block_until_none_is_free() -> None:
    pool, lease = pool_with(Owner.ROW)
    assert [pool.grow(lease), pool.grow(lease)] == [2, None]
    assert lease.own == (0, 1, 2)
    assert pool.count(Owner.ROW) == 3


def test_nothing_grows_in_quarantine() -> None:
    pool, lease = pool_with(Owner.QUARANTINE)
    with pytest.raises(IllegalTransfer, match="not a legal transfer"):
        pool.grow(lease)
    assert pool.free_blocks() == [2]


@pytest.mark.parametrize(
    "blocks", [[0, 2], [0, 0]], ids=["one that belongs to somebody else", "one named twice"]
)
def test_a_lease_with_a_wrong_block_changes_nothing(blocks: list[int]) -> None:
    pool, lease = pool_with(Owner.RESERVATION)
    pool.lease("b", Owner.ROW, 1)
    lease.blocks, before = blocks, pool.owners()
    for act in (pool.release, lambda lease: pool.transfer(lease, Owner.ROW)):
        with pytest.raises(IllegalTransfer, match=r"belongs to|named twice"):
            act(lease)
        assert pool.owners() == before
    assert (pool.count(Owner.RESERVATION), pool.count(Owner.ROW)) == (2, 1)
    assert lease.owner is Owner.RESERVATION


@pytest.mark.parametrize("owner", [Owner.QUARANTINE, Owner.SHARED])
def test_a_lease_that_is_illegal_takes_no_block(owner: Owner) -> None:
    pool = BlockPool(2)
    with pytest.raises(IllegalTransfer):
        pool.lease("a", owner, 1)
    assert taken(pool.lease("a", Owner.ROW, 2)).blocks == [0, 1]


def test_what_is_given_for_checks_is_a_copy() -> None:
    pool = BlockPool(1)
    pool.owners()[0] = (Owner.ROW, "a")
    pool.pins()[0] = 7
    pool.free_blocks().clear()
    assert (pool.owners(), pool.pins(), pool.free_blocks()) == ([(Owner.FREE, "")], [0], [0])


# Shared blocks.


def pool_with_prefix() -> tuple[BlockPool, Lease]:
    """A pool of eight blocks, and a row of three of which it has published two."""
    pool = BlockPool(8)
    lease = taken(pool.lease("a", Owner.ROW, 3))
    pool.publish(lease, 2)
    return pool, lease


def test_what_is_published_is_shared_and_stays_where_it_is_in_the_table() -> None:
    pool, lease = pool_with_prefix()
    assert (lease.blocks, lease.shared, lease.own, lease.num_own) == ([0, 1, 2], (0, 1), (2,), 1)
    assert (pool.count(Owner.SHARED), pool.count(Owner.ROW)) == (2, 1)
    assert pool.pins()[:3] == [1, 1, 0]


def test_more_can_be_published_and_grown_behind_it() -> None:
    pool, lease = pool_with_prefix()
    pool.publish(lease, 1)
    assert pool.grow(lease) == 3
    assert (lease.shared, lease.own) == ((0, 1, 2), (3,))


def test_no_more_is_published_than_is_owned() -> None:
    pool, lease = pool_with_prefix()
    with pytest.raises(IllegalTransfer, match="publishes 2 blocks and owns 1"):
        pool.publish(lease, 2)
    assert lease.num_shared == 2


def test_a_lease_begins_with_shared_blocks_and_takes_free_ones_behind_them() -> None:
    pool, first = pool_with_prefix()
    second = taken(pool.lease("b", Owner.RESERVATION, 2, first.shared))
    assert (second.shared, second.own) == ((0, 1), (3, 4))
    assert pool.pins()[:3] == [2, 2, 0]
    assert pool.count(Owner.SHARED) == 2


@pytest.mark.parametrize("first_to_go", [0, 1])
def test_shared_blocks_are_free_once_the_last_lease_lets_go(first_to_go: int) -> None:
    pool, first = pool_with_prefix()
    leases = [first, taken(pool.lease("b", Owner.ROW, 1, first.shared))]
    pool.release(leases[first_to_go])
    assert pool.count(Owner.SHARED) == 2
    assert pool.pins()[:2] == [1, 1]
    pool.release(leases[1 - first_to_go])
    assert pool.count(Owner.FREE) == 8
    assert not any(pool.pins())


def test_a_quarantine_holds_what_is_own_and_lets_go_of_what_is_shared() -> None:
    pool, first = pool_with_prefix()
    second = taken(pool.lease("b", Owner.RESERVATION, 2, first.shared))
    pool.release(first)
    pool.transfer(second, Owner.QUARANTINE)
    assert (second.shared, second.own) == ((), (3, 4))
    assert (pool.count(Owner.SHARED), pool.count(Owner.QUARANTINE), pool.count(Owner.FREE)) == (0, 2, 6)


def test_a_row_keeps_what_it_shares_when_it_enters() -> None:
    pool, first = pool_with_prefix()
    second = taken(pool.lease("b", Owner.RESERVATION, 2, first.shared))
    pool.transfer(second, Owner.ROW)
    assert second.blocks == [0, 1, 3, 4]
    assert pool.count(Owner.SHARED) == 2


def test_a_row_is_forked_by_sharing_its_full_blocks_and_copying_the_last() -> None:
    pool = BlockPool(4)
    row = taken(pool.lease("a", Owner.ROW, 3))
    pool.publish(row, 2)
    fork = taken(pool.lease("b", Owner.ROW, row.num_own, row.shared))
    assert list(zip(row.own, fork.own, strict=True)) == [(2, 3)]
    pool.release(row)
    assert fork.blocks == [0, 1, 3]
    assert pool.free_blocks() == [2]


@pytest.mark.parametrize("shared", [(2,), (7,), (0, 0)], ids=["another's own", "a free one", "one twice"])
def test_only_shared_blocks_are_pinned_and_each_once(shared: tuple[int, ...]) -> None:
    pool, _ = pool_with_prefix()
    before = pool.owners(), pool.pins(), pool.free_blocks()
    with pytest.raises(IllegalTransfer, match=r"belongs to|named twice"):
        pool.lease("b", Owner.ROW, 1, shared)
    assert (pool.owners(), pool.pins(), pool.free_blocks()) == before


def test_where_too_few_are_free_nothing_is_pinned() -> None:
    pool, first = pool_with_prefix()
    assert pool.lease("b", Owner.ROW, 6, first.shared) is None
    assert pool.pins()[:3] == [1, 1, 0]
