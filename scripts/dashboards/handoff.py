"""How caches move from prefill to decode, and who holds which blocks."""

from __future__ import annotations

from typing import Any

from scripts.dashboards.grafana import Query, Row, dashboard, graph, stat
from scripts.dashboards.promql import increase, mean, quantile, rate, ratio, select, total


def handoff() -> dict[str, Any]:
    """The dashboard *Hand-off and cache*."""
    text = "How caches move from prefill to decode workers, and who holds which blocks."
    rows = (_summary(), _moves(), _failures(), _blocks())
    return dashboard("twinpool-handoff", "Twinpool / Hand-off and cache", text, rows, "pool", "worker")


def _summary() -> Row:
    done = rate("handoff_seconds_count")
    failed = rate("handoff_failures_total")
    return Row(
        "Hand-offs",
        (
            stat("Hand-offs", "ops", done, "Caches that arrived whole, a second."),
            stat("In flight", "short", total("handoffs_in_flight"), "Begun and not ended."),
            stat(
                "p95", "s", quantile(0.95, "handoff_seconds"), "From accepted to written.", orange=0.5, red=1
            ),
            stat("Bytes", "Bps", rate("handoff_bytes_total"), "Moved a second."),
            stat(
                "Failures",
                "percentunit",
                ratio(failed, f"({failed} + {done})"),
                "Share of hand-offs that failed.",
                orange=0.01,
                red=0.05,
            ),
            stat(
                "Expired leases",
                "short",
                increase("leases_expired_total", "1h"),
                "Reservations that ran out of time, in one hour.",
                orange=1,
                red=10,
            ),
            stat(
                "Quarantined",
                "short",
                total("kv_blocks_quarantined"),
                "Blocks that a writer may still touch.",
                orange=1,
                red=64,
            ),
            stat(
                "Pairs not ready",
                "short",
                total("pairs", state="!ready"),
                "Not connected, or no canary has passed.",
                orange=1,
                red=2,
            ),
        ),
    )


def _moves() -> Row:
    times = (
        Query(quantile(share, "handoff_seconds", "transport"), f"{{{{transport}}}} p{share * 100:g}")
        for share in (0.5, 0.95, 0.99)
    )
    size = ratio(rate("handoff_bytes_total", "transport"), rate("handoff_seconds_count", "transport"))
    wait = mean("handoff_wait_seconds")
    return Row(
        "Moving",
        (
            graph(
                "Time of a hand-off", "s", "From accepted to written; most of it overlaps prefill.", *times
            ),
            graph(
                "Bytes moved",
                "Bps",
                "By transport.",
                Query(rate("handoff_bytes_total", "transport"), "{{transport}}"),
            ),
            graph("Size of a hand-off", "bytes", "Mean.", Query(size, "{{transport}}")),
            graph(
                "Hand-offs in flight",
                "short",
                "Begun and not ended.",
                Query(total("handoffs_in_flight"), "all"),
            ),
            graph(
                "What users wait for it",
                "s",
                "Phase hand-off wait: from the first token to the first decode token.",
                Query(wait, "mean"),
                Query(quantile(0.95, "handoff_wait_seconds"), "p95"),
            ),
            graph(
                "Its share of a request",
                "percentunit",
                "Mean hand-off wait by mean duration.",
                Query(ratio(f"({wait})", f"({mean('request_duration_seconds')})"), "share"),
            ),
        ),
    )


def _failures() -> Row:
    return Row(
        "Failing",
        (
            graph(
                "Failed hand-offs",
                "ops",
                "By reason.",
                Query(rate("handoff_failures_total", "reason"), "{{reason}}"),
            ),
            graph(
                "Expired leases",
                "ops",
                "Reservations that ran out of time.",
                Query(rate("leases_expired_total"), "expired"),
            ),
            graph(
                "Resumes",
                "ops",
                "Requests that went on in a new attempt, with the tokens they had.",
                Query(rate("resumes_total", "reason"), "{{reason}}"),
            ),
        ),
    )


def _blocks() -> Row:
    chosen = {"pool": "~$pool", "worker": "~$worker"}
    by = "pool,worker"
    return Row(
        "Blocks",
        (
            graph(
                "KV usage",
                "percentunit",
                "Share of a worker's blocks that requests hold.",
                Query(select("kv_cache_usage_ratio", **chosen), "{{worker}}"),
            ),
            graph(
                "Blocks by owner",
                "short",
                "Held by requests, kept for reuse, and free.",
                Query(total("kv_blocks_used", **chosen), "used"),
                Query(total("kv_blocks_cached", **chosen), "cached"),
                Query(
                    f"{total('kv_blocks_total', **chosen)} - {total('kv_blocks_used', **chosen)}"
                    f" - {total('kv_blocks_cached', **chosen)}",
                    "free",
                ),
                stacked=True,
            ),
            graph(
                "Quarantined blocks",
                "short",
                "Blocks that a writer may still touch; they count as used.",
                Query(total("kv_blocks_quarantined", by, **chosen), "{{worker}}"),
            ),
            graph(
                "Preemptions",
                "ops",
                "Requests that had to make room for older ones.",
                Query(rate("preemptions_total"), "preemptions"),
                width=12,
            ),
            graph(
                "Refused reservations",
                "ops",
                "A decode worker had no room; the request keeps its place in the queue.",
                Query(rate("setbacks_total", reason="refused"), "refused"),
                width=12,
            ),
        ),
    )
