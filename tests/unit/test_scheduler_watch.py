"""A worker whose engine stands still is replaced: one at a time, and not for the router's own stalls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.scheduling.commands import ReplaceCause, ReplaceWorker
from router.scheduling.watch import OWN_STALL_S, PATIENCE_S
from tests.unit.small_fleet import SmallFleet, replaced
from twinpool import messages as m


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


def test_one_is_replaced_at_a_time_until_its_seat_is_filled_again() -> None:
    fleet = SmallFleet(decode=2)
    assert replaced(fleet.beats(20, "p0")) == ["d0"]
    fleet.goes_down("d0")
    assert replaced(fleet.beats(20, "p0")) == []
    fleet.comes_up("d0")
    assert replaced(fleet.beats(0.5, "p0", "d0")) == ["d1"]


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
