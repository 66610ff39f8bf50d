"""In whatever order router, writers and clock speak: no block that is still written to changes hands, and
none is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from decode_worker.audit import audit_decode
from twinpool.kv.pool import BlockPool, Owner
from twinpool.kv.reservations import (
    BlocksFreed,
    CacheWritten,
    Dropped,
    Effect,
    Reservations,
    RowReady,
    Stage,
    StopWriter,
    WriterOverdue,
)
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Admit, ReleaseReason
from twinpool.types import AttemptId, HandoffId, HolderId

pytestmark = pytest.mark.timeout(400)  # a failure is made small for up to five minutes

TOTAL_BLOCKS = 12
BLOCK_SIZE = 4
TTL_S, REPORT_S = 30.0, 2.0
WRITERS = ["writer 1", "writer 2"]
INDEX = st.integers(0, 30)


@dataclass(eq=False)
class Attempt:
    """What an onlooker knows of one attempt, and of its hand-off.

    open: blocks that the writer may touch, from the answer to its `begin` to its last word.
    fate: what has become of it so far, as the effects told.
    """

    id: AttemptId
    handoff: HandoffId
    writer: str
    num_own: int
    shared: tuple[int, ...] = ()
    written: int = 0
    open: tuple[int, ...] = ()
    fate: list[str] = field(default_factory=list)
    admits: int = 0
    overdue_at: float = -REPORT_S

    @property
    def holder(self) -> HolderId:
        """Whose blocks they are while it is no row and not given up."""
        return self.id if self.admits else self.handoff


class ReservationsMachine(RuleBasedStateMachine):
    """A decode worker's reservations among a router and two writers that keep the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL_BLOCKS)
        self.held = Reservations(self.pool, BLOCK_SIZE)
        self.attempts: dict[str, Attempt] = {}  # by their ids, and by their hand-offs'
        self.now = 0.0

    def each(self) -> list[Attempt]:
        return list(dict.fromkeys(self.attempts.values()))

    def stage(self, attempt: Attempt) -> Stage | None:
        return Stage.ADMITTED if self.held.row(attempt.id) else self.held.stage(attempt.handoff)

    def pick(self, index: int) -> Attempt:
        attempts = self.each()
        return attempts[-1 - index % len(attempts)]

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case RowReady(admit, blocks):
                    attempt = self.attempts[admit.attempt]
                    assert attempt.admits == 1
                    assert not attempt.open
                    assert attempt.written == attempt.num_own
                    num_shared = len(attempt.shared)
                    assert blocks[:num_shared] == attempt.shared
                    own = {self.pool.owners()[block] for block in blocks[num_shared:]}
                    assert own == {(Owner.ROW, attempt.id)}
                    attempt.fate.append("row")
                case Dropped(name, ReleaseReason.GONE):
                    assert name not in {
                        held.holder for held in self.held if held.stage is not Stage.QUARANTINED
                    }
                case Dropped(name):
                    self.attempts[name].fate.append("dropped")
                case StopWriter(writer, name):
                    assert self.attempts[name].writer == writer
                    assert self.attempts[name].open
                case BlocksFreed(name):
                    assert self.attempts[name].fate == ["dropped"]
                case CacheWritten(name, _, handoff_s):
                    assert not self.attempts[name].fate
                    assert 0 <= handoff_s <= self.now
                case WriterOverdue(name, writer):
                    assert self.attempts[name].writer == writer
                    assert self.attempts[name].open
                    assert self.now - self.attempts[name].overdue_at >= REPORT_S
                    self.attempts[name].overdue_at = self.now

    # The router.

    @rule(num_own=st.integers(1, 5), writer=st.sampled_from(WRITERS), prefix=st.integers(0, 2))
    def reserve(self, num_own: int, writer: str, prefix: int = 0) -> None:
        """Behind the first blocks that any row has published, if there are such."""
        number = len(self.each()) + 1
        attempt = Attempt(AttemptId(f"a{number}"), HandoffId(f"h{number}"), writer, num_own)
        free = self.pool.count(Owner.FREE)
        running = self.held.count(Stage.ADMITTED)
        shared = next((held.lease.shared[:prefix] for held in self.held if held.lease.num_shared), ())
        granted = self.held.reserve(
            attempt.handoff, attempt.id, num_own, writer, TTL_S, self.now, shared=shared
        )
        assert granted == (num_own + running <= free)
        assert self.pool.count(Owner.FREE) == free - (num_own if granted else 0)
        if granted:
            attempt.shared = shared
            self.attempts[attempt.id] = self.attempts[attempt.handoff] = attempt

    @precondition(lambda self: self.attempts)
    @rule(index=INDEX, num_blocks=st.integers(1, 2))
    def publish(self, index: int, num_blocks: int) -> None:
        attempt = self.pick(index).id
        for held in self.held:
            if held.attempt == attempt and held.stage is Stage.ADMITTED and held.lease.num_own >= num_blocks:
                self.pool.publish(held.lease, num_blocks)

    @precondition(lambda self: self.attempts)
    @rule(index=INDEX)
    def grow(self, index: int) -> None:
        attempt = self.pick(index)
        free = self.pool.count(Owner.FREE)
        block = self.held.grow(attempt.id)
        may_grow = self.stage(attempt) is Stage.ADMITTED and free > 0
        assert (block is not None) == may_grow
        assert self.pool.count(Owner.FREE) == free - may_grow

    @precondition(lambda self: self.attempts)
    @rule(index=INDEX)
    def admit_once(self, index: int) -> None:
        attempt = self.pick(index)
        if not attempt.admits:
            attempt.admits += 1
            num_cached = (len(attempt.shared) + attempt.num_own) * BLOCK_SIZE
            admit = Admit(attempt.id, attempt.handoff, 0, (1,) * num_cached, (1,), SamplingParams(4))
            self.carry_out(self.held.admit(admit, self.now))

    @precondition(lambda self: self.attempts)
    @rule(index=INDEX)
    def revoke_or_evict(self, index: int) -> None:
        attempt = self.pick(index)
        if self.held.row(attempt.holder):
            assert self.held.evict(attempt.id)
        else:
            assert not self.held.evict(attempt.id)
            self.carry_out(self.held.revoke(attempt.holder, self.now))

    @rule()
    def lose_the_router(self) -> None:
        for held in list(self.held):
            if held.stage not in (Stage.ADMITTED, Stage.QUARANTINED):
                self.carry_out(self.held.revoke(held.holder, self.now))
        assert self.held.count(Stage.RESERVED, Stage.WRITING, Stage.WRITTEN) == 0

    @rule(num_own=st.integers(1, 3), writer=st.sampled_from(WRITERS), prefix=st.integers(0, 2))
    def let_a_row_in(self, num_own: int, writer: str, prefix: int) -> None:
        """An undisturbed life, up to the batch: without it, rows would be rare."""
        num_before = len(self.each())
        self.reserve(num_own, writer, prefix)
        if len(self.each()) > num_before:
            self.begin(0)
            self.admit_once(0)
            self.say_the_last_word(0, written=True, missing=0)
            assert self.pick(0).fate == ["row"]

    # The writers.

    @precondition(lambda self: self.attempts)
    @rule(index=INDEX)
    def begin(self, index: int) -> None:
        attempt = self.pick(index)
        stage = self.stage(attempt)
        opened = self.held.begin(attempt.handoff, attempt.writer, self.now)
        assert (opened is not None) == (stage is Stage.RESERVED)
        if opened is not None:
            assert (len(opened.blocks), opened.num_shared) == (attempt.num_own, len(attempt.shared))
            attempt.open = opened.blocks

    @precondition(lambda self: self.attempts)
    @rule(index=INDEX, written=st.booleans(), missing=st.sampled_from([0, 0, 0, 1]))
    def say_the_last_word(self, index: int, written: bool, missing: int) -> None:
        attempt = self.pick(index)
        if attempt.open:
            num_blocks, attempt.open = max(0, len(attempt.open) - missing), ()
            if written:
                attempt.written = num_blocks
                self.carry_out(self.held.written(attempt.handoff, attempt.writer, num_blocks, self.now))
            else:
                self.carry_out(self.held.stopped(attempt.handoff, attempt.writer))

    @precondition(lambda self: self.attempts)
    @rule(index=INDEX)
    def make_progress(self, index: int) -> None:
        attempt = self.pick(index)
        self.held.progress(attempt.handoff, attempt.writer, self.now)

    @precondition(lambda self: self.attempts)
    @rule(index=INDEX)
    def intrude(self, index: int) -> None:
        """The wrong writer speaks, which changes nothing."""
        attempt = self.pick(index)
        other = next(writer for writer in WRITERS if writer != attempt.writer)
        before = self.pool.owners()
        assert self.held.begin(attempt.handoff, other, self.now) is None
        assert self.held.blocks(attempt.handoff, other) is None
        assert self.held.written(attempt.handoff, other, 1, self.now) == []
        assert self.held.stopped(attempt.handoff, other) == []
        assert self.pool.owners() == before

    @rule(writer=st.sampled_from(WRITERS))
    def end_the_connection(self, writer: str) -> None:
        for attempt in self.each():
            if attempt.writer == writer:
                attempt.open = ()
        self.carry_out(self.held.connection_ended(writer))

    # The clock.

    @rule(seconds=st.sampled_from([0.0, 1.0, REPORT_S, 10.0, TTL_S]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.held.expire(self.now, REPORT_S))

    # What holds always.

    @invariant()
    def every_block_has_one_owner_and_every_owner_is_held(self) -> None:
        owners = self.pool.owners()
        for owner in Owner:
            assert self.pool.count(owner) == sum(each is owner for each, _ in owners)
        for reservation in self.held:
            name = reservation.lease.holder
            is_row = reservation.stage is Stage.ADMITTED
            assert name == (reservation.attempt if is_row else reservation.handoff)
            mine = {block for block, (_, each) in enumerate(owners) if each == name}
            assert mine == set(reservation.lease.own)
        held = {name for _, name in owners if name}
        assert held == {each.lease.holder for each in self.held if each.lease.num_own}
        shared = {block for block, (owner, _) in enumerate(owners) if owner is Owner.SHARED}
        assert shared == {block for each in self.held for block in each.lease.shared}

    @invariant()
    def an_audit_finds_nothing(self) -> None:
        batch = {held.attempt: held.lease.blocks for held in self.held if held.stage is Stage.ADMITTED}
        audited = audit_decode("audit", self.pool, self.held, batch, self.now)
        assert audited.problems == ()
        assert {held.holder for held in audited.held} == {held.holder for held in self.held}

    @invariant()
    def what_a_writer_may_touch_belongs_to_its_hand_off_and_is_no_row(self) -> None:
        owners = self.pool.owners()
        for attempt in self.each():
            for block in attempt.open:
                assert owners[block][1] == attempt.handoff
                assert owners[block][0] in (Owner.RESERVATION, Owner.QUARANTINE)

    @invariant()
    def an_attempt_becomes_a_row_or_is_dropped_and_is_so_once(self) -> None:
        for attempt in self.each():
            assert len(attempt.fate) <= 1
            if self.stage(attempt) is None:
                assert attempt.fate

    def teardown(self) -> None:
        """Writers hang up, time passes and rows are evicted: then everything is free, with no other help."""
        for writer in WRITERS:
            self.end_the_connection(writer)
        self.let_time_pass(TTL_S)
        for attempt in self.each():
            self.held.evict(attempt.id)
        assert self.pool.count(Owner.FREE) == TOTAL_BLOCKS
        assert len(self.held) == 0


TestReservations = ReservationsMachine.TestCase
TestReservations.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
