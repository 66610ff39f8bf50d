"""When a worker's process counts as left alone: never while it loads, whatever that takes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from twinpool import worker_actor
from twinpool.config import EngineConfig, HandoffConfig
from twinpool.types import Pool
from twinpool.worker_actor import WorkerActor
from twinpool.worker_spec import WorkerSpec

WAIT_S = 10.0
SPEC = WorkerSpec(
    worker_id="decode-0",
    pool=Pool.DECODE,
    incarnation="decode-0-aa",
    model_folder="",
    dtype="float32",
    threads=1,
    engine=EngineConfig(),
    handoff=HandoffConfig(),
    orphan_timeout_s=0.05,
    secret="a secret",
)


class Build:
    """Makes a worker that has been alone for 7 s, once it may."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, spec: WorkerSpec) -> Any:
        self.began.set()
        assert self.may_end.wait(WAIT_S)
        session = SimpleNamespace(seconds_alone=lambda: 7.0, make_way=lambda: None)
        return SimpleNamespace(session=session, start=lambda: 4711, stop=lambda: None)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once an actor ends itself; nothing else of its process is touched."""
    left = threading.Event()
    monkeypatch.setattr(worker_actor, "ORPHAN_POLL_S", 0.01)
    monkeypatch.setattr(worker_actor, "_prepare_process", lambda spec: None)
    monkeypatch.setattr(worker_actor, "_on_sigterm", lambda leave: None)
    monkeypatch.setattr(worker_actor, "_node_address", lambda: "127.0.0.1")
    monkeypatch.setattr(WorkerActor, "_leave", lambda self: left.set())
    return left


def test_a_worker_that_nobody_has_load_leaves(left: threading.Event) -> None:
    WorkerActor(SPEC, Build())
    assert left.wait(WAIT_S)


def test_a_worker_that_loads_for_long_stays_until_it_is_loaded_and_alone(left: threading.Event) -> None:
    build = Build()
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(WorkerActor(SPEC, build).load)
        assert build.began.wait(WAIT_S)
        time.sleep(5 * SPEC.orphan_timeout_s)  # much longer than it would wait for a router
        assert not left.is_set()
        build.may_end.set()
        assert loading.result(WAIT_S)["port"] == 4711
    assert left.wait(WAIT_S)
