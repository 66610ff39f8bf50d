"""What a worker's engine makes of the node that it is loaded on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.workers.running_workers import SECRET
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.config import EngineConfig, HandoffConfig
from twinpool.engine.kernels import cores
from twinpool.engine.kernels.native.kernel import NativeKernel
from twinpool.types import Pool
from twinpool.worker import engine
from twinpool.worker.pulse import Pulse
from twinpool.worker.spec import WorkerSpec


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def spec_of(model: PreparedModel, *, threads: int, kernels: str, shares_cores: bool = False) -> WorkerSpec:
    return WorkerSpec(
        worker_id="decode-0",
        pool=Pool.DECODE,
        incarnation="decode-0-a",
        model_folder=str(model.folder),
        dtype="float32",
        threads=threads,
        shares_cores=shares_cores,
        engine=EngineConfig(dtype="float32", kv_memory_mib=32, kernels=kernels),
        handoff=HandoffConfig(),
        secret=SECRET,
    )


@pytest.mark.parametrize("kernels", ["torch", "native"])
@pytest.mark.parametrize(("usable", "threads"), [(1, 1), (2, 2), (8, 3)])
def test_no_more_threads_compute_than_cpus_may_be_used(
    default_model: PreparedModel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    usable: int,
    threads: int,
    kernels: str,
) -> None:
    monkeypatch.setattr(engine, "usable_cpus", lambda: usable)
    spec = spec_of(default_model, threads=3, kernels=kernels)
    loaded = engine.load_worker_engine(spec, Pulse(), shared=False)
    kernel = loaded.engine.kernel
    computing = kernel.most_threads if isinstance(kernel, NativeKernel) else torch.get_num_threads()
    assert computing == threads
    if isinstance(kernel, NativeKernel):
        assert 1 <= kernel.num_threads <= threads
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (threads < 3)


def test_where_nobody_chose_threads_a_worker_alone_takes_all_cpus(
    default_model: PreparedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "usable_cpus", lambda: 3)
    monkeypatch.setattr(cores, "SHARED_MEMORY", tmp_path)
    spec = spec_of(default_model, threads=1, kernels="native", shares_cores=True)
    loaded = engine.load_worker_engine(spec, Pulse(), shared=False)
    assert loaded.cores is not None
    assert (loaded.cores.share, loaded.cores.num_cpus) == (1, 3)
    assert isinstance(loaded.engine.kernel, NativeKernel)
    assert loaded.engine.kernel.most_threads == 3
    loaded.cores.close()
    assert list(tmp_path.iterdir()) == []
