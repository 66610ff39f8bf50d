"""The router's counters and histograms: names, meanings, labels and buckets, by group."""

from __future__ import annotations

from itertools import product
from typing import Final

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

from router.scheduling.commands import ReplaceCause
from router.scheduling.happenings import HandoffOutcome, MoveOutcome
from router.telemetry import buckets
from twinpool.types import FinishReason, Pool

OTHER: Final = "other"
METHODS = (
    *("Generate", "Chat", "Abort", "Tokenize", "Detokenize", "ListModels"),
    *("GetStatus", "WatchStatus", "CheckPairs", "SetPoolSize", "DrainWorker", "RestartWorkers", "Verify"),
)
TRANSPORTS = ("shm", "ray", OTHER)
REJECTIONS = (
    *("invalid_request", "model_not_found", "duplicate_request_id"),
    *("queue_full", "pool_unavailable", "server_draining", OTHER),
)
HANDOFF_FAILURES = (
    HandoffOutcome.PAIR_LOST,
    HandoffOutcome.REFUSED,
    HandoffOutcome.CHECKSUM,
    HandoffOutcome.FAILED,
    OTHER,
)
MOVES = tuple(MoveOutcome)
RESTARTS = ("exited", "renewed", "start_failed", *ReplaceCause, OTHER)
RESUMES = (
    "expired",
    "preempted",
    "worker_lost",
    "handoff_failed",
    "engine_failed",
    "row_failed",
    "drained",
    OTHER,
)
SETBACKS = ("refused", *RESUMES)
PHASES = ("queue", "prefill", "handoff_wait", "decode")
DIRECTIONS = ("up", "down")


class RequestSeries:
    """How many calls and requests there were, and how large."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = _counter(registry, "requests", "Calls ended.", "method", "code")
        self.rejections = _counter(
            registry,
            "admission_rejections",
            "Requests refused at the door or by the queue. What does not parse, or fails once it is queued"
            " (say, as its pool is given up), is in requests_total alone, by its status.",
            "reason",
        )
        self.expired = _counter(
            registry,
            "requests_expired",
            "Requests whose deadline passed, by the phase they were in.",
            "phase",
        )
        self.finished = _counter(
            registry,
            "request_success",
            "Requests that ended well, or were aborted by id; one of several choices, once for each.",
            "finished_reason",
        )
        self.disconnects = _counter(registry, "client_disconnects", "Streams that the client left early.")
        self.prompt_tokens_total = _counter(
            registry, "prompt_tokens", "Prompt tokens of requests that ended well."
        )
        self.generation_tokens_total = _counter(registry, "generation_tokens", "Tokens produced.")
        self.prompt_tokens = _histogram(
            registry, "request_prompt_tokens", "Tokens of a request's prompt.", buckets.REQUEST_TOKENS
        )
        self.generation_tokens = _histogram(
            registry, "request_generation_tokens", "Tokens of a request's answer.", buckets.REQUEST_TOKENS
        )
        _initialise(self.calls, METHODS, tuple(code.name for code in grpc.StatusCode))
        _initialise(self.rejections, REJECTIONS)
        _initialise(self.expired, PHASES)
        _initialise(self.finished, tuple(reason.value for reason in FinishReason))


class LatencySeries:
    """What users feel. phases: queue, prefill, hand-off wait, decode; they sum to duration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ttft = _histogram(
            registry, "time_to_first_token_seconds", "From arrival to the first token.", buckets.TTFT_S
        )
        self.token_gap = _histogram(
            registry, "inter_token_latency_seconds", "Between two tokens of a request.", buckets.TOKEN_GAP_S
        )
        self.time_per_token = _histogram(
            registry,
            "request_time_per_output_token_seconds",
            "A request's mean time for each token after the first.",
            buckets.TOKEN_GAP_S,
        )
        self.duration = _duration(registry, "request_duration_seconds", "The sum of the phases.")
        self.phases = (
            _duration(
                registry,
                "queue_time_seconds",
                "Phase: from arrival to the prefill command, tokenizing included.",
            ),
            _duration(
                registry, "prefill_time_seconds", "Phase: from the prefill command to the first token."
            ),
            _duration(
                registry, "handoff_wait_seconds", "Phase: from the first token to the first decode token."
            ),
            _duration(registry, "decode_time_seconds", "Phase: from the first decode token to the end."),
        )


class HandoffSeries:
    """How caches move."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = _histogram(
            registry,
            "handoff_seconds",
            "Prefill to decode: from accepted to written.",
            buckets.TRANSFER_S,
            "transport",
        )
        self.num_bytes = _counter(registry, "handoff_bytes", "Bytes of caches handed off.", "transport")
        self.failures = _counter(
            registry,
            "handoff_failures",
            "Caches that did not arrive. pair_lost: a worker, or its connection with the other, was; "
            "refused: the reservation had expired.",
            "reason",
        )
        self.leases_expired = _counter(registry, "leases_expired", "Reservations that ran out of time.")
        _initialise(self.seconds, TRANSPORTS)
        _initialise(self.num_bytes, TRANSPORTS)
        _initialise(self.failures, HANDOFF_FAILURES)


class WorkerSeries:
    """What workers do."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.step = _histogram(
            registry, "step_duration_seconds", "One step of a worker's batch.", buckets.STEP_S, "pool"
        )
        self.batch_size = _histogram(
            registry,
            "batch_size",
            "Prompts of a prefill step, rows of a decode step.",
            buckets.BATCH_ROWS,
            "pool",
        )
        self.step_tokens = _histogram(
            registry, "iteration_tokens", "Tokens of a step.", buckets.STEP_TOKENS, "pool"
        )
        self.preemptions = _counter(registry, "preemptions", "Requests that had to make room for older ones.")
        self.setbacks = _counter(
            registry, "setbacks", "Attempts that ended before their choice did, by reason.", "reason"
        )
        self.resumes = _counter(
            registry, "resumes", "Requests that went on in a new attempt, with the tokens they had.", "reason"
        )
        self.moves = _counter(
            registry, "row_moves", "Rows moved off a draining decode worker, by outcome.", "outcome"
        )
        _initialise(self.moves, MOVES)
        for histogram in (self.step, self.batch_size, self.step_tokens):
            _initialise(histogram, tuple(Pool))
        _initialise(self.setbacks, SETBACKS)
        _initialise(self.resumes, RESUMES)


class LifeSeries:
    """Workers' lives, and the router's own health. cpu has series only for workers that have reported."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.restarts = _counter(registry, "worker_restarts", "Workers replaced.", "pool", "reason")
        self.scalings = _counter(
            registry,
            "scale_events",
            "Changes of the number of workers a pool should have.",
            "pool",
            "direction",
        )
        self.cpu = _counter(
            registry, "worker_cpu_seconds", "Processor time of workers' processes.", "pool", "worker"
        )
        self.loop_lag = _histogram(
            registry,
            "event_loop_lag_seconds",
            "How late a timer of the router's event loop fired.",
            buckets.LOOP_LAG_S,
        )
        _initialise(self.restarts, tuple(Pool), RESTARTS)
        _initialise(self.scalings, tuple(Pool), DIRECTIONS)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"twinpool_{name}", text, labels, registry=registry)


def _histogram(
    registry: CollectorRegistry, name: str, text: str, bounds: tuple[float, ...], *labels: str
) -> Histogram:
    return Histogram(f"twinpool_{name}", text, labels, buckets=bounds, registry=registry)


def _duration(registry: CollectorRegistry, name: str, text: str) -> Histogram:
    return _histogram(registry, name, text, buckets.DURATION_S)


def _initialise(metric: Counter | Histogram, *values: tuple[str, ...]) -> None:
    """Show every combination from the start: a rate needs the zero before the first event."""
    for labels in product(*values):
        metric.labels(*labels)
