"""A run as one HTML file that needs no network: distributions, throughput, a timeline, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from twinpool.bench.metrics import LATENCIES, Metrics, latencies, spread, tokens_by_time
from twinpool.bench.records import Record, answer_of

_TEMPLATE = Path(__file__).with_name("report.html")
_BINS = 40
_SPANS = 120
_MOST_ROWS = 1000
_PHASES = ("waiting", "queue", "prefill", "handoff", "decode")


@dataclass(frozen=True, slots=True)
class Histogram:
    """counts: of equal spans from 0 to end, in milliseconds; beyond: values above it."""

    name: str
    counts: Sequence[int]
    end: float
    beyond: int
    marks: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a request's bar: its phase, and from when to when in seconds since the run began."""

    phase: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One request on the timeline. number: from 1, in the order of the run."""

    number: int
    parts: Sequence[Part]
    words: str


def html(
    title: str, lines: str, settings: Mapping[str, object], metrics: Metrics, records: Sequence[Record]
) -> str:
    """The whole file. lines: the result as it was printed. Whatever is put in is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    width_s = max(metrics.duration / _SPANS, 0.01)
    return template.render(
        title=title,
        lines=lines,
        settings=settings,
        duration=max(metrics.duration, 1e-9),
        histograms=list(histograms(records)),
        bars=list(bars(records)),
        num_requests=len(records),
        phases=_PHASES,
        throughput=[tokens / width_s for tokens in tokens_by_time(records, width_s)],
        width_s=width_s,
        errors=[(number, record.error) for number, record in enumerate(records, 1) if record.error],
    )


def histograms(records: Sequence[Record]) -> Iterator[Histogram]:
    """Of each latency that was measured, up to a bit above the 99th percentile: tails hide the rest."""
    answers = [answer for record in records if (answer := answer_of(record))]
    for name in LATENCIES:
        values = latencies(answers, name)
        found = spread(values, (50, 90, 99))
        if found is None:
            continue
        end = max(1.1 * found.percentiles[99], 1e-6)
        counts = [0] * _BINS
        for value in values:
            if value < end:
                counts[int(value / end * _BINS)] += 1
        marks = {f"p{percent:g}": value for percent, value in found.percentiles.items()}
        yield Histogram(name.upper(), counts, end, len(values) - sum(counts), marks)


def bars(records: Sequence[Record]) -> Iterator[Bar]:
    """At most _MOST_ROWS requests, evenly picked, in order."""
    step = -(-len(records) // _MOST_ROWS) or 1
    for number, record in list(enumerate(records, 1))[::step]:
        parts = [part for part in parts_of(record) if part.end_s > part.begin_s]
        words = ", ".join(f"{part.phase} {part.end_s - part.begin_s:.3f} s" for part in parts)
        outcome = record.error or f"{record.output_tokens} tokens"
        yield Bar(number, parts, f"request {number}: {outcome}; {words}")


def parts_of(record: Record) -> Iterator[Part]:
    """From due to end, in the server's phases; where it told none, until the first token and after it."""
    if record.sent_s is None or record.ended_s is None:
        return
    yield Part("waiting", record.due_s, record.sent_s)
    if record.error or record.answered is None:
        yield Part("failed", record.sent_s, record.ended_s)
        return
    timing = record.answered.timing
    if timing is None:
        first_s = record.chunks_s[0] if record.chunks_s else record.ended_s
        yield Part("prefill", record.sent_s, first_s)
        yield Part("decode", first_s, record.ended_s)
        return
    begin_s = record.sent_s
    lasted = (timing.queue_s, timing.prefill_s, timing.handoff_wait_s, timing.decode_s)
    for phase, seconds in zip(_PHASES[1:], lasted, strict=True):
        yield Part(phase, begin_s, begin_s + seconds)
        begin_s += seconds
