"""A worker that is to leave gets nothing new, empties itself, and is said to be empty when it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.scheduling.commands import ProbePair
from router.scheduling.events import PairProven
from router.scheduling.phases import Phase, Setback
from tests.support.router.draining_fleet import GRACE_S, copying, drained, draining, drains, moves, ticks
from tests.support.router.small_fleet import (
    LIMITS,
    SmallFleet,
    attempt,
    handoff,
    request,
    reserved,
    sent,
    setbacks,
)
from twinpool.session import messages as m
from twinpool.types import Token

# Nothing new.


def test_new_requests_go_to_those_that_stay() -> None:
    fleet = SmallFleet(prefill=2, decode=2)
    drains(fleet, "d0")
    drains(fleet, "p0")
    (reserve,) = sent(fleet.arrives(request()))
    assert isinstance(reserve, m.Reserve)
    assert reserve.writer == "p1-1"
    assert not sent(fleet.arrives(request("one", max_tokens=1)), "p0")


@pytest.mark.parametrize("worker_id", ["p0", "d0"])
def test_a_request_that_waits_for_room_there_is_placed_elsewhere(worker_id: str) -> None:
    fleet = SmallFleet(prefill=2, decode=2)
    fleet.brings(Phase.RESERVING)
    commands = drains(fleet, worker_id)
    assert setbacks(commands) == [("r", Setback.DRAINED, False)]
    assert m.Drop(handoff(1)) in sent(commands, "d0")
    assert [each for _, each in reserved(commands)] == [handoff(2)]
    late = fleet.grants(1)
    assert not sent(late, "p0")


@pytest.mark.parametrize("worker_id", ["p0", "d0"])
def test_pairs_of_a_draining_worker_are_neither_joined_nor_tried(worker_id: str) -> None:
    fleet = SmallFleet(joined=False)
    drains(fleet, worker_id)
    commands = fleet.says("p0", m.PairJoined("d0-1", "shm"))
    assert not [each for each in commands if isinstance(each, ProbePair)]
    fleet.says("p0", m.PairBroken("d0-1", "reset"))
    assert not sent(fleet.passes(60.0))


@pytest.mark.parametrize("max_tokens", [1, 4])
@pytest.mark.parametrize("worker_id", ["p0", "d0"])
def test_canaries_are_given_to_no_draining_worker(worker_id: str, max_tokens: int) -> None:
    fleet = SmallFleet()
    drains(fleet, worker_id)
    commands = fleet.arrives(request("canary", pair=("p0", "d0"), max_tokens=max_tokens))
    assert not sent(commands, worker_id)


# The end.


@pytest.mark.parametrize("worker_id", ["p0", "d0"])
def test_a_worker_that_has_nothing_is_empty_at_once(worker_id: str) -> None:
    fleet = SmallFleet()
    drains(fleet, worker_id)
    assert drained(ticks(fleet)) == [f"{worker_id}-1"]


def test_a_prefill_worker_is_empty_once_its_prompts_are_handed_off() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.PREFILLING)
    drains(fleet, "p0")
    assert not drained(ticks(fleet))
    fleet.reads()
    fleet.prefill_ends(m.PrefillOutcome.DONE)
    assert not drained(ticks(fleet))  # the row may not have come yet
    fleet.steps(m.RowToken(attempt(1), 1, Token(22), None))
    assert drained(ticks(fleet)) == ["p0-1"]


@pytest.mark.parametrize(
    "load", [m.LoadReport(running=1), m.LoadReport(waiting=1), m.LoadReport(blocks_quarantined=1)]
)
def test_a_worker_that_reports_something_is_not_empty(load: m.LoadReport) -> None:
    fleet = SmallFleet()
    fleet.says("d0", replace(load, blocks_free=15))
    drains(fleet)
    assert not drained(ticks(fleet))
    fleet.says("d0", m.LoadReport(blocks_free=16))
    assert drained(ticks(fleet)) == ["d0-1"]


def test_what_is_left_when_the_grace_is_over_is_resumed_elsewhere() -> None:
    fleet = copying()
    commands = fleet.passes(GRACE_S)
    assert setbacks(commands) == [("r", Setback.DRAINED, True)]
    assert sent(commands, "d0") == [m.Drop(attempt(1))]
    assert sent(commands, "d1")[0] == m.Drop(handoff(2))
    assert reserved(commands) == [("d1", handoff(3))]
    assert not drained(ticks(fleet))
    fleet.releases(m.ReleaseReason.EVICTED)
    assert drained(ticks(fleet)) == ["d0-1"]


def test_a_row_that_has_not_come_when_the_grace_is_over_is_resumed() -> None:
    fleet = copying()
    moves(fleet)
    fleet.releases(m.ReleaseReason.EVICTED)
    commands = fleet.passes(GRACE_S)
    assert setbacks(commands) == [("r", Setback.DRAINED, True)]
    assert drained(commands) == ["d0-1"]


def test_a_prompt_that_is_still_read_when_the_grace_is_over_is_read_elsewhere() -> None:
    fleet = SmallFleet(prefill=2)
    fleet.brings(Phase.PREFILLING)
    drains(fleet, "p0")
    commands = fleet.passes(GRACE_S)
    assert setbacks(commands) == [("r", Setback.DRAINED, False)]
    assert sent(commands, "p0") == [m.CancelPrefill(handoff(1))]
    assert reserved(commands) == [("d0", handoff(2))]
    fleet.prefill_ends(m.PrefillOutcome.STOPPED)
    assert drained(ticks(fleet)) == ["p0-1"]


def test_draining_costs_no_attempt() -> None:
    fleet = SmallFleet()
    fleet.arrives(request())
    for _ in range(2 * LIMITS.most_attempts):
        assert setbacks(drains(fleet)) == [("r", Setback.DRAINED, False)]
        fleet.goes_down("d0")
        fleet.comes_up("d0")
        fleet.joins("p0", "d0")
    assert fleet.phase() is Phase.RESERVING


def test_the_earlier_end_holds() -> None:
    fleet = copying()
    drains(fleet, grace_s=1.0)
    drains(fleet, grace_s=GRACE_S)
    assert setbacks(fleet.passes(1.0)) == [("r", Setback.DRAINED, True)]


def test_an_older_life_is_not_what_drains() -> None:
    fleet = draining()
    fleet.goes_down("d0")
    fleet.comes_up("d0")
    joined = fleet.incarnation("p0"), fleet.incarnation("d0")
    fleet.says("p0", m.PairJoined(joined[1], "shm"))
    fleet.feed(PairProven(*joined))
    assert not drained(ticks(fleet))
    assert fleet.scheduler.fleet.serves()
