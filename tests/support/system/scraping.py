"""A real Prometheus, with our configuration and rules, that scrapes one running system."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import yaml

from tests.support.paths import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
PROMETHEUS = shutil.which("prometheus")
WHY_SKIPPED = "prometheus is not installed (Debian: apt-get install prometheus)"
INTERVAL = "250ms"
SEEN_S = 20.0
"""Until Prometheus has started, or has seen what has happened."""

T = TypeVar("T")


class Prometheus:
    """Answers PromQL; `address` is that of its HTTP interface."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **arguments: str) -> Any:
        """What its API says."""
        url = f"http://{self._address}{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            return json.load(answer)["data"]

    def values(self, expr: str) -> dict[frozenset[tuple[str, str]], float]:
        """What an expression comes to now, by labels."""
        result = self.ask("/api/v1/query", query=expr)["result"]
        return {frozenset(each["metric"].items()): float(each["value"][1]) for each in result}

    def curves(self, expr: str, since: float, until: float, step_s: float) -> list[list[float]]:
        """What it came to at every step of a time, one list a series. since, until: seconds since 1970."""
        asked = {"start": str(since), "end": str(until), "step": str(step_s)}
        result = self.ask("/api/v1/query_range", query=expr, **asked)["result"]
        return [[float(value) for _, value in each["values"]] for each in result]

    def value(self, expr: str) -> float:
        """The same, where it is one number."""
        (value,) = self.values(expr).values()
        return value

    def is_ready(self) -> bool:
        """Whether it has scraped its target."""
        try:
            return self.values('up{job="twinpool"} == 1') != {}
        except (urllib.error.URLError, ConnectionError):
            return False


def eventually(look: Callable[[], T], wanted: Callable[[T], bool] = bool) -> T:
    """What `look` sees, once it is what is wanted."""
    deadline = time.monotonic() + SEEN_S
    while not wanted(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)
    return seen


@contextmanager
def prometheus(target: str) -> Iterator[Prometheus]:
    """Scrapes a target until the end of the block; leaves no process and no file."""
    assert PROMETHEUS is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with TemporaryDirectory(prefix="prometheus-") as name:
        folder = Path(name)
        (folder / "prometheus.yaml").write_text(_configuration())
        (folder / "targets.yaml").write_text(yaml.safe_dump([{"targets": [target]}]))
        with (folder / "log").open("w") as log:
            arguments = [
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ]
            process = subprocess.Popen([PROMETHEUS, *arguments], stdout=log, stderr=log)
        try:
            server = Prometheus(address)
            eventually(server.is_ready)
            yield server
        finally:
            process.terminate()
            process.wait(SEEN_S)


def _configuration() -> str:
    """Ours, in quick time."""
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), INTERVAL)
    config["rule_files"] = [str(FOLDER / file) for file in config["rule_files"]]
    return yaml.safe_dump(config)
