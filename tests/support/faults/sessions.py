"""A session that breaks between two live processes: the way to a worker is cut, by a proxy in front of it.

    cuts/INCARNATION ──the proxy of that life sees it──► both connections are closed, or pass nothing on

faults = Faults(folder)
system = start_system(builders=behind_proxies(folder, watched_builders(folder)))
cut_session(folder, incarnation, Cut.CLOSED)
"""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from twinpool.serving.launcher import Builders
from twinpool.worker.actor import Worker
from twinpool.worker.spec import WorkerSpec

POLL_S = 0.005


class Cut(StrEnum):
    """What becomes of a connection."""

    CLOSED = "closed"
    """Both ends hear of it at once."""
    SILENT = "silent"
    """Neither end hears of anything any more."""


def behind_proxies(folder: Path, builders: Builders) -> Builders:
    """The same workers, each with a proxy in its process before its session."""
    (folder / "cuts").mkdir(parents=True, exist_ok=True)
    return {
        pool: functools.partial(_build_behind_proxy, folder / "cuts", build)
        for pool, build in builders.items()
    }


def cut_session(folder: Path, incarnation: str, cut: Cut) -> None:
    """Cut the router off from one life of a worker, for good."""
    (folder / "cuts" / f"{incarnation}.{cut}").touch()


def _build_behind_proxy(cuts: Path, build: Callable[[WorkerSpec], Worker], spec: WorkerSpec) -> Worker:
    worker = build(spec)
    start = worker.start
    # Only the port is another one: the process, and all else in it, is the real worker's.
    setattr(worker, "start", lambda: _Proxy(start(), cuts, spec.incarnation).port)  # noqa: B010
    return worker


class _Proxy:
    """Passes bytes on between the router and one worker's session, until they are cut apart."""

    def __init__(self, worker_port: int, cuts: Path, incarnation: str) -> None:
        self._worker_port = worker_port
        self._cuts = {cut: cuts / f"{incarnation}.{cut}" for cut in Cut}
        self._silent = threading.Event()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        for work in (self._accept, self._watch):
            threading.Thread(target=work, name="proxy", daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                router, _ = self._listener.accept()
                worker = socket.create_connection(("127.0.0.1", self._worker_port))
                self._ends += [router, worker]
                for ends in ((router, worker), (worker, router)):
                    threading.Thread(target=self._pass_on, args=ends, name="proxy", daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._silent.is_set():
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            if self._cuts[Cut.SILENT].exists():
                self._silent.set()
            if self._cuts[Cut.CLOSED].exists():
                self._listener.close()
                for end in self._ends:
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                return
