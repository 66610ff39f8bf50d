"""Rows pause for want of a block: who makes room, and how it goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from router.scheduling.commands import SchedulerSaid, Send
from router.scheduling.events import Cancelled
from router.scheduling.happenings import SetBack
from router.scheduling.phases import Phase, Setback
from tests.support.router.small_fleet import (
    PLACED,
    PROMPT,
    SmallFleet,
    attempt,
    emitted,
    handoff,
    request,
    reserved,
    sent,
)
from twinpool.sampling.params import SamplingParams
from twinpool.session import messages as m
from twinpool.session.messages import ReleaseReason
from twinpool.types import FinishReason, Token


def dropped(commands: Sequence[SchedulerSaid]) -> list[m.Command]:
    """What decode workers are told to let go."""
    return [each for each in sent(commands) if isinstance(each, m.Drop)]


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
