"""The threads without which a worker is none: started and ended together, and none fails unheard."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)
END_TIMEOUT_S = 10.0


class WorkerThreads:
    """failed: told, in words, when one of them has ended in an error; the router must hear of it."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._leaving = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, name: str, work: Callable[[], None]) -> None:
        """A thread that does this once it is started; whoever gave the work ends it."""
        self._threads.append(threading.Thread(target=self._run, args=(name, work), name=name, daemon=True))

    def add_periodic(self, name: str, interval_s: float, work: Callable[[], None]) -> None:
        """A thread that does this again and again."""

        def repeat() -> None:
            while not self._leaving.wait(interval_s):
                work()

        self.add(name, repeat)

    def start(self) -> None:
        """Start all."""
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """Have the periodic ones end."""
        self._leaving.set()

    def join(self) -> None:
        """Wait for all to end, END_TIMEOUT_S for each."""
        for thread in self._threads:
            thread.join(END_TIMEOUT_S)

    def _run(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("the %s thread failed", name)
            self._failed(f"its {name} thread failed")
