"""Plans of faults are met where, when and by whom they are meant for, and once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.support.faults.plans import Action, Faults, Point, Watch


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults")


def watching(faults: Faults, **num_tokens: int) -> Watch:
    watch = Watch(faults.folder)
    for attempt, number in num_tokens.items():
        watch.expect(attempt, number)
    return watch


def meets(watch: Watch, point: Point, attempt: str) -> bool:
    try:
        watch(point, attempt)
    except RuntimeError:
        return True
    return False


def test_the_nth_pass_of_the_attempts_meant_meets_a_plan_and_no_later_one(faults: Faults) -> None:
    faults.arm(Point.TOKEN, num_tokens=65, action=Action.RAISE, nth=2)
    watch = watching(faults, a=65, canary=4)
    met = [meets(watch, Point.TOKEN, attempt) for attempt in ("a", "canary", "unknown", "a", "a", "a")]
    assert met == [False, False, False, True, False, False]
    assert not meets(watch, Point.FINISHED, "a")


def test_one_worker_alone_meets_a_plan(faults: Faults) -> None:
    armed = faults.arm(Point.TOKEN, num_tokens=65, action=Action.RAISE)
    first, second = watching(faults, a=65), watching(faults, b=65)
    assert meets(first, Point.TOKEN, "a")
    assert armed.wait() == os.getpid()
    assert not meets(second, Point.TOKEN, "b")


def test_a_worker_is_held_until_it_is_released_and_holds_up_no_other_plan(faults: Faults) -> None:
    holds = [faults.arm(Point.BEGIN, num_tokens=65, nth=nth) for nth in (1, 2)]
    watch = watching(faults, a=65, b=65)
    threads = [threading.Thread(target=watch, args=(Point.BEGIN, attempt)) for attempt in ("a", "b")]
    for thread, armed in zip(threads, holds, strict=True):
        thread.start()
        armed.wait()
    assert all(thread.is_alive() for thread in threads)
    holds[1].release()
    threads[1].join(10.0)
    assert [thread.is_alive() for thread in threads] == [True, False]
    faults.clear()
    threads[0].join(10.0)
    assert not threads[0].is_alive()


def test_a_plan_that_is_cleared_is_met_by_nobody(faults: Faults) -> None:
    faults.arm(Point.TOKEN, num_tokens=65, action=Action.RAISE)
    faults.clear()
    assert not meets(watching(faults, a=65), Point.TOKEN, "a")
