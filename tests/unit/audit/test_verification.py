"""What workers hold is compared with what the scheduler knows, in every phase of a request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.audit.verification import Books, Doubt, Finding, books_of, compare, conclude
from router.scheduling.events import Cancelled
from router.scheduling.phases import Phase
from tests.support.router.small_fleet import SmallFleet, attempt, handoff
from twinpool.session import messages as m
from twinpool.types import HolderId, Pool
from twinpool.views import Verification

A, H = attempt(1), handoff(1)
REPORT_S = 2.0
EMPTY = Books("d0", Pool.DECODE, "d0-1", 8)


def audited(*held: m.Holding, free: int | None = None, problems: tuple[str, ...] = ()) -> m.Audited:
    """The books of a worker with eight blocks."""
    taken = sum(each.num_blocks for each in held)
    quarantined = sum(each.num_blocks for each in held if each.stage is m.HeldStage.QUARANTINED)
    free = 8 - taken if free is None else free
    blocks = m.BlockCounts(free=free, rows=taken - quarantined, quarantined=quarantined)
    return m.Audited("audit", blocks, held, problems)


def row(holder: HolderId = A, *, stage: m.HeldStage = m.HeldStage.ADMITTED, age_s: float = 1.0) -> m.Holding:
    return m.Holding(holder, stage, 2, age_s)


def finding(books: Books = EMPTY, answer: m.Audited | None = None) -> Finding:
    return compare(books, answer or audited())


def verdict(first: Finding, second: Finding | None = None, *, num_requests: int = 0) -> Verification:
    return conclude([first], {"d0": second} if second else {}, num_requests, REPORT_S)


def problems(first: Finding, second: Finding | None = None) -> tuple[str, ...]:
    (worker,) = verdict(first, second).workers
    return worker.problems


# The scheduler's books.


@pytest.mark.parametrize(
    ("phase", "prefill_due", "decode_due", "unanswered"),
    [
        (Phase.QUEUED, False, False, False),
        (Phase.RESERVING, False, False, True),
        (Phase.PREFILLING, True, True, False),
        (Phase.HANDING_OFF, True, True, False),
        (Phase.DECODING, True, True, False),
    ],
)
def test_a_hand_off_or_its_attempt_is_due_where_its_phase_puts_it(
    phase: Phase, prefill_due: bool, decode_due: bool, unanswered: bool
) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    prefill, decode = books(fleet, "p0"), books(fleet, "d0")
    assert prefill.due == ({H} if prefill_due else set())
    assert decode.due == ({fleet.holder(1)} if decode_due else set())
    assert decode.unanswered == ({H} if unanswered else set())
    assert not prefill.leaving | decode.leaving | prefill.unanswered
    assert (decode.worker_id, decode.pool, decode.incarnation, decode.blocks_total) == (
        "d0",
        Pool.DECODE,
        "d0-1",
        16,
    )


def test_a_prompt_that_is_handed_off_is_not_due_on_its_prefill_worker_any_more() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING)
    fleet.prefill_ends(m.PrefillOutcome.DONE)
    assert books(fleet, "p0").is_empty
    assert not books(fleet, "d0").is_empty


def test_a_cancelled_attempt_is_leaving_until_both_workers_have_said_so() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.HANDING_OFF)
    fleet.feed(Cancelled("r"))
    assert books(fleet, "p0").leaving == {H}
    assert books(fleet, "d0").leaving == {A}
    fleet.prefill_ends(m.PrefillOutcome.STOPPED)
    fleet.releases(m.ReleaseReason.REVOKED)
    assert books(fleet, "p0").is_empty
    assert books(fleet, "d0").is_empty


def books(fleet: SmallFleet, worker_id: str) -> Books:
    worker = fleet.scheduler.fleet.worker(worker_id)
    assert worker is not None
    return books_of(worker, fleet.scheduler.choices)


# One look, and a second one.


DOUBTS = [
    (EMPTY, (row(),), Doubt.ORPHAN, "it holds small-a1, which the scheduler does not know"),
    (
        replace(EMPTY, due=frozenset({A})),
        (),
        Doubt.MISSING,
        "it does not hold small-a1, which the scheduler has placed there",
    ),
    (
        replace(EMPTY, due=frozenset({A})),
        (row(stage=m.HeldStage.QUARANTINED),),
        Doubt.MISSING,
        "it does not hold small-a1, which the scheduler has placed there",
    ),
    (
        replace(EMPTY, leaving=frozenset({A})),
        (row(),),
        Doubt.KEPT,
        "it was told to drop small-a1 and still holds it",
    ),
    (
        replace(EMPTY, leaving=frozenset({A})),
        (),
        Doubt.UNREPORTED,
        "it was told to drop small-a1, holds nothing of it, and has not said so",
    ),
    (
        replace(EMPTY, unanswered=frozenset({A})),
        (),
        Doubt.UNANSWERED,
        "it has not answered the reservation of small-a1",
    ),
]


@pytest.mark.parametrize(("known", "held", "doubt", "words"), DOUBTS)
def test_what_does_not_fit_is_a_doubt_once_and_a_problem_twice(
    known: Books, held: tuple[m.Holding, ...], doubt: Doubt, words: str
) -> None:
    found = finding(known, audited(*held))
    assert found.doubts == {(doubt, A)}
    assert problems(found) == ()
    assert problems(found, finding()) == ()
    assert problems(found, found) == (words,)


@pytest.mark.parametrize(
    "known", [replace(EMPTY, due=frozenset({A})), replace(EMPTY, unanswered=frozenset({A}))]
)
def test_what_the_scheduler_knows_may_be_held(known: Books) -> None:
    assert not {doubt for doubt, _ in finding(known, audited(row())).doubts} - {Doubt.UNANSWERED}


def test_two_different_doubts_are_on_their_way_both() -> None:
    first, second = finding(EMPTY, audited(row(attempt(1)))), finding(EMPTY, audited(row(attempt(2))))
    assert problems(first, second) == ()


def test_a_new_life_of_a_worker_answers_for_none_before_it() -> None:
    orphan = finding(EMPTY, audited(row()))
    again = finding(replace(EMPTY, incarnation="d0-2"), audited(row()))
    assert problems(orphan, again) == ()


def test_the_newest_look_is_the_one_that_is_told() -> None:
    (worker,) = verdict(finding(EMPTY, audited(row())), finding(EMPTY, audited(row(attempt(2))))).workers
    assert [each.holder for each in worker.held] == [attempt(2)]


# Problems at once.


def test_what_a_worker_finds_itself_is_told() -> None:
    assert problems(finding(EMPTY, audited(problems=("a leak",)))) == ("a leak",)


def test_counts_that_do_not_add_up_are_a_problem() -> None:
    assert problems(finding(EMPTY, audited(free=7))) == ("its owners have 7 blocks, its pool has 8",)
    lost = replace(audited(row()), held=())
    assert problems(compare(EMPTY, lost)) == ("its holders have 0 blocks, but 2 belong to them",)


@pytest.mark.parametrize(("age_s", "is_problem"), [(1.9, False), (2.1, True)])
def test_a_quarantine_is_no_orphan_and_a_problem_when_it_lasts(age_s: float, is_problem: bool) -> None:
    found = finding(EMPTY, audited(row(stage=m.HeldStage.QUARANTINED, age_s=age_s)))
    assert not found.doubts
    assert problems(found) == (
        ("2 blocks of small-a1 have been quarantined for 2.1 s",) if is_problem else ()
    )


def test_a_worker_that_does_not_answer_is_a_problem_in_either_look() -> None:
    silent = Finding(EMPTY, None)
    words = ("it does not answer: nothing is known of what it holds",)
    assert problems(silent) == words
    assert problems(finding(EMPTY, audited(row())), silent) == words
    assert not verdict(silent).workers[0].answered


# At rest.


def test_at_rest_nothing_is_held_known_or_asked_for() -> None:
    assert verdict(finding()).at_rest
    assert conclude([], {}, 0, REPORT_S).at_rest
    assert not verdict(finding(), num_requests=1).at_rest
    assert not verdict(Finding(EMPTY, None)).at_rest
    for known, held, _, _ in DOUBTS:
        assert not verdict(finding(known, audited(*held))).at_rest


def test_waiting_prompts_hold_no_block_and_are_no_rest() -> None:
    waiting = m.Holding(A, m.HeldStage.WAITING, 0, 0.1)
    assert not verdict(finding(EMPTY, audited(waiting))).at_rest


def test_blocks_kept_for_reuse_are_at_rest() -> None:
    kept = m.Audited("audit", m.BlockCounts(free=5, cached=3), (), ())
    assert verdict(finding(EMPTY, kept)).at_rest
