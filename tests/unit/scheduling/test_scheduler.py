"""A request's life by the router's decisions, one event at a time."""

from __future__ import annotations

import pytest

from router.scheduling.commands import Emit, Send
from router.scheduling.events import PoolGivenUp, WorkerSaid
from router.scheduling.happenings import HandoffEnded, HandoffOutcome, SetBack
from router.scheduling.phases import IllegalPhase, Phase, Setback
from router.scheduling.place import Place
from router.scheduling.requests import Choice, RequestState
from router.scheduling.values import Ending, Output
from tests.support.router.small_fleet import (
    PROMPT,
    SmallFleet,
    attempt,
    emitted,
    failures,
    handoff,
    request,
    reserved,
    sent,
)
from twinpool.errors import PoolUnavailable, WorkerLost
from twinpool.sampling.params import SamplingParams
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome, ReleaseReason
from twinpool.types import FinishReason, ServedBy, Timing, Token, Usage

PARAMS = SamplingParams(4, seed=5)


# The undisturbed life.


def test_a_request_lives_from_arrival_to_eviction() -> None:
    fleet = SmallFleet()
    assert fleet.arrives(request()) == [Send("d0", m.Reserve(handoff(1), (attempt(1),), 6, "p0-1", 30.0))]
    assert fleet.grants() == [
        Send("p0", m.Prefill(handoff(1), (m.Attempt(attempt(1), 0),), PROMPT, (), PARAMS, "d0-1", 1))
    ]
    assert fleet.reads(21) == [
        Emit("r", Output(0, (Token(21),))),
        Send("d0", m.Admit(attempt(1), handoff(1), 0, PROMPT, (21,), PARAMS)),
    ]
    assert fleet.prefill_ends(PrefillOutcome.DONE) == []
    assert fleet.writes() == [HandoffEnded("r", HandoffOutcome.WRITTEN, "shm", 4096, 0.1)]
    assert fleet.steps(m.RowToken(attempt(1), 1, Token(22), None)) == [Emit("r", Output(0, (Token(22),)))]
    assert fleet.steps(m.RowToken(attempt(1), 2, Token(23), None)) == [Emit("r", Output(0, (Token(23),)))]
    drop, last = fleet.steps(m.RowToken(attempt(1), 3, Token(24), FinishReason.LENGTH))
    assert drop == Send("d0", m.Drop(attempt(1)))
    ending = Ending(FinishReason.LENGTH, Usage(len(PROMPT), 4), Timing(), ServedBy("p0", "d0"))
    assert last == Emit("r", Output(0, (Token(24),), ending), last=True)
    assert fleet.releases(ReleaseReason.EVICTED) == []
    assert fleet.forgot_everything()
    assert fleet.num_charged == 0


def test_one_step_carries_the_tokens_of_many_requests() -> None:
    fleet = SmallFleet()
    for number, name in ((1, "a"), (2, "b")):
        fleet.arrives(request(name))
        fleet.grants(number)
        fleet.reads(20 + number, number=number)
    commands = fleet.steps(
        m.RowToken(attempt(1), 1, Token(31), None), m.RowToken(attempt(2), 1, Token(32), FinishReason.STOP)
    )
    assert emitted(commands, "a") == [Output(0, (Token(31),))]
    assert [output.tokens for output in emitted(commands, "b")] == [(Token(32),)]
    assert fleet.phase("a") is Phase.DECODING
    assert fleet.phase("b") is None


def test_a_single_token_needs_no_reservation_and_no_decode_worker() -> None:
    fleet = SmallFleet()
    prefill = m.Prefill(
        handoff(1), (m.Attempt(attempt(1), 0),), PROMPT, (), SamplingParams(1, seed=5), None, 1
    )
    assert fleet.arrives(request(max_tokens=1)) == [Send("p0", prefill)]
    (last,) = fleet.reads(21, FinishReason.LENGTH)
    ending = Ending(FinishReason.LENGTH, Usage(len(PROMPT), 1), Timing(), ServedBy("p0", None))
    assert last == Emit("r", Output(0, (Token(21),), ending), last=True)
    fleet.prefill_ends(PrefillOutcome.DONE)
    assert fleet.forgot_everything()
    assert fleet.num_charged == 0


def test_end_of_sequence_as_first_token_revokes_instead_of_admitting() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    over, drop, last = fleet.reads(0, FinishReason.STOP)
    assert over == HandoffEnded("r", HandoffOutcome.ENDED, "shm")
    assert drop == Send("d0", m.Drop(handoff(1)))
    ending = Ending(FinishReason.STOP, Usage(len(PROMPT), 1), Timing(), ServedBy("p0", None))
    assert last == Emit("r", Output(0, (Token(0),), ending), last=True)
    assert fleet.forgot_everything()


def test_a_prefill_worker_that_goes_past_the_last_token_is_not_believed() -> None:
    fleet = SmallFleet()
    fleet.arrives(request(max_tokens=1))
    commands = fleet.reads(21)
    assert isinstance(failures(commands)["r"], WorkerLost)
    assert sent(commands) == [m.CancelPrefill(handoff(1))]
    assert emitted(commands) == []


def test_the_phases_sum_to_the_whole_duration() -> None:
    fleet = SmallFleet(joined=False)
    fleet.arrives(request(max_tokens=3, waited_s=0.5))
    fleet.now += 1  # queued
    fleet.joins("p0", "d0")
    fleet.now += 2  # reserving
    fleet.grants()
    fleet.now += 4  # prefilling
    fleet.reads(21)
    fleet.now += 8  # handing off
    fleet.steps(m.RowToken(attempt(1), 1, Token(22), None))
    fleet.now += 16  # decoding
    commands = fleet.steps(m.RowToken(attempt(1), 2, Token(23), FinishReason.LENGTH))
    last = emitted(commands)[0].ending
    assert last is not None
    assert last.timing == Timing(queue_s=3.5, prefill_s=4, handoff_wait_s=8, decode_s=16)


def test_an_attempt_made_again_adds_to_the_same_phases() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.RESERVING)
    for number in (1, 2):
        fleet.now += 1
        fleet.grants(number)
        fleet.now += 2
        if number == 1:
            fleet.releases(ReleaseReason.EXPIRED, number)
    commands = fleet.reads(0, FinishReason.STOP, number=2)
    last = emitted(commands)[0].ending
    assert last is not None
    assert last.timing == Timing(queue_s=2, prefill_s=4)


def test_a_request_skips_no_phase() -> None:
    choice = Choice(RequestState(request(), Place(1), 0.0, 9.0), 0, 0.0)
    with pytest.raises(IllegalPhase, match="queued to decoding"):
        choice.enter(Phase.DECODING, 1.0)


# Messages that are not of now.


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.RESERVING, Phase.HANDING_OFF, Phase.DECODING])
def test_a_first_token_out_of_turn_is_dropped(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.reads(99) == []
    assert fleet.phase() is phase


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.RESERVING, Phase.PREFILLING])
def test_a_row_token_out_of_turn_is_dropped(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.steps(m.RowToken(attempt(1), 0, Token(99), None)) == []
    assert fleet.phase() is phase


@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_row_token_at_another_place_than_the_end_of_the_log_is_dropped(position: int) -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING)
    assert fleet.steps(m.RowToken(attempt(1), position, Token(99), FinishReason.STOP)) == []
    assert emitted(fleet.steps(m.RowToken(attempt(1), 2, Token(23), None))) == [Output(0, (Token(23),))]


def test_a_first_token_at_another_place_than_the_end_of_the_log_is_dropped() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    assert fleet.reads(99, position=1) == []
    assert fleet.phase() is Phase.PREFILLING


def test_messages_of_an_attempt_that_was_given_up_are_dropped() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.HANDING_OFF)
    fleet.releases(ReleaseReason.EXPIRED)
    fleet.grants(2)
    assert fleet.phase() is Phase.PREFILLING
    assert fleet.grants(1) == []
    assert fleet.reads(99, number=1, position=1) == []
    assert fleet.steps(m.RowToken(attempt(1), 1, Token(99), FinishReason.STOP)) == []
    assert fleet.releases(ReleaseReason.GONE) == []
    assert fleet.prefill_ends(PrefillOutcome.PAIR_LOST) == []
    assert fleet.phase() is Phase.PREFILLING


@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.HANDING_OFF, Phase.DECODING])
def test_a_grant_said_twice_prefills_once(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.grants() == []


def test_messages_of_another_life_of_a_worker_are_dropped() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    first = m.FirstToken(attempt(1), 0, Token(21), None, 5)
    assert fleet.feed(WorkerSaid("p0", "p0-0", first)) == []
    assert fleet.feed(WorkerSaid("p9", "p9-1", first)) == []
    assert fleet.phase() is Phase.PREFILLING


@pytest.mark.parametrize("phase", [Phase.HANDING_OFF, Phase.DECODING])
def test_the_good_end_of_a_prefill_changes_nothing(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.prefill_ends(PrefillOutcome.DONE) == []
    assert fleet.phase() is phase
    assert fleet.num_charged == 0


# A reservation that is gone before it was used.


@pytest.mark.parametrize(
    ("reason", "setback", "outcome"),
    [
        (ReleaseReason.EXPIRED, Setback.HANDOFF_FAILED, HandoffOutcome.REFUSED),
        (ReleaseReason.GONE, Setback.EXPIRED, HandoffOutcome.ENDED),
    ],
)
@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.HANDING_OFF])
def test_a_request_whose_reservation_is_gone_is_prefilled_again_with_its_log(
    phase: Phase, reason: ReleaseReason, setback: Setback, outcome: HandoffOutcome
) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    log = (21,) if phase is Phase.HANDING_OFF else ()
    assert fleet.releases(reason) == [
        HandoffEnded("r", outcome, "shm"),
        Send("p0", m.CancelPrefill(handoff(1))),
        SetBack("r", setback, resumed=bool(log)),
        Send("d0", m.Reserve(handoff(2), (attempt(2),), 6 + len(log), "p0-1", 30.0)),
    ]
    assert fleet.grants(2) == [
        Send("p0", m.Prefill(handoff(2), (m.Attempt(attempt(2), 0),), PROMPT, log, PARAMS, "d0-1", 1))
    ]
    commands = fleet.reads(22, number=2, position=len(log))
    assert emitted(commands) == [Output(0, (Token(22),))]
    assert sent(commands, "d0") == [m.Admit(attempt(2), handoff(2), 0, PROMPT, (*log, 22), PARAMS)]


@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.HANDING_OFF])
def test_a_refused_begin_queues_the_request_again(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    commands = fleet.prefill_ends(PrefillOutcome.REFUSED)
    assert reserved(commands) == [("d0", handoff(2))]
    assert failures(commands) == {}


@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.HANDING_OFF])
def test_a_prefill_that_was_stopped_leaves_it_to_the_decode_worker_to_say_why(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.prefill_ends(PrefillOutcome.STOPPED) == []
    assert reserved(fleet.releases(ReleaseReason.EXPIRED)) == [("d0", handoff(2))]


def test_a_resume_with_one_token_left_needs_no_decode_worker() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.HANDING_OFF, max_tokens=2)
    commands = fleet.releases(ReleaseReason.EXPIRED)
    prefill = m.Prefill(
        handoff(2), (m.Attempt(attempt(2), 0),), PROMPT, (21,), SamplingParams(2, seed=5), None, 1
    )
    assert commands == [
        HandoffEnded("r", HandoffOutcome.REFUSED, "shm"),
        Send("p0", m.CancelPrefill(handoff(1))),
        SetBack("r", Setback.HANDOFF_FAILED, resumed=True),
        Send("p0", prefill),
    ]
    (last,) = emitted(fleet.reads(22, FinishReason.LENGTH, number=2, position=1))
    assert last.ending is not None
    assert last.ending.workers == ServedBy("p0", None)
    assert last.ending.num_resumes == 1


def test_a_refused_reservation_is_no_try_that_counts() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.RESERVING)
    for number in range(1, 20):
        commands = fleet.refuses(number, free=16)
        assert reserved(commands) == [("d0", handoff(number + 1))]


def test_a_given_up_pool_fails_what_waits_for_it() -> None:
    fleet = SmallFleet(joined=False)
    fleet.arrives(request("a"), request("b"))
    commands = fleet.feed(PoolGivenUp("the decode pool has no worker"))
    errors = failures(commands)
    assert {name: str(error) for name, error in errors.items()} == {
        "a": "the decode pool has no worker",
        "b": "the decode pool has no worker",
    }
    assert all(isinstance(error, PoolUnavailable) and error.retry_after_s for error in errors.values())
    assert fleet.forgot_everything()


def test_a_given_up_pool_fails_what_is_queued_later_too() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING)
    fleet.feed(PoolGivenUp("the prefill pool has no worker"))
    for commands in (fleet.arrives(request("late")), fleet.goes_down("d0")):
        ((error,),) = [failures(commands).values()]
        assert isinstance(error, PoolUnavailable)
        assert reserved(commands) == []
    assert fleet.forgot_everything()


@pytest.mark.parametrize("phase", [Phase.RESERVING, Phase.DECODING])
def test_a_given_up_pool_leaves_running_requests_alone(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.feed(PoolGivenUp("the prefill pool has no worker")) == []
    assert fleet.phase() is phase
