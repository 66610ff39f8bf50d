"""Preempted, lost, expired: an attempt is set back, and the next one goes on with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from router.scheduling.commands import SchedulerSaid, Send
from router.scheduling.events import Aborted, Cancelled, Drain
from router.scheduling.happenings import SetBack
from router.scheduling.phases import COUNTED, Phase, Setback
from tests.support.router.small_fleet import (
    LIMITS,
    PROMPT,
    SmallFleet,
    attempt,
    emitted,
    failures,
    handoff,
    number_of,
    request,
    reserved,
    sent,
    setbacks,
)
from twinpool.errors import InternalError, WorkerLost
from twinpool.sampling.params import SamplingParams
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome, ReleaseReason
from twinpool.types import FinishReason, Token

PLACED = [Phase.RESERVING, Phase.PREFILLING, Phase.HANDING_OFF, Phase.DECODING]
LOG = {Phase.RESERVING: (), Phase.PREFILLING: (), Phase.HANDING_OFF: (21,), Phase.DECODING: (21, 22)}
Loss = Callable[[SmallFleet], Sequence[SchedulerSaid]]


def dropped(commands: Sequence[SchedulerSaid]) -> list[m.Command]:
    """What decode workers are told to let go."""
    return [each for each in sent(commands) if isinstance(each, m.Drop)]


# Rows pause: the router makes room.


def test_the_youngest_by_arrival_makes_room_and_is_queued_again() -> None:
    fleet = SmallFleet()
    for number, name in enumerate(("a", "b", "c"), 1):
        fleet.decodes(name, number)
    fleet.loads["d0"] = m.LoadReport(running=3)
    assert fleet.pauses(attempt(1)) == [
        Send("d0", m.Drop(attempt(3))),
        SetBack("c", Setback.PREEMPTED, resumed=True),
    ]
    assert fleet.phase("c") is Phase.QUEUED
    assert [fleet.phase(name) for name in "ab"] == [Phase.DECODING] * 2


def test_arrival_survives_resume_so_the_youngest_is_not_who_entered_last() -> None:
    fleet = SmallFleet()
    fleet.decodes("a", 1)
    fleet.decodes("b", 2)
    fleet.releases(ReleaseReason.FAILED, 1)
    fleet.grants(3)
    fleet.reads(23, number=3, position=2)
    assert fleet.phase("a") is Phase.HANDING_OFF
    assert dropped(fleet.pauses(attempt(2), attempt(3))) == [m.Drop(attempt(2))]


@pytest.mark.parametrize("phase", PLACED)
def test_the_oldest_never_makes_room(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.pauses(attempt(1)) == []
    assert fleet.phase() is phase


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        (Phase.RESERVING, [m.Drop(handoff(2))]),
        (Phase.PREFILLING, [m.CancelPrefill(handoff(2)), m.Drop(handoff(2))]),
        (Phase.HANDING_OFF, [m.CancelPrefill(handoff(2)), m.Drop(attempt(2))]),
    ],
)
def test_what_is_only_on_its_way_makes_room_too(phase: Phase, told: list[m.Command]) -> None:
    fleet = SmallFleet()
    fleet.decodes("a", 1)
    fleet.arrives(request("b"))
    if phase is not Phase.RESERVING:
        fleet.grants(2)
    if phase is Phase.HANDING_OFF:
        fleet.reads(number=2)
    assert fleet.phase("b") is phase
    assert sent(fleet.pauses(attempt(1))) == told


def test_only_one_makes_room_at_a_time() -> None:
    fleet = SmallFleet()
    for number, name in enumerate(("a", "b", "c"), 1):
        fleet.decodes(name, number)
    fleet.loads["d0"] = m.LoadReport(running=3)
    assert dropped(fleet.pauses(attempt(1))) == [m.Drop(attempt(3))]
    assert fleet.pauses(attempt(1)) == []
    fleet.loads["d0"] = m.LoadReport(running=2)
    fleet.releases(ReleaseReason.EVICTED, 3)
    assert dropped(fleet.pauses(attempt(1))) == [m.Drop(attempt(2))]
    fleet.releases(ReleaseReason.EVICTED, 2)
    assert fleet.pauses(attempt(1)) == []


@pytest.mark.parametrize("way", ["evicted", "revoked"])
def test_nobody_makes_room_while_a_cancelled_request_leaves(way: str) -> None:
    fleet = SmallFleet()
    for number, name in enumerate(("a", "b"), 1):
        fleet.decodes(name, number)
    if way == "evicted":
        fleet.decodes("c", 3)
    else:
        fleet.arrives(request("c"))
    assert len(dropped(fleet.feed(Cancelled("c")))) == 1
    fleet.loads["d0"] = m.LoadReport(running=2)
    assert fleet.pauses(attempt(1)) == []
    fleet.releases(ReleaseReason.EVICTED if way == "evicted" else ReleaseReason.REVOKED, 3)
    assert dropped(fleet.pauses(attempt(1))) == [m.Drop(attempt(2))]


def test_nobody_else_makes_room_while_enough_blocks_are_in_quarantine() -> None:
    fleet = SmallFleet()
    for number, name in enumerate(("a", "b", "c"), 1):
        fleet.decodes(name, number)
    fleet.loads["d0"] = m.LoadReport(running=3)
    assert dropped(fleet.pauses(attempt(1), attempt(2))) == [m.Drop(attempt(3))]
    fleet.loads["d0"] = m.LoadReport(running=2, blocks_quarantined=2)
    fleet.releases(ReleaseReason.EVICTED, 3)
    assert fleet.pauses(attempt(1), attempt(2)) == []
    assert fleet.passes(0.5) == []
    fleet.loads["d0"] = m.LoadReport(running=2)
    assert dropped(fleet.pauses(attempt(1), attempt(2))) == [m.Drop(attempt(2))]


def test_a_quarantine_too_small_for_all_paused_rows_keeps_nobody_from_making_room() -> None:
    fleet = SmallFleet()
    for number, name in enumerate(("a", "b", "c"), 1):
        fleet.decodes(name, number)
    fleet.loads["d0"] = m.LoadReport(running=3, blocks_quarantined=1)
    assert fleet.pauses(attempt(1)) == []
    assert dropped(fleet.pauses(attempt(1), attempt(2))) == [m.Drop(attempt(3))]


def test_requests_of_another_decode_worker_are_left_alone() -> None:
    fleet = SmallFleet(decode=2)
    fleet.decodes("a", 1)
    fleet.loads["d0"] = m.LoadReport(running=1, blocks_free=0)
    fleet.steps(m.RowToken(attempt(1), 2, Token(23), None))
    fleet.decodes("b", 2, worker_id="d1")
    assert fleet.pauses(attempt(1)) == []


def test_what_made_room_goes_first_to_prefill_and_on_where_its_log_ended() -> None:
    fleet = SmallFleet()
    fleet.decodes("a", 1)
    fleet.decodes("b", 2)
    fleet.loads["d0"] = m.LoadReport(running=2)
    fleet.pauses(attempt(1))
    fleet.arrives(request("new"))
    fleet.loads["d0"] = m.LoadReport(running=1, blocks_free=3)
    assert reserved(fleet.releases(ReleaseReason.EVICTED, 2)) == [("d0", handoff(3))]
    params = SamplingParams(9, seed=5)
    assert sent(fleet.grants(3), "p0") == [
        m.Prefill(handoff(3), (m.Attempt(attempt(3), 0),), PROMPT, (21, 22), params, "d0-1", 2)
    ]
    commands = fleet.reads(23, number=3, position=2)
    assert [output.tokens for output in emitted(commands, "b")] == [(Token(23),)]
    assert sent(commands, "d0") == [m.Admit(attempt(3), handoff(3), 0, PROMPT, (21, 22, 23), params)]


def test_resumed_requests_go_before_new_ones_and_canaries_before_all() -> None:
    fleet = SmallFleet()
    fleet.loads["d0"] = m.LoadReport(blocks_free=6)
    fleet.steps()
    fleet.arrives(request("older", prompt_ids=(1,) * 45))  # no room for it
    fleet.decodes("resumed", 1)
    fleet.loads["d0"] = m.LoadReport()
    fleet.steps()
    fleet.arrives(request("younger"))
    fleet.releases(ReleaseReason.EXPIRED, 1)
    fleet.arrives(request("canary", pair=("p0", "d0")))
    order = [state.request_id for state in fleet.scheduler.queue]
    assert order == ["canary", "resumed", "older", "younger"]


def test_two_that_resume_go_by_their_first_arrival() -> None:
    fleet = SmallFleet()
    fleet.decodes("a", 1)
    fleet.decodes("b", 2)
    fleet.loads["d0"] = m.LoadReport()
    fleet.releases(ReleaseReason.EXPIRED, 2)
    fleet.releases(ReleaseReason.EXPIRED, 1)
    assert [state.request_id for state in fleet.scheduler.queue] == ["a", "b"]


def test_a_preempted_attempts_late_words_are_dropped() -> None:
    fleet = SmallFleet()
    fleet.decodes("a", 1)
    fleet.decodes("b", 2)
    fleet.loads["d0"] = m.LoadReport(running=2)
    fleet.pauses(attempt(1))
    assert fleet.steps(m.RowToken(attempt(2), 2, Token(23), FinishReason.STOP)) == []
    assert fleet.phase("b") is Phase.QUEUED


# Every loss.

LOSSES: dict[str, tuple[Loss, Setback, list[Phase]]] = {
    "decode worker": (lambda fleet: fleet.goes_down("d0"), Setback.WORKER_LOST, PLACED[1:]),
    "prefill worker": (lambda fleet: fleet.goes_down("p0"), Setback.WORKER_LOST, [Phase.PREFILLING]),
    "hand-off": (
        lambda fleet: fleet.releases(ReleaseReason.HANDOFF_FAILED),
        Setback.HANDOFF_FAILED,
        [Phase.PREFILLING, Phase.HANDING_OFF],
    ),
    "pair": (
        lambda fleet: fleet.prefill_ends(PrefillOutcome.PAIR_LOST),
        Setback.HANDOFF_FAILED,
        [Phase.PREFILLING, Phase.HANDING_OFF],
    ),
    "prefill engine": (
        lambda fleet: fleet.prefill_ends(PrefillOutcome.FAILED),
        Setback.ENGINE_FAILED,
        [Phase.PREFILLING, Phase.HANDING_OFF],
    ),
    "decode engine": (lambda fleet: fleet.releases(ReleaseReason.FAILED), Setback.ENGINE_FAILED, PLACED[1:]),
    "prefill engine, on it alone": (
        lambda fleet: fleet.prefill_ends(PrefillOutcome.FAILED_ALONE),
        Setback.ROW_FAILED,
        [Phase.PREFILLING],
    ),
    "decode engine, on it alone": (
        lambda fleet: fleet.releases(ReleaseReason.FAILED_ALONE),
        Setback.ROW_FAILED,
        [Phase.DECODING],
    ),
    "hand-off that stands still": (
        lambda fleet: fleet.releases(ReleaseReason.EXPIRED),
        Setback.HANDOFF_FAILED,
        [Phase.PREFILLING, Phase.HANDING_OFF],
    ),
    "expiry in the queue": (
        lambda fleet: fleet.releases(ReleaseReason.NEVER_BEGUN),
        Setback.EXPIRED,
        [Phase.PREFILLING],
    ),
    "hand-off that did not begin before all was read": (
        lambda fleet: fleet.releases(ReleaseReason.NEVER_BEGUN),
        Setback.HANDOFF_FAILED,
        [Phase.HANDING_OFF],
    ),
    "refused begin": (
        lambda fleet: fleet.prefill_ends(PrefillOutcome.REFUSED),
        Setback.EXPIRED,
        [Phase.PREFILLING, Phase.HANDING_OFF],
    ),
}
EVERY_LOSS = [
    pytest.param(loss, setback, phase, id=f"{name} while {phase}")
    for name, (loss, setback, phases) in LOSSES.items()
    for phase in phases
]


@pytest.mark.parametrize(("loss", "setback", "phase"), EVERY_LOSS)
def test_a_request_goes_on_after_every_loss_in_every_phase(
    loss: Loss, setback: Setback, phase: Phase
) -> None:
    fleet = SmallFleet(prefill=2, decode=2)
    fleet.brings(phase)
    commands = loss(fleet)
    log = LOG[phase]
    assert setbacks(commands) == [("r", setback, bool(log))]
    assert failures(commands) == {}
    ((decode_id, handoff_id),) = reserved(commands)
    assert handoff_id == handoff(2)
    prefill_id = fleet.choice("r").prefill_id
    (prefill,) = sent(fleet.grants(2, decode_id), prefill_id)
    assert isinstance(prefill, m.Prefill)
    assert (prefill.prompt_ids, prefill.output_ids) == (PROMPT, log)
    last = fleet.reads(0, FinishReason.STOP, number=2, position=len(log), worker_id=prefill_id)
    (output,) = emitted(last)
    assert output.tokens == (Token(0),)
    assert output.ending is not None
    assert output.ending.num_resumes == bool(log)
    assert fleet.forgot_everything()


def test_the_same_loss_costs_no_second_attempt() -> None:
    fleet = SmallFleet(decode=2)
    fleet.brings(Phase.HANDING_OFF)
    assert len(setbacks(fleet.releases(ReleaseReason.HANDOFF_FAILED))) == 1
    assert setbacks(fleet.prefill_ends(PrefillOutcome.PAIR_LOST)) == []
    assert setbacks(fleet.prefill_ends(PrefillOutcome.FAILED)) == []


# Engines fail on it, and on nothing else.


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


# So many attempts and no more.


def test_failures_count_and_the_ordinary_life_does_not() -> None:
    ordinary = {Setback.REFUSED, Setback.EXPIRED, Setback.PREEMPTED, Setback.DRAINED}
    assert set(Setback) - ordinary == COUNTED


@pytest.mark.parametrize(
    "reason", [ReleaseReason.HANDOFF_FAILED, ReleaseReason.EXPIRED, ReleaseReason.FAILED]
)
@pytest.mark.parametrize("most_attempts", [1, 2, 4])
def test_a_request_fails_typed_when_its_attempts_are_used_up(
    reason: ReleaseReason, most_attempts: int
) -> None:
    fleet = SmallFleet(limits=replace(LIMITS, most_attempts=most_attempts))
    fleet.brings(Phase.PREFILLING)
    for number in range(1, most_attempts):
        assert failures(fleet.releases(reason, number)) == {}
        fleet.prefill_ends(PrefillOutcome.STOPPED, number)
        fleet.grants(number + 1)
    commands = fleet.releases(reason, most_attempts)
    assert isinstance(failures(commands)["r"], WorkerLost)
    assert setbacks(commands) == []
    assert fleet.forgot_everything()


def test_expiries_in_the_queue_and_preemptions_use_no_attempt_up() -> None:
    fleet = SmallFleet(limits=replace(LIMITS, most_attempts=1))
    fleet.decodes("a", 1)
    fleet.arrives(request("r"))
    for number in range(2, 20, 2):
        fleet.grants(number)
        commands = fleet.releases(ReleaseReason.NEVER_BEGUN, number)
        assert reserved(commands) == [("d0", handoff(number + 1))]
        fleet.prefill_ends(PrefillOutcome.STOPPED, number)
        commands = fleet.pauses(attempt(1))
        assert setbacks(commands) == [("r", Setback.PREEMPTED, False)]
        commands = fleet.grants(number + 1)  # said before the revoke came
        commands += fleet.releases(ReleaseReason.REVOKED, number + 1)
        assert reserved(commands) == [("d0", handoff(number + 2))]


def test_every_resume_is_told_at_the_end() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING, max_tokens=9)
    for number in (1, 2):
        fleet.releases(ReleaseReason.EXPIRED, number)
        fleet.prefill_ends(PrefillOutcome.STOPPED, number)
        fleet.grants(number + 1)
        fleet.reads(30 + number, number=number + 1, position=1 + number)
    commands = fleet.steps(m.RowToken(attempt(3), 4, Token(40), FinishReason.STOP))
    (output,) = emitted(commands)
    assert output.ending is not None
    assert output.ending.num_resumes == 2


@pytest.mark.parametrize("cause", ["refused", "pair broke", "worker left", "drained", "prefill failed"])
def test_an_attempt_between_two_that_gives_no_token_is_no_resume(cause: str) -> None:
    fleet = SmallFleet(decode=2)
    fleet.brings(Phase.DECODING)
    assert setbacks(fleet.goes_down("d0")) == [("r", Setback.WORKER_LOST, True)]
    match cause:
        case "refused":
            commands = fleet.refuses(2, "d1", free=16)
        case "pair broke":
            commands = fleet.says("p0", m.PairBroken("d1-1", "reset"))
        case "worker left":
            commands = fleet.goes_down("d1")
        case "drained":
            commands = fleet.feed(Drain("d1", 10.0))
        case _:
            fleet.grants(2, "d1")
            commands = fleet.prefill_ends(PrefillOutcome.FAILED, 2)
    ((_, _, resumed),) = setbacks(commands)
    assert not resumed
    fleet.comes_up("d0")
    fleet.joins("p0", "d0")
    state = fleet.choice("r")
    assert state.num_resumes == 0
    assert state.handoff is not None
    number = number_of(state.handoff.id)
    fleet.grants(number, str(state.decode_id))
    fleet.reads(23, number=number, position=2)
    assert state.num_resumes == 1


def test_an_answer_that_is_cut_off_and_aborted_before_it_goes_on_has_not_resumed() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING)
    fleet.goes_down("d0")
    (output,) = emitted(fleet.feed(Aborted("r")))
    assert output.ending is not None
    assert output.ending.num_resumes == 0


# Canaries are there to find faults.


@pytest.mark.parametrize(("loss", "setback", "phase"), EVERY_LOSS)
def test_a_canary_fails_at_its_first_failed_attempt(loss: Loss, setback: Setback, phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.arrives(request("canary", pair=("p0", "d0")))
    fleet.grants()
    if phase is not Phase.PREFILLING:
        fleet.reads(21)
    if phase is Phase.DECODING:
        fleet.steps(m.RowToken(attempt(1), 1, Token(22), None))
    commands = loss(fleet)
    if setback not in COUNTED:
        assert failures(commands) == {}  # only its reservation is gone: it is tried again
        return
    assert isinstance(failures(commands)["canary"], WorkerLost), setback
    assert setbacks(commands) == []
    assert fleet.forgot_everything()


def test_a_canary_that_finds_no_room_waits_for_it() -> None:
    fleet = SmallFleet()
    fleet.arrives(request("canary", pair=("p0", "d0")))
    commands = fleet.refuses(free=0)
    assert failures(commands) == {}
    assert fleet.phase("canary") is Phase.QUEUED
    assert reserved(fleet.says("d0", m.LoadReport(blocks_free=16))) == [("d0", handoff(2))]
