"""One side of a hand-off is late or gone, in pools so small that every block is wanted at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.faults.plans import Point
from tests.support.models.reference import reference_case
from tests.support.system.asking import Asking
from tests.support.system.patience import impatient
from tests.support.system.running import StartSystem
from tests.support.system.watched import WatchedSystem, start_watched, wait_until
from twinpool.config import EngineConfig

SMALL = EngineConfig(dtype="float32", kv_memory_mib=16, step_target_ms=0)
NUM_BLOCKS = 22
"""Of 16 tokens, in each small pool."""
LONG = reference_case("300 tokens")
"""Read in two steps: 16 blocks move before the first token, and 3 after it."""
LONG_BLOCKS = 19
NEIGHBOUR = reference_case("200 tokens")
THIRD = reference_case("100 tokens")
"""Three of these fill a pool, but for one block."""
NUM_TOKENS = 8


@pytest.fixture(scope="module", params=["shm", "ray"])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def two_writers(
    start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory, transport: str
) -> Iterator[WatchedSystem]:
    """Two prefill workers, so that one can be late while the other works, and one small decode pool."""
    watched = start_watched(
        start_system,
        tmp_path_factory.mktemp("faults") / transport,
        prefill=2,
        transport=transport,
        engine=SMALL,
        quarantine_report_s=100.0,
    )
    yield watched
    watched.system.stop()


@pytest.fixture
def watched(two_writers: WatchedSystem) -> Iterator[WatchedSystem]:
    """At rest again after the test."""
    yield two_writers
    two_writers.come_to_rest()


@pytest.mark.parametrize("push", [1, 2])
def test_late_writer_neither_leaks_nor_touches_a_neighbour(watched: WatchedSystem, push: int) -> None:
    """A client leaves when half of a copy is there; a neighbour wants the very blocks."""
    copying = watched.faults.arm(Point.COPYING, num_tokens=len(LONG.prompt_ids), nth=push)
    leaving = Asking(watched.system, LONG, NUM_TOKENS)
    copying.wait()
    leaving.leave()
    leaving.end()
    assert leaving.begins_exactly, leaving
    wait_until(lambda: watched.worker("decode-0").blocks_quarantined == LONG_BLOCKS)
    neighbour = Asking(watched.system, NEIGHBOUR, NUM_TOKENS)
    wait_until(lambda: watched.status().queue.requests == 1)
    assert watched.worker("decode-0").blocks_used == LONG_BLOCKS
    copying.release()
    neighbour.end()
    assert neighbour.answered_exactly, neighbour


@pytest.mark.parametrize("push", [1, 2])
def test_prompt_goes_on_elsewhere_when_its_writer_dies_in_a_copy(watched: WatchedSystem, push: int) -> None:
    copying = watched.faults.arm(Point.COPYING, num_tokens=len(LONG.prompt_ids), nth=push)
    asking = Asking(watched.system, LONG, NUM_TOKENS)
    copying.wait()
    writer = watched.prefill_of(asking.request_id)
    watched.kill(writer)
    copying.release()
    asking.end()
    assert asking.answered_exactly, asking
    assert asking.summary is not None
    assert asking.summary.workers.prefill != writer
    # Before the first token there is nothing that a client could see resumed.
    assert asking.summary.num_resumes == push - 1


def test_writer_that_never_lets_go_is_ended_for_its_blocks(
    start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No request comes: the worker's report alone has the writer replaced."""
    watched = start_watched(
        start_system,
        tmp_path_factory.mktemp("faults") / "shm",
        transport="shm",
        engine=SMALL,
        quarantine_report_s=0.5,
    )
    copying = watched.faults.arm(Point.COPYING, num_tokens=len(LONG.prompt_ids))
    writer = watched.worker("prefill-0").incarnation
    leaving = Asking(watched.system, LONG, NUM_TOKENS)
    copying.wait()
    leaving.leave()
    wait_until(lambda: watched.worker("decode-0").blocks_quarantined == LONG_BLOCKS)
    wait_until(lambda: watched.worker("decode-0").blocks_used == 0)
    assert watched.worker("prefill-0").incarnation != writer
    watched.come_to_rest()
    watched.system.stop()


def test_prefill_pool_full_for_a_decode_side_that_is_gone_heals_without_traffic(
    start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory, transport: str
) -> None:
    watched = start_watched(
        start_system,
        tmp_path_factory.mktemp("faults") / transport,
        transport=transport,
        engine=SMALL,
    )
    begins = [watched.faults.arm(Point.BEGIN, num_tokens=len(THIRD.prompt_ids), nth=nth) for nth in (1, 2, 3)]
    asking = [Asking(watched.system, THIRD, NUM_TOKENS) for _ in begins]
    begins[0].wait()
    wait_until(lambda: watched.worker("prefill-0").blocks_used == NUM_BLOCKS - 1)
    watched.strike("decode-0", signal.SIGSTOP)
    watched.faults.clear()
    with impatient(watched.system):
        for each in asking:
            each.end()
            assert each.answered_exactly, each
    watched.come_to_rest()
    watched.system.stop()
