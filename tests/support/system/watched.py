"""A system of watched workers (see `tests.support.faults`), and what tests do to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.faults.plans import Faults
from tests.support.faults.workers import watched_builders
from tests.support.system.running import (
    READY_S,
    RunningSystem,
    StartSystem,
    choice_of,
    quiesce,
    wait_until_ready,
)
from twinpool.client.status import Status, WorkerStatus


class WatchedSystem:
    """A running system, and what is armed for its workers."""

    def __init__(self, system: RunningSystem, faults: Faults) -> None:
        self.system = system
        self.faults = faults

    def worker(self, worker_id: str) -> WorkerStatus:
        return next(each for each in self.status().workers if each.id == worker_id)

    def status(self) -> Status:
        return self.system.operations.status()

    def strike(self, worker_id: str, number: signal.Signals) -> None:
        os.kill(self.worker(worker_id).pid, number)

    def kill(self, worker_id: str) -> None:
        """And wait until the router knows, and has told the others: its seat says then what became of it."""
        before = self.worker(worker_id).incarnation
        self.strike(worker_id, signal.SIGKILL)

        def is_known() -> bool:
            now = self.worker(worker_id)
            return bool(now.reason) or now.incarnation not in ("", before)

        wait_until(is_known)

    def prefill_of(self, request_id: str) -> str:
        """The prefill worker of a running request."""
        return self.system.call(lambda: choice_of(self.system, request_id).prefill_id)

    def come_to_rest(self) -> None:
        """Nothing is armed, every worker is ready, and nothing is left of any request."""
        self.faults.clear()
        wait_until_ready(self.system)
        quiesce(self.system)


def start_watched(start_system: StartSystem, folder: Path, **settings: object) -> WatchedSystem:
    """folder: one that is not there yet. settings: `start_system`'s."""
    faults = Faults(folder)
    return WatchedSystem(start_system(builders=watched_builders(folder), **settings), faults)


def wait_until(holds: Callable[[], bool]) -> None:
    """Within a bound that only a hang, or a very busy machine, reaches."""
    deadline = time.monotonic() + READY_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
