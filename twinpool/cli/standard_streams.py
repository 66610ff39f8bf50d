"""What becomes of stdout and stderr while a server runs: results on the one, all words on the other.

Neither can hold the server up or end it, whether it is read slowly, or no more, or was never opened.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout

from twinpool.cli.outlet import Outlet
from twinpool.logs import json_line

Say = Callable[[str], None]
"""Prints one line on the real stdout."""


@contextmanager
def unblocked_stderr(log_format: str) -> Iterator[None]:
    """Have `sys.stderr` lose what nobody reads; to be begun before anybody keeps it, as Ray does."""
    as_json = log_format == "json"
    outlet = Outlet(2, _lost_as_json if as_json else _lost_as_text, sys.stderr.encoding or "utf-8")
    with closing(outlet), redirect_stderr(outlet):
        yield


@contextmanager
def only_results_on_stdout() -> Iterator[Say]:
    """Point stdout at stderr, for libraries and child processes, and hand out the way to the real one."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    outlet = Outlet(real, lambda number: f"{number} lines are missing here\n")

    def say(line: str) -> None:
        outlet.write(f"{line}\n")

    try:
        with redirect_stdout(sys.stderr):
            yield say
    finally:
        outlet.close()
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def open_missing_streams() -> None:
    """Where a caller has closed one of the three, open nothing in its place: else a socket takes it."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 (for good)


def _lost_as_text(number: int) -> str:
    return f"{_lost(number)}\n"


def _lost_as_json(number: int) -> str:
    return json_line(time.time(), "error", __name__, _lost(number), {"lost": number}) + "\n"


def _lost(number: int) -> str:
    return f"{number} lines of the log are lost here: nobody has read them"
