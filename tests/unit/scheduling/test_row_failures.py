"""Engines fail on one row and on nothing else: another worker is tried, and then the request fails typed."""

from __future__ import annotations

from router.scheduling.phases import Phase, Setback
from tests.support.router.small_fleet import (
    LIMITS,
    SmallFleet,
    failures,
    handoff,
    request,
    reserved,
    sent,
    setbacks,
)
from twinpool.errors import InternalError, WorkerLost
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome, ReleaseReason


def test_a_row_on_which_an_engine_fails_is_tried_by_another_and_then_fails_typed() -> None:
    fleet = SmallFleet(prefill=2, decode=1)
    fleet.arrives(request())
    fleet.grants(1)
    commands = fleet.prefill_ends(PrefillOutcome.FAILED_ALONE, 1, "p0", detail="IndexError")
    assert setbacks(commands) == [("r", Setback.ROW_FAILED, False)]
    fleet.grants(2)
    assert fleet.choice().prefill_id == "p1"
    commands = fleet.prefill_ends(PrefillOutcome.FAILED_ALONE, 2, "p1", detail="IndexError")
    assert isinstance(failures(commands)["r"], InternalError)
    assert m.Drop(handoff(2)) in sent(commands, "d0")
    assert fleet.forgot_everything()


def test_another_decode_worker_is_asked_though_it_has_more_to_do() -> None:
    fleet = SmallFleet(decode=2)
    fleet.brings(Phase.DECODING)
    fleet.says("d1", m.LoadReport(running=3, blocks_free=9))
    commands = fleet.releases(ReleaseReason.FAILED_ALONE)
    assert reserved(commands) == [("d1", handoff(2))]


def test_a_request_without_hand_off_is_read_by_another_too() -> None:
    fleet = SmallFleet(prefill=2)
    fleet.arrives(request(max_tokens=1))
    fleet.arrives(request("long", prompt_ids=(1,) * 40, max_tokens=1))
    assert [choice.prefill_id for choice in fleet.scheduler.choices] == ["p0", "p1"]
    fleet.prefill_ends(PrefillOutcome.FAILED_ALONE, 1, "p0")
    assert fleet.choice().prefill_id == "p1"


def test_a_row_may_make_both_kinds_of_engine_fail() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    fleet.prefill_ends(PrefillOutcome.FAILED_ALONE)
    fleet.grants(2)
    fleet.reads(21, number=2)
    commands = fleet.releases(ReleaseReason.FAILED_ALONE, 2)
    assert isinstance(failures(commands)["r"], InternalError)
    assert sent(commands) == [m.CancelPrefill(handoff(2))]
    assert fleet.forgot_everything()


def test_where_there_is_no_other_the_same_worker_is_asked_again_and_no_third_time() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING)
    fleet.releases(ReleaseReason.FAILED_ALONE)
    fleet.grants(2)
    commands = fleet.prefill_ends(PrefillOutcome.FAILED_ALONE, 2)
    assert isinstance(failures(commands)["r"], InternalError)


def test_a_failure_is_held_against_the_row_also_if_the_other_worker_is_heard_first() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    for number, following in ((1, 2), (2, 3)):
        stopped = fleet.releases(ReleaseReason.HANDOFF_FAILED, number, detail="the sender stopped")
        assert setbacks(stopped) == [("r", Setback.HANDOFF_FAILED, False)]
        commands = fleet.prefill_ends(PrefillOutcome.FAILED_ALONE, number)
        assert bool(failures(commands)) == (number == 2)
        fleet.grants(following)
    assert isinstance(failures(commands)["r"], InternalError)
    assert sent(commands, "d0") == [m.Drop(handoff(3))]
    assert fleet.forgot_everything()


def test_a_word_said_twice_is_one_failure() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    for _ in range(2):
        assert failures(fleet.prefill_ends(PrefillOutcome.FAILED_ALONE)) == {}


def test_whole_steps_that_fail_do_not_blame_the_row() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    for number in range(1, LIMITS.most_attempts):
        assert failures(fleet.prefill_ends(PrefillOutcome.FAILED, number)) == {}
        fleet.grants(number + 1)
    commands = fleet.prefill_ends(PrefillOutcome.FAILED, LIMITS.most_attempts)
    assert isinstance(failures(commands)["r"], WorkerLost)
