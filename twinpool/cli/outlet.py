"""A way out for lines that never holds up who writes them: what nobody reads is lost, and counted.

write ─► queue, bounded ─► a thread ─► descriptor: a pipe that may be full, a terminal that may be gone
"""

from __future__ import annotations

import io
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable

MOST_BYTES = 1 << 20
"""As much waits to be written, at most."""
CLOSE_S = 2.0
"""How long an end waits for a reader that takes nothing."""


class Outlet(io.TextIOBase):
    """A text stream over an open descriptor, which stays its owner's. Whole lines are lost or written.

    lost: words, with their newline, for so many lines that were lost; they come where those are missing.
    """

    def __init__(self, descriptor: int, lost: Callable[[int], str], encoding: str = "utf-8") -> None:
        self._descriptor = descriptor
        self._ours = os.dup(descriptor)  # the owner may close its own while a write hangs
        self._lost = lost
        self._encoding = encoding
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._num_waiting = self._num_lost = 0
        self._is_open, self._is_read = True, True
        self._begun = threading.local()
        self._thread = threading.Thread(target=self._write_out, name="outlet", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Take text; what follows a thread's last newline waits for that thread's next one, or flush."""
        whole, newline, begun = (getattr(self._begun, "text", "") + text).rpartition("\n")
        self._begun.text = begun
        if newline:
            self._put(whole + newline)
        return len(text)

    def flush(self) -> None:
        """Take what a thread has begun, too. Waits for nobody."""
        begun, self._begun.text = getattr(self._begun, "text", ""), ""
        if begun:
            self._put(begun)

    def close(self) -> None:
        """Wait until all is written, but for a reader that takes nothing for CLOSE_S; then drop the rest."""
        with self._changed:
            while self._waiting and self._is_read:
                before = self._num_waiting
                if not self._changed.wait_for(lambda: self._num_waiting < before, CLOSE_S):  # noqa: B023
                    break
            self._is_open = False
            self._changed.notify_all()

    def _put(self, text: str) -> None:
        line = text.encode(self._encoding, "replace")
        with self._changed:
            if not (self._is_open and self._is_read):
                return
            if self._num_waiting + len(line) > MOST_BYTES:
                self._num_lost += text.count("\n") or 1
                return
            self._own_up()
            self._append(line)

    def _own_up(self) -> None:
        if self._num_lost:
            self._append(self._lost(self._num_lost).encode(self._encoding, "replace"))
            self._num_lost = 0

    def _append(self, line: bytes) -> None:
        self._waiting.append(line)
        self._num_waiting += len(line)
        self._changed.notify_all()

    def _write_out(self) -> None:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals()
        )  # they are others' to keep or to take
        try:
            while (line := self._next()) is not None:
                _write_all(self._ours, line)
                self._written(len(line))
        except OSError:  # nobody will ever read it: a pipe without a reader, a terminal that is gone
            with self._changed:
                self._is_read = False
                self._waiting.clear()
                self._changed.notify_all()
        finally:
            os.close(self._ours)

    def _written(self, num_bytes: int) -> None:
        with self._changed:
            self._waiting.popleft()
            self._num_waiting -= num_bytes
            if not self._waiting:
                self._own_up()
            self._changed.notify_all()

    def _next(self) -> bytes | None:
        """The oldest line, still counted as waiting; None once there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._is_open)
            return self._waiting[0] if self._waiting and self._is_open else None


def _write_all(descriptor: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process has made what we share with it non-blocking
            select.select([], [descriptor], [])
