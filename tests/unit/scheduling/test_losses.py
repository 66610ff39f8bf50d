"""Workers come and go: who is told, and how every request they worked on goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.scheduling.commands import Send
from router.scheduling.events import Drain, PairProven, WorkerDown
from router.scheduling.fleet import PROBE_AGAIN_S
from router.scheduling.phases import Phase, Setback
from router.scheduling.reasons import PREFILL_ENDED, RELEASED
from tests.support.router.small_fleet import (
    LIMITS,
    SmallFleet,
    attempt,
    emitted,
    failures,
    handoff,
    request,
    reserved,
    sent,
    setbacks,
)
from twinpool.errors import WorkerLost
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome, ReleaseReason
from twinpool.types import FinishReason, Pool, Token

# A worker is lost.


def test_a_lost_session_is_no_end_of_its_process() -> None:
    """A router that lets its workers live loses all their sessions, and the next one uses their pairs."""
    fleet = SmallFleet(prefill=2, decode=2)
    assert [*fleet.goes_down("p0"), *fleet.goes_down("d0")] == []
    drains = fleet.feed(Drain("d1", 60.0))
    assert sent([*drains, *fleet.goes_down("d1"), *fleet.goes_down("p1")]) == []


@pytest.mark.parametrize("before", [False, True])
def test_those_who_hand_off_to_a_process_or_take_its_hand_offs_are_told_of_its_end(before: bool) -> None:
    """Also where that is known before the end of its session."""
    fleet = SmallFleet(prefill=3, decode=3)
    if not before:
        fleet.goes_down("p0")
        fleet.goes_down("d0")
    fleet.feed(Drain("d1", 60.0))
    gone, writer_gone = fleet.has_ended("p0"), m.WriterGone("p0-1")
    assert sent(gone, "p1") == []
    assert sent(gone, "d1") == sent(gone, "d2") == [writer_gone]
    gone, leave, writer_gone = fleet.has_ended("d0"), m.LeavePair("d0-1"), m.WriterGone("d0-1")
    assert sent(gone, "p1") == [leave]
    assert sent(gone, "d1") == [leave, writer_gone]
    assert sent(gone, "d2") == [writer_gone]


@pytest.mark.parametrize("lost", ["p0", "d0"])
def test_a_request_that_was_only_reserving_is_queued_again(lost: str) -> None:
    fleet = SmallFleet(prefill=2, decode=2)
    fleet.brings(Phase.RESERVING)
    commands = fleet.goes_down(lost)
    assert failures(commands) == {}
    other = "d1" if lost == "d0" else "d0"
    assert reserved(commands)[0][1] == handoff(2)
    if lost == "p0":
        assert sent(commands, "d0")[:1] == [m.Drop(handoff(1))]
        assert fleet.choice("r").prefill_id == "p1"
    else:
        assert reserved(commands) == [(other, handoff(2))]


@pytest.mark.parametrize(
    ("lost", "phase", "told"),
    [
        ("p0", Phase.PREFILLING, [m.Drop(handoff(1))]),
        ("d0", Phase.PREFILLING, [m.CancelPrefill(handoff(1))]),
        ("d0", Phase.HANDING_OFF, [m.CancelPrefill(handoff(1))]),
        ("d0", Phase.DECODING, []),
    ],
)
def test_a_request_that_a_lost_worker_worked_on_is_queued_again_and_leaves_the_other(
    lost: str, phase: Phase, told: list[m.Command]
) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    commands = fleet.goes_down(lost)
    assert sent(commands) == told
    assert failures(commands) == {}
    assert setbacks(commands) == [("r", Setback.WORKER_LOST, phase is not Phase.PREFILLING)]
    assert fleet.phase() is Phase.QUEUED
    assert not fleet.scheduler.num_attempts


@pytest.mark.parametrize("lost", ["p0", "d0"])
def test_a_request_that_may_fail_no_more_ends_typed_in_the_words_of_the_loss(lost: str) -> None:
    fleet = SmallFleet(limits=replace(LIMITS, most_attempts=1))
    fleet.brings(Phase.PREFILLING)
    error = failures(fleet.goes_down(lost))["r"]
    assert isinstance(error, WorkerLost)
    assert error.reason == "WORKER_LOST"
    assert lost in str(error)
    assert "the process exited" in str(error)
    assert fleet.forgot_everything()


@pytest.mark.parametrize("phase", [Phase.HANDING_OFF, Phase.DECODING])
def test_the_loss_of_a_prefill_worker_after_its_first_token_leaves_it_to_the_decode_worker(
    phase: Phase,
) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.goes_down("p0") == []
    assert fleet.has_ended("p0") == [Send("d0", m.WriterGone("p0-1"))]
    position = 1 if phase is Phase.HANDING_OFF else 2
    commands = fleet.steps(m.RowToken(attempt(1), position, Token(23), FinishReason.STOP))
    assert sent(commands) == [m.Drop(attempt(1))]
    assert emitted(commands)[0].tokens == (Token(23),)


def test_a_queued_request_outlives_all_workers() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.QUEUED)
    fleet.goes_down("p0")
    fleet.goes_down("d0")
    fleet.passes(100)
    fleet.comes_up("p0")
    fleet.comes_up("d0")
    fleet.says("p0", m.PairJoined("d0-2", "shm"))
    assert reserved(fleet.feed(PairProven("p0-2", "d0-2"))) == [("d0", handoff(1))]


def test_the_loss_of_one_worker_leaves_other_pairs_requests_alone() -> None:
    fleet = SmallFleet(prefill=2, decode=2)
    fleet.arrives(request("a"), request("b"))
    fleet.grants(1, "d0")
    fleet.grants(2, "d1")
    commands = fleet.goes_down("d0")
    assert setbacks(commands) == [("a", Setback.WORKER_LOST, False)]
    assert reserved(commands) == [("d1", handoff(3))]
    assert fleet.choice("a").attempt == attempt(3)
    assert fleet.phase("b") is Phase.PREFILLING


def test_news_of_an_earlier_lifes_end_is_dropped() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING)
    assert fleet.feed(WorkerDown("d0", "d0-0", "late news")) == []
    assert fleet.feed(WorkerDown("d9", "d9-1", "unknown")) == []
    assert fleet.phase() is Phase.DECODING


@pytest.mark.parametrize("lost", ["p0", "d0"])
def test_the_pairs_of_a_lost_worker_go_with_it(lost: str) -> None:
    fleet = SmallFleet()
    fleet.goes_down(lost)
    assert not fleet.scheduler.fleet.serves()
    assert fleet.arrives(request()) == []
    assert sent(fleet.passes(PROBE_AGAIN_S)) == []


def test_a_replacement_starts_with_a_clean_slate() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    fleet.goes_down("p0")
    fleet.comes_up("p0")
    assert fleet.num_charged == 0
    assert not fleet.scheduler.fleet.serves()


@pytest.mark.parametrize(
    ("outcome", "phase"),
    [
        (outcome, phase)
        for outcome in (PrefillOutcome.PAIR_LOST, PrefillOutcome.FAILED)
        for phase in (Phase.PREFILLING, Phase.HANDING_OFF)
    ],
)
def test_a_prefill_that_fails_sets_its_request_back_and_frees_the_decode_worker(
    outcome: PrefillOutcome, phase: Phase
) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    commands = fleet.prefill_ends(outcome, detail="the reason")
    assert failures(commands) == {}
    setback = Setback.ENGINE_FAILED if outcome is PrefillOutcome.FAILED else Setback.HANDOFF_FAILED
    assert setbacks(commands) == [("r", setback, phase is Phase.HANDING_OFF)]
    assert sent(commands, "d0")[0] == m.Drop(fleet.holder(1))
    if outcome is PrefillOutcome.PAIR_LOST:
        assert not reserved(commands)  # the decode worker may be dead
        commands = fleet.says("d0", fleet.loads["d0"])
    assert reserved(commands) == [("d0", handoff(2))]


@pytest.mark.parametrize("outcome", [PrefillOutcome.PAIR_LOST, PrefillOutcome.FAILED])
def test_the_last_prefill_that_may_fail_says_why(outcome: PrefillOutcome) -> None:
    fleet = SmallFleet(limits=replace(LIMITS, most_attempts=1))
    fleet.brings(Phase.PREFILLING)
    commands = fleet.prefill_ends(outcome, detail="the reason")
    assert str(failures(commands)["r"]) == f"prefill worker p0: {outcome}: the reason"
    assert sent(commands) == [m.CancelPrefill(handoff(1)), m.Drop(fleet.holder(1))]
    assert fleet.forgot_everything()
    assert fleet.num_charged == 0


@pytest.mark.parametrize("reason", [ReleaseReason.HANDOFF_FAILED, ReleaseReason.FAILED])
@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.HANDING_OFF, Phase.DECODING])
def test_a_decode_worker_that_lets_an_attempt_go_sets_its_request_back(
    phase: Phase, reason: ReleaseReason
) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    commands = fleet.releases(reason, detail="the reason")
    assert failures(commands) == {}
    failed = reason is ReleaseReason.FAILED
    setback = Setback.ENGINE_FAILED if failed else Setback.HANDOFF_FAILED
    assert setbacks(commands) == [("r", setback, phase is not Phase.PREFILLING)]
    assert [type(each) for each in sent(commands, "d0")] == [m.Reserve]
    assert sent(commands, "p0") == ([] if phase is Phase.DECODING else [m.CancelPrefill(handoff(1))])


@pytest.mark.parametrize("reason", [ReleaseReason.HANDOFF_FAILED, ReleaseReason.FAILED])
def test_the_last_decode_that_may_fail_says_why(reason: ReleaseReason) -> None:
    fleet = SmallFleet(limits=replace(LIMITS, most_attempts=1))
    fleet.brings(Phase.DECODING)
    commands = fleet.releases(reason, detail="the reason")
    assert str(failures(commands)["r"]) == f"decode worker d0: {reason}: the reason"
    assert sent(commands) == []
    assert fleet.forgot_everything()


# Suspicion.


@pytest.mark.parametrize("pool", Pool)
def test_one_death_costs_one_attempt_however_it_is_heard_of(pool: Pool) -> None:
    """The other side tells of the connection's end before the router has heard of the death itself."""
    fleet = SmallFleet()
    fleet.arrives(request("r"))
    fleet.grants(1)
    if pool is Pool.PREFILL:
        fleet.releases(m.ReleaseReason.CONNECTION_ENDED, 1)
    else:
        fleet.prefill_ends(PrefillOutcome.PAIR_LOST, 1)
    state = fleet.choice("r")
    assert (state.phase, state.num_failed_attempts) == (Phase.QUEUED, 1)
    fleet.passes(0.1)
    assert state.phase is Phase.QUEUED  # nothing goes to who may be dead
    fleet.goes_down("p0" if pool is Pool.PREFILL else "d0")
    assert state.num_failed_attempts == 1


@pytest.mark.parametrize("speaker", ["p0", "d0"])
def test_who_speaks_again_is_no_longer_suspected(speaker: str) -> None:
    fleet = SmallFleet()
    fleet.arrives(request("r"))
    fleet.grants(1)
    if speaker == "p0":
        fleet.releases(m.ReleaseReason.CONNECTION_ENDED, 1)
    else:
        fleet.prefill_ends(PrefillOutcome.PAIR_LOST, 1)
    fleet.says(speaker, m.LoadReport(blocks_free=16))
    assert fleet.choice("r").phase is Phase.RESERVING


# Reasons.


def test_every_reason_of_a_worker_means_something() -> None:
    assert RELEASED.keys() == set(ReleaseReason)
    assert PREFILL_ENDED.keys() == set(PrefillOutcome) - {PrefillOutcome.DONE, PrefillOutcome.STOPPED}
