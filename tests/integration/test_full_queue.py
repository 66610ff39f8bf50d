"""A full queue tells each client when to come back, and keeps its word."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from router.drain_rate import NUM_GAPS
from tests.integration.conftest import StartSystem
from tests.integration.running import RunningSystem, quiesce
from twinpool.config import RouterConfig
from twinpool.errors import QueueFull

MOST_WAITING = 4
PROMPT = [1] * 250
PATIENCE_S = 90.0


@pytest.fixture
def system(start_system: StartSystem) -> Iterator[RunningSystem]:
    """Reads one prompt at a time while a few wait."""
    router = RouterConfig(grace_s=2.0, prefill_max_prompts=1, queue_max_requests=MOST_WAITING)
    system = start_system(router=router)
    yield system
    quiesce(system)
    system.stop()


def ask(system: RunningSystem) -> None:
    answer = system.client.complete(PROMPT, max_tokens=1, ignore_eos=True, timeout=PATIENCE_S)
    assert len(answer.token_ids) == 1


def ask_politely(system: RunningSystem) -> list[float]:
    """Come back whenever told to, until let in; the seconds slept each time."""
    slept = list[float]()
    while True:
        try:
            ask(system)
        except QueueFull as full:
            slept.append(full.retry_after_s or 0.0)
            time.sleep(slept[-1])
        else:
            return slept


def fill(system: RunningSystem, threads: ThreadPoolExecutor) -> list[Future[None]]:
    """One prompt being read and as many waiting as may."""
    asked = [threads.submit(ask, system) for _ in range(1 + MOST_WAITING)]
    deadline = time.monotonic() + PATIENCE_S
    while system.operations.status().queue.requests < MOST_WAITING:
        assert time.monotonic() < deadline
    return asked


@pytest.mark.timeout(300)
def test_client_that_comes_back_when_it_is_told_to_gets_in(system: RunningSystem) -> None:
    with ThreadPoolExecutor(2 * (1 + MOST_WAITING)) as threads:
        for _ in range(NUM_GAPS // MOST_WAITING):  # until the pace is known
            for asked in fill(system, threads):
                asked.result(PATIENCE_S)
        asked_before = fill(system, threads)
        slept = ask_politely(system)
        assert len(slept) == 1
        assert slept[0] > 0
        for asked in asked_before:
            asked.result(PATIENCE_S)
        crowd = list(threads.map(ask_politely, [system] * 2 * (1 + MOST_WAITING)))
        assert any(crowd)
