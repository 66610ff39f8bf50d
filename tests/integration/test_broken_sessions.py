"""The session between the router and a worker breaks, and both live: streams go on exactly, elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router.telemetry.series import RESTARTS
from tests.support.faults.plans import Faults, Point
from tests.support.faults.sessions import Cut, behind_proxies, cut_session
from tests.support.faults.workers import watched_builders
from tests.support.models.reference import reference_case
from tests.support.system.asking import Asking
from tests.support.system.running import StartSystem
from tests.support.system.watched import WatchedSystem, wait_until
from twinpool.client.status import WorkerStatus
from twinpool.config import RouterConfig

REPLACED = {Cut.CLOSED: "exited", Cut.SILENT: "stuck"}
"""For which reason the worker behind it is replaced."""
LONG = reference_case("300 tokens")
"""Its cache moves in two pushes, one before and one after the first token."""
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def two_pairs(start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory) -> WatchedSystem:
    folder = tmp_path_factory.mktemp("faults") / "plans"
    faults = Faults(folder)
    builders = behind_proxies(folder, watched_builders(folder))
    router = RouterConfig(grace_s=2.0, stuck_after_s=2.0)
    return WatchedSystem(start_system(builders=builders, prefill=2, decode=2, router=router), faults)


@pytest.fixture
def watched(two_pairs: WatchedSystem) -> Iterator[WatchedSystem]:
    """At rest again, with all workers, after the test."""
    yield two_pairs
    two_pairs.come_to_rest()


def num_replaced(watched: WatchedSystem, pool: str) -> dict[str, float]:
    """How many workers of a pool were replaced, by reason."""
    metrics = watched.system.metrics()
    return {
        reason: metrics[f'twinpool_worker_restarts_total{{pool="{pool}",reason="{reason}"}}']
        for reason in RESTARTS
    }


def require_replaced(watched: WatchedSystem, old: WorkerStatus) -> None:
    """Its seat has another life, and its process, which lived on without a router, is ended."""
    wait_until(lambda: watched.worker(old.id).incarnation not in ("", old.incarnation))
    wait_until(lambda: not Path(f"/proc/{old.pid}").exists())


@pytest.mark.parametrize("cut", Cut)
def test_stream_goes_on_exactly_when_the_session_of_its_decode_worker_breaks(
    watched: WatchedSystem, cut: Cut
) -> None:
    system, before = watched.system, num_replaced(watched, "decode")
    options = {"max_tokens": 80, "temperature": 1.0, "seed": 11, "min_p": 0.01, "ignore_eos": True}
    undisturbed = system.client.complete("Once upon a time", **options)  # type: ignore[arg-type]
    stream = system.client.generate("Once upon a time", **options)  # type: ignore[arg-type]
    chunks = [next(stream), next(stream)]
    (row,) = [each for each in watched.status().workers if each.id.startswith("decode") and each.running]
    cut_session(watched.faults.folder, row.incarnation, cut)
    chunks += list(stream)
    summary = chunks[-1].summary
    assert summary is not None
    assert summary.num_resumes == 1
    assert summary.workers.decode != row.id
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == undisturbed.token_ids
    require_replaced(watched, row)
    reason = REPLACED[cut]
    assert num_replaced(watched, "decode") == {**before, reason: before[reason] + 1}


@pytest.mark.parametrize("push", [1, 2])
def test_stream_goes_on_exactly_when_the_session_of_its_writer_breaks_in_a_copy(
    watched: WatchedSystem, push: int
) -> None:
    """The writer goes on writing for as long as it lives: its blocks are nobody's until then."""
    copying = watched.faults.arm(Point.COPYING, num_tokens=len(LONG.prompt_ids), nth=push)
    asking = Asking(watched.system, LONG, NUM_TOKENS)
    copying.wait()
    writer = watched.worker(watched.prefill_of(asking.request_id))
    cut_session(watched.faults.folder, writer.incarnation, Cut.CLOSED)
    asking.end()
    assert asking.answered_exactly, asking
    assert asking.summary is not None
    assert asking.summary.workers.prefill != writer.id
    # Before the first token there is nothing that a client could see resumed.
    assert asking.summary.num_resumes == push - 1
    copying.release()
    require_replaced(watched, writer)
