"""The figures of a run: throughput, goodput, and how latencies are spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median, pstdev

from twinpool.bench.records import Answer, Record, answer_of

LATENCIES = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, time per output token after it, inter-token latency, end-to-end latency."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one latency, in milliseconds. percentiles: by percent, as numpy has them."""

    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Effort:
    """What the run cost its own generator. cpu_s: processor time of its process."""

    duration_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """Rates are per second of the run. spreads: by latency; None where nothing was measured.

    unfinished: neither completed nor failed, where a run was cut short. request_goodput: requests that met
    every objective; None where there is none. max_output_tokens_per_s: in the best whole second.
    max_concurrent_requests: sent and not over at one moment. late_ms: how late the generator came to
    requests. cpu_us_per_token: its processor time, None without tokens; cpu_share: of one processor.
    """

    duration: float
    completed: int
    failed: int
    unfinished: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    spreads: Mapping[str, Spread | None]
    late_ms: Spread | None
    cpu_us_per_token: float | None
    cpu_share: float


def measure(
    records: Sequence[Record], effort: Effort, percentiles: Sequence[float], objectives: Mapping[str, float]
) -> Metrics:
    """objectives: most milliseconds, by latency; empty: no goodput. percentiles: those of all spreads."""
    answers = [answer for record in records if (answer := answer_of(record))]
    ended = [record.answered for record in records if record.answered]
    inputs, outputs = sum(each.prompt_tokens for each in ended), sum(each.output_tokens for each in ended)
    failed = sum(bool(record.error) for record in records)
    duration = effort.duration_s
    lateness = [record.begun_s - record.due_s for record in records if record.begun_s is not None]
    good = sum(meets(answer, objectives) for answer in answers)
    return Metrics(
        duration=duration,
        completed=len(answers),
        failed=failed,
        unfinished=len(records) - len(answers) - failed,
        total_input_tokens=inputs,
        total_output_tokens=outputs,
        request_throughput=_ratio(len(answers), duration),
        request_goodput=_ratio(good, duration) if objectives else None,
        output_throughput=_ratio(outputs, duration),
        total_token_throughput=_ratio(inputs + outputs, duration),
        max_output_tokens_per_s=max(tokens_by_time(records, 1.0), default=0.0),
        max_concurrent_requests=most_at_once(records),
        spreads={name: spread(latencies(answers, name), percentiles) for name in LATENCIES},
        late_ms=spread([1000 * each for each in lateness], (50, 99, 100)),
        cpu_us_per_token=1e6 * effort.cpu_s / outputs if outputs else None,
        cpu_share=_ratio(effort.cpu_s, duration),
    )


def latencies(answers: Sequence[Answer], name: str) -> list[float]:
    """All values of one of LATENCIES, in milliseconds."""
    match name:
        case "itl":
            seconds = [itl for answer in answers for itl in answer.itls_s]
        case "ttft":
            seconds = [answer.ttft_s for answer in answers]
        case "tpot":
            seconds = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
        case _:
            seconds = [answer.e2el_s for answer in answers]
    return [1000 * each for each in seconds]


def meets(answer: Answer, objectives: Mapping[str, float]) -> bool:
    """Whether no value of the answer is above its objective: of ITL not one gap; no TPOT is met by none."""
    return all(value <= most for name, most in objectives.items() for value in latencies([answer], name))


def spread(values: Sequence[float], percentiles: Sequence[float]) -> Spread | None:
    """None of no values. The deviation is that of the population."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        fmean(ordered),
        median(ordered),
        pstdev(ordered),
        {percent: percentile(ordered, percent) for percent in percentiles},
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in ascending order, at least one; between two neighbours in proportion."""
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def most_at_once(records: Sequence[Record]) -> int:
    """Requests that were sent and not yet over at one moment; one that ends as another is sent is over."""
    changes = [(record.sent_s, 1) for record in records if record.sent_s is not None]
    changes += [(record.ended_s, -1) for record in records if record.ended_s is not None]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def tokens_by_time(records: Sequence[Record], width_s: float) -> list[float]:
    """Output tokens in each span of width_s from the run's begin on; an answer's go evenly on its chunks."""
    counts: dict[int, float] = {}
    for record in records:
        for time in record.chunks_s if record.answered else ():
            at = int(time / width_s)
            counts[at] = counts.get(at, 0.0) + record.output_tokens / len(record.chunks_s)
    return [counts.get(at, 0.0) for at in range(max(counts, default=-1) + 1)]


def _ratio(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
