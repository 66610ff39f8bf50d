"""What the owner of a submitted request may do with it, and that nothing happens to it afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from router.dispatch.dispatcher import RunningDispatcher
from router.dispatch.seats import Roster
from router.telemetry.metrics import Metrics
from tests.support.router.recording_sink import RecordingSink
from tests.support.router.small_fleet import request
from twinpool.config import ServeConfig
from twinpool.errors import DuplicateRequestId
from twinpool.types import FinishReason


@pytest.fixture
def dispatcher() -> RunningDispatcher:
    pools: Any = None  # without workers nothing is asked of them
    return RunningDispatcher(ServeConfig(), "m", Metrics(), Roster(has_served=True), pools)


def reasons(sink: RecordingSink) -> list[FinishReason]:
    """How the sink's choices ended."""
    return [output.ending.finish_reason for output in sink.outputs if output.ending is not None]


async def test_a_request_that_is_left_is_cancelled_once_and_its_sink_hears_nothing(
    dispatcher: RunningDispatcher,
) -> None:
    sink = RecordingSink()
    submission = dispatcher.submit(request("r"), sink)
    submission.leave()
    assert not dispatcher.scheduler.requests
    submission.leave()
    assert dispatcher.snapshot().totals.requests_left == 1
    assert (sink.outputs, sink.errors) == ([], [])


async def test_a_request_that_is_cut_ends_well(dispatcher: RunningDispatcher) -> None:
    sink = RecordingSink()
    submission = dispatcher.submit(request("r"), sink)
    submission.cut(0, 0)
    submission.cut(0, 0)
    assert reasons(sink) == [FinishReason.STOP]
    assert not dispatcher.scheduler.requests


@pytest.mark.parametrize("how", ["leave", "cut"])
async def test_what_has_ended_is_let_be_and_so_is_its_successor_of_the_same_id(
    dispatcher: RunningDispatcher, how: str
) -> None:
    first, second = RecordingSink(), RecordingSink()
    submission = dispatcher.submit(request("r"), first)
    with pytest.raises(DuplicateRequestId):
        dispatcher.submit(request("r"), second)
    assert dispatcher.abort("r")
    dispatcher.submit(request("r"), second)
    if how == "leave":
        submission.leave()
    else:
        submission.cut(0, 0)
    assert "r" in dispatcher.scheduler.requests
    assert reasons(first) == [FinishReason.ABORT]
    assert (second.outputs, second.errors) == ([], [])
    assert dispatcher.snapshot().totals.requests_left == 0
