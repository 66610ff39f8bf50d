"""Pools, and each worker by itself; the router's own process."""

from __future__ import annotations

from typing import Any

from scripts.dashboards.grafana import Query, Row, dashboard, graph
from scripts.dashboards.promql import mean, quantile, rate, ratio, select, total

CHOSEN = {"pool": "~$pool", "worker": "~$worker"}
POOL = {"pool": "~$pool"}


def workers() -> dict[str, Any]:
    """The dashboard *Pools and workers*."""
    text = "Pools, each worker by itself, and the router's own process."
    rows = (_pools(), _work(), _machine(), _router())
    return dashboard("twinpool-workers", "Twinpool / Pools and workers", text, rows, "pool", "worker")


def _pools() -> Row:
    return Row(
        "Pools",
        (
            graph(
                "Workers by state",
                "short",
                "And how many there should be.",
                Query(f"{total('workers', 'pool,state', **POOL)} > 0", "{{pool}} {{state}}"),
                Query(total("target_workers", "pool", **POOL), "{{pool}} wanted"),
            ),
            graph(
                "Pairs",
                "short",
                "By state; requests go to ready ones only.",
                Query(total("pairs", "state"), "{{state}}"),
                stacked=True,
            ),
            graph(
                "Replaced and scaled",
                "short",
                "Workers replaced by reason, targets changed by direction; a second.",
                Query(f"{rate('worker_restarts_total', 'pool,reason', **POOL)} > 0", "{{pool}} {{reason}}"),
                Query(
                    f"{rate('scale_events_total', 'pool,direction', **POOL)} > 0", "{{pool}} {{direction}}"
                ),
            ),
            graph(
                "Rows moved",
                "short",
                "Off draining decode workers, by outcome; a second. One that could not move is tried again.",
                Query(rate("row_moves_total", "outcome"), "{{outcome}}"),
            ),
        ),
    )


def _work() -> Row:
    step = "step_duration_seconds"
    room = ratio(
        total("num_requests_running", "pool", **POOL), total("num_requests_running_limit", "pool", **POOL)
    )
    pace = ratio(rate("iteration_tokens_sum", "pool", **POOL), rate(f"{step}_sum", "pool", **POOL))
    return Row(
        "Work",
        (
            graph(
                "Running",
                "short",
                "By worker.",
                Query(select("num_requests_running", **CHOSEN), "{{worker}}"),
            ),
            graph(
                "Waiting",
                "short",
                "By worker.",
                Query(select("num_requests_waiting", **CHOSEN), "{{worker}}"),
            ),
            graph(
                "KV usage",
                "percentunit",
                "By worker.",
                Query(select("kv_cache_usage_ratio", **CHOSEN), "{{worker}}"),
            ),
            graph(
                "Time of a step",
                "s",
                "By pool.",
                Query(quantile(0.5, step, "pool", **POOL), "{{pool}} p50"),
                Query(quantile(0.95, step, "pool", **POOL), "{{pool}} p95"),
            ),
            graph(
                "Batch",
                "short",
                "Mean prompts or rows of a step, by pool.",
                Query(mean("batch_size", "pool", **POOL), "{{pool}}"),
            ),
            graph(
                "Tokens of a step",
                "short",
                "Mean, by pool.",
                Query(mean("iteration_tokens", "pool", **POOL), "{{pool}}"),
            ),
            graph(
                "Tokens per busy second",
                "short",
                "What one worker reads (prefill) or produces (decode) in a second of steps: its capacity.",
                Query(pace, "{{pool}}"),
                width=12,
            ),
            graph(
                "Places taken",
                "percentunit",
                "Prompts and rows on workers, as a share of how many they may have.",
                Query(room, "{{pool}}"),
                width=12,
            ),
        ),
    )


def _machine() -> Row:
    cores = rate("worker_cpu_seconds_total", "pool,worker", **CHOSEN)
    memory = select("worker_resident_memory_bytes", **CHOSEN)
    ready = total("workers", "pool", state="ready", **POOL)
    busy = ratio(rate("step_duration_seconds_sum", "pool", **POOL), ready)
    return Row(
        "Machine",
        (
            graph("Processor", "short", "Cores that a worker keeps busy.", Query(cores, "{{worker}}")),
            graph(
                "Memory", "bytes", "Resident; shared pages count in each worker.", Query(memory, "{{worker}}")
            ),
            graph(
                "Busy", "percentunit", "Share of time that a pool's workers step.", Query(busy, "{{pool}}")
            ),
        ),
    )


def _router() -> Row:
    lag = "event_loop_lag_seconds"
    return Row(
        "Router",
        (
            graph(
                "Event loop lag",
                "s",
                "How late timers fire; every token waits as long.",
                Query(quantile(0.5, lag), "p50"),
                Query(quantile(0.99, lag), "p99"),
                width=6,
            ),
            graph(
                "Processor",
                "short",
                "Cores that the router keeps busy; one is the most its loop can use.",
                Query(rate("process_cpu_seconds_total", "instance"), "{{instance}}"),
                width=6,
            ),
            graph(
                "Memory",
                "bytes",
                "Resident.",
                Query(select("process_resident_memory_bytes"), "{{instance}}"),
                width=6,
            ),
            graph(
                "Open files",
                "percentunit",
                "Sockets included; share of the limit.",
                Query(f"{select('process_open_fds')} / {select('process_max_fds')}", "{{instance}}"),
                width=6,
            ),
        ),
    )
