"""Runs a command of our own as a child process, which ends with us: nothing of it goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from twinpool.cli.signals import StopSignals

END_S = 5.0
"""After SIGTERM, until what the child has started is ended with it, by force."""


def run_child(command: list[str], signals: StopSignals, said: Callable[[str], None]) -> int:
    """Its exit code. Its output goes to our terminal if that is one, and else line by line to `said`.

    A signal that asks us to stop ends it, and all that it has started.
    """
    to_terminal = sys.stderr.isatty()
    with subprocess.Popen(  # noqa: S603 (our own command)
        command,
        stdout=sys.stderr if to_terminal else subprocess.PIPE,
        stderr=None if to_terminal else subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a group of its own, to be ended whole; Ctrl-C reaches it by us
    ) as child:
        force = threading.Timer(END_S, _signal, (child, signal.SIGKILL))
        force.daemon = True

        def end(_: signal.Signals) -> None:
            _signal(child, signal.SIGTERM)
            if not force.ident:
                force.start()

        with signals.told_to(end):
            for line in child.stdout or ():
                said(line.rstrip())
            code = child.wait()
        force.cancel()
        if signals.received:
            _signal(child, signal.SIGKILL)  # what it has left behind
    return code


def _signal(child: subprocess.Popen[str], number: signal.Signals) -> None:
    """To all of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
