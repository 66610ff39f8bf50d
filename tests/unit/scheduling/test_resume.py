"""Preempted, lost, expired: an attempt is set back, and the next one goes on with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from router.scheduling.commands import SchedulerSaid
from router.scheduling.events import Aborted, Drain
from router.scheduling.phases import COUNTED, Phase, Setback
from tests.support.router.small_fleet import (
    LIMITS,
    PLACED,
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
from twinpool.errors import WorkerLost
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome, ReleaseReason
from twinpool.types import FinishReason, Token

LOG = {Phase.RESERVING: (), Phase.PREFILLING: (), Phase.HANDING_OFF: (21,), Phase.DECODING: (21, 22)}
Loss = Callable[[SmallFleet], Sequence[SchedulerSaid]]


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
