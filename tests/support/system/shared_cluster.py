"""A Ray cluster of its own process, as `ray start` makes it, and `serve` commands that join it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.support.models.reference import reference_case
from tests.support.system.running import what_is_left
from twinpool import Client
from twinpool.checkpoint.cache import models_folder
from twinpool.client.operations import OperationsClient
from twinpool.client.status import Status

MARK = "MARK_OF_TEST"
NODE_MARK = "NODE_OF_TEST"
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
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "RAY_worker_niceness": "0",
            "RAY_kill_worker_timeout_milliseconds": "500",
            # A node that is gone is known to be gone in a second or two, instead of fifteen.
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "3",
            "RAY_USAGE_STATS_ENABLED": "0",
            MARK: self.mark,
        }
        self.address = f"127.0.0.1:{free_port()}"
        command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
        command += [f"--port={self.address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1"]
        command += ["--num-cpus=8", "--include-dashboard=false", "--object-store-memory=100000000"]
        command += [f"--temp-dir={home}", "--disable-usage-stats"]
        quiet = subprocess.DEVNULL
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._head = subprocess.Popen(command, env=self.environment, stdout=quiet, stderr=quiet)
        wait_for(self._answers)

    def add_node(self, resources: dict[str, int], labels: str) -> str:
        """Another node, with custom resources and labels (KEY=VALUE); its mark, for `kill_node`."""
        mark = uuid.uuid4().hex
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--address={self.address}"]
        command += ["--node-ip-address=127.0.0.1", "--num-cpus=4", "--object-store-memory=100000000"]
        command += [f"--resources={json.dumps(resources)}", f"--labels={labels}", "--disable-usage-stats"]
        quiet = subprocess.DEVNULL
        node = subprocess.Popen(command, env=self.environment | {NODE_MARK: mark}, stdout=quiet, stderr=quiet)
        self._nodes[mark] = node
        return mark

    def kill_node(self, mark: str) -> None:
        """Its power is cut: all of its processes end at once."""
        for pid in self.processes(f"{NODE_MARK}={mark}"):
            os.kill(pid, signal.SIGKILL)
        self._nodes.pop(mark).wait(WAIT_S)

    def stop(self) -> None:
        for mark in list(self._nodes):
            self.kill_node(mark)
        self._head.send_signal(signal.SIGTERM)
        self._head.wait(WAIT_S)
        wait_for(lambda: not self.processes())

    def processes(self, mark: str = "") -> dict[int, str]:
        """Command lines of the living processes that descend from it or from its `serve` commands.

        mark: a variable and its value, for those of one node.
        """
        mark = mark or f"{MARK}={self.mark}"
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (folder / "environ").read_bytes():
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

    def __init__(self, cluster: SharedCluster, log: Path, *arguments: str, module: str) -> None:
        self.log = log
        command = [sys.executable, "-m", module, "serve", "--ray-address", cluster.address]
        command += ["--port", "0", "--metrics-port", "0"]
        command += [] if "--ops-port" in arguments else ["--ops-port", "0"]
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


class ServeOnce:
    """Starts `serve` commands; those that run at the end are ended, with their workers."""

    def __init__(self, cluster: SharedCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._all: list[Serve] = []

    def __call__(self, *arguments: str) -> Serve:
        served = self.start(*arguments)
        served.wait_until_ready()
        return served

    def start(self, *arguments: str, module: str = "twinpool.cli.app") -> Serve:
        """The same, without waiting. module: the command line's, or a test's own."""
        log = self._folder / f"serve-{len(self._all)}.log"
        served = Serve(self._cluster, log, *arguments, module=module)
        self._all.append(served)
        return served

    def end(self) -> None:
        for served in self._all:
            if served.process.poll() is None:
                served.end(signal.SIGINT)
            assert served.process.stdout is not None
            served.process.stdout.close()


def status_of(served: Serve) -> Status:
    with OperationsClient(served.operations) as operations:
        return operations.status()


def lives_of(served: Serve) -> dict[str, tuple[str, int]]:
    return {worker.id: (worker.incarnation, worker.pid) for worker in status_of(served).workers}


def require_exact_and_at_rest(served: Serve) -> None:
    wait_for(lambda: not what_is_left(status_of(served)))
    case = reference_case("plain")
    with Client(served.inference) as client:
        answer = client.complete(case.prompt_ids, max_tokens=8, temperature=0.0, ignore_eos=True)
    assert answer.token_ids == case.output_ids[:8]
    wait_for(lambda: not what_is_left(status_of(served)))


def free_port() -> int:
    """Not one of those that the system gives out by itself, so that nobody is given it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
