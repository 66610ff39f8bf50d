"""What `twinpool bench serve` takes, and how it refuses what cannot work before it sends anything."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from twinpool.cli.app import build_app, main
from twinpool.cli.bench_serve_options import (
    DataOptions,
    OutcomeOptions,
    ServerOptions,
    TrafficOptions,
)
from twinpool.cli.exits import Exit

VLLM_OPTIONS = (
    "--backend --base-url --host --port --endpoint --model --tokenizer --dataset-name --dataset-path --label "
    "--num-prompts --num-warmups --seed --request-rate --burstiness --max-concurrency --ignore-eos --top-p "
    "--top-k --temperature --random-input-len --random-output-len --random-range-ratio --input-len "
    "--output-len --goodput --percentile-metrics --metric-percentiles --save-result --save-detailed "
    "--append-result --result-dir --result-filename --metadata --disable-tqdm"
)


def test_it_takes_vllms_options() -> None:
    names = {
        name for each in build_app()["bench"]["serve"].assemble_argument_collection() for name in each.names
    }
    assert set(VLLM_OPTIONS.split()) <= names
    assert {"--target", "--trace-scale", "--trace-speed", "--report", "--timeout"} <= names


def test_several_values_may_follow_one_option() -> None:
    command = ["bench", "serve", "--goodput", "ttft:1500", "tpot:100", "--metadata", "a=1", "--seed", "3"]
    _, bound, _ = build_app().parse_args(command, print_error=False, exit_on_error=False)
    outcome: OutcomeOptions = bound.arguments["outcome"]
    assert outcome.objectives == {"ttft": 1500.0, "tpot": 100.0}
    assert outcome.pairs == {"a": "1"}
    traffic: TrafficOptions = bound.arguments["traffic"]
    assert (traffic.seed, traffic.request_rate, traffic.num_prompts) == (3, math.inf, 1000)


def test_defaults_of_others_are_theirs() -> None:
    assert DataOptions().random_input_len == 1024
    assert DataOptions().random_output_len == 128
    assert ServerOptions().path == "/v1/completions"
    assert ServerOptions(backend="openai-chat").path == "/v1/chat/completions"
    assert ServerOptions(port=8080).url == "http://127.0.0.1:8080"
    assert ServerOptions(base_url="http://there").url == "http://there"


def test_a_result_may_be_named_in_two_ways() -> None:
    assert OutcomeOptions(save_result=Path("a.json")).result_file == Path("a.json")
    named = OutcomeOptions(result_filename=Path("a.json"), result_dir=Path("/there"))
    assert named.result_file == Path("/there/a.json")
    assert OutcomeOptions().result_file is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--goodput ttft", "goodput must have numbers"),
        ("--goodput ttft:-1", "goodput must have numbers"),
        ("--goodput speed:1", "goodput must be of ttft, tpot, itl, e2el"),
        ("--percentile-metrics ttft,speed", "percentile-metrics must be of"),
        ("--metric-percentiles 50,x", "metric-percentiles must have numbers"),
        ("--metric-percentiles 101", "metric-percentiles must be 0 to 100"),
        ("--metadata commit", "metadata must be KEY=VALUE"),
        ("--result-dir there", "result-dir needs save-result"),
        ("--save-result a --result-filename b", "save-result and result-filename are one"),
        ("--save-result /", "cannot write /"),
        ("--report /proc/none/report.html", "cannot make /proc/none"),
        ("--request-rate 0", "request-rate must be above 0"),
        ("--request-rate nan", "request-rate must be above 0"),
        ("--burstiness -1", "burstiness must be above 0"),
        ("--burstiness inf", "burstiness must be finite"),
        ("--timeout 0", "timeout must be above 0"),
        ("--trace-scale 0", "trace-scale must be above 0"),
        ("--num-prompts 0", "num-prompts must be at least 1"),
        ("--max-concurrency 0", "max-concurrency must be at least 1"),
        ("--num-warmups -1", "num-warmups must be at least 0"),
        ("--random-range-ratio 1", "random-range-ratio must be from 0 to below 1"),
        ("--dataset-name azure", "dataset-name azure needs dataset-path"),
        ("--dataset-name weather", "--dataset-name"),
        ("--backend openai-chat", "dataset-name random over openai-chat needs tokenizer"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(
    options: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--target", "127.0.0.1:1", *options.split()]) == Exit.USAGE
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_no_server_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--target", "127.0.0.1:1"]) == Exit.UNAVAILABLE
    assert capsys.readouterr().out == ""


def test_it_loads_no_library_of_workers() -> None:
    code = (
        "import sys, twinpool.cli.bench_serve, twinpool.bench.report; "
        "print(*{'torch', 'numpy', 'ray', 'transformers', 'httpx2'} & sys.modules.keys())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "\n"
