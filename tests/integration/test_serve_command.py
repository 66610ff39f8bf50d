"""`twinpool serve` as a person starts it: what it prints, how it answers, that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinpool.model.cache import models_folder
from twinpool.model.config import PreparedModel

READY = re.compile(
    r"ready inference=(?P<inference>127\.0\.0\.1:\d+) ops=(?P<ops>127\.0\.0\.1:\d+) "
    r"metrics=127\.0\.0\.1:\d+ model=smollm2-135m-instruct "
    r"prefill=1x\d+blocks decode=1x\d+blocks"
)
MARK = "MARK_OF_A_SERVE_TEST"
STOP_S = 30.0


class Served:
    """A `serve` process. mark: in the environment of every process that descends from it."""

    def __init__(self, home: Path) -> None:
        self.mark = uuid.uuid4().hex
        cache = models_folder(None).parent.parent
        self.environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(cache), MARK: self.mark}
        for name in [name for name in self.environment if name.startswith("RAY_")]:
            del self.environment[name]
        self.process = self.command("serve", "--port", "0", "--ops-port", "0", "--metrics-port", "0")
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().strip()

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "twinpool.cli.app", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        """A command's stdout; it must succeed."""
        process = self.command(*arguments)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out

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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: PreparedModel) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("home"))
    yield served
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGTERM)
    served.process.communicate(timeout=STOP_S)


def test_ready_line_gives_addresses_model_and_pools(served: Served) -> None:
    assert READY.fullmatch(served.first_line)


def test_generate_streams_the_answer_to_the_terminal(served: Served) -> None:
    match = READY.fullmatch(served.first_line)
    assert match
    target = ("--target", match["inference"])
    eight = ("generate", "The capital of France is", "--max-tokens", "8", "--temperature", "0")
    text = served.run(*eight, *target)
    assert text.startswith(" Paris")
    one = json.loads(served.run(*eight, "--json", *target))
    assert one["text"].startswith(" Paris")
    assert one["usage"] == {"prompt_tokens": 5, "completion_tokens": 8}
    assert one["workers"] == {"prefill": "prefill-0", "decode": "decode-0"}
    assert len(one["prompt_token_ids"]) == 5
    assert len(one["token_ids"]) == 8
    assert set(one["timing"]) == {"queue_s", "prefill_s", "handoff_wait_s", "decode_s"}
    single = json.loads(served.run("generate", "Hello", "--max-tokens", "1", "--json", *target))
    assert single["workers"]["decode"] is None


def test_status_and_doctor_tell_of_both_pools(served: Served) -> None:
    match = READY.fullmatch(served.first_line)
    assert match
    status = json.loads(served.run("status", "--json", "--target", match["ops"]))
    assert status["queue"] == {"requests": 0, "tokens": 0}
    assert status["requests"] == 0
    names = {"id", "pool", "state", "pid", "node", "incarnation", "running", "waiting"}
    names |= {"blocks_used", "blocks_cached", "blocks_total"}
    assert all(names <= set(worker) for worker in status["workers"])
    assert [(worker["pool"], worker["state"]) for worker in status["workers"]] == [
        ("prefill", "ready"),
        ("decode", "ready"),
    ]
    assert served.run("doctor", "--target", match["ops"]).startswith("ok")


def test_a_killed_worker_is_replaced_and_nothing_of_it_reaches_stdout(served: Served) -> None:
    match = READY.fullmatch(served.first_line)
    assert match

    def decode_worker() -> dict[str, object]:
        status = json.loads(served.run("status", "--json", "--target", match["ops"]))
        return next(worker for worker in status["workers"] if worker["pool"] == "decode")

    first = decode_worker()
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    while (now := decode_worker())["state"] != "ready" or now["incarnation"] == first["incarnation"]:
        assert served.process.poll() is None
    answer = served.run(
        "generate", "The capital of France is", "--max-tokens", "4", "--target", match["inference"]
    )
    assert answer
    # That stdout stays clean is looked at when the process has ended.


def test_sigterm_lets_the_running_stream_finish_and_leaves_nothing_behind(served: Served) -> None:
    match = READY.fullmatch(served.first_line)
    assert match
    folders = set(Path("/tmp").glob("tp-*"))
    stream = served.command(
        *("generate", "Once upon a time", "--max-tokens", "60", "--temperature", "0", "--json"),
        *("--target", match["inference"]),
    )
    while json.loads(served.run("status", "--json", "--target", match["ops"]))["requests"] == 0:
        assert stream.poll() is None
    served.process.send_signal(signal.SIGTERM)
    answer, problem = stream.communicate(timeout=STOP_S)
    assert stream.returncode == 0, problem
    assert json.loads(answer)["usage"]["completion_tokens"] >= 1
    out, _ = served.process.communicate(timeout=STOP_S)
    assert served.process.returncode == 0
    assert out == ""  # nothing but the ready line ever
    assert served.descendants() == []
    assert len(set(Path("/tmp").glob("tp-*"))) < len(folders)
    assert not list(Path(served.environment["HOME"]).rglob("*auth_token*"))
