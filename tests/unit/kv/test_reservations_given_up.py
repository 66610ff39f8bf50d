"""The end of a reservation: given up, expired or evicted, and when its blocks are free again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.workers.reservation_bench import (
    ADMIT,
    FOREVER,
    HELD,
    NUM_BLOCKS,
    REPORT_S,
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
    BlocksFreed,
    Dropped,
    Effect,
    Reservations,
    Stage,
    StopWriter,
    WriterOverdue,
)
from twinpool.session.messages import ReleaseReason
from twinpool.types import HolderId

NEVER_BEGUN = gone(ReleaseReason.NEVER_BEGUN, "the hand-off did not begin in time")
FREED_AT_ONCE = [Stage.RESERVED, Stage.WRITTEN]

# Giving up: revoke, expiry.

GiveUp = Callable[[Reservations, HolderId], list[Effect]]
GIVE_UP: dict[str, tuple[GiveUp, Dropped]] = {
    "revoke": (lambda held, holder: held.revoke(holder, 1.0), gone(ReleaseReason.REVOKED)),
    "expiry": (
        lambda held, holder: held.expire(TTL_S, REPORT_S),
        gone(ReleaseReason.EXPIRED, "no progress for 30 s"),
    ),
}
given_up = pytest.mark.parametrize(("give_up", "dropped"), GIVE_UP.values(), ids=GIVE_UP)


@given_up
@pytest.mark.parametrize("early_admit", [False, True])
@pytest.mark.parametrize("stage", FREED_AT_ONCE)
def test_what_nobody_writes_to_is_free_at_once(
    stage: Stage, early_admit: bool, give_up: GiveUp, dropped: Dropped
) -> None:
    bench = Bench(stage)
    holder: HolderId = H
    if early_admit and stage is Stage.RESERVED:
        bench.held.admit(ADMIT, 0)
        holder = A
    if stage is Stage.RESERVED and dropped.reason is ReleaseReason.EXPIRED:
        dropped = NEVER_BEGUN
    assert give_up(bench.held, holder) == [replace(dropped, holder=holder)]
    assert bench.all_free


@given_up
@pytest.mark.parametrize("early_admit", [False, True])
def test_what_is_being_written_is_stopped_and_quarantined(
    early_admit: bool, give_up: GiveUp, dropped: Dropped
) -> None:
    bench = Bench(Stage.WRITING)
    holder: HolderId = H
    if early_admit:
        bench.held.admit(ADMIT, 0)
        holder = A
    assert give_up(bench.held, holder) == [replace(dropped, holder=holder), StopWriter(WRITER, H)]
    assert [each.holder for each in bench.held] == [H]
    assert bench.owners() == {Owner.QUARANTINE: NUM_BLOCKS}
    assert bench.held.blocks(H, WRITER) is None


LAST_WORDS: dict[str, Callable[[Reservations], list[Effect]]] = {
    "written": lambda held: held.written(H, WRITER, 3, 9.0),
    "stopped": lambda held: held.stopped(H, WRITER),
    "connection end": lambda held: held.connection_ended(WRITER),
}


@given_up
@pytest.mark.parametrize("last_word", LAST_WORDS.values(), ids=LAST_WORDS)
def test_a_quarantine_ends_with_the_writers_last_word_and_makes_no_row(
    give_up: GiveUp, dropped: Dropped, last_word: Callable[[Reservations], list[Effect]]
) -> None:
    bench = Bench(Stage.WRITING)
    bench.held.admit(ADMIT, 0)
    assert give_up(bench.held, A)[0] == replace(dropped, holder=A)
    assert last_word(bench.held) == [BlocksFreed(H)]
    assert bench.all_free


def test_a_quarantine_never_ends_by_time_nor_by_the_router() -> None:
    bench = Bench(Stage.QUARANTINED)
    held = bench.held
    held.expire(FOREVER, REPORT_S)
    assert held.revoke(H, FOREVER) == [gone(ReleaseReason.GONE)]
    assert held.admit(ADMIT, FOREVER) == [gone(ReleaseReason.GONE, holder=A)]
    assert not held.evict(A)
    held.progress(H, WRITER, FOREVER)
    assert stage_of(held) is Stage.QUARANTINED
    assert bench.owners() == {Owner.QUARANTINE: NUM_BLOCKS}


def test_a_quarantine_that_lasts_too_long_is_reported_again_and_again() -> None:
    held = Bench(Stage.QUARANTINED).held
    overdue = WriterOverdue(H, WRITER)
    assert held.expire(REPORT_S - 0.01, REPORT_S) == []
    assert held.expire(REPORT_S, REPORT_S) == [overdue]
    assert held.expire(2 * REPORT_S - 0.01, REPORT_S) == []
    assert held.expire(2 * REPORT_S, REPORT_S) == [overdue]
    assert held.expire(FOREVER, REPORT_S) == [overdue]
    held.stopped(H, WRITER)
    assert held.expire(2 * FOREVER, REPORT_S) == []


def test_the_time_of_a_quarantine_counts_from_its_own_beginning() -> None:
    held = Bench(Stage.WRITING).held
    held.revoke(H, 20.0)
    assert held.expire(20.0 + REPORT_S - 0.01, REPORT_S) == []
    assert held.expire(20.0 + REPORT_S, REPORT_S) == [WriterOverdue(H, WRITER)]


@pytest.mark.parametrize("stage", [Stage.RESERVED, Stage.WRITING, Stage.WRITTEN])
def test_expiry_counts_from_the_last_progress(stage: Stage) -> None:
    bench = Bench(Stage.RESERVED)
    held = bench.held
    renewed_at = 0.0
    if stage is not Stage.RESERVED:
        held.begin(H, WRITER, 10.0)
        held.progress(H, WRITER, 20.0)
        renewed_at = 20.0
    if stage is Stage.WRITTEN:
        held.written(H, WRITER, 3, 25.0)
        renewed_at = 25.0
    if stage is not Stage.WRITING:
        held.progress(H, WRITER, renewed_at + 5)  # nobody writes, so there is no progress
    assert held.expire(renewed_at + TTL_S - 0.01, REPORT_S) == []
    stalled = gone(ReleaseReason.EXPIRED, "no progress for 30 s")
    dropped = NEVER_BEGUN if stage is Stage.RESERVED else stalled
    assert held.expire(renewed_at + TTL_S, REPORT_S)[0] == dropped


def test_begin_renews_the_expiry() -> None:
    held = Bench(Stage.RESERVED).held
    held.begin(H, WRITER, 10.0)
    assert held.expire(TTL_S, REPORT_S) == []


def test_a_row_never_expires_and_stays_until_the_engine_evicts_it() -> None:
    bench = Bench(Stage.ADMITTED)
    assert bench.held.expire(FOREVER, REPORT_S) == []
    assert stage_of(bench.held) is Stage.ADMITTED
    assert bench.held.evict(A)
    assert bench.all_free


@pytest.mark.parametrize("stage", [None, *(stage for stage in HELD if stage is not Stage.ADMITTED)])
def test_only_a_row_is_evicted(stage: Stage | None) -> None:
    bench = Bench(stage)
    assert not bench.held.evict(A)
    assert stage_of(bench.held) is stage
