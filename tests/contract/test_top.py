"""`twinpool top` against a scripted server: one picture for a pipe, a live one for a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.support.clients.fake_server import FakeServer, running_server
from twinpool.cli.app import main
from twinpool.cli.exits import Exit

COMMAND = [sys.executable, "-m", "twinpool.cli.app", "top", "--interval", "0.2", "--target"]
PATIENCE_S = 30.0
SIZE = (24, 80)
ENTER_SCREEN, LEAVE_SCREEN, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


@dataclass
class Terminal:
    """A terminal of 80 by 24 with `twinpool top` in it."""

    descriptor: int
    process: subprocess.Popen[bytes]
    modes: list[object]
    text: str = field(default="")

    def until(self, words: str) -> None:
        """Read on until these words have come."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            self.read()

    def read(self) -> None:
        if select.select([self.descriptor], [], [], 0.1)[0]:
            self.text += os.read(self.descriptor, 65536).decode(errors="replace")

    def forget(self) -> None:
        self.text = ""

    def type(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def ends(self) -> int:
        """Its exit code; the terminal must be as it was."""
        while self.process.poll() is None:
            self.read()
        while select.select([self.descriptor], [], [], 0)[0]:
            self.read()
        assert termios.tcgetattr(self.descriptor) == self.modes
        assert self.text.rindex(LEAVE_SCREEN) > self.text.rfind(ENTER_SCREEN)
        assert self.text.rindex(SHOW_CURSOR) > self.text.rfind("\x1b[?25l")
        return self.process.wait()


@contextmanager
def terminal(target: str, **environment: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, SIZE)
    modes = termios.tcgetattr(ours)
    process = subprocess.Popen(
        [*COMMAND, target],
        env=os.environ | {"TERM": "xterm", "COLUMNS": "", "LINES": "", "PYTHONUTF8": "1"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        yield Terminal(ours, process, modes)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.fixture
def shown(server: FakeServer) -> Iterator[Terminal]:
    with terminal(server.target) as shown:
        shown.until("decode-0")
        yield shown


def test_without_a_terminal_it_is_one_picture(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.operations.status.totals.uptime_s = 75.0
    assert main(["top", "--interval", "0.2", "--target", server.target]) == 0
    picture = capsys.readouterr().out
    assert "\x1b" not in picture
    for part in ("tiny  serving  up 1 min", "5 requests, 2 queued", "TTFT", "decode-0", "10/100"):
        assert part in picture
    assert server.operations.intervals == [0.2]


def test_without_a_terminal_a_server_that_is_not_there_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["top", "--target", "127.0.0.1:1"]) == Exit.UNAVAILABLE
    assert capsys.readouterr().out == ""


def test_q_leaves_a_clean_terminal(shown: Terminal) -> None:
    shown.type(b"xq")
    assert shown.ends() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, 0)])
def test_so_does_a_signal(shown: Terminal, number: signal.Signals, code: int) -> None:
    shown.process.send_signal(number)
    assert shown.ends() == code


def test_a_server_that_goes_away_is_told_and_found_again(server: FakeServer) -> None:
    with terminal(server.target) as shown:
        # The scripted watch ends after two statuses each time.
        shown.until("no news for")
        shown.until("trying again in 1 s")
        shown.forget()
        shown.until("serving")
        assert len(server.operations.intervals) >= 2


def test_it_waits_for_a_server_that_is_not_there_yet() -> None:
    with terminal("127.0.0.1:1") as shown:
        shown.until("trying again in 2 s")
        shown.type(b"q")
        assert shown.ends() == 0


def test_what_waiting_does_not_mend_ends_it() -> None:
    with running_server() as server:
        server.operations.status.workers[0].pool = 99  # type: ignore[assignment]
        with terminal(server.target) as shown:
            shown.until("unknown to this client")
            assert shown.ends() == Exit.FAILED


def test_a_terminal_without_block_characters_gets_ascii(server: FakeServer) -> None:
    with terminal(server.target, PYTHONIOENCODING="ascii", PYTHONUTF8="0") as shown:
        shown.until("decode-0")
        assert shown.text.isascii()
