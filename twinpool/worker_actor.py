"""Runs a worker as a Ray actor: the thin adapter that both pools share."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import ray
import ray.util

from twinpool.worker_spec import WorkerSpec


class Worker(Protocol):
    """What an actor runs."""

    def start(self) -> int:
        """Serve; the session's port."""
        ...

    def stop(self) -> None:
        """End everything."""
        ...

    def hear_sender(self, word: str, *arguments: Any) -> Any:
        """A word of a sender's, where hand-offs come as actor calls."""
        ...


class WorkerActor:
    """One life of a worker's process.

    build: makes the worker. It imports torch itself, so that the driver, which holds it too, never does.
    """

    def __init__(self, spec: WorkerSpec, build: Callable[[WorkerSpec], Worker]) -> None:
        self._spec = _prepare_process(spec)
        self._worker = build(self._spec)
        self._port = self._worker.start()
        self._stopped = threading.Event()

    def address(self) -> tuple[str, int, str]:
        """Host and port of the session, and the node's address."""
        return self._spec.host, self._port, _node_address()

    def wait(self) -> None:
        """Return when `stop` was called; fails, for the caller, when the process dies."""
        self._stopped.wait()

    def stop(self) -> None:
        """End the worker's work; the process is left to the launcher."""
        self._worker.stop()
        self._stopped.set()

    # A group of its own, so that hand-offs never hold up the other calls, nor these them.
    @ray.method(concurrency_group="handoff")
    def hear_sender(self, word: str, *arguments: Any) -> Any:
        """See `twinpool.transfer.ray_receiver`."""
        return self._worker.hear_sender(word, *arguments)


def remote_worker_actor() -> Any:
    """The actor class as Ray wants it; `max_restarts=0`, since the launcher replaces dead workers itself."""
    remote: Any = ray.remote
    groups = {"handoff": 4}
    return remote(num_cpus=1, max_restarts=0, max_concurrency=4, concurrency_groups=groups)(WorkerActor)


def _prepare_process(spec: WorkerSpec) -> WorkerSpec:
    """Send all output to stderr, and name the host to listen on if the spec leaves it to the node."""
    # OpenMP threads that spin while they wait take the cores from the other workers: with two threads a
    # worker on two busy cores, a decode step took 1,531 ms spinning and 55 ms not. Read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The driver's stdout carries results only, and Ray forwards ours to it.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(
        level=spec.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    return dataclasses.replace(spec, host=spec.host or _node_address())


def _node_address() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
