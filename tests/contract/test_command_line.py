"""The command line against a scripted server over a real socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.clients.fake_server import FakeServer
from twinpool import errors
from twinpool.cli.app import main
from twinpool.cli.exits import Exit
from twinpool.v1 import inference_pb2, operations_pb2, types_pb2

Capture = pytest.CaptureFixture[str]


def test_generate_prints_the_text(server: FakeServer, capsys: Capture) -> None:
    arguments = ["--max-tokens", "3", "--temperature", "0", "--seed", "7", "--target", server.target]
    assert main(["generate", "hello", *arguments]) == 0
    assert capsys.readouterr() == ("café\n", "")
    (request,) = server.inference.requests
    assert isinstance(request, inference_pb2.GenerateRequest)
    assert (request.sampling.max_tokens, request.sampling.temperature, request.sampling.seed) == (3, 0, 7)


def test_generate_json_is_one_object(server: FakeServer, capsys: Capture) -> None:
    assert main(["generate", "hello", "--json", "--target", server.target]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "text": "café",
        "token_ids": [7, 8, 9],
        "prompt_token_ids": [1, 2, 3],
        "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 3},
        "timing": {"queue_s": 0.5, "prefill_s": 0.25, "handoff_wait_s": 0.125, "decode_s": 1.0},
        "workers": {"prefill": "prefill-0", "decode": "decode-0"},
        "seed": 2**64 - 1,
        "num_resumes": 2,
    }


def test_chat_sends_a_conversation(server: FakeServer, capsys: Capture) -> None:
    assert main(["chat", "hello", "--system", "Be brief.", "--target", server.target]) == 0
    assert capsys.readouterr().out == "café\n"
    (request,) = server.inference.requests
    assert isinstance(request, inference_pb2.ChatRequest)
    assert [message.role for message in request.messages] == ["system", "user"]


def test_a_refused_prompt_is_one_line_and_an_exit_code(server: FakeServer, capsys: Capture) -> None:
    server.inference.error = errors.InvalidRequest("text", "text must not be empty")
    assert main(["generate", "fail", "--target", server.target]) == Exit.REFUSED
    assert capsys.readouterr() == ("", "twinpool: text must not be empty\n")


def test_a_full_queue_says_when_to_try_again(server: FakeServer, capsys: Capture) -> None:
    server.inference.error = errors.QueueFull("the queue is full", retry_after_s=2.0)
    assert main(["generate", "fail", "--json", "--target", server.target]) == Exit.BUSY
    assert capsys.readouterr() == ("", "twinpool: the queue is full (try again in 2 s)\n")


def test_a_timeout_has_its_exit_code(server: FakeServer, capsys: Capture) -> None:
    assert main(["generate", "endless", "--timeout", "2", "--target", server.target]) == Exit.OUT_OF_TIME
    assert capsys.readouterr().out == "caf\n"


@pytest.mark.parametrize("command", [["generate", "x"], ["status"], ["status", "--verify"], ["doctor"]])
def test_no_server_has_its_exit_code(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--target", "127.0.0.1:1"]) == Exit.UNAVAILABLE
    assert capsys.readouterr().err.startswith("twinpool: no connection to the server")


def test_a_failed_start_is_a_json_line_where_logs_are(server: FakeServer) -> None:
    port = server.target.rpartition(":")[2]
    command = [sys.executable, "-m", "twinpool.cli.app", "serve", "--port", port, "--log-format", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (Exit.FAILED, "")
    (line,) = map(json.loads, ended.stderr.splitlines())
    assert (line["level"], line["error"]) == ("critical", errors.StartFailed.reason)
    assert "--port 0 takes a free port" in line["message"]


def test_text_streams_and_ctrl_c_cancels(server: FakeServer) -> None:
    command = [sys.executable, "-m", "twinpool.cli.app", "generate", "endless", "--target", server.target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(3) == b"caf"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == Exit.INTERRUPTED
        assert process.stderr.read() == b""
    assert server.inference.cancelled.wait(10)


def test_a_closed_pipe_ends_quietly(server: FakeServer) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "twinpool.cli.app", "generate", "hello", "--target", server.target]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=30)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (Exit.UNREAD, b"")


@pytest.mark.parametrize(
    "command", [["generate", "- milk"], ["chat", "-x"], ["chat", "--system", "- be brief", "hello"]]
)
def test_text_that_begins_with_a_dash_gets_a_hint(command: list[str], capsys: Capture) -> None:
    assert main(command) == Exit.USAGE
    assert 'goes after `--`, or after `=`: generate -- "- milk"' in capsys.readouterr().err


def test_the_hint_holds(server: FakeServer, capsys: Capture) -> None:
    assert main(["generate", "--target", server.target, "--", "echo - milk"]) == 0
    assert main(["chat", "--target", server.target, "--system=- be brief", "--", "- milk"]) == 0
    assert capsys.readouterr().out == "echo - milk\ncafé\n"
    chat = server.inference.requests[-1]
    assert isinstance(chat, inference_pb2.ChatRequest)
    assert [message.content for message in chat.messages] == ["- be brief", "- milk"]


@pytest.mark.parametrize(
    ("flags", "shown"), [((), b"caf?\n"), (("--json",), rb'"text": "caf\u00e9"')], ids=["text", "json"]
)
def test_an_answer_is_shown_as_far_as_the_encoding_goes(
    flags: tuple[str, ...], shown: bytes, server: FakeServer
) -> None:
    command = [
        sys.executable,
        "-m",
        "twinpool.cli.app",
        "generate",
        "hello",
        "--target",
        server.target,
        *flags,
    ]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=30)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert shown in ended.stdout


def test_a_complaint_is_shown_as_far_as_the_encoding_goes(server: FakeServer) -> None:
    server.inference.error = errors.QueueFull("voll, später")
    command = [sys.executable, "-m", "twinpool.cli.app", "generate", "fail", "--target", server.target]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    ended = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=30)
    assert (ended.returncode, ended.stderr) == (Exit.BUSY, b"twinpool: voll, sp?ter\n")


def test_status_json_has_the_promised_names(server: FakeServer, capsys: Capture) -> None:
    assert main(["status", "--json", "--target", server.target]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["model"], status["serving"], status["requests"]) == ("tiny", True, 5)
    assert status["queue"] == {"requests": 2, "tokens": 30}
    assert status["pairs"] == [
        {"prefill": "prefill-0", "decode": "decode-0", "transport": "shm", "ready": True}
    ]
    (worker,) = status["workers"]
    assert worker == {
        "id": "decode-0",
        "pool": "decode",
        "state": "ready",
        "pid": 42,
        "node": "127.0.0.1",
        "incarnation": "abc",
        "running": 3,
        "waiting": 1,
        "blocks_used": 10,
        "blocks_cached": 5,
        "blocks_total": 100,
        "blocks_quarantined": 0,
        "reason": "",
        "cpus": 0,
        "cpus_usable": 0,
        "kernels": "",
    }


def test_status_is_a_table_for_people(server: FakeServer, capsys: Capture) -> None:
    assert main(["status", "--target", server.target]) == 0
    table = capsys.readouterr().out
    assert "\x1b" not in table
    for part in ("tiny", "serving", "decode-0", "ready", "15/100", "10%", "42"):
        assert part in table


def test_watch_goes_on(server: FakeServer, capsys: Capture) -> None:
    assert main(["status", "--watch", "--json", "--interval", "0.2", "--target", server.target]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["status", "--watch", "--target", server.target]) == 0
    assert capsys.readouterr().out.count("decode-0") == 2


def test_a_verification_that_finds_nothing_wrong_is_a_table(server: FakeServer, capsys: Capture) -> None:
    assert main(["status", "--verify", "--target", server.target]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all blocks accounted for, not at rest"
    assert lines[-1].split() == ["decode-0", "ok", "1", "87", "2", "5", "4", "2", "100", "abc"]


def test_problems_that_a_verification_finds_are_lines_and_a_failure(
    server: FakeServer, capsys: Capture
) -> None:
    worker = server.operations.verified.workers[0]
    problem = "it holds try-1, which the scheduler does not know"
    worker.problems.extend([problem, "so long a problem " * 20])
    assert main(["status", "--verify", "--target", server.target]) == Exit.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 problems, not at rest"
    assert lines[3].split() == ["decode-0", "2", "problems", "1", "87", "2", "5", "4", "2", "100", "abc"]
    assert [line.strip() for line in lines[4:]] == [
        f"decode-0: {problem}",
        f"decode-0: {'so long a problem ' * 20}".strip(),
    ]

    worker.answered = False
    assert main(["status", "--verify", "--target", server.target]) == Exit.FAILED
    assert "no answer" in capsys.readouterr().out


def test_a_verification_as_json_has_the_promised_names(server: FakeServer, capsys: Capture) -> None:
    assert main(["status", "--verify", "--json", "--target", server.target]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "at_rest": False,
        "workers": [
            {
                "id": "decode-0",
                "pool": "decode",
                "incarnation": "abc",
                "answered": True,
                "blocks_total": 100,
                "blocks": {"free": 87, "reserved": 2, "rows": 5, "cached": 4, "quarantined": 2},
                "held": [{"holder": "try-1", "stage": "admitted", "blocks": 5, "age_s": 1.5}],
                "problems": [],
            }
        ],
    }


def test_a_verification_of_nobody_is_a_failure_and_goes_without_watch(
    server: FakeServer, capsys: Capture
) -> None:
    assert main(["status", "--verify", "--watch", "--target", server.target]) == Exit.USAGE
    assert "--watch" in capsys.readouterr().err
    del server.operations.verified.workers[:]
    assert main(["status", "--verify", "--target", server.target]) == Exit.FAILED
    assert "no worker" in capsys.readouterr().err


def test_doctor_names_the_hop_that_fails(server: FakeServer, capsys: Capture) -> None:
    assert main(["doctor", "--target", server.target]) == 0
    line = "ok    prefill-0 -> decode-0 (shm): queue 0.500 s, prefill 0.250 s"
    assert capsys.readouterr().out.startswith(line)

    server.operations.status.workers[0].cpus = 64
    server.operations.status.workers[0].cpus_usable = 2
    server.operations.status.workers[0].kernels = "native avx2, int4"
    assert main(["doctor", "--target", server.target]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "node  127.0.0.1: 2 of 64 CPUs usable, computes with native avx2, int4"
    ]
    del server.operations.status.workers[:]

    server.operations.checks[0].failed_hop = operations_pb2.HOP_HANDOFF
    server.operations.checks[0].detail = "no cache after 5 s"
    assert main(["doctor", "--target", server.target]) == Exit.FAILED
    assert capsys.readouterr().out == "FAIL  prefill-0 -> decode-0 (shm): handoff: no cache after 5 s\n"

    server.operations.checks.clear()
    assert main(["doctor", "--target", server.target]) == Exit.FAILED
    assert "no pair" in capsys.readouterr().err


def test_scale_asks_for_sizes_and_waits_until_they_are_there(server: FakeServer, capsys: Capture) -> None:
    assert main(["scale", "decode=1", "--target", server.target]) == 0
    assert capsys.readouterr().out == "decode: 1 -> 1\n"
    asked = operations_pb2.SetPoolSizeRequest(pool=types_pb2.POOL_DECODE, size=1)
    assert server.operations.asked == [asked]


def test_scale_that_does_not_come_says_what_is_missing(server: FakeServer, capsys: Capture) -> None:
    arguments = ["scale", "prefill=3", "--timeout", "0", "--target", server.target]
    assert main(arguments) == Exit.OUT_OF_TIME
    assert "prefill: " in capsys.readouterr().err


@pytest.mark.parametrize("size", ["decode", "decode=", "decode=-1", "both=2", "decode=two"])
def test_scale_refuses_what_is_no_size(server: FakeServer, capsys: Capture, size: str) -> None:
    assert main(["scale", "--target", server.target, "--", size]) == Exit.USAGE
    assert "POOL=NUMBER" in capsys.readouterr().err
    assert server.operations.asked == []


def test_drain_waits_until_the_worker_is_gone(server: FakeServer, capsys: Capture) -> None:
    assert main(["drain", "decode-7", "--target", server.target]) == 0
    assert capsys.readouterr().out == "decode-7 has left\n"


def test_restart_tells_of_each_worker(server: FakeServer, capsys: Capture) -> None:
    assert main(["restart", "decode", "--target", server.target]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "decode-0 is ready again as decode-0-new",
        "decode-1 is ready again as decode-1-new",
    ]
    (asked,) = server.operations.asked
    assert asked == operations_pb2.RestartWorkersRequest(pool=types_pb2.POOL_DECODE)
