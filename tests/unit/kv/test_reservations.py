"""The life of a reservation, word by word: who may say what when."""

from __future__ import annotations

import pytest

from tests.support.workers.reservation_bench import (
    A2,
    ADMIT,
    H2,
    HELD,
    NUM_BLOCKS,
    OTHER,
    REPORT_S,
    TOTAL_BLOCKS,
    TTL_S,
    WRITER,
    A,
    Bench,
    H,
    gone,
    stage_of,
)
from twinpool.kv.pool import Owner
from twinpool.kv.reservations import (
    LEGAL_STAGES,
    OWNER_IN,
    BlocksFreed,
    CacheWritten,
    Dropped,
    IllegalStage,
    Opened,
    RowReady,
    Stage,
)
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Admit, ReleaseReason
from twinpool.types import AttemptId, HandoffId, HolderId

# The undisturbed life.


def test_a_reservation_lives_from_reserve_to_evict() -> None:
    bench = Bench(None)
    held = bench.held
    assert held.reserve(H, A, NUM_BLOCKS, WRITER, TTL_S, 1.0)
    assert stage_of(held) is Stage.RESERVED
    assert bench.owners() == {Owner.RESERVATION: 3}
    assert held.begin(H, WRITER, 2.0) == Opened((0, 1, 2))
    assert stage_of(held) is Stage.WRITING
    assert held.written(H, WRITER, 2, 2.5) == [CacheWritten(H, 2, 0.5)]
    assert stage_of(held) is Stage.WRITTEN
    assert held.admit(ADMIT, 3.0) == [RowReady(ADMIT, (0, 1, 2))]
    assert stage_of(held) is Stage.ADMITTED
    assert bench.owners() == {Owner.ROW: 3}
    assert held.evict(A)
    assert stage_of(held) is None
    assert bench.all_free


@pytest.mark.parametrize("stage", [Stage.RESERVED, Stage.WRITING])
def test_an_early_admit_waits_with_the_reservation_for_written(stage: Stage) -> None:
    bench = Bench(stage)
    assert bench.held.admit(ADMIT, 1.0) == []
    assert stage_of(bench.held) is stage
    if stage is Stage.RESERVED:
        assert bench.held.begin(H, WRITER, 1.0) == Opened((0, 1, 2))
    effects = bench.held.written(H, WRITER, 3, 4.0)
    assert effects[1:] == [RowReady(ADMIT, (0, 1, 2))]
    assert bench.owners() == {Owner.ROW: 3}


@pytest.mark.parametrize("stage", HELD)
def test_in_each_stage_its_blocks_belong_to_the_owner_of_that_stage(stage: Stage) -> None:
    bench = Bench(stage)
    assert bench.owners() == {OWNER_IN[stage]: NUM_BLOCKS}
    assert bench.held.count(stage) == len(bench.held) == 1
    assert bench.held.count(*(other for other in Stage if other is not stage)) == 0
    assert [each.attempt for each in bench.held] == [A]


def test_every_stage_is_reached_and_none_is_skipped() -> None:
    assert {
        ("reserved", "writing"),
        ("writing", "written"),
        ("written", "admitted"),
        ("writing", "quarantined"),
    } == LEGAL_STAGES
    bench = Bench(Stage.RESERVED)
    (reservation,) = bench.held
    reservation.stage = Stage.QUARANTINED
    with pytest.raises(IllegalStage, match="quarantined to written"):
        bench.held._advance(reservation, Stage.WRITTEN, 0)


# Reserve.


def test_a_reservation_is_all_or_nothing() -> None:
    bench = Bench(Stage.RESERVED)
    assert not bench.held.reserve(H2, A2, TOTAL_BLOCKS - NUM_BLOCKS + 1, WRITER, TTL_S, 0)
    assert bench.owners() == {Owner.RESERVATION: NUM_BLOCKS}
    assert bench.held.reserve(H2, A2, TOTAL_BLOCKS - NUM_BLOCKS, WRITER, TTL_S, 0)


@pytest.mark.parametrize("stage", HELD)
def test_one_free_block_must_remain_for_each_row_and_for_nothing_else(stage: Stage) -> None:
    bench = Bench(stage)
    free = TOTAL_BLOCKS - NUM_BLOCKS
    assert bench.held.reserve(H2, A2, free, WRITER, TTL_S, 0) == (stage is not Stage.ADMITTED)
    if stage is Stage.ADMITTED:
        assert bench.held.reserve(H2, A2, free - 1, WRITER, TTL_S, 0)


# Rows grow.


def test_a_row_grows_block_by_block_until_none_is_free() -> None:
    bench = Bench(Stage.ADMITTED)
    assert [bench.held.grow(A) for _ in range(6)] == [3, 4, 5, 6, 7, None]
    assert bench.owners() == {Owner.ROW: TOTAL_BLOCKS}
    (reservation,) = bench.held
    assert reservation.lease.blocks == list(range(TOTAL_BLOCKS))


def test_a_row_that_has_grown_leaves_nothing_behind() -> None:
    bench = Bench(Stage.ADMITTED)
    bench.held.grow(A)
    assert bench.held.evict(A)
    assert bench.all_free


@pytest.mark.parametrize("stage", [None, *(stage for stage in HELD if stage is not Stage.ADMITTED)])
def test_only_a_row_grows(stage: Stage | None) -> None:
    bench = Bench(stage)
    owners = bench.owners()
    assert bench.held.grow(A) is None
    assert bench.owners() == owners


# A cache that is too short.


@pytest.mark.parametrize("admit_first", [False, True])
@pytest.mark.parametrize(("num_prompt", "log", "needed"), [(8, (1,), 2), (9, (1,), 3), (8, (1, 2), 3)])
def test_a_row_needs_a_cache_of_prompt_and_log_but_for_the_newest_token(
    num_prompt: int, log: tuple[int, ...], needed: int, admit_first: bool
) -> None:
    for num_written in (needed - 1, needed):
        bench = Bench(Stage.WRITING)
        admit = Admit(A, H, 0, (1,) * num_prompt, log, SamplingParams(9))
        effects = bench.held.admit(admit, 1.0) if admit_first else []
        effects += bench.held.written(H, WRITER, num_written, 1.0)
        effects += [] if admit_first else bench.held.admit(admit, 1.0)
        assert effects[0] == CacheWritten(H, num_written, 1.0)
        if num_written == needed:
            assert effects[1:] == [RowReady(admit, (0, 1, 2))]
        else:
            detail = f"only {num_written} of {needed} blocks were written"
            assert effects[1:] == [gone(ReleaseReason.HANDOFF_FAILED, detail, A)]
            assert bench.all_free


@pytest.mark.parametrize("stage", HELD)
def test_a_hand_off_is_reserved_once(stage: Stage) -> None:
    bench = Bench(stage)
    assert not bench.held.reserve(H, A, 1, WRITER, TTL_S, 0)
    assert stage_of(bench.held) is stage
    assert bench.owners() == {OWNER_IN[stage]: NUM_BLOCKS}


# The writer.


@pytest.mark.parametrize("stage", [None, *(stage for stage in HELD if stage is not Stage.RESERVED)])
def test_begin_is_refused_unless_reserved(stage: Stage | None) -> None:
    bench = Bench(stage)
    assert bench.held.begin(H, WRITER, 1.0) is None
    assert stage_of(bench.held) is stage


@pytest.mark.parametrize("stage", [None, *HELD])
def test_blocks_may_be_written_only_while_writing(stage: Stage | None) -> None:
    blocks = Bench(stage).held.blocks(H, WRITER)
    assert blocks == ((0, 1, 2) if stage is Stage.WRITING else None)


@pytest.mark.parametrize("stage", HELD)
@pytest.mark.parametrize("last_word", ["written", "stopped", "connection end"])
def test_another_writer_changes_nothing(stage: Stage, last_word: str) -> None:
    bench = Bench(stage)
    held = bench.held
    assert held.begin(H, OTHER, 0) is None
    assert held.blocks(H, OTHER) is None
    held.progress(H, OTHER, TTL_S)
    match last_word:
        case "written":
            assert held.written(H, OTHER, 3, 0) == []
        case "stopped":
            assert held.stopped(H, OTHER) == []
        case _:
            assert held.connection_ended(OTHER) == []
    assert stage_of(held) is stage
    assert bench.owners() == {OWNER_IN[stage]: NUM_BLOCKS}
    if stage is Stage.WRITING:
        assert held.expire(TTL_S, REPORT_S)[0] == gone(ReleaseReason.EXPIRED, "no progress for 30 s")


@pytest.mark.parametrize("stage", [None, Stage.RESERVED, Stage.WRITTEN, Stage.ADMITTED])
def test_a_last_word_out_of_turn_changes_nothing(stage: Stage | None) -> None:
    bench = Bench(stage)
    owners = bench.owners()
    assert bench.held.written(H, WRITER, 3, 1.0) == []
    assert bench.held.stopped(H, WRITER) == []
    assert stage_of(bench.held) is stage
    assert bench.owners() == owners


@pytest.mark.parametrize("early_admit", [False, True])
def test_a_writer_that_stops_by_itself_fails_the_hand_off(early_admit: bool) -> None:
    bench = Bench(Stage.WRITING)
    if early_admit:
        bench.held.admit(ADMIT, 0)
    holder: HolderId = A if early_admit else H
    failed = gone(ReleaseReason.DAMAGED, "checksum of block 1 differs", holder)
    assert bench.held.stopped(H, WRITER, ReleaseReason.DAMAGED, "checksum of block 1 differs") == [failed]
    assert bench.all_free


def test_the_end_of_the_connection_while_writing_fails_the_hand_off() -> None:
    bench = Bench(Stage.WRITING)
    failed = gone(ReleaseReason.CONNECTION_ENDED, "the hand-off connection ended")
    assert bench.held.connection_ended(WRITER) == [failed]
    assert bench.all_free


@pytest.mark.parametrize("stage", [Stage.RESERVED, Stage.WRITTEN, Stage.ADMITTED])
def test_the_end_of_the_connection_changes_nothing_before_and_after_writing(stage: Stage) -> None:
    bench = Bench(stage)
    assert bench.held.connection_ended(WRITER) == []
    assert stage_of(bench.held) is stage


def test_the_end_of_a_connection_ends_all_that_was_being_written_over_it() -> None:
    bench = Bench(Stage.WRITING)
    held = bench.held
    held.reserve(H2, A2, 1, WRITER, TTL_S, 0)
    held.begin(H2, WRITER, 0)
    held.revoke(H2, 0)
    another = HandoffId("another writer's")
    held.reserve(another, AttemptId("another"), 1, OTHER, TTL_S, 0)
    held.begin(another, OTHER, 0)
    failed = gone(ReleaseReason.CONNECTION_ENDED, "the hand-off connection ended")
    assert held.connection_ended(WRITER) == [failed, BlocksFreed(H2)]
    assert [each.handoff for each in held] == [another]


@pytest.mark.parametrize("stage", HELD)
def test_a_writer_that_is_gone_never_begins_and_what_it_began_waits_for_its_connections_end(
    stage: Stage,
) -> None:
    bench = Bench(stage)
    effects = bench.held.writer_gone(WRITER, 1.0)
    if stage is Stage.RESERVED:
        assert [type(effect) for effect in effects] == [Dropped]
        assert bench.all_free
    else:
        assert effects == []
        assert stage_of(bench.held) is stage
    assert bench.held.writer_gone(OTHER, 1.0) == []


# Words about an attempt that is not there.


def test_admit_and_revoke_of_what_is_not_there_are_answered_gone() -> None:
    held = Bench(None).held
    assert held.admit(ADMIT, 0) == [gone(ReleaseReason.GONE, holder=A)]
    assert held.revoke(H, 0) == [gone(ReleaseReason.GONE)]


def test_a_retry_takes_new_blocks_while_the_old_ones_are_quarantined() -> None:
    bench = Bench(Stage.QUARANTINED)
    assert bench.held.reserve(H2, A2, NUM_BLOCKS, OTHER, TTL_S, 1.0)
    assert bench.held.begin(H2, OTHER, 1.0) == Opened((3, 4, 5))
    assert bench.held.begin(H, WRITER, 1.0) is None


# A lease that begins with shared blocks.


def bench_with_prefix() -> tuple[Bench, tuple[int, ...]]:
    """A row that has published the first two of its three blocks; those two."""
    bench = Bench(Stage.ADMITTED)
    (row,) = bench.held
    bench.pool.publish(row.lease, 2)
    return bench, row.lease.shared


def test_shared_blocks_come_first_in_the_row_and_are_not_the_writers() -> None:
    bench, shared = bench_with_prefix()
    held = bench.held
    assert held.reserve(H2, A2, 2, WRITER, TTL_S, 0, shared=shared)
    assert held.begin(H2, WRITER, 0) == Opened((3, 4), num_shared=2)
    assert held.blocks(H2, WRITER) == (3, 4)
    admit = Admit(A2, H2, 0, (1,) * 13, (1,), SamplingParams(9))
    held.admit(admit, 0)
    assert held.written(H2, WRITER, 2, 1.0) == [CacheWritten(H2, 2, 1.0), RowReady(admit, (0, 1, 3, 4))]
    assert held.evict(A)
    assert bench.owners() == {Owner.ROW: 2, Owner.SHARED: 2}
    assert held.evict(A2)
    assert bench.all_free


def test_a_cache_behind_shared_blocks_is_too_short_if_own_ones_are_missing() -> None:
    bench, shared = bench_with_prefix()
    held = bench.held
    held.reserve(H2, A2, 2, WRITER, TTL_S, 0, shared=shared)
    held.begin(H2, WRITER, 0)
    held.admit(Admit(A2, H2, 0, (1,) * 13, (1,), SamplingParams(9)), 0)
    detail = "only 1 of 2 blocks were written"
    assert held.written(H2, WRITER, 1, 1.0)[1:] == [Dropped(A2, ReleaseReason.HANDOFF_FAILED, detail)]
    assert bench.owners() == {Owner.ROW: 1, Owner.SHARED: 2}


def test_only_what_is_own_is_quarantined() -> None:
    bench, shared = bench_with_prefix()
    held = bench.held
    held.reserve(H2, A2, 2, WRITER, TTL_S, 0, shared=shared)
    held.begin(H2, WRITER, 0)
    assert held.evict(A)
    held.revoke(H2, 1.0)
    assert bench.owners() == {Owner.QUARANTINE: 2}


def test_shared_blocks_take_no_room() -> None:
    bench, shared = bench_with_prefix()
    free = bench.pool.count(Owner.FREE)
    assert not bench.held.reserve(H2, A2, free, WRITER, TTL_S, 0, shared=shared)
    assert bench.pool.pins()[:2] == [1, 1]
    assert bench.held.reserve(H2, A2, free - 1, WRITER, TTL_S, 0, shared=shared)
