"""Systems for tests, one per configuration and all on the session's one Ray cluster."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.system.patience import PATIENT
from tests.support.system.running import RunningSystem, StartSystem, quiesce
from tests.support.system.scraping import Prometheus, prometheus
from tests.support.system.shared_cluster import ServeOnce, SharedCluster, wait_for
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.config import DEFAULT_MODEL, EngineConfig, HandoffConfig, RouterConfig, ServeConfig
from twinpool.prepare.pull import pull
from twinpool.serving.cluster import Cluster
from twinpool.serving.launcher import BUILDERS, Builders


@pytest.fixture(scope="session")
def model() -> PreparedModel:
    return PreparedModel.load(pull(DEFAULT_MODEL))


def configured(
    *,
    prefill: int = 1,
    decode: int = 1,
    transport: str = "auto",
    kv_memory_mib: int = 256,
    engine: EngineConfig | None = None,
    router: RouterConfig | None = None,
    checksum: bool = False,
    quarantine_report_s: float = 2.0,
) -> ServeConfig:
    """A float32 system on free ports, whose prefill steps are of the same tokens on every machine."""
    return ServeConfig(
        prefill=prefill,
        decode=decode,
        port=0,
        ops_port=0,
        metrics_port=0,
        engine=engine or EngineConfig(dtype="float32", kv_memory_mib=kv_memory_mib, step_target_ms=0),
        handoff=HandoffConfig(
            transport=transport, checksum=checksum, quarantine_report_s=quarantine_report_s
        ),
        router=router or PATIENT,
    )


@pytest.fixture(scope="module")
def start_system(ray_session: Cluster, model: PreparedModel) -> Iterator[StartSystem]:
    """Starts systems; those still running are stopped with the module."""
    running: list[RunningSystem] = []

    def start(*, builders: Builders = BUILDERS, **settings: object) -> RunningSystem:
        config = configured(**settings)  # type: ignore[arg-type]
        system = RunningSystem(config, model, ray_session, builders).start()
        running.append(system)
        return system

    yield start
    for system in running:
        system.stop()  # once more is fine


@pytest.fixture(scope="module")
def one_pair(start_system: StartSystem) -> RunningSystem:
    """One prefill and one decode worker, shared by the module's tests."""
    return start_system()


@pytest.fixture
def system(one_pair: RunningSystem) -> Iterator[RunningSystem]:
    """The same, and at rest again after the test."""
    yield one_pair
    quiesce(one_pair)


@pytest.fixture(scope="module")
def server(one_pair: RunningSystem) -> Iterator[Prometheus]:
    """A real Prometheus that scrapes it."""
    with prometheus(str(one_pair.system.metrics)) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(model: PreparedModel) -> Iterator[SharedCluster]:
    """A Ray cluster that outlives what joins it."""
    home = Path(tempfile.mkdtemp(prefix="tps-", dir="/tmp"))
    cluster = SharedCluster(home)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(home)


@pytest.fixture
def serve(cluster: SharedCluster, tmp_path: Path) -> Iterator[ServeOnce]:
    """Joins it; what has joined is ended with the test."""
    serves = ServeOnce(cluster, tmp_path)
    yield serves
    serves.end()
    wait_for(lambda: not cluster.workers())
