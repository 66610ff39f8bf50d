"""The first dashboard to open: how users fare, what the system holds, where the time goes."""

from __future__ import annotations

from typing import Any

from scripts.dashboards.grafana import Query, Row, dashboard, graph, stat
from scripts.dashboards.promql import increase, mean, quantile, rate, ratio, select, share_within, total

ANSWERS = "~Generate|Chat"
FAULTS = "~UNAVAILABLE|INTERNAL|UNKNOWN|DEADLINE_EXCEEDED|DATA_LOSS"
"""And what finds the queue full; the other cause of RESOURCE_EXHAUSTED is a client that does not read."""
TTFT_SLO = "2.5"
TPOT_SLO = "0.2"
PHASES = (
    ("queue", "queue_time_seconds"),
    ("prefill", "prefill_time_seconds"),
    ("hand-off wait", "handoff_wait_seconds"),
    ("decode", "decode_time_seconds"),
)


def overview() -> dict[str, Any]:
    """The dashboard *Overview*."""
    rows = (_users(), _system(), _latency(), _throughput(), _saturation(), _cache(), _workload())
    text = "How users fare, what the system holds, and where the time goes."
    return dashboard("twinpool-overview", "Twinpool / Overview", text, rows)


def _users() -> Row:
    failed = rate("requests_total", method=ANSWERS, code=FAULTS)
    faults = f"({failed} + {rate('admission_rejections_total', reason='queue_full')})"
    calls = rate("requests_total", method=ANSWERS)
    ttft, gap = "time_to_first_token_seconds", "inter_token_latency_seconds"
    tpot = "request_time_per_output_token_seconds"
    return Row(
        "Users",
        (
            stat("Requests", "reqps", calls, "Calls of Generate and Chat that ended, a second."),
            stat("Tokens in", "short", rate("prompt_tokens_total"), "Of requests that ended, a second."),
            stat("Tokens out", "short", rate("generation_tokens_total"), "Tokens produced a second."),
            stat(
                "Errors",
                "percentunit",
                ratio(faults, calls),
                "Share of calls that failed through no fault of the client.",
                orange=0.01,
                red=0.05,
            ),
            stat("TTFT p95", "s", quantile(0.95, ttft), "Time to first token.", orange=1.0, red=2.5),
            stat("ITL p95", "s", quantile(0.95, gap), "Time between two tokens.", orange=0.1, red=0.2),
            stat(
                f"TTFT ≤ {TTFT_SLO} s",
                "percentunit",
                share_within(TTFT_SLO, ttft),
                "Share of requests whose first token came in time.",
                orange=0.99,
                red=0.95,
                falling=True,
            ),
            stat(
                f"TPOT ≤ {TPOT_SLO} s",
                "percentunit",
                share_within(TPOT_SLO, tpot),
                "Share of requests whose later tokens came in time, on average.",
                orange=0.99,
                red=0.95,
                falling=True,
            ),
        ),
    )


def _system() -> Row:
    used, held = total("kv_blocks_used", pool="decode"), total("kv_blocks_total", pool="decode")
    ready, wanted = total("workers", state="ready"), total("target_workers")
    return Row(
        "System",
        (
            stat("Workers ready", "short", ready, "In both pools."),
            stat("Workers missing", "short", f"{wanted} - {ready}", "Wanted and not ready.", orange=1, red=2),
            stat(
                "Running", "short", total("num_requests_running"), "Prompts being read and rows in batches."
            ),
            stat("Queued", "short", total("queue_depth"), "Requests that wait for a pair.", orange=8, red=64),
            stat(
                "Decode KV used",
                "percentunit",
                ratio(used, held),
                "Share of the decode pool's cache blocks that requests hold.",
                orange=0.8,
                red=0.95,
            ),
            stat(
                "Preemptions",
                "short",
                increase("preemptions_total", "5m"),
                "Requests that had to make room, in 5 minutes.",
                orange=1,
                red=10,
            ),
            stat(
                "Workers replaced",
                "short",
                increase("worker_restarts_total", "1h"),
                "In one hour.",
                orange=1,
                red=4,
            ),
            stat(
                "Loop lag p99",
                "s",
                quantile(0.99, "event_loop_lag_seconds"),
                "How late the router's event loop runs its timers.",
                orange=0.05,
                red=0.1,
            ),
        ),
    )


def _quantiles(histogram: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(share, histogram), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))


def _latency() -> Row:
    phases = (Query(mean(histogram), name) for name, histogram in PHASES)
    gap, tpot = "inter_token_latency_seconds", "request_time_per_output_token_seconds"
    return Row(
        "Latency",
        (
            graph("Time to first token", "s", "From arrival.", *_quantiles("time_to_first_token_seconds")),
            graph("Inter-token latency", "s", "Between two tokens of a request.", *_quantiles(gap)),
            graph(
                "Time per output token", "s", "A request's mean, after its first token.", *_quantiles(tpot)
            ),
            graph(
                "Mean time per phase",
                "s",
                "The phases of a request; together they are its mean duration.",
                *phases,
                width=12,
                stacked=True,
            ),
            graph("Request duration", "s", "All phases.", *_quantiles("request_duration_seconds"), width=12),
        ),
    )


def _throughput() -> Row:
    tokens = (Query(rate("prompt_tokens_total"), "in"), Query(rate("generation_tokens_total"), "out"))
    return Row(
        "Throughput",
        (
            graph(
                "Calls by status",
                "reqps",
                "Generate and Chat.",
                Query(f"{rate('requests_total', 'code', method=ANSWERS)} > 0", "{{code}}"),
                stacked=True,
            ),
            graph("Tokens", "short", "A second.", *tokens),
            graph(
                "Not served",
                "reqps",
                "Refused at the door by reason, expired by phase, left by their clients.",
                Query(f"{rate('admission_rejections_total', 'reason')} > 0", "refused: {{reason}}"),
                Query(f"{rate('requests_expired_total', 'phase')} > 0", "expired: {{phase}}"),
                Query(rate("client_disconnects_total"), "left"),
            ),
        ),
    )


def _saturation() -> Row:
    return Row(
        "Saturation",
        (
            graph(
                "Queue",
                "short",
                "Requests that wait for a pair, and all that are in flight.",
                Query(total("queue_depth"), "queued"),
                Query(total("requests_in_flight"), "in flight"),
            ),
            graph(
                "Queued tokens",
                "short",
                "Prompt tokens in the queue.",
                Query(total("queue_tokens"), "tokens"),
            ),
            graph(
                "Running and waiting",
                "short",
                "On workers, by pool.",
                Query(total("num_requests_running", "pool"), "{{pool}} running"),
                Query(total("num_requests_waiting", "pool"), "{{pool}} waiting"),
            ),
        ),
    )


def _cache() -> Row:
    usage = ratio(total("kv_blocks_used", "pool"), total("kv_blocks_total", "pool"))
    return Row(
        "Cache",
        (
            graph("KV usage", "percentunit", "Share of blocks that requests hold.", Query(usage, "{{pool}}")),
            graph(
                "Fullest worker",
                "percentunit",
                "The highest KV usage of a worker, by pool.",
                Query(f"max by (pool) ({select('kv_cache_usage_ratio')})", "{{pool}}"),
            ),
            graph(
                "Setbacks",
                "short",
                "Attempts that ended before their choice did, a second.",
                Query(f"{rate('setbacks_total', 'reason')} > 0", "{{reason}}"),
            ),
        ),
    )


def _workload() -> Row:
    return Row(
        "Workload",
        (
            graph("Prompt length", "short", "Tokens.", *_quantiles("request_prompt_tokens")),
            graph("Answer length", "short", "Tokens.", *_quantiles("request_generation_tokens")),
            graph(
                "Endings",
                "reqps",
                "Requests that ended well.",
                Query(rate("request_success_total", "finished_reason"), "{{finished_reason}}"),
                stacked=True,
            ),
        ),
    )
