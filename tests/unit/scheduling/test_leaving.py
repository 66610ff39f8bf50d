"""Clients leave, requests are aborted, answers are cut: nothing of them stays, and nothing follows."""

from __future__ import annotations

import pytest

from router.scheduling.commands import Emit, SchedulerSaid, Send
from router.scheduling.events import Aborted, Cancelled, Cut
from router.scheduling.happenings import HandoffEnded, HandoffOutcome
from router.scheduling.phases import Phase
from tests.support.router.small_fleet import (
    SmallFleet,
    attempt,
    handoff,
    request,
    sent,
)
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome, ReleaseReason
from twinpool.types import FinishReason, ServedBy, Token

LIVE = [phase for phase in Phase if phase is not Phase.ENDED]


OVER = HandoffEnded("r", HandoffOutcome.ENDED, "shm")
TOLD: dict[Phase, list[SchedulerSaid]] = {
    Phase.QUEUED: [],
    Phase.RESERVING: [Send("d0", m.Drop(handoff(1)))],
    Phase.PREFILLING: [OVER, Send("p0", m.CancelPrefill(handoff(1))), Send("d0", m.Drop(handoff(1)))],
    Phase.HANDING_OFF: [OVER, Send("p0", m.CancelPrefill(handoff(1))), Send("d0", m.Drop(attempt(1)))],
    Phase.DECODING: [Send("d0", m.Drop(attempt(1)))],
}
WORKED_FOR_IT = {
    Phase.HANDING_OFF: ServedBy("p0", "d0"),
    Phase.DECODING: ServedBy("p0", "d0"),
    Phase.PREFILLING: ServedBy("p0", None),
    Phase.RESERVING: ServedBy("p0", None),
    Phase.QUEUED: ServedBy("", None),
}


@pytest.mark.parametrize("phase", LIVE)
def test_a_cancelled_request_is_taken_from_both_workers_and_not_heard_of_again(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    assert fleet.feed(Cancelled("r")) == TOLD[phase]
    assert fleet.forgot_everything()
    assert fleet.feed(Cancelled("r")) == []
    assert fleet.grants() == []
    assert fleet.reads(21) == []
    assert fleet.steps(m.RowToken(attempt(1), 2, Token(23), FinishReason.LENGTH)) == []
    assert fleet.releases(ReleaseReason.GONE) == []
    if m.CancelPrefill(handoff(1)) in sent(TOLD[phase]):
        assert fleet.num_charged == 1  # until the prefill worker has let go of it
    if phase is not Phase.RESERVING:
        assert fleet.prefill_ends(PrefillOutcome.STOPPED) == []
    assert fleet.num_charged == 0


@pytest.mark.parametrize("phase", LIVE)
def test_an_aborted_request_ends_well_with_reason_abort(phase: Phase) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    fleet.now += 3
    *told, last = fleet.feed(Aborted("r"))
    assert told == TOLD[phase]
    assert isinstance(last, Emit)
    assert last.output.tokens == ()
    assert last.output.ending is not None
    assert last.output.ending.finish_reason is FinishReason.ABORT
    assert last.output.ending.workers == WORKED_FOR_IT[phase]
    timing = last.output.ending.timing
    assert timing.queue_s + timing.prefill_s + timing.handoff_wait_s + timing.decode_s == 3
    assert fleet.forgot_everything()
    assert fleet.feed(Aborted("r")) == []


@pytest.mark.parametrize("phase", LIVE)
@pytest.mark.parametrize("position", [0, 1])
def test_a_cut_ends_a_choice_well_with_the_tokens_before_it(phase: Phase, position: int) -> None:
    fleet = SmallFleet()
    fleet.brings(phase)
    choice = fleet.scheduler.requests["r"].choices[0]
    kept = choice.log[:position]
    *told, last = fleet.feed(Cut("r", 0, position))
    assert told == TOLD[phase]
    assert isinstance(last, Emit)
    assert last.output.tokens == ()
    assert last.output.ending is not None
    assert last.output.ending.finish_reason is FinishReason.STOP
    assert last.output.ending.usage.completion_tokens == len(kept)
    assert last.output.ending.workers == WORKED_FOR_IT[phase]
    assert choice.log == kept
    assert fleet.forgot_everything()
    assert fleet.feed(Cut("r", 0, position)) == []


def test_a_cut_while_the_choice_waits_for_another_attempt_leaves_nothing_queued() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING)
    fleet.goes_down("d0")
    assert fleet.phase() is Phase.QUEUED
    (last,) = fleet.feed(Cut("r", 0, 1))
    assert isinstance(last, Emit)
    assert last.output.ending is not None
    assert (last.output.ending.finish_reason, last.output.ending.usage.completion_tokens) == (
        FinishReason.STOP,
        1,
    )
    assert fleet.scheduler.queue.num_requests == 0


def test_cancel_abort_and_cut_of_what_is_not_there_are_harmless() -> None:
    fleet = SmallFleet()
    assert fleet.feed(Cut("never seen", 0, 1)) == []
    assert fleet.feed(Cancelled("never seen")) == []
    assert fleet.feed(Aborted("never seen")) == []


def test_a_single_token_request_is_cancelled_at_its_prefill_worker_alone() -> None:
    fleet = SmallFleet()
    fleet.arrives(request(max_tokens=1))
    assert fleet.feed(Cancelled("r")) == [Send("p0", m.CancelPrefill(handoff(1)))]
