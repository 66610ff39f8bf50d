"""A `serve` process as a person starts it: in any folder, behind a proxy, with a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, TextIO

from twinpool.checkpoint.cache import models_folder

MARK = "MARK_OF_A_SERVE_TEST"
DEAD_PROXY = "http://127.0.0.1:9"
"""Nothing of a machine's own traffic may go there."""


def folder_of_traps(parent: Path) -> Path:
    """A folder to start in, where modules lie that have the names of those that our processes import."""
    folder = parent / "traps"
    folder.mkdir()
    for name in ("gguf", "json", "numpy", "pip", "ray", "tokenizers", "torch", "transformers", "twinpool"):
        (folder / f"{name}.py").write_text("raise ImportError('a module of the working folder was imported')")
    return folder


class Served:
    """A `serve` process, in a session of its own, that has begun to start.

    mark: in the environment of every process that descends from it. stderr: a file in its home by
    default. environment: more variables.
    """

    def __init__(self, home: Path, *arguments: str, stderr: int | None = None, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder_of_traps(home)
        cache = models_folder(None).parent.parent
        self.environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(cache), MARK: self.mark}
        for name in [name for name in self.environment if name.startswith("RAY_") or "proxy" in name.lower()]:
            del self.environment[name]
        self.environment |= {"http_proxy": DEAD_PROXY, "https_proxy": DEAD_PROXY} | environment
        self.log_file = home / "serve.log"
        ports = ("--port", "0", "--ops-port", "0", "--metrics-port", "0")
        command = ("serve", *ports, *arguments)
        with self.log_file.open("w") as log:
            self.process = self.command(*command, stderr=log if stderr is None else stderr)
        self.first_line = ""

    def wait_for_first_line(self) -> str:
        """What it prints when it is ready; empty if it ends before."""
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().strip()
        return self.first_line

    def command(self, *arguments: str, stderr: int | TextIO = subprocess.PIPE) -> subprocess.Popen[str]:
        # Else ignored where the tests run under nohup, and so by what they start.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            return subprocess.Popen(
                [str(Path(sys.executable).parent / "twinpool"), *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGHUP, before)

    def run(self, *arguments: str) -> str:
        """A command's stdout; it must succeed."""
        process = self.command(*arguments)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out

    def log(self) -> list[dict[str, Any]]:
        """What it has logged, with all its workers; the last line may still be written."""
        whole, _, _ = self.log_file.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def descendants(self) -> list[str]:
        """Command lines of living processes that it started, directly or not."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # gone, or not ours
        return found
