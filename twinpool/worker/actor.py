"""Runs a worker as a Ray actor: the thin adapter that both pools share.

On a cluster that outlives the router, so do its actors: the next router finds them by name, takes them
over, or ends them. An actor that no router takes over ends itself after a while.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypedDict

import ray
import ray.util

from twinpool.logs import set_up_logs
from twinpool.protocol import SESSION
from twinpool.worker.spec import WorkerSpec

log = logging.getLogger(__name__)
ORPHAN_POLL_S = 1.0
GROUPS = {"handoff": 4, "chunk": 4}
"""Threads for senders' words, and for their chunks."""


class Session(Protocol):
    """A worker's end of its session with the router."""

    def make_way(self) -> None:
        """End the session with the present router in favour of another one's."""
        ...

    def seconds_alone(self) -> float:
        """How long there has been no router; 0 while there is one."""
        ...


class Worker(Protocol):
    """What an actor runs."""

    @property
    def session(self) -> Session:
        """Its end of the session."""
        ...

    def start(self) -> int:
        """Serve; the session's port."""
        ...

    def stop(self) -> None:
        """End everything."""
        ...

    def hear_sender(self, word: str, *arguments: Any) -> Any:
        """A word of a sender's, where hand-offs come as actor calls."""
        ...


class Introduction(TypedDict):
    """What a router must know of a worker to open a session.

    A plain dictionary, since it may be read by another version of Twinpool. session: the oldest and the
    newest version of the session's protocol that it speaks (`twinpool.protocol`).
    """

    worker_id: str
    pool: str
    incarnation: str
    fingerprint: str
    session: tuple[int, int]
    secret: str
    host: str
    port: int
    node: str


class WorkerActor:
    """One life of a worker's process: placed on a node first, then loaded.

    build: makes the worker. It imports torch itself, so that the driver, which holds it too, never does.
    """

    def __init__(self, spec: WorkerSpec, build: Callable[[WorkerSpec], Worker]) -> None:
        self._spec = spec
        self._build = build
        self._host = spec.host or _node_address()
        self._stopped = threading.Event()
        self._waiter = threading.Event()
        self._worker: Worker | None = None
        self._wanted_until = time.monotonic()
        self._router = spec.router
        self._is_given_up = False
        self._changing_hands = threading.Lock()
        _prepare_process(spec)
        _on_sigterm(self._leave)
        threading.Thread(target=self._leave_if_orphaned, name="orphan", daemon=True).start()

    def node(self) -> str:
        """The address of the node that it was placed on."""
        return _node_address()

    def load(self) -> Introduction:
        """Make the worker and have it serve; where it is then, and what."""
        self._wanted_until = time.monotonic() + self._spec.start_timeout_s
        try:
            worker = self._build(dataclasses.replace(self._spec, host=self._host))
            self._port = worker.start()
            self._worker = worker
        finally:
            self._wanted_until = time.monotonic()
        log.info("%s serves its sessions on port %d", self._spec.worker_id, self._port)
        return self._introduce()

    def take_over(self, router: str = "") -> Introduction:
        """The same, for a router that has found this worker: the present router's session is ended.

        Fails if it has not been loaded, or its router has given it up.
        """
        worker = self._loaded()
        with self._changing_hands:
            if self._is_given_up:
                raise RuntimeError("the worker is about to be ended")
            self._router = router
        worker.session.make_way()
        self._waiter.set()  # by which the present router knows, should it not hear its session's end
        return self._introduce()

    def give_up(self, router: str) -> bool:
        """Whether this router may end the worker: not if another has taken it over. If so, none can later."""
        with self._changing_hands:
            self._is_given_up = self._is_given_up or router == self._router
            return self._is_given_up

    def wait(self) -> bool:
        """Return True when `stop` was called, False when another router waits; fails when we die."""
        self._waiter.set()  # whoever waited before is a router that is gone, and held a thread of ours
        self._waiter = waiter = threading.Event()
        while not self._stopped.is_set() and not waiter.wait(ORPHAN_POLL_S):
            pass
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the worker's work; the process is left to the launcher."""
        try:
            if self._worker is not None:
                self._worker.stop()
        finally:
            self._stopped.set()

    # Groups of their own, so that hand-offs never hold up the other calls, nor these them; and so that words
    # never wait for chunks, which may be long in coming.
    @ray.method(concurrency_group="handoff")
    def hear_sender(self, word: str, *arguments: Any) -> Any:
        """See `twinpool.transfer.ray_receiver`."""
        return self._loaded().hear_sender(word, *arguments)

    @ray.method(concurrency_group="chunk")
    def take_chunk(self, *arguments: Any) -> Any:
        """The word `push`."""
        return self._loaded().hear_sender("push", *arguments)

    def _loaded(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("the worker is not loaded")
        return self._worker

    def _introduce(self) -> Introduction:
        spec = self._spec
        return Introduction(
            worker_id=spec.worker_id,
            pool=spec.pool.value,
            incarnation=spec.incarnation,
            fingerprint=spec.fingerprint,
            session=(SESSION.oldest, SESSION.newest),
            secret=spec.secret,
            host=self._host,
            port=self._port,
            node=_node_address(),
        )

    def _leave_if_orphaned(self) -> None:
        timeout_s = self._spec.orphan_timeout_s
        while not self._stopped.wait(ORPHAN_POLL_S):
            if self._seconds_alone() > timeout_s:
                log.warning("%s: no router for %g s; leaving", self._spec.worker_id, timeout_s)
                self._leave()
                return

    def _seconds_alone(self) -> float:
        """How long no router has wanted anything of us."""
        if self._worker is not None:
            return self._worker.session.seconds_alone()
        return time.monotonic() - self._wanted_until

    def _leave(self) -> None:
        """End the worker, and then this process."""
        try:
            self.stop()
        finally:
            ray.kill(ray.get_runtime_context().current_actor)


def remote_worker_actor() -> Any:
    """The actor class as Ray wants it; `max_restarts=0`, since the launcher replaces dead workers itself."""
    remote: Any = ray.remote
    return remote(max_restarts=0, max_concurrency=4, concurrency_groups=GROUPS)(WorkerActor)


def _on_sigterm(leave: Callable[[], None]) -> None:
    """Call it, in a thread of its own, when this process gets SIGTERM.

    Ray's main thread waits outside Python, so that a handler of Python's would never run there. The wake-up
    descriptor is written all the same. Only the main thread may set it.
    """
    if threading.current_thread() is not threading.main_thread():
        log.warning("SIGTERM will not end this worker: Ray does not start it on the main thread")
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(reader, 64):
            pass
        log.warning("SIGTERM: leaving")
        leave()

    threading.Thread(target=watch, name="sigterm", daemon=True).start()


def _prepare_process(spec: WorkerSpec) -> None:
    """Send all output to stderr, and keep idle threads quiet."""
    # OpenMP threads that spin while they wait take the cores from the other workers: with two threads a
    # worker on two busy cores, a decode step took 1,531 ms spinning and 55 ms not. Read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The driver's stdout carries results only, and Ray forwards ours to it.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    about = {"worker": spec.worker_id, "pool": spec.pool.value, "incarnation": spec.incarnation}
    set_up_logs(spec.log_level, spec.log_format, **about)


def _node_address() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
