"""A whole system for tests: real Ray actors, real gRPC ports, on an event loop of its own thread."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from router.scheduling.requests import Choice
from tests.support.system.shared_things import left_in_memory
from twinpool import Client
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.client.operations import OperationsClient
from twinpool.client.status import Status
from twinpool.config import ServeConfig
from twinpool.serving.cluster import Cluster
from twinpool.serving.launcher import BUILDERS, Builders
from twinpool.serving.system import ServingSystem

T = TypeVar("T")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
READY_S = 60.0
QUIESCE_S = 15.0
"""A moment, on a machine that may be busy."""


class RunningSystem:
    """Started by `start`; tests talk to it through its ports, and look inside with `call`."""

    def __init__(
        self, config: ServeConfig, model: PreparedModel, cluster: Cluster, builders: Builders = BUILDERS
    ) -> None:
        self.config = config
        self.model = model
        self._builders = builders
        self._cluster = cluster
        self._ready: Future[ServingSystem] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="system")

    def start(self) -> RunningSystem:
        self._thread.start()
        try:
            self.system = self._ready.result(START_TIMEOUT_S)
        except BaseException:
            self._end()
            raise
        self.client = Client(str(self.system.inference))
        self.operations = OperationsClient(str(self.system.operations))
        return self

    def stop(self) -> None:
        """End the system; once it has ended, nothing."""
        if not self._thread.is_alive():
            return
        self.client.close()
        self.operations.close()
        self._end()
        assert not self._thread.is_alive()

    def _end(self) -> None:
        if self._loop is not None and self._leave is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(STOP_TIMEOUT_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the system's event loop, where all its state belongs."""

        async def called() -> T:
            return function()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(10.0)

    def metrics(self) -> dict[str, float]:
        """All samples of /metrics, by name and labels as they are written."""
        with urllib.request.urlopen(f"http://{self.system.metrics}/metrics", timeout=10.0) as answer:
            text = answer.read().decode()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    async def _serve(self) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        try:
            system = ServingSystem(self.config, self.model, self._cluster, lambda _: None, self._builders)
            async with system.running():
                if not await system.wait_until_ready(self._leave):
                    return
                self._ready.set_result(system)
                await self._leave.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)


def wait_until_ready(system: RunningSystem) -> None:
    """Until every seat has a worker, and a canary has gone through every pair."""
    deadline = time.monotonic() + READY_S
    while not all_ready(system, status := system.operations.status()):
        assert time.monotonic() < deadline, status
        time.sleep(0.05)


def all_ready(system: RunningSystem, status: Status) -> bool:
    """Whether every pair of workers is there, and a canary has gone through it."""
    num_pairs = system.config.prefill * system.config.decode
    return len(status.pairs) == num_pairs and all(pair.ready for pair in status.pairs)


def what_is_left(status: Status) -> list[str]:
    """What a system without requests must not show, in words."""
    left = [f"{status.requests} requests"] if status.requests else []
    left += [f"{status.queue.requests} queued"] if status.queue.requests else []
    left += [f"{status.handoffs_in_flight} hand-offs"] if status.handoffs_in_flight else []
    for worker in status.workers:
        if worker.running or worker.waiting or worker.blocks_used or worker.blocks_quarantined:
            left.append(f"{worker.id}: {worker}")
    return left


def choice_of(system: RunningSystem, request_id: str) -> Choice:
    """The one choice of a running request; on the router's event loop."""
    (choice,) = system.system.dispatcher.scheduler.requests[request_id].choices.values()
    return choice


def held_by_scheduler(system: RunningSystem) -> list[str]:
    """Requests, attempts and blocks that the scheduler still counts."""
    scheduler = system.system.dispatcher.scheduler
    held = [f"request {request_id}" for request_id in scheduler.requests]
    held += [f"{scheduler.num_attempts} attempts"] if scheduler.num_attempts else []
    for worker in scheduler.fleet.workers():
        held += [f"{worker.worker_id} is charged for {handoff}" for handoff in worker.charged]
        held += [f"{worker.worker_id} has not dropped {holder}" for holder in worker.leaving]
    return held


GAUGES_AT_REST = (
    "twinpool_requests_in_flight",
    "twinpool_queue_depth",
    "twinpool_queue_tokens",
    "twinpool_handoffs_in_flight",
    "twinpool_num_requests_running",
    "twinpool_num_requests_waiting",
    "twinpool_kv_blocks_used",
    "twinpool_kv_cache_usage_ratio",
)


def gauges_up(system: RunningSystem) -> list[str]:
    """The gauges of what a system at rest does not have, that are not zero."""
    return [
        f"{name} {value}"
        for name, value in system.metrics().items()
        if name.partition("{")[0] in GAUGES_AT_REST and value
    ]


def come_to_rest(system: RunningSystem, within_s: float = QUIESCE_S) -> float:
    """The seconds until nothing is held anywhere, by what the router knows; within_s at most.

    Workers may still be on their way to be ready.
    """
    started = time.monotonic()
    deadline = started + within_s
    # One wait for all of it: a worker's report may say what it holds only after its streams have ended.
    while left := (
        what_is_left(system.operations.status())
        + gauges_up(system)
        + system.call(lambda: held_by_scheduler(system))
    ):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    return time.monotonic() - started


def quiesce(system: RunningSystem) -> None:
    """Within seconds of the last request nothing is held anywhere, and a probe is answered exactly.

    Every block is free, nothing is queued, running or in flight, all gauges are zero, the scheduler has
    forgotten every request and attempt, workers' own books say the same, no memory is shared but the pools'
    own, the object store is empty, and two probes of the same prompt agree to the token.
    """
    deadline = time.monotonic() + QUIESCE_S
    come_to_rest(system)
    while left := left_in_memory(system.config, system.operations.status()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    while True:
        found = system.operations.verify()
        assert not found.problems
        if found.at_rest:
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    answers = [
        system.client.complete("The capital of France is", max_tokens=4, temperature=0.0) for _ in range(2)
    ]
    assert answers[0].text.startswith(" Paris")
    assert answers[0].token_ids == answers[1].token_ids


StartSystem = Callable[..., RunningSystem]
"""Starts a system with the settings given; see `start_system` among the fixtures of integration tests."""
