"""Workers are killed, stopped and terminated at random under load: no stream breaks, no block is lost."""

from __future__ import annotations

import sys

import pytest

from tests.support.system.chaos import Storm
from tests.support.system.errands import CANCEL_SHARE, errands, known_questions, learned_questions
from tests.support.system.running import StartSystem, come_to_rest, quiesce, wait_until_ready
from twinpool.config import RouterConfig

REST_S = 5.0
"""Within which all must be free once the last request has ended and no stopped process is left."""


@pytest.mark.parametrize(
    ("num_requests", "seed"),
    [
        pytest.param(50, 1, id="short", marks=pytest.mark.timeout(300)),
        pytest.param(300, 2, id="long", marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
    ],
)
def test_no_stream_breaks_while_workers_die(start_system: StartSystem, num_requests: int, seed: int) -> None:
    router = RouterConfig(grace_s=2.0, stuck_after_s=2.0, crash_loop_limit=20)
    system = start_system(prefill=2, decode=2, router=router)
    questions = known_questions() + learned_questions(system)
    report = Storm(system, seed).run(errands(questions, num_requests, seed))
    # From here on: the last request has ended, and so has the last stopped process.
    rest_s = come_to_rest(system, REST_S)
    sys.stderr.write(f"{report}\nat rest {rest_s:.2f} s after the last request\n")
    assert report.wrong == []
    assert report.injected
    assert report.cancelled_share == CANCEL_SHARE
    wait_until_ready(system)
    quiesce(system)
    system.stop()
