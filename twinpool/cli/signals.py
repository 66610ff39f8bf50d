"""Signals that ask a command to stop: Ctrl-C, SIGTERM, and the hang-up of a terminal.

A command is interrupted wherever it is. A server hears of each, and is interrupted by none, from the moment
on that it has started anything.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Those that have been received, in order, and who is told of them, on the main thread."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._listener: Callable[[signal.Signals], None] | None = None

    @contextmanager
    def told_to(self, listener: Callable[[signal.Signals], None]) -> Iterator[None]:
        """Tell somebody of each, at once, while it lasts; those received before are told first."""
        self._listener = listener
        try:
            for number in self.received.copy():
                listener(number)
            yield
        finally:
            self._listener = None

    def hear(self, number: int, _: FrameType | None = None) -> None:
        """Take one."""
        self.received.append(signal.Signals(number))
        if self._listener is not None:
            self._listener(signal.Signals(number))


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """From here on no signal that asks to stop interrupts this process."""
    signals = StopSignals()
    with _handled_by(signals.hear):
        yield signals


@contextmanager
def interrupting() -> Iterator[None]:
    """While it lasts, each of them raises KeyboardInterrupt, as Ctrl-C does."""
    with _handled_by(signal.default_int_handler):
        yield


@contextmanager
def cancelling() -> Iterator[None]:
    """While it lasts, each of them cancels the task that is running now, at a turn of its loop.

    An exception that a handler raised would come amid whatever the loop is doing, and may be lost there.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    with _handled_by(lambda *_: loop.call_soon_threadsafe(task.cancel) if task else None):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not this thread's to handle
        return
    # `nohup` has its command ignore the hang-up, and so it is left.
    heard = [
        each for each in STOPPING if each is not signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN
    ]
    before = {each: signal.signal(each, handler) for each in heard}
    try:
        yield
    finally:
        for each, handled in before.items():
            signal.signal(each, handled)
