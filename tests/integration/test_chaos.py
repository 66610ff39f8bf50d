"""Workers are killed, stopped and terminated at random under load: no stream breaks, no block is lost."""

from __future__ import annotations

import sys

import pytest

from tests.integration.chaos import Storm, errands, seconds_to_replace
from tests.integration.conftest import StartSystem
from tests.integration.running import quiesce, wait_until_ready
from tests.reference import reference_cases
from twinpool.config import RouterConfig

PAUSE = 1.5
"""Times the measured seconds to replace a worker, between two strikes."""


@pytest.mark.parametrize(
    ("num_requests", "seed"),
    [
        pytest.param(80, 1, id="short", marks=pytest.mark.timeout(300)),
        pytest.param(300, 2, id="long", marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
    ],
)
def test_no_stream_breaks_while_workers_die(start_system: StartSystem, num_requests: int, seed: int) -> None:
    router = RouterConfig(grace_s=2.0, stuck_after_s=2.0, crash_loop_limit=20)
    system = start_system(prefill=2, decode=2, router=router)
    interval_s = PAUSE * seconds_to_replace(system)
    cases = [case for case in reference_cases() if len(case.prompt_ids) <= 300]
    report = Storm(system, interval_s, seed).run(errands(cases, num_requests, seed))
    sys.stderr.write(f"a strike every {interval_s:.1f} s; {report}\n")
    assert report.wrong == []
    assert report.injected
    wait_until_ready(system)
    quiesce(system)
    system.stop()
