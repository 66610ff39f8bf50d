"""A hand-off sender in a process of its own, so that it can be stopped and killed; told what to do in lines.

Run as a module it is that process: it reads commands from stdin, and writes what its sender hears to stdout.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import Self

from tests.support.paths import ROOT
from tests.support.workers.handoff_ends import (
    LARGE,
    WAIT_S,
    Heard,
    SenderLog,
    identity,
    in_thread,
    join,
    random_storage,
)
from twinpool.transfer.shm_sender import connect_shm
from twinpool.types import HandoffId

START_S = 60.0
NUM_BLOCKS = 4
SEED = 7


class SenderProcess:
    """A process joined to a receiver, with `random_storage(LARGE, NUM_BLOCKS, SEED)` as its cache."""

    def __init__(self, path: str, decode: str, writer: str) -> None:
        self.heard = Heard()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, path.removeprefix("\0"), decode, writer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._reader = in_thread(self._read)

    def __enter__(self) -> Self:
        self.heard.wait_for("joined", START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait(WAIT_S)
        join(self._reader)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def suspend(self) -> None:
        """Returns once none of its threads runs any more."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.heard.add(line.rstrip("\n"))


class _Printed(SenderLog):
    """Says at once what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard.add = lambda heard: say(" ".join(map(str, heard)))  # type: ignore[method-assign]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(path: str, decode: str, writer: str) -> None:
    source = random_storage(LARGE, NUM_BLOCKS, SEED)
    sender = connect_shm(
        "\0" + path, decode, identity(writer, LARGE), source, _Printed(), checksum=False, timeout_s=WAIT_S
    )

    def hammer(handoff: HandoffId) -> None:
        say(f"hammering {handoff}")
        while sender.push(handoff, range(NUM_BLOCKS), 0):
            pass
        say(f"push refused {handoff}")

    say("joined")
    for line in sys.stdin:
        match line.split():
            case ["begin", handoff]:
                sender.begin(HandoffId(handoff))
            case ["push", handoff]:
                say(f"pushed {handoff} {sender.push(HandoffId(handoff), range(NUM_BLOCKS), 0)}")
            case ["hammer", handoff]:
                in_thread(lambda handoff=handoff: hammer(HandoffId(handoff)))  # type: ignore[misc]
            case ["written", handoff]:
                say(f"written {handoff} {sender.written(HandoffId(handoff))}")
            case ["close"]:
                sender.close()
            case other:
                raise ValueError(other)


if __name__ == "__main__":
    main(*sys.argv[1:])
