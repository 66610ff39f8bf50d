"""What component tests share: the default model, prepared once in the user's cache."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.workers.ray_pair import RayPair, running_actor, running_pair
from tests.support.workers.router_double import RouterDouble
from tests.support.workers.running_workers import RunningWorkers, StartWorkers
from tests.support.workers.shm_bench import ShmBench
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.config import DEFAULT_MODEL
from twinpool.prepare.pull import pull
from twinpool.serving.cluster import Cluster


@pytest.fixture(scope="session")
def default_model() -> PreparedModel:
    """The model that `twinpool pull` fetches when none is named."""
    return PreparedModel.load(pull(DEFAULT_MODEL))


@pytest.fixture
def bench() -> Iterator[ShmBench]:
    """Ends of `shm` hand-offs; they end with the test, and their threads too."""
    bench = ShmBench()
    yield bench
    bench.end()


@pytest.fixture(scope="module")
def ray_actor(ray_session: Cluster) -> Iterator[tuple[str, Any]]:
    """A decode side; shared by the tests that leave it alive, since it takes seconds to start."""
    with running_actor() as named:
        yield named


@pytest.fixture
def pair(ray_actor: tuple[str, Any]) -> Iterator[RayPair]:
    """The sides of a `ray` hand-off, anew for each test."""
    with running_pair(*ray_actor) as pair:
        yield pair


@pytest.fixture
def start_workers(default_model: PreparedModel) -> Iterator[StartWorkers]:
    """Starts pairs of workers of one test's own."""
    with ExitStack() as running:

        def start(**handoff: Any) -> RunningWorkers:
            workers = RunningWorkers(default_model, **handoff)
            running.callback(workers.stop)
            return workers

        yield start


@pytest.fixture(scope="module")
def shared_workers(default_model: PreparedModel) -> Iterator[RunningWorkers]:
    """A prefill and a decode worker in this process, for tests that leave them as they were."""
    workers = RunningWorkers(default_model)
    yield workers
    workers.stop()


@pytest.fixture
async def workers(shared_workers: RunningWorkers) -> AsyncIterator[RunningWorkers]:
    """The same; with the end of the test nothing is held in either."""
    yield shared_workers
    shared_workers.script.clear()
    await shared_workers.wait_until_at_rest()


@pytest.fixture
async def router(workers: RunningWorkers) -> AsyncIterator[RouterDouble]:
    """The router of those workers, with their pair joined."""
    async with RouterDouble(workers) as router:
        yield router
