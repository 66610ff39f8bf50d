"""`twinpool bench serve` over real sockets: the router around a scripted dispatcher, and scripted servers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.fake_server import FakeServer
from tests.support.clients.openai_server import STOP, USAGE, OpenAiServer, events, running_openai_server
from tests.support.models.tiny_tokenizers import byte_level
from tests.support.router.fakes import EOS, FakeStream
from tests.support.router.shell import running_shell
from twinpool import errors
from twinpool.cli.app import main
from twinpool.cli.exits import Exit
from twinpool.v1 import inference_pb2

Capture = pytest.CaptureFixture[str]
FEW = ["--num-prompts", "4", "--random-input-len", "5", "--random-output-len", "3"]


@pytest.fixture
def openai() -> Iterator[OpenAiServer]:
    with running_openai_server() as server:
        yield server


def result_of(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def custom(folder: Path, *prompts: str) -> list[str]:
    """Options for these prompts, one after the other."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt, "output_tokens": 9}) + "\n" for prompt in prompts))
    return ["--dataset-name", "custom", "--dataset-path", str(file), "--max-concurrency", "1"]


async def test_the_routers_answers_are_measured(tmp_path: Path, capsys: Capture) -> None:
    def answers(stream: FakeStream) -> None:
        stream.put(65)
        stream.end(EOS)

    file, report = tmp_path / "new" / "result.json", tmp_path / "report.html"
    options = ["--save-result", str(file), "--save-detailed", "--report", str(report), "--num-warmups", "2"]
    async with running_shell() as shell:
        shell.dispatcher.on_submit = answers
        command = ["bench", "serve", "--target", str(shell.address), *FEW, *options, "--goodput", "ttft:1e9"]
        assert await asyncio.to_thread(main, command) == Exit.DONE
        asked = [stream.request for stream in shell.dispatcher.streams.values()]
    result = result_of(file)
    assert (result["completed"], result["failed"]) == (4, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (20, 8)
    assert (result["input_lens"], result["output_lens"], result["errors"]) == ([5] * 4, [2] * 4, [""] * 4)
    assert result["request_goodput"] == result["request_throughput"] > 0
    assert (result["model_id"], result["num_prompts"]) == ("bytes", 4)
    assert len({request.prompt_ids for request in asked}) == len(asked) == 6
    assert {(len(request.prompt_ids), request.params.max_tokens) for request in asked} == {(5, 3)}
    assert {request.params.temperature for request in asked} == {0.0}
    printed = capsys.readouterr()
    assert printed.out.startswith("============ Serving Benchmark Result ============\n")
    assert "handoff 0.125 s" in report.read_text()


def test_pieces_of_a_text_are_cut_by_the_servers_tokens(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abc")
    options = ["--dataset-name", "text", "--dataset-path", str(tmp_path / "text"), "--input-len", "4"]
    options += ["--num-prompts", "2", "--output-len", "6", "--ignore-eos", "--top-k", "3"]
    assert main(["bench", "serve", "--target", server.target, *options]) == Exit.DONE
    for request in server.inference.requests[-2:]:
        assert isinstance(request, inference_pb2.GenerateRequest)
        assert bytes(request.token_ids.ids) in (b"abca", b"bcab", b"cabc")
        sampling = request.sampling
        assert (sampling.max_tokens, sampling.ignore_eos, sampling.top_k) == (6, True, 3)


def test_what_fails_is_counted_and_told(server: FakeServer, tmp_path: Path, capsys: Capture) -> None:
    server.inference.error = errors.QueueFull("the queue is full")
    file = tmp_path / "result.json"
    command = ["bench", "serve", "--target", server.target, "--save-result", str(file), "--append-result"]
    assert main([*command, "--save-detailed", *custom(tmp_path, "hello", "fail", "cut")]) == Exit.DONE
    result = result_of(file)
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (1, 2, 3)
    assert result["errors"][:2] == ["", "QUEUE_FULL: the queue is full"]
    assert "without saying why" in result["errors"][2]
    assert "twinpool: 1 failed: QUEUE_FULL: the queue is full" in capsys.readouterr().err

    assert main([*command, *custom(tmp_path, "fail")]) == Exit.FAILED
    assert [json.loads(line)["failed"] for line in file.read_text().splitlines()] == [2, 1]


def test_a_warm_up_that_fails_ends_it(server: FakeServer, tmp_path: Path, capsys: Capture) -> None:
    server.inference.error = errors.QueueFull("the queue is full")
    command = ["bench", "serve", "--target", server.target, "--num-warmups", "1"]
    assert main([*command, *custom(tmp_path, "fail")]) == Exit.FAILED
    assert capsys.readouterr() == ("", "twinpool: 1 of 1 warm-ups failed: QUEUE_FULL: the queue is full\n")


def test_an_answer_that_does_not_end_is_given_up(server: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    command = ["bench", "serve", "--target", server.target, "--timeout", "1", "--save-result", str(file)]
    assert main([*command, *custom(tmp_path, "endless", "hello")]) == Exit.DONE
    assert (result_of(file)["completed"], result_of(file)["failed"]) == (1, 1)
    assert server.inference.cancelled.wait(10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_shows_what_there_is(server: FakeServer, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "twinpool.cli.app", "bench", "serve", "--target", server.target]
    file = tmp_path / "result.json"
    command += [*custom(tmp_path, "hello", "hello", "endless", "hello"), "--save-result", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert server.inference.silent.wait(30)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED, err
    assert "Traceback" not in err
    assert "Successful requests:                     2" in out
    assert "Unfinished requests:                     2" in out
    assert (result_of(file)["completed"], result_of(file)["unfinished"]) == (2, 2)
    assert server.inference.cancelled.wait(10)


def test_completions_over_http_are_measured(openai: OpenAiServer, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    command = ["bench", "serve", "--backend", "openai", "--base-url", openai.url, *FEW, "--ignore-eos"]
    assert main([*command, "--save-result", str(file), "--save-detailed"]) == Exit.DONE
    result = result_of(file)
    assert (result["completed"], result["model_id"]) == (4, "tiny")
    # As usage has them: there are three chunks.
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (44, 20)
    assert [len(itls) for itls in result["itls"]] == [2] * 4
    body = openai.asked[0]
    assert len(body.pop("prompt")) == 5
    assert body == {
        "model": "tiny",
        "max_tokens": 3,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_chat_over_http_is_measured(openai: OpenAiServer, tmp_path: Path) -> None:
    tokenizer, file = tmp_path / "tokenizer.json", tmp_path / "result.json"
    byte_level().save(str(tokenizer))
    command = ["bench", "serve", "--backend", "openai-chat", "--base-url", openai.url, *FEW, "--top-p", "0.5"]
    command += ["--tokenizer", str(tmp_path), "--model", "named"]
    assert main([*command, "--save-result", str(file), "--save-detailed"]) == Exit.DONE
    assert result_of(file)["total_output_tokens"] == 20
    # The role's delta is no token.
    assert [len(itls) for itls in result_of(file)["itls"]] == [2] * 4
    body = openai.asked[0]
    assert (body["model"], body["max_completion_tokens"], body["top_p"]) == ("named", 3, 0.5)
    (message,) = body["messages"]
    assert message["role"] == "user"
    assert message["content"]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([*events(False)[:2]], "INTERNAL: the server ended the stream without saying why"),
        ([*events(False)[:3], STOP, "[DONE]"], "INTERNAL: the server sends no usage"),
        (["{", STOP, USAGE, "[DONE]"], "INTERNAL: the server sent what is no completion"),
        (["[3]", STOP, USAGE, "[DONE]"], "INTERNAL: the server sent what is no completion"),
        ([{"error": {"message": "out of blocks"}}], "HTTP_ERROR: out of blocks"),
    ],
    ids=["cut", "uncounted", "no JSON", "no object", "error"],
)
def test_a_stream_that_is_no_whole_answer_failed(
    openai: OpenAiServer, script: list[Any], error: str, tmp_path: Path
) -> None:
    openai.script = script
    file = tmp_path / "result.json"
    command = ["bench", "serve", "--backend", "openai", "--base-url", openai.url, "--num-prompts", "1"]
    assert main([*command, "--save-result", str(file), "--save-detailed"]) == Exit.FAILED
    (found,) = result_of(file)["errors"]
    assert found.startswith(error)


def test_a_refusal_over_http_is_told_in_the_servers_words(openai: OpenAiServer, capsys: Capture) -> None:
    openai.status = 429
    command = ["bench", "serve", "--backend", "openai", "--base-url", openai.url, "--model", "m", *FEW]
    assert main(command) == Exit.FAILED
    assert "twinpool: 4 failed: HTTP_429: the queue is full\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "model must be named: the server lists none"),
        (["--model", "m", "--dataset-name", "text"], "needs tokenizer"),
        (["--tokenizer", "/none"], "tokenizer: cannot read /none"),
    ],
)
def test_over_http_too_what_cannot_work_is_said(
    openai: OpenAiServer, options: list[str], complaint: str, capsys: Capture
) -> None:
    openai.status = 404
    assert main(["bench", "serve", "--backend", "openai", "--base-url", openai.url, *options]) == Exit.USAGE
    assert complaint in capsys.readouterr().err
    assert openai.asked == []


@pytest.mark.parametrize("options", [[], ["--model", "m"]])
def test_nobody_over_http_is_said_once(options: list[str], capsys: Capture) -> None:
    assert main(["bench", "serve", "--backend", "openai", "--port", "1", *options]) == Exit.UNAVAILABLE
    assert "no connection to the server" in capsys.readouterr().err
