"""What a worker's engine makes of the node that it is loaded on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.workers.running_workers import SECRET
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.config import EngineConfig, HandoffConfig
from twinpool.types import Pool
from twinpool.worker import engine
from twinpool.worker.pulse import Pulse
from twinpool.worker.spec import WorkerSpec


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
    spec = WorkerSpec(
        worker_id="decode-0",
        pool=Pool.DECODE,
        incarnation="decode-0-a",
        model_folder=str(default_model.folder),
        dtype="float32",
        threads=3,
        engine=EngineConfig(dtype="float32", kv_memory_mib=32, kernels=kernels),
        handoff=HandoffConfig(),
        secret=SECRET,
    )
    others = _num_threads()
    loaded = engine.load_worker_engine(spec, Pulse(), shared=False)
    assert (torch.get_num_threads() if kernels == "torch" else _num_threads() - others + 1) == threads
    del loaded
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (threads < 3)


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
