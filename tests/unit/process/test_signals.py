"""Signals that ask to stop: a command is interrupted by them, a server hears them, a child ends by them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from twinpool.cli import child
from twinpool.cli.child import run_child
from twinpool.cli.signals import STOPPING, interrupting, stop_signals

DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "its own child"])
else:
    print("begun", flush=True)
time.sleep(600)
"""
"""Hears no SIGTERM, and has a child that hears none."""


def ask(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPPING)
def test_a_command_is_interrupted(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with interrupting(), pytest.raises(KeyboardInterrupt):
        ask(number)
    assert signal.getsignal(number) is before


def test_a_command_under_nohup_does_not_hear_the_hang_up() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupting(), stop_signals() as signals:
            ask(signal.SIGHUP)
            assert signals.received == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_server_hears_them_all_in_order_and_is_interrupted_by_none() -> None:
    heard: list[signal.Signals] = []
    with stop_signals() as signals:
        ask(signal.SIGHUP)
        with signals.told_to(heard.append):
            ask(signal.SIGTERM)
        ask(signal.SIGINT)
    assert heard == [signal.SIGHUP, signal.SIGTERM]
    assert signals.received == [signal.SIGHUP, signal.SIGTERM, signal.SIGINT]


def test_a_childs_words_are_passed_on_and_its_code() -> None:
    said: list[str] = []
    program = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(7)"
    with stop_signals() as signals:
        assert run_child([sys.executable, "-c", program], signals, said.append) == 7
    assert sorted(said) == ["one", "two"]


def test_a_child_ends_with_all_that_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "END_S", 0.1)
    program = tmp_path / "deaf.py"
    program.write_text(DEAF)
    with stop_signals() as signals:
        # All that holds its output has ended as it returns: else it would still read.
        code = run_child([sys.executable, str(program)], signals, lambda line: ask(signal.SIGTERM))
    assert code == -signal.SIGKILL


def test_a_child_does_not_outlive_a_signal_that_came_before_it(tmp_path: Path) -> None:
    with stop_signals() as signals:
        ask(signal.SIGTERM)
        code = run_child([sys.executable, "-c", "import time; time.sleep(600)"], signals, print)
    assert code == -signal.SIGTERM
