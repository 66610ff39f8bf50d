"""A full queue tells each client when to come back, and keeps its word."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from router.dispatch.drain_rate import NUM_GAPS
from tests.support.faults.plans import Armed, Point
from tests.support.system.patience import PATIENT_S
from tests.support.system.running import RunningSystem, StartSystem
from tests.support.system.watched import WatchedSystem, start_watched, wait_until
from twinpool.config import RouterConfig
from twinpool.errors import QueueFull

MOST_WAITING = 4
PROMPT = [1] * 100
PATIENCE_S = 90.0
MOST_RETURNS = 4
"""A machine may stand still for longer than ever before; each return then waits twice as long."""


@pytest.fixture
def watched(start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedSystem]:
    """Reads one prompt at a time while a few wait."""
    router = RouterConfig(
        grace_s=2.0, stuck_after_s=PATIENT_S, prefill_max_prompts=1, queue_max_requests=MOST_WAITING
    )
    watched = start_watched(start_system, tmp_path_factory.mktemp("faults") / "one", router=router)
    yield watched
    watched.come_to_rest()
    watched.system.stop()


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


def fill(watched: WatchedSystem, threads: ThreadPoolExecutor) -> tuple[list[Future[None]], Armed]:
    """As many waiting as may, and one prompt that is being read until it is released."""
    held = watched.faults.arm(Point.PICKED, num_tokens=len(PROMPT))
    asked = [threads.submit(ask, watched.system) for _ in range(1 + MOST_WAITING)]
    held.wait()
    wait_until(lambda: watched.status().queue.requests == MOST_WAITING)
    return asked, held


def num_refused(system: RunningSystem) -> float:
    return system.metrics()['twinpool_admission_rejections_total{reason="queue_full"}']


@pytest.mark.timeout(300)
def test_client_that_comes_back_when_it_is_told_to_gets_in(watched: WatchedSystem) -> None:
    system, num_clients = watched.system, 2 * (1 + MOST_WAITING)
    with ThreadPoolExecutor(num_clients) as threads:
        for _ in range(NUM_GAPS // MOST_WAITING):  # until the pace is known
            asked, held = fill(watched, threads)
            held.release()
            for each in asked:
                each.result(PATIENCE_S)
        asked, held = fill(watched, threads)
        with pytest.raises(QueueFull) as full:
            ask(system)
        held.release()
        assert full.value.retry_after_s
        time.sleep(full.value.retry_after_s)
        assert len(ask_politely(system)) < MOST_RETURNS
        for each in asked:
            each.result(PATIENCE_S)
        before, held = num_refused(system), watched.faults.arm(Point.PICKED, num_tokens=len(PROMPT))
        crowd = [threads.submit(ask_politely, system) for _ in range(num_clients)]
        wait_until(lambda: num_refused(system) > before)
        held.release()
        assert any(each.result(PATIENCE_S) for each in crowd)
