"""Pairs are joined, proven, broken and joined anew; who was on them goes on through others."""

from __future__ import annotations

import pytest

from router.scheduling.commands import ProbePair, Send
from router.scheduling.events import PairFailed, PairProven
from router.scheduling.fleet import JOIN_AGAIN_S, PROBE_AGAIN_S
from router.scheduling.phases import Phase, Setback
from tests.support.router.small_fleet import (
    SmallFleet,
    attempt,
    emitted,
    handoff,
    request,
    reserved,
    sent,
    setbacks,
)
from twinpool.session import messages as m
from twinpool.session.messages import PrefillOutcome
from twinpool.types import HandoffEndpoint, Token

JOIN = m.JoinPair("d0-1", HandoffEndpoint("socket of d0-1"))
PROBE = ProbePair("p0", "d0", "p0-1", "d0-1")
CANARY = request("canary", pair=("p0", "d0"))


def test_every_new_worker_is_joined_to_all_of_the_other_pool() -> None:
    fleet = SmallFleet(prefill=2, decode=0, joined=False)
    commands = fleet.comes_up("d0")
    assert commands == [Send("p0", JOIN), Send("p1", JOIN)]
    fleet.comes_up("d1")
    joined = [each for each in sent(fleet.comes_up("p2"), "p2") if isinstance(each, m.JoinPair)]
    assert [each.decode for each in joined] == ["d0-1", "d1-1"]


def test_a_joined_pair_is_probed_and_serves_once_it_is_proven() -> None:
    fleet = SmallFleet(joined=False)
    assert fleet.says("p0", m.PairJoined("d0-1", "shm")) == [PROBE]
    assert not fleet.scheduler.fleet.serves()
    fleet.feed(PairProven("p0-1", "d0-1"))
    assert fleet.scheduler.fleet.serves()


def test_a_broken_pair_serves_nobody_and_is_joined_again_after_ever_longer_pauses() -> None:
    fleet = SmallFleet()
    for pause in (0.5, 1.0, 2.0, 5.0, 5.0):
        assert fleet.says("p0", m.PairBroken("d0-1", "reset")) == []
        assert not fleet.scheduler.fleet.serves()
        assert fleet.passes(pause - 0.25) == []
        assert fleet.passes(0.25) == [Send("p0", JOIN)]
        assert fleet.passes(60) == []


def test_a_pair_that_is_proven_again_starts_over_with_short_pauses() -> None:
    fleet = SmallFleet()
    for _ in range(2):
        fleet.says("p0", m.PairBroken("d0-1", "reset"))
        assert fleet.passes(0.5) == [Send("p0", JOIN)]
        assert fleet.says("p0", m.PairJoined("d0-1", "shm")) == [PROBE]
        fleet.feed(PairProven("p0-1", "d0-1"))


def test_a_pair_that_no_canary_proves_is_joined_and_probed_again() -> None:
    fleet = SmallFleet(joined=False)
    fleet.says("p0", m.PairJoined("d0-1", "shm"))
    assert sent(fleet.passes(PROBE_AGAIN_S - 1)) == []
    assert fleet.passes(1) == [Send("p0", JOIN)]
    assert fleet.says("p0", m.PairJoined("d0-1", "shm")) == [PROBE]
    fleet.feed(PairProven("p0-1", "d0-1"))
    assert sent(fleet.passes(PROBE_AGAIN_S)) == []


def test_a_pair_of_which_nothing_is_heard_is_joined_anew() -> None:
    fleet = SmallFleet(joined=False)
    assert sent(fleet.passes(JOIN_AGAIN_S - 1)) == []
    assert sent(fleet.passes(1)) == [m.LeavePair("d0-1"), JOIN]
    assert sent(fleet.passes(JOIN_AGAIN_S)) == [m.LeavePair("d0-1"), JOIN]
    assert fleet.says("p0", m.PairJoined("d0-1", "shm")) == [PROBE]
    assert sent(fleet.passes(PROBE_AGAIN_S)) == [JOIN]


def test_a_pair_whose_canary_fails_is_closed_and_joined_anew_after_ever_longer_pauses() -> None:
    fleet = SmallFleet(joined=False)
    for pause in (0.5, 1.0, 2.0, 5.0, 5.0):
        assert fleet.says("p0", m.PairJoined("d0-1", "shm")) == [PROBE]
        assert fleet.feed(PairFailed("p0-1", "d0-1")) == [Send("p0", m.LeavePair("d0-1"))]
        assert fleet.passes(pause - 0.25) == []
        assert fleet.passes(0.25) == [Send("p0", JOIN)]
    assert not fleet.scheduler.fleet.serves()


def test_a_canary_that_failed_takes_no_users_request_through_its_pair() -> None:
    fleet = SmallFleet(joined=False)
    fleet.says("p0", m.PairJoined("d0-1", "shm"))
    fleet.feed(PairFailed("p0-1", "d0-1"))
    assert fleet.arrives(CANARY) == []
    assert fleet.arrives(request()) == []


@pytest.mark.parametrize("late", ["proven", "broken", "another life"])
def test_a_canarys_failure_changes_nothing_for_a_pair_that_is_proven_or_gone(late: str) -> None:
    fleet = SmallFleet(joined=False)
    fleet.says("p0", m.PairJoined("d0-1", "shm"))
    match late:
        case "proven":
            fleet.feed(PairProven("p0-1", "d0-1"))
        case "broken":
            fleet.says("p0", m.PairBroken("d0-1", "reset"))
        case _:
            fleet.goes_down("d0")
            fleet.comes_up("d0")
            fleet.says("p0", m.PairJoined("d0-2", "shm"))
    assert fleet.feed(PairFailed("p0-1", "d0-1")) == []
    (pair,) = fleet.scheduler.fleet.pairs()
    assert pair.proven == (late == "proven")
    assert pair.num_failures == (late == "broken")
    assert bool(pair.transport) == (late != "broken")


@pytest.mark.parametrize("late", ["broken", "never joined", "another life"])
def test_a_proof_comes_too_late_for_a_pair_that_is_not_there(late: str) -> None:
    fleet = SmallFleet(joined=False)
    if late == "broken":
        fleet.says("p0", m.PairJoined("d0-1", "shm"))
        fleet.says("p0", m.PairBroken("d0-1", "reset"))
    if late == "another life":
        fleet.goes_down("d0")
        fleet.comes_up("d0")
        fleet.says("p0", m.PairJoined("d0-2", "shm"))
    fleet.feed(PairProven("p0-1", "d0-1"))
    assert not fleet.scheduler.fleet.serves()


def test_a_pair_joined_with_a_worker_that_is_gone_is_left() -> None:
    fleet = SmallFleet(joined=False)
    fleet.goes_down("d0")
    assert fleet.says("p0", m.PairJoined("d0-1", "shm")) == [Send("p0", m.LeavePair("d0-1"))]
    assert fleet.says("p0", m.PairBroken("d0-1", "reset")) == []


def test_a_request_whose_pair_breaks_while_it_reserves_goes_through_another() -> None:
    fleet = SmallFleet(decode=2)
    fleet.brings(Phase.RESERVING)
    commands = fleet.says("p0", m.PairBroken("d0-1", "reset"))
    assert sent(commands, "d0") == [m.Drop(handoff(1))]
    assert reserved(commands) == [("d1", handoff(2))]
    assert fleet.grants(1, "d0") == []


def test_a_request_whose_pair_breaks_while_it_is_read_goes_on_through_another() -> None:
    fleet = SmallFleet(decode=2)
    fleet.brings(Phase.PREFILLING)
    assert fleet.says("p0", m.PairBroken("d0-1", "reset")) == []
    commands = fleet.prefill_ends(PrefillOutcome.PAIR_LOST)
    assert setbacks(commands) == [("r", Setback.HANDOFF_FAILED, False)]
    assert sent(commands, "d0") == [m.Drop(handoff(1))]
    assert reserved(commands) == [("d1", handoff(2))]


def test_a_broken_pair_leaves_the_rows_it_has_handed_off_alone() -> None:
    fleet = SmallFleet()
    fleet.brings(Phase.DECODING)
    fleet.says("p0", m.PairBroken("d0-1", "reset"))
    assert emitted(fleet.steps(m.RowToken(attempt(1), 2, Token(23), None)))
