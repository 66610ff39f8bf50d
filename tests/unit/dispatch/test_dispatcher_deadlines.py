"""Every deadline that passes is counted as one, with its phase, whoever acts on it first."""

from __future__ import annotations

from typing import Any

import pytest

from router.dispatch.dispatcher import LEAST_TICK_S, TICK_S, RunningDispatcher
from router.dispatch.seats import Roster
from router.dispatch.submission import Submission
from router.telemetry.metrics import Metrics
from tests.support.router.recording_sink import RecordingSink
from tests.support.router.small_fleet import request
from twinpool.config import ServeConfig
from twinpool.errors import DeadlineExceeded


class EnoughTime(Exception):
    """Ends the ticking."""


class Bench:
    """A dispatcher without workers, on a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.metrics = Metrics()
        self.sink = RecordingSink()
        roster = Roster(has_served=True)
        pools: Any = None  # without workers nothing is asked of them
        self.dispatcher = RunningDispatcher(
            ServeConfig(), "m", self.metrics, roster, pools, clock=lambda: self.now
        )

    def submits(self, request_id: str, timeout_s: float, waited_s: float = 0.0) -> Submission:
        asked = request(request_id, timeout_s=timeout_s, waited_s=waited_s)
        return self.dispatcher.submit(asked, self.sink)

    @property
    def num_expired(self) -> float | None:
        return self.metrics.registry.get_sample_value("twinpool_requests_expired_total", {"phase": "queue"})

    async def ticks(self, seconds: float) -> None:
        until = self.now + seconds

        async def sleep(seconds: float) -> None:
            if self.now >= until:
                raise EnoughTime
            self.slept.append(seconds)
            self.now += seconds

        with pytest.raises(EnoughTime):
            await self.dispatcher.tick_forever(sleep)


@pytest.mark.parametrize(("after_s", "num_expired"), [(0.25, 0), (0.5, 1), (0.75, 1)])
async def test_a_client_that_gives_up_at_its_deadline_did_not_just_leave(
    after_s: float, num_expired: int
) -> None:
    bench = Bench()
    submission = bench.submits("r", timeout_s=1.0, waited_s=0.5)
    bench.now += after_s
    submission.leave()
    assert bench.num_expired == num_expired
    totals = bench.dispatcher.snapshot().totals
    assert (totals.requests_failed, totals.requests_left) == (num_expired, 1 - num_expired)
    assert not bench.dispatcher.scheduler.requests


async def test_a_deadline_is_acted_on_when_it_passes() -> None:
    bench = Bench()
    for number, timeout_s in enumerate((0.125, 0.15625)):
        bench.submits(f"r{number}", timeout_s)
    await bench.ticks(0.15625)
    assert bench.now == 100.15625
    assert [type(error) for error in bench.sink.errors] == [DeadlineExceeded] * 2
    assert all("while queued" in error.message for error in bench.sink.errors)
    assert bench.num_expired == 2


async def test_ticks_are_no_closer_than_they_must_be() -> None:
    bench = Bench()
    for number in range(100):
        bench.submits(f"r{number}", timeout_s=0.5 + number / 10000)
    await bench.ticks(1.0)
    assert bench.num_expired == 100
    assert min(bench.slept) == LEAST_TICK_S
    assert max(bench.slept) == TICK_S
    assert len(bench.slept) <= 13
