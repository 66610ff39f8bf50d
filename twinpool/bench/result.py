"""A run's result under the names of `vllm bench serve`: its block of lines, and its JSON keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinpool.bench.metrics import Metrics, Spread
from twinpool.bench.records import Record, answer_of

_WIDTH = 50
_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """How the run was asked for, as its result repeats it.

    request_rate: infinite for all at once. spreads: the latencies shown and saved, some of LATENCIES, with
    these percentiles. metadata: what somebody wants to find beside it.
    """

    date: str
    backend: str
    label: str
    request_rate: float
    burstiness: float
    max_concurrency: int | None
    spreads: Sequence[str]
    percentiles: Sequence[float]
    metadata: Mapping[str, str] = field(default_factory=dict)


def block(asked: Asked, metrics: Metrics) -> str:
    """The lines that `vllm bench serve` prints, and after them what the run cost its generator."""
    return "\n".join(_lines(asked, metrics))


def as_json(
    asked: Asked, model: str, metrics: Metrics, records: Sequence[Record], *, detailed: bool
) -> dict[str, Any]:
    """The keys that `vllm bench serve` writes. A figure of nothing is null, where vllm writes 0.

    detailed: a list for each request too, in order; failed requests have 0 and empty lists there.
    """
    result = {
        "date": asked.date,
        "backend": asked.backend,
        "label": asked.label,
        "model_id": model,
        "num_prompts": len(records),
        **asked.metadata,
        "request_rate": "inf" if math.isinf(asked.request_rate) else asked.request_rate,
        "burstiness": asked.burstiness,
        "max_concurrency": asked.max_concurrency,
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "unfinished": metrics.unfinished,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
    }
    for name in asked.spreads:
        figures = _figures(metrics.spreads[name], asked.percentiles)
        result |= {f"{figure}_{name}_ms": value for figure, value in figures.items()}
    late = metrics.late_ms
    result |= {
        "generator_cpu_us_per_token": metrics.cpu_us_per_token,
        "generator_cpu_share": metrics.cpu_share,
        "generator_p99_late_ms": None if late is None else late.percentiles[99],
        "generator_max_late_ms": None if late is None else late.percentiles[100],
    }
    return result | (_details(records) if detailed else {})


def _figures(spread: Spread | None, percentiles: Sequence[float]) -> dict[str, float | None]:
    """By the beginnings of their keys."""
    names = ["mean", "median", "std", *(f"p{percent:g}" for percent in percentiles)]
    if spread is None:
        return dict.fromkeys(names)
    values = [
        spread.mean,
        spread.median,
        spread.std,
        *(spread.percentiles[percent] for percent in percentiles),
    ]
    return dict(zip(names, values, strict=True))


def _details(records: Sequence[Record]) -> dict[str, list[Any]]:
    answers = [answer_of(record) for record in records]
    return {
        "input_lens": [0 if each.answered is None else each.answered.prompt_tokens for each in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [0.0 if answer is None else answer.ttft_s for answer in answers],
        "itls": [[] if answer is None else list(answer.itls_s) for answer in answers],
        "start_times": [record.sent_s for record in records],
        "errors": [record.error for record in records],
    }


def _lines(asked: Asked, metrics: Metrics) -> Iterator[str]:
    yield f"{' Serving Benchmark Result ':=^{_WIDTH}}"
    yield _line("Successful requests:", metrics.completed)
    yield _line("Failed requests:", metrics.failed)
    if metrics.unfinished:
        yield _line("Unfinished requests:", metrics.unfinished)
    if asked.max_concurrency is not None:
        yield _line("Maximum request concurrency:", asked.max_concurrency)
    if not math.isinf(asked.request_rate):
        yield _line("Request rate configured (RPS):", asked.request_rate)
    yield _line("Benchmark duration (s):", metrics.duration)
    yield _line("Total input tokens:", metrics.total_input_tokens)
    yield _line("Total generated tokens:", metrics.total_output_tokens)
    yield _line("Request throughput (req/s):", metrics.request_throughput)
    if metrics.request_goodput is not None:
        yield _line("Request goodput (req/s):", metrics.request_goodput)
    yield _line("Output token throughput (tok/s):", metrics.output_throughput)
    yield _line("Peak output token throughput (tok/s):", metrics.max_output_tokens_per_s)
    yield _line("Peak concurrent requests:", metrics.max_concurrent_requests)
    yield _line("Total token throughput (tok/s):", metrics.total_token_throughput)
    for name in asked.spreads:
        yield f"{_TITLES[name]:-^{_WIDTH}}"
        for figure, value in _figures(metrics.spreads[name], asked.percentiles).items():
            if figure != "std":
                yield _line(f"{figure.capitalize()} {name.upper()} (ms):", value)
    yield f"{'Load Generator':-^{_WIDTH}}"
    yield _line("Processor time per token (us):", metrics.cpu_us_per_token)
    yield _line("Share of one processor (%):", 100 * metrics.cpu_share)
    if metrics.late_ms is not None:
        yield _line("P99 lateness of sending (ms):", metrics.late_ms.percentiles[99])
        yield _line("Largest lateness of sending (ms):", metrics.late_ms.percentiles[100])
    yield "=" * _WIDTH


def _line(name: str, value: object) -> str:
    shown = "n/a" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name:<40} {shown:<10}"
