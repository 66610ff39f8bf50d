"""`twinpool serve` as a person starts it: what it prints, how it answers, that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.system.served import Served
from tests.support.system.watched import wait_until
from twinpool import Client
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.client.operations import OperationsClient
from twinpool.types import Pool, WorkerState

TOKENS = ("token_ids", "prompt_token_ids")
READY = re.compile(
    r"ready inference=(?P<inference>127\.0\.0\.1:\d+) ops=(?P<ops>127\.0\.0\.1:\d+) "
    r"metrics=127\.0\.0\.1:\d+ model=smollm2-135m-instruct "
    r"prefill=1x\d+blocks decode=1x\d+blocks kernels=(native|torch)\S+"
)
STOP_S = 30.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: PreparedModel) -> Iterator[Served]:
    served = Served(
        tmp_path_factory.mktemp("home"),
        *("--log-format", "json", "--log-level", "debug", "--grace-s", "60", "--stuck-after-s", "60"),
    )
    served.wait_for_first_line()
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
    text = served.log_file.read_text()
    for said in ("capital of France", "Paris", *(", ".join(map(str, one[key])) for key in TOKENS)):
        assert said not in text
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

    with OperationsClient(match["ops"]) as operations:
        (first,) = operations.status().pool(Pool.DECODE)
        os.kill(first.pid, signal.SIGKILL)

        def is_replaced() -> bool:
            (now,) = operations.status().pool(Pool.DECODE)
            return now.state is WorkerState.READY and now.incarnation != first.incarnation

        wait_until(is_replaced)
    answer = served.run(
        "generate", "The capital of France is", "--max-tokens", "4", "--target", match["inference"]
    )
    assert answer
    # That stdout stays clean is looked at when the process has ended.


def test_the_log_is_an_object_a_line_whoever_speaks(served: Served) -> None:
    def by_workers() -> list[dict[str, Any]]:
        return [line for line in served.log() if line["logger"] == "twinpool.worker.actor"]

    # What workers and Ray say comes by way of files, a little later.
    wait_until(lambda: len({line["incarnation"] for line in by_workers()}) >= 3)
    wait_until(lambda: any(line["logger"] == "ray" for line in served.log()))
    lines = served.log()
    for line in lines:
        assert {"ts", "level", "logger", "message"} <= line.keys()
        assert datetime.fromisoformat(line["ts"]).utcoffset() == timedelta(0)
    ended = next(line for line in lines if line.get("finish_reason") == "length")
    assert (ended["prompt_tokens"], ended["completion_tokens"], ended["num_resumes"]) == (5, 8, 0)
    assert (ended["prefill"], ended["decode"]) == ("prefill-0", "decode-0")
    assert min(ended[f"{phase}_s"] for phase in ("queue", "prefill", "handoff_wait", "decode")) > 0
    attempted = next(line for line in lines if line.get("request_id") == ended["request_id"])
    assert attempted["attempt"]
    assert {(line["worker"], line["pool"]) for line in by_workers()} == {
        ("prefill-0", "prefill"),
        ("decode-0", "decode"),
    }
    assert len({line["incarnation"] for line in by_workers()}) == 3  # one was killed
    lost = [line for line in lines if line["logger"] == "router.pools.keeper" and line["level"] == "warning"]
    assert [line["worker"] for line in lost] == ["decode-0"]
    # Ray's words on the death came by another way; no secret by any.
    assert not re.search(
        r"[0-9a-f]{64}", "".join(line["message"] for line in lines if line["logger"] != "ray")
    )


def test_sigterm_lets_the_running_stream_finish_and_leaves_nothing_behind(served: Served) -> None:
    match = READY.fullmatch(served.first_line)
    assert match
    folders = set(Path("/tmp").glob("tp-*"))
    with Client(match["inference"]) as client:
        stream = client.generate("Once upon a time", max_tokens=200, temperature=0.0, ignore_eos=True)
        first = next(stream)
        served.process.send_signal(signal.SIGTERM)
        assert sum(len(chunk.token_ids) for chunk in (first, *stream)) == 200
    out, _ = served.process.communicate(timeout=STOP_S)
    assert served.process.returncode == 0
    assert served.log()[-1]["message"] == "stopped"
    assert out == ""  # nothing but the ready line ever
    assert served.descendants() == []
    assert len(set(Path("/tmp").glob("tp-*"))) < len(folders)
    assert not list(Path(served.environment["HOME"]).rglob("*auth_token*"))
