"""A result has vllm's lines and keys."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from tests.support.bench_records import FAILED, ONE_TOKEN, RECORDS
from twinpool.bench.metrics import LATENCIES, Effort, measure
from twinpool.bench.result import Asked, as_json, block

ASKED = Asked(
    date="20261201-120000",
    backend="twinpool",
    label="run",
    request_rate=math.inf,
    burstiness=1.0,
    max_concurrency=None,
    spreads=LATENCIES,
    percentiles=(50, 90, 99),
    metadata={"commit": "abc"},
)
EFFORT = Effort(8.0, 0.002)
KEYS = [
    "completed",
    "failed",
    "duration",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_concurrent_requests",
    "date",
    "label",
    "backend",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
]
FIGURES = ("mean", "median", "std", "p50", "p90", "p99")
DETAILS = {"input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"}


def test_the_keys_are_vllms() -> None:
    result = as_json(ASKED, "tiny", measure(RECORDS, EFFORT, (50, 90, 99), {}), RECORDS, detailed=False)
    latencies = {f"{figure}_{name}_ms" for figure in FIGURES for name in LATENCIES}
    assert result.keys() >= {*KEYS, *latencies, "commit"}
    assert not result.keys() & DETAILS
    assert (result["request_rate"], result["num_prompts"], result["model_id"]) == ("inf", 5, "tiny")
    assert (result["completed"], result["median_ttft_ms"], result["p90_itl_ms"]) == (2, 1500.0, 1900.0)
    json.dumps(result, allow_nan=False)


def test_details_are_lists_of_all_requests_in_order() -> None:
    result = as_json(ASKED, "tiny", measure(RECORDS, EFFORT, (50, 90, 99), {}), RECORDS, detailed=True)
    assert {key: result[key] for key in DETAILS} == {
        "input_lens": [10, 20, 0, 0, 0],
        "output_lens": [3, 1, 0, 0, 0],
        "ttfts": [1.0, 2.0, 0.0, 0.0, 0.0],
        "itls": [[1.0, 2.0], [], [], [], []],
        "start_times": [1.0, 2.5, 3.0, 4.0, None],
        "errors": ["", "", FAILED.error, "", ""],
    }


def test_a_figure_of_nothing_is_null() -> None:
    asked = replace(ASKED, percentiles=(99.9,), request_rate=2.5)
    result = as_json(asked, "tiny", measure([ONE_TOKEN], EFFORT, (99.9,), {}), [ONE_TOKEN], detailed=False)
    assert {key: result[key] for key in ("mean_tpot_ms", "p99.9_tpot_ms", "request_goodput")} == {
        "mean_tpot_ms": None,
        "p99.9_tpot_ms": None,
        "request_goodput": None,
    }
    assert (result["request_rate"], result["p99.9_ttft_ms"]) == (2.5, 2000.0)


def test_the_block_is_vllms() -> None:
    asked = replace(ASKED, max_concurrency=4, request_rate=2.0, spreads=("ttft", "tpot"), percentiles=(99,))
    lines = block(asked, measure(RECORDS, EFFORT, (99,), {"ttft": 1000.0})).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "============ Serving Benchmark Result ============",
        "Successful requests: 2",
        "Failed requests: 1",
        "Unfinished requests: 2",
        "Maximum request concurrency: 4",
        "Request rate configured (RPS): 2.00",
        "Benchmark duration (s): 8.00",
        "Total input tokens: 30",
        "Total generated tokens: 4",
        "Request throughput (req/s): 0.25",
        "Request goodput (req/s): 0.12",
        "Output token throughput (tok/s): 0.50",
        "Peak output token throughput (tok/s): 1.00",
        "Peak concurrent requests: 3",
        "Total token throughput (tok/s): 4.25",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms): 1500.00",
        "Median TTFT (ms): 1500.00",
        "P99 TTFT (ms): 1990.00",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms): 1500.00",
        "Median TPOT (ms): 1500.00",
        "P99 TPOT (ms): 1500.00",
        "------------------Load Generator------------------",
        "Processor time per token (us): 500.00",
        "Share of one processor (%): 0.03",
        "P99 lateness of sending (ms): 485.00",
        "Largest lateness of sending (ms): 500.00",
        "==================================================",
    ]
    nothing = block(asked, measure([ONE_TOKEN], EFFORT, (99,), {}))
    assert "Mean TPOT (ms):                          n/a" in nothing
