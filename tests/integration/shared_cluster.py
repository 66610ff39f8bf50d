"""A Ray cluster of its own process, as `ray start` makes it, and `serve` commands that join it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from twinpool.model.cache import models_folder

MARK = "MARK_OF_TEST"
READY = re.compile(r"ready inference=(\S+) ops=(\S+) ")
WAIT_S = 90.0


class SharedCluster:
    """One node; nothing of it is left after `stop`. home: a short path, for sockets and temporary files."""

    def __init__(self, home: Path) -> None:
        self.mark = uuid.uuid4().hex
        cache = models_folder(None).parent.parent
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment = kept | {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(cache),
            "RAY_AUTH_MODE": "disabled",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_worker_niceness": "0",
            "RAY_kill_worker_timeout_milliseconds": "500",
            "RAY_USAGE_STATS_ENABLED": "0",
            MARK: self.mark,
        }
        self.address = f"127.0.0.1:{free_port()}"
        command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
        command += [f"--port={self.address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1"]
        command += ["--num-cpus=8", "--include-dashboard=false", "--object-store-memory=100000000"]
        command += [f"--temp-dir={home}", "--disable-usage-stats"]
        quiet = subprocess.DEVNULL
        self._head = subprocess.Popen(command, env=self.environment, stdout=quiet, stderr=quiet)
        wait_for(self._answers)

    def stop(self) -> None:
        self._head.send_signal(signal.SIGTERM)
        self._head.wait(WAIT_S)
        wait_for(lambda: not self.processes())

    def processes(self) -> dict[int, str]:
        """Command lines of the living processes that descend from it or from its `serve` commands."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = words.decode()
            except OSError:
                continue  # gone, or not ours
        return found

    def workers(self) -> dict[int, str]:
        """The processes of actors."""
        return {pid: words for pid, words in self.processes().items() if "WorkerActor" in words}

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            return False
        return True


class Serve:
    """A `serve` that has joined a cluster; its stderr goes to a file."""

    def __init__(self, cluster: SharedCluster, log: Path, *arguments: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "twinpool.cli.app", "serve", "--ray-address", cluster.address]
        command += ["--port", "0", "--ops-port", "0", "--metrics-port", "0"]
        command += ["--dtype", "float32", "--kv-memory-mib", "128", *arguments]
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command, env=cluster.environment, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self.inference = self.operations = ""

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        ready = READY.match(self.process.stdout.readline())
        assert ready, self.log.read_text()
        self.inference, self.operations = ready[1], ready[2]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
