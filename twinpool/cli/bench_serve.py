"""`twinpool bench serve`: load on a running server, and what its clients see of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from twinpool.bench.metrics import Metrics, measure
from twinpool.bench.records import Record
from twinpool.bench.result import Asked, as_json, block
from twinpool.cli.bench_serve_options import (
    DataOptions,
    OutcomeOptions,
    ServerOptions,
    TrafficOptions,
    check,
)
from twinpool.cli.bench_serve_run import Run
from twinpool.cli.exits import Exit, complain
from twinpool.config import ConfigError

_LATE_MS = 20.0
"""A schedule that is kept worse than this at the 99th percentile is not the one that was asked for."""
_BUSY_SHARE = 0.8
"""A generator that takes more of one processor adds waits of its own to what it measures."""
_SHORTEST_S = 1.0
"""Of a run whose generator's share of a processor says more than how it started."""
_MOST_ERRORS = 10
_SERVER, _TRAFFIC, _DATA, _OUTCOME = ServerOptions(), TrafficOptions(), DataOptions(), OutcomeOptions()


def serve(
    *,
    server: ServerOptions = _SERVER,
    traffic: TrafficOptions = _TRAFFIC,
    data: DataOptions = _DATA,
    outcome: OutcomeOptions = _OUTCOME,
) -> Exit:
    """Send load to a running server, and measure what its clients see.

    Options, result and JSON keys are those of `vllm bench serve`. Ctrl-C ends it and shows what there is.
    """
    check(server, traffic, data)
    asked = _asked(server, traffic, outcome)
    # Read before the run, so that a wrong value does not cost one.
    objectives, file = outcome.objectives, outcome.result_file
    for each in (file, outcome.report):
        _make_room(each)
    run = Run(server, traffic, data, shows=not outcome.disable_tqdm)
    ended = Exit.DONE if run.execute() else Exit.INTERRUPTED
    if run.load is None:
        return ended
    records = run.load.records
    metrics = measure(records, run.load.effort, asked.percentiles, objectives)
    lines = block(asked, metrics)
    print(lines)
    _complain(metrics, records)
    if file is not None:
        result = as_json(asked, run.model, metrics, records, detailed=outcome.save_detailed)
        with file.open("a" if outcome.append_result else "w", encoding="utf-8") as written:
            written.write(json.dumps(result, allow_nan=False) + "\n")
    if outcome.report is not None:
        from twinpool.bench.report import html  # noqa: PLC0415 (loads a template engine)

        settings = {"date": asked.date, **asdict(server), **asdict(traffic), **asdict(data)}
        title = f"{asked.label}: {run.model} under load"
        outcome.report.write_text(html(title, lines, settings, metrics, records), "utf-8")
    return ended if ended or metrics.completed else Exit.FAILED


def _asked(server: ServerOptions, traffic: TrafficOptions, outcome: OutcomeOptions) -> Asked:
    return Asked(
        date=datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"),
        backend=server.backend,
        label=outcome.label or server.backend,
        request_rate=traffic.request_rate,
        burstiness=traffic.burstiness,
        max_concurrency=traffic.max_concurrency,
        spreads=outcome.spreads,
        percentiles=outcome.percentiles,
        metadata=outcome.pairs,
    )


def _make_room(file: Path | None) -> None:
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {file.parent}: {error}") from None
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"cannot write {file}")


def _complain(metrics: Metrics, records: Sequence[Record]) -> None:
    """On stderr: what failed, and whether the generator kept up."""
    errors = Counter(record.error for record in records if record.error)
    for error, count in errors.most_common(_MOST_ERRORS):
        complain(f"{count} failed: {error}", Exit.FAILED)
    has_schedule = any(record.due_s for record in records)
    if has_schedule and metrics.late_ms is not None and metrics.late_ms.percentiles[99] > _LATE_MS:
        complain(
            f"requests were sent up to {metrics.late_ms.percentiles[100]:.0f} ms after they were due: "
            "the generator is too slow for this load, or its machine too busy",
            Exit.FAILED,
        )
    if metrics.cpu_share > _BUSY_SHARE and metrics.duration > _SHORTEST_S:
        complain(
            f"the generator took {100 * metrics.cpu_share:.0f} % of a processor: latencies contain its own",
            Exit.FAILED,
        )
