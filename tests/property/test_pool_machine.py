"""However leases are taken, shared, forked and let go: no block is lost, or two holders' to write."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twinpool.kv.audit import Claim, audit_blocks
from twinpool.kv.pool import BlockPool, Lease, Owner

pytestmark = pytest.mark.timeout(400)  # a failure is made small for up to five minutes

TOTAL_BLOCKS = 10
INDEX = st.integers(0, 30)
TAKEN_FOR = st.sampled_from([Owner.ROW, Owner.RESERVATION])


class PoolMachine(RuleBasedStateMachine):
    """A pool, its leases, and what was last written into each block, which shared ones keep.

    published: blocks as they were when their last writing ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL_BLOCKS)
        self.leases: list[Lease] = []
        self.num_taken = 0
        self.content = [0] * TOTAL_BLOCKS
        self.published: dict[int, int] = {}
        self.num_written = 0

    def pick(self, index: int) -> Lease:
        return self.leases[-1 - index % len(self.leases)]

    def take(self, owner: Owner, num_own: int, shared: tuple[int, ...] = ()) -> Lease | None:
        free = self.pool.free_blocks()
        self.num_taken += 1
        lease = self.pool.lease(f"try-{self.num_taken}", owner, num_own, shared)
        assert (lease is not None) == (num_own <= len(free))
        assert self.pool.count(Owner.FREE) == len(free) - (num_own if lease else 0)
        if lease is not None:
            assert (lease.shared, lease.own) == (shared, tuple(free[:num_own]))
            self.leases.append(lease)
        return lease

    @rule(owner=TAKEN_FOR, num_own=st.integers(1, 4))
    def lease(self, owner: Owner, num_own: int) -> None:
        self.take(owner, num_own)

    @precondition(lambda self: self.leases)
    @rule(index=INDEX, owner=TAKEN_FOR, num_own=st.integers(1, 3), num_shared=st.integers(1, 4))
    def lease_behind_a_prefix(self, index: int, owner: Owner, num_own: int, num_shared: int) -> None:
        self.take(owner, num_own, self.pick(index).shared[:num_shared])

    @precondition(lambda self: self.leases)
    @rule(index=INDEX)
    def fork(self, index: int) -> None:
        row = self.pick(index)
        if row.owner is Owner.ROW:
            self.publish(index, max(0, row.num_own - 1))
            if fork := self.take(Owner.ROW, row.num_own, row.shared):
                for source, target in zip(row.own, fork.own, strict=True):
                    self.content[target] = self.content[source]

    @precondition(lambda self: self.leases)
    @rule(index=INDEX)
    def write(self, index: int) -> None:
        """The holder, or its writer, fills all that is the lease's own."""
        for block in self.pick(index).own:
            self.num_written += 1
            self.content[block] = self.num_written

    @precondition(lambda self: self.leases)
    @rule(index=INDEX, num_blocks=st.integers(0, 3))
    def publish(self, index: int, num_blocks: int) -> None:
        row = self.pick(index)
        if row.owner is Owner.ROW and num_blocks <= row.num_own:
            blocks, before = row.own[:num_blocks], list(row.blocks)
            self.pool.publish(row, num_blocks)
            assert row.blocks == before
            self.published |= {block: self.content[block] for block in blocks}

    @precondition(lambda self: self.leases)
    @rule(index=INDEX)
    def grow(self, index: int) -> None:
        row = self.pick(index)
        if row.owner is Owner.ROW:
            before, free = list(row.blocks), self.pool.free_blocks()
            block = self.pool.grow(row)
            assert block == (free[0] if free else None)
            assert row.blocks == before + free[:1]

    @precondition(lambda self: self.leases)
    @rule(index=INDEX, then=st.sampled_from([Owner.ROW, Owner.QUARANTINE]))
    def end_a_reservation(self, index: int, then: Owner) -> None:
        held = self.pick(index)
        if held.owner is Owner.RESERVATION:
            before, own = list(held.blocks), held.own
            self.pool.transfer(held, then)
            assert held.own == own
            assert held.blocks == (before if then is Owner.ROW else list(own))

    @precondition(lambda self: self.leases)
    @rule(index=INDEX)
    def release(self, index: int) -> None:
        lease = self.pick(index)
        self.leases.remove(lease)
        self.pool.release(lease)
        assert (lease.owner, lease.blocks) == (Owner.FREE, [])

    @invariant()
    def a_block_is_one_holders_own_or_shared_or_free(self) -> None:
        own = Counter(block for lease in self.leases for block in lease.own)
        shared = {block for lease in self.leases for block in lease.shared}
        free = self.pool.free_blocks()
        assert set(own.values()) <= {1}
        assert sorted([*own, *shared, *free]) == list(range(TOTAL_BLOCKS))

    @invariant()
    def the_ledger_says_so_too(self) -> None:
        owners = self.pool.owners()
        for lease in self.leases:
            assert {owners[block] for block in lease.own} <= {(lease.owner, lease.holder)}
            assert {owners[block] for block in lease.shared} <= {(Owner.SHARED, "")}
        assert Counter(owner for owner, _ in owners) == Counter(
            {owner: self.pool.count(owner) for owner in Owner if self.pool.count(owner)}
        )

    @invariant()
    def a_shared_block_is_pinned_by_all_who_read_it_and_never_written(self) -> None:
        readers = Counter(block for lease in self.leases for block in lease.shared)
        assert readers == Counter({block: pins for block, pins in enumerate(self.pool.pins()) if pins})
        for block in readers:
            assert self.content[block] == self.published[block]

    @invariant()
    def a_quarantine_shares_nothing(self) -> None:
        assert not any(lease.shared for lease in self.leases if lease.owner is Owner.QUARANTINE)

    @invariant()
    def an_audit_finds_nothing(self) -> None:
        claims = [Claim(lease.holder, lease.owner, lease.own, lease.shared) for lease in self.leases]
        assert audit_blocks(self.pool, claims) == []

    def teardown(self) -> None:
        """With the last lease, everything is free."""
        for lease in self.leases:
            self.pool.release(lease)
        assert sorted(self.pool.free_blocks()) == list(range(TOTAL_BLOCKS))
        assert self.pool.count(Owner.FREE) == TOTAL_BLOCKS
        assert not any(self.pool.pins())


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
