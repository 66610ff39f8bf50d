"""When a worker's process counts as left alone: not while it may load; and which router may end it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from twinpool.config import EngineConfig, HandoffConfig
from twinpool.types import Pool
from twinpool.worker import actor as worker_actor
from twinpool.worker.actor import WorkerActor
from twinpool.worker.spec import WorkerSpec

WAIT_S = 10.0
POLL_S = 0.01
SPEC = WorkerSpec(
    worker_id="decode-0",
    pool=Pool.DECODE,
    incarnation="decode-0-aa",
    model_folder="",
    dtype="float32",
    threads=1,
    engine=EngineConfig(),
    handoff=HandoffConfig(),
    orphan_timeout_s=60.0,
    router="older",
    secret="a secret",
)


class Build:
    """Makes a worker that has been alone for too long, once it may."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, spec: WorkerSpec) -> Any:
        self.began.set()
        assert self.may_end.wait(WAIT_S)
        session = SimpleNamespace(seconds_alone=lambda: 2 * SPEC.orphan_timeout_s, make_way=lambda: None)
        return SimpleNamespace(session=session, start=lambda: 4711, stop=lambda: None)


class Clock:
    """Stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(worker_actor, "time", clock)
    return clock


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once an actor ends itself; nothing else of its process is touched."""
    left = threading.Event()
    monkeypatch.setattr(worker_actor, "ORPHAN_POLL_S", POLL_S)
    monkeypatch.setattr(worker_actor, "_prepare_process", lambda spec: None)
    monkeypatch.setattr(worker_actor, "_on_sigterm", lambda leave: None)
    monkeypatch.setattr(worker_actor, "_node_address", lambda: "127.0.0.1")
    monkeypatch.setattr(WorkerActor, "_leave", lambda self: left.set())
    return left


def test_a_worker_that_nobody_has_load_leaves(left: threading.Event, clock: Clock) -> None:
    WorkerActor(SPEC, Build())
    clock.now = SPEC.orphan_timeout_s + 1.0
    assert left.wait(WAIT_S)


def test_a_worker_that_loads_for_long_stays_until_it_is_loaded_and_alone(
    left: threading.Event, clock: Clock
) -> None:
    build = Build()
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(WorkerActor(SPEC, build).load)
        assert build.began.wait(WAIT_S)
        clock.now = SPEC.start_timeout_s + SPEC.orphan_timeout_s  # longer than it would wait for a router
        assert not left.wait(5 * POLL_S)  # it has looked
        build.may_end.set()
        assert loading.result(WAIT_S)["port"] == 4711
    assert left.wait(WAIT_S)


def test_a_worker_whose_loading_hangs_leaves_once_no_router_can_want_it(
    left: threading.Event, clock: Clock
) -> None:
    build = Build()
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(WorkerActor(SPEC, build).load)
        assert build.began.wait(WAIT_S)
        clock.now = SPEC.start_timeout_s + SPEC.orphan_timeout_s + 1.0
        assert left.wait(WAIT_S)
        build.may_end.set()
        loading.result(WAIT_S)


def test_a_worker_whose_loading_fails_leaves_if_no_router_ends_it(
    left: threading.Event, clock: Clock
) -> None:
    def fail(spec: WorkerSpec) -> Any:
        raise OSError("no memory")

    worker = WorkerActor(SPEC, fail)
    with pytest.raises(OSError, match="no memory"):
        worker.load()
    assert not left.wait(5 * POLL_S)
    clock.now = SPEC.orphan_timeout_s + 1.0
    assert left.wait(WAIT_S)


def test_a_worker_that_was_taken_over_is_not_for_its_older_router_to_end(
    left: threading.Event, clock: Clock
) -> None:
    worker = loaded()
    worker.take_over("newer")
    assert not worker.give_up("older")
    assert worker.take_over("newest")["port"] == 4711
    assert worker.give_up("newest")
    assert left.wait(WAIT_S)  # as its session says


def test_a_worker_that_its_router_has_given_up_is_taken_over_by_nobody(
    left: threading.Event, clock: Clock
) -> None:
    worker = loaded()
    assert worker.give_up("older")
    with pytest.raises(RuntimeError, match="about to be ended"):
        worker.take_over("newer")
    assert left.wait(WAIT_S)


def test_a_worker_that_cannot_stop_has_stopped_for_its_router(left: threading.Event, clock: Clock) -> None:
    worker = loaded()
    broken: Any = worker._worker
    broken.stop = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        worker.stop()
    assert worker.wait()


def loaded() -> WorkerActor:
    build = Build()
    build.may_end.set()
    worker = WorkerActor(SPEC, build)
    worker.load()
    return worker
