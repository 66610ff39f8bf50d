"""A worker whose engine stands still, or who keeps revoked blocks, gets nothing new and is replaced: half a
pool at a time, and not for the router's own stalls. What it had goes on elsewhere at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.scheduling.commands import ReplaceCause, ReplaceWorker
from router.scheduling.events import Drain, SeatClosed
from router.scheduling.fleet import RECENT_STEPS
from router.scheduling.phases import Phase, Setback
from router.scheduling.watch import OVERDUE_S, OWN_STALL_S, PATIENCE_S
from tests.support.router.draining_fleet import moves_ended, reserving
from tests.support.router.small_fleet import (
    SmallFleet,
    attempt,
    handoff,
    replaced,
    request,
    reserved,
    sent,
    setbacks,
)
from twinpool.session import messages as m
from twinpool.types import HandoffId, Token


def test_an_engine_that_moves_is_left_alone() -> None:
    fleet = SmallFleet()
    assert fleet.beats(60, "p0", "d0") == []


@pytest.mark.parametrize("worker_id", ["p0", "d0"])
def test_an_engine_that_stands_still_for_too_long_is_replaced(worker_id: str) -> None:
    fleet = SmallFleet()
    other = "d0" if worker_id == "p0" else "p0"
    assert fleet.beats(5, other) == []
    (command,) = fleet.beats(0.5, other)
    assert isinstance(command, ReplaceWorker)
    assert (command.worker_id, command.incarnation) == (worker_id, f"{worker_id}-1")
    assert command.reason == "its engine has stood still for 5.5 s"


def test_words_are_no_progress() -> None:
    fleet = SmallFleet()
    commands = []
    for _ in range(12):
        fleet.says("d0", m.LoadReport(blocks_free=16))
        commands += fleet.beats(0.5, "p0")
    assert replaced(commands) == ["d0"]


@pytest.mark.parametrize(("step_s", "seconds"), [(0.1, 5), (0.5, 5), (2.0, 20)])
def test_an_engine_may_stand_still_for_ten_of_its_steps(step_s: float, seconds: float) -> None:
    fleet = SmallFleet()
    fleet.loads["d0"] = replace(fleet.loads["d0"], progress=1, step_s=step_s)
    fleet.says("d0", fleet.loads["d0"])
    assert fleet.beats(seconds, "p0") == []
    assert replaced(fleet.beats(0.5, "p0")) == ["d0"]


def test_the_longest_of_its_recent_steps_counts_not_the_newest() -> None:
    fleet = SmallFleet()
    for progress, step_s in enumerate((0.1, 2.0, 0.1), 1):
        fleet.loads["d0"] = replace(fleet.loads["d0"], progress=progress, step_s=step_s)
        fleet.says("d0", fleet.loads["d0"])
    assert fleet.beats(20, "p0") == []
    assert replaced(fleet.beats(0.5, "p0")) == ["d0"]


def test_steps_of_long_ago_do_not_count() -> None:
    fleet = SmallFleet()
    for progress, step_s in enumerate((2.0, *(0.1 + n / 100 for n in range(RECENT_STEPS))), 1):
        fleet.loads["d0"] = replace(fleet.loads["d0"], progress=progress, step_s=step_s)
        fleet.says("d0", fleet.loads["d0"])
    assert replaced(fleet.beats(5.5, "p0")) == ["d0"]


def test_one_is_replaced_at_a_time_until_its_seat_is_filled_again() -> None:
    fleet = SmallFleet(decode=2)
    assert replaced(fleet.beats(20, "p0")) == ["d0"]
    fleet.goes_down("d0")
    assert replaced(fleet.beats(20, "p0")) == []
    fleet.comes_up("d0")
    assert replaced(fleet.beats(0.5, "p0", "d0")) == ["d1"]


def test_half_of_a_pool_is_replaced_at_a_time() -> None:
    fleet = SmallFleet(decode=6)
    assert replaced(fleet.beats(20, "p0")) == ["d0", "d1", "d2"]
    for worker_id in ("d0", "d1", "d2"):
        fleet.goes_down(worker_id)
    assert replaced(fleet.beats(20, "p0")) == []
    fleet.comes_up("d1")
    assert replaced(fleet.beats(0.5, "p0", "d1")) == ["d3"]


def test_each_pool_has_its_own_share() -> None:
    fleet = SmallFleet(prefill=2, decode=2)
    assert replaced(fleet.beats(20)) == ["p0", "d0"]


def test_another_workers_coming_up_is_not_what_it_waits_for() -> None:
    fleet = SmallFleet(decode=2)
    assert replaced(fleet.beats(20, "p0")) == ["d0"]
    fleet.comes_up("d2")
    assert replaced(fleet.beats(3, "p0")) == []


def test_a_replacement_that_does_not_come_delays_the_next_for_a_minute() -> None:
    fleet = SmallFleet(decode=2)
    assert replaced(fleet.beats(5.5, "p0")) == ["d0"]
    fleet.goes_down("d0")
    assert replaced(fleet.beats(PATIENCE_S - 0.5, "p0")) == []
    assert replaced(fleet.beats(0.5, "p0")) == ["d1"]


def test_a_worker_that_was_to_leave_and_has_left_delays_nobody() -> None:
    fleet = SmallFleet(decode=2)
    fleet.feed(Drain("d0", 60.0))
    assert replaced(fleet.beats(5.5, "p0")) == ["d0"]
    fleet.goes_down("d0")
    assert replaced(fleet.beats(0.5, "p0")) == ["d1"]


def test_a_seat_that_is_filled_no_more_delays_nobody() -> None:
    fleet = SmallFleet(decode=2)
    assert replaced(fleet.beats(5.5, "p0")) == ["d0"]
    fleet.goes_down("d0")
    assert replaced(fleet.beats(3, "p0")) == []
    fleet.feed(SeatClosed("d0"))
    assert replaced(fleet.beats(0.5, "p0")) == ["d1"]


def test_one_that_does_not_go_is_asked_for_again_after_those_that_were_not() -> None:
    fleet = SmallFleet(decode=2)
    assert replaced(fleet.beats(5.5, "p0")) == ["d0"]
    assert replaced(fleet.beats(PATIENCE_S, "p0")) == ["d1"]
    assert replaced(fleet.beats(PATIENCE_S, "p0")) == ["d0"]


def test_who_has_stood_still_for_longest_is_replaced_first() -> None:
    fleet = SmallFleet(decode=3)
    fleet.beats(1, "d0", "d1", "p0")
    fleet.beats(1, "d0", "p0")
    assert replaced(fleet.beats(10, "p0")) == ["d2"]
    fleet.goes_down("d2")
    fleet.comes_up("d2")
    assert replaced(fleet.beats(0.5, "p0")) == ["d1"]


# Nothing new goes to it.


def test_who_stands_still_gets_nothing_new_whether_its_turn_has_come_or_not() -> None:
    fleet = SmallFleet(decode=3)
    assert replaced(fleet.beats(5.5, "p0", "d2")) == ["d0"]
    for name in "ab":
        fleet.says("d0", fleet.loads["d0"])
        fleet.says("d1", fleet.loads["d1"])
        ((decode_id, _),) = reserved(fleet.arrives(request(name)))
        assert decode_id == "d2"


def test_no_prompt_goes_to_a_prefill_worker_that_stands_still() -> None:
    fleet = SmallFleet(prefill=2)
    fleet.beats(5.5, "p1", "d0")
    fleet.says("p0", fleet.loads["p0"])
    fleet.arrives(request("a", max_tokens=1))
    assert fleet.choice("a").prefill_id == "p1"
    fleet.arrives(request("b"))
    assert fleet.choice("b").prefill_id == "p1"


def test_who_moves_again_gets_requests_again() -> None:
    fleet = SmallFleet()
    fleet.beats(5.5, "p0")
    assert fleet.arrives(request()) == []
    fleet.loads["d0"] = replace(fleet.loads["d0"], progress=1)
    assert reserved(fleet.says("d0", fleet.loads["d0"])) == [("d0", handoff(1))]


# What it had.


def test_rows_of_all_that_stand_still_go_on_elsewhere_before_any_turn_has_come() -> None:
    fleet = SmallFleet(decode=3)
    fleet.decodes("a", 1, worker_id="d0")
    fleet.loads["d0"] = m.LoadReport(running=1, blocks_free=14)
    fleet.steps(m.RowToken(attempt(1), 2, Token(23), None))
    fleet.decodes("b", 2, worker_id="d1")
    assert [choice.decode_id for choice in fleet.scheduler.choices] == ["d0", "d1"]
    commands = fleet.beats(5.5, "p0", "d2")
    assert replaced(commands) == ["d0"]
    assert setbacks(commands) == [("a", Setback.WORKER_LOST, True), ("b", Setback.WORKER_LOST, True)]
    assert sent(commands, "d0") == [m.Drop(attempt(1))]
    assert sent(commands, "d1") == [m.Drop(attempt(2))]
    assert [worker_id for worker_id, _ in reserved(commands)] == ["d2", "d2"]


@pytest.mark.parametrize("phase", [Phase.RESERVING, Phase.PREFILLING, Phase.HANDING_OFF, Phase.DECODING])
def test_what_a_prefill_worker_that_stands_still_has_not_handed_over_is_read_by_another(phase: Phase) -> None:
    fleet = SmallFleet(prefill=2)
    fleet.brings(phase)
    commands = fleet.beats(5.5, "p1", "d0")
    if phase is Phase.DECODING:
        assert setbacks(commands) == []
        return
    uncounted = phase is Phase.RESERVING
    setback = Setback.EXPIRED if uncounted else Setback.WORKER_LOST
    assert setbacks(commands) == [("r", setback, phase is Phase.HANDING_OFF)]
    assert fleet.choice().prefill_id == "p1"


def test_a_row_that_moves_to_a_worker_that_stands_still_stays_where_it_is() -> None:
    fleet = reserving()
    commands = fleet.beats(5.5, "p0", "d0")
    assert moves_ended(commands) == ["failed"]
    assert sent(commands, "d1") == [m.Drop(handoff(2))]
    assert setbacks(commands) == []


# Quarantine.


def overdue(fleet: SmallFleet, held: HandoffId, writer: str) -> list[ReplaceWorker]:
    """A decode worker says that a writer does not let go; whom the router has replaced then."""
    fleet.says("d0", m.QuarantineOverdue(held, writer))
    return [each for each in fleet.passes(0.1) if isinstance(each, ReplaceWorker)]


def test_a_writer_that_does_not_let_go_is_replaced() -> None:
    fleet = SmallFleet()
    (command,) = overdue(fleet, handoff(9), "p0-1")
    assert (command.worker_id, command.incarnation) == ("p0", "p0-1")
    assert handoff(9) in command.reason
    assert command.cause is ReplaceCause.QUARANTINE_OVERDUE
    assert fleet.arrives(request()) == []


def test_a_writer_is_not_replaced_again_while_its_replacement_is_under_way() -> None:
    fleet = SmallFleet()
    assert replaced(overdue(fleet, handoff(9), "p0-1")) == ["p0"]
    fleet.beats(2.0, "p0", "d0")
    assert overdue(fleet, handoff(9), "p0-1") == []
    assert overdue(fleet, handoff(8), "p0-1") == []
    fleet.beats(PATIENCE_S, "p0", "d0")
    assert replaced(overdue(fleet, handoff(9), "p0-1")) == ["p0"]


def test_a_writers_next_life_is_replaced_as_soon_as_it_does_not_let_go() -> None:
    fleet = SmallFleet()
    overdue(fleet, handoff(8), "p0-1")
    fleet.goes_down("p0")
    fleet.comes_up("p0")
    assert replaced(overdue(fleet, handoff(9), "p0-2")) == ["p0"]


def test_a_writer_that_is_gone_already_is_not_replaced_again() -> None:
    fleet = SmallFleet()
    fleet.goes_down("p0")
    fleet.comes_up("p0")
    assert overdue(fleet, handoff(9), "p0-1") == []


def test_of_several_writers_one_is_replaced_and_the_next_only_if_it_still_does_not_let_go() -> None:
    fleet = SmallFleet(prefill=3)
    assert replaced(overdue(fleet, handoff(7), "p0-1")) == ["p0"]
    assert overdue(fleet, handoff(8), "p1-1") == []
    assert fleet.beats(OVERDUE_S - 1, "p0", "p1", "p2", "d0") == []
    assert overdue(fleet, handoff(9), "p2-1") == []
    assert fleet.beats(1.0, "p0", "p1", "p2", "d0") == []
    fleet.goes_down("p0")
    fleet.comes_up("p0")
    assert replaced(fleet.passes(0.1)) == ["p2"]  # p1 has let go meanwhile


def test_who_keeps_blocks_from_others_goes_before_who_only_stands_still() -> None:
    fleet = SmallFleet(prefill=3)
    assert replaced(fleet.beats(6.5, "p1", "d0")) == ["p0"]
    fleet.goes_down("p0")
    fleet.comes_up("p0")
    fleet.says("d0", m.QuarantineOverdue(handoff(9), "p1-1"))
    assert replaced(fleet.passes(0.1)) == ["p1"]
    fleet.goes_down("p1")
    fleet.comes_up("p1")
    assert replaced(fleet.passes(0.1)) == ["p2"]


# The router's own time.


def test_after_a_stall_of_the_routers_own_nobody_is_blamed() -> None:
    fleet = SmallFleet()
    fleet.beats(4.5)
    assert fleet.passes(OWN_STALL_S + 0.1) == []
    assert fleet.beats(5) == []
    assert replaced(fleet.beats(0.5, "p0")) == ["d0"]


def test_a_stuck_worker_is_replaced_for_that() -> None:
    fleet = SmallFleet()
    causes = [each.cause for each in fleet.beats(5.5, "p0") if isinstance(each, ReplaceWorker)]
    assert causes == [ReplaceCause.STUCK]


def test_a_tick_that_is_only_late_forgives_nothing() -> None:
    fleet = SmallFleet()
    fleet.beats(4.5, "p0")
    assert replaced(fleet.passes(OWN_STALL_S)) == ["d0"]


def test_a_new_worker_has_its_own_time() -> None:
    fleet = SmallFleet()
    fleet.beats(4, "p0")
    fleet.goes_down("d0")
    fleet.comes_up("d0")
    assert fleet.beats(5, "p0") == []
    assert replaced(fleet.beats(0.5, "p0")) == ["d0"]
