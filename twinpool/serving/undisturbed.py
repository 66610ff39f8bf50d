"""Runs Ray's start where no signal can cut it short: half a start leaves processes that nobody ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from twinpool.serving.ray_internals import without_warning_of_sigterm

_STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
END_TIMEOUT_S = 60.0


@contextmanager
def undisturbed(start: Callable[[], object], end: Callable[[], object], timeout_s: float) -> Iterator[None]:
    """Between a start and an end; raises what the start raises, or TimeoutError.

    Signals that ask to stop wait for the start. Both run in one thread, which lives as long as the context:
    what Ray starts is killed by the system with the thread that started it. It hears of no hang-up, either:
    when a terminal goes, streams are to finish.
    """
    started: Future[None] = Future()
    over = threading.Event()

    def live() -> None:
        try:
            start()
            started.set_result(None)
            over.wait()
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            started.set_exception(error)
        finally:
            end()

    thread = threading.Thread(target=live, name="ray", daemon=True)
    try:
        with _signals_kept(), without_warning_of_sigterm():
            thread.start()
            started.result(timeout_s)
        yield
    finally:
        over.set()
        thread.join(END_TIMEOUT_S)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """None of them is delivered while it lasts, and the handlers are the same afterwards.

    Ray, as soon as it has joined a cluster, has SIGTERM abort the process, and does not tell Python.
    """
    handled = {number: signal.getsignal(number) for number in _STOPPING}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handled.items():
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hear_sigterm() -> None:
    """In a process that Ray forks from a thread which keeps signals: SIGTERM is how Ray ends it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


os.register_at_fork(after_in_child=_hear_sigterm)
