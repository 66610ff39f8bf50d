"""What the router counts and measures as it happens; `gauges` beside it reads the rest when scraped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Info, ProcessCollector, disable_created_metrics

from router.scheduling.happenings import MoveOutcome
from router.telemetry.series import (
    DIRECTIONS,
    HANDOFF_FAILURES,
    OTHER,
    PHASES,
    REJECTIONS,
    RESTARTS,
    RESUMES,
    SETBACKS,
    TRANSPORTS,
    HandoffSeries,
    LatencySeries,
    LifeSeries,
    RequestSeries,
    WorkerSeries,
)
from twinpool.totals import Totals
from twinpool.types import FinishReason, Pool, Timing, Usage


class Metrics:
    """Every counter and histogram, in a registry of its own; unknown label values become "other".

    Beside Twinpool's own it has the usual process_* metrics of the router's process (on Linux).
    Belongs to the event loop's thread; `registry` may be collected from any. totals: the sums of it that
    `twinpool top` shows.
    """

    def __init__(self) -> None:
        # Creation times would double the number of series, and no dashboard asks for them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.totals = Totals()
        self._requests = RequestSeries(self.registry)
        self._latencies = LatencySeries(self.registry)
        self._handoffs = HandoffSeries(self.registry)
        self._workers = WorkerSeries(self.registry)
        self._lives = LifeSeries(self.registry)
        ProcessCollector(registry=self.registry)

    def describe(self, version: str, cache: Mapping[str, str]) -> None:
        """Set build_info and cache_config_info; once."""
        Info("twinpool_build", "Version of Twinpool.", registry=self.registry).info({"version": version})
        info = Info("twinpool_cache_config", "How the KV cache is laid out.", registry=self.registry)
        info.info(dict(cache))

    # Calls, told by the boundary and the services.

    def call_ended(self, method: str, code: str) -> None:
        """Count a call of any method. code: a gRPC status code's name."""
        self._requests.calls.labels(method, code).inc()

    def client_disconnected(self) -> None:
        """Count a stream that its client left before its end."""
        self._requests.disconnects.inc()

    def request_rejected(self, reason: str) -> None:
        """Count a request refused at the door or by the queue. reason: the error's."""
        self._requests.rejections.labels(_known(reason.lower(), REJECTIONS)).inc()
        self.totals.requests_rejected += 1

    # Requests, as the scheduler tells of them; canaries are not counted.

    def request_admitted(self) -> None:
        """A request is queued."""
        self.totals.requests_admitted += 1

    def request_left(self) -> None:
        """A request's client has gone before its end."""
        self.totals.requests_left += 1

    def request_failed(self) -> None:
        """An admitted request ended with an error."""
        self.totals.requests_failed += 1

    def request_expired(self, phase: str) -> None:
        """A request's deadline passed. phase: one of PHASES; in any other none is counted."""
        if phase in PHASES:
            self._requests.expired.labels(phase).inc()

    def first_token(self, ttft_s: float, num_tokens: int = 1) -> None:
        """A request's first token came, ttft_s after its arrival; num_tokens with those that came with it."""
        self._latencies.ttft.observe(ttft_s)
        self._requests.generation_tokens_total.inc(num_tokens)
        self.totals.first_tokens += 1
        self.totals.ttft_sum_s += ttft_s
        self.totals.generation_tokens += num_tokens

    def token_gap(self, gap_s: float, num_tokens: int) -> None:
        """num_tokens more came together, gap_s after the one before: each took an equal share."""
        for _ in range(num_tokens):
            self._latencies.token_gap.observe(gap_s / num_tokens)
        self._requests.generation_tokens_total.inc(num_tokens)
        self.totals.token_gaps += num_tokens
        self.totals.token_gap_sum_s += gap_s
        self.totals.generation_tokens += num_tokens

    def request_finished(self, reasons: Iterable[FinishReason], timing: Timing, usage: Usage) -> None:
        """A request ended well. reasons: its choices'. timing: of the one that ended last."""
        for reason in reasons:
            self._requests.finished.labels(reason.value).inc()
        self.totals.requests_finished += 1
        self._requests.prompt_tokens.observe(usage.prompt_tokens)
        self._requests.prompt_tokens_total.inc(usage.prompt_tokens)
        self._requests.generation_tokens.observe(usage.completion_tokens)
        phases = (timing.queue_s, timing.prefill_s, timing.handoff_wait_s, timing.decode_s)
        for histogram, seconds in zip(self._latencies.phases, phases, strict=True):
            histogram.observe(seconds)
        self._latencies.duration.observe(sum(phases))
        if usage.completion_tokens > 1:
            after_first_s = timing.handoff_wait_s + timing.decode_s
            self._latencies.time_per_token.observe(after_first_s / (usage.completion_tokens - 1))

    # Hand-offs and workers, as the scheduler tells of them.

    def handoff_done(self, transport: str, num_bytes: int, seconds: float) -> None:
        """A cache arrived whole."""
        transport = _known(transport, TRANSPORTS)
        self._handoffs.seconds.labels(transport).observe(seconds)
        self._handoffs.num_bytes.labels(transport).inc(num_bytes)

    def handoff_failed(self, reason: str) -> None:
        """A cache did not arrive. reason: one of HANDOFF_FAILURES."""
        self._handoffs.failures.labels(_known(reason, HANDOFF_FAILURES)).inc()

    def lease_expired(self) -> None:
        """A reservation ran out of time."""
        self._handoffs.leases_expired.inc()

    def step(self, pool: Pool, seconds: float, *, batch: int, num_tokens: int) -> None:
        """A worker made one step. batch: prompts or rows in it."""
        self._workers.step.labels(pool.value).observe(seconds)
        self._workers.batch_size.labels(pool.value).observe(batch)
        self._workers.step_tokens.labels(pool.value).observe(num_tokens)
        if pool is Pool.PREFILL:
            self.totals.prefill_tokens += num_tokens

    def set_back(self, reason: str, *, resumed: bool) -> None:
        """An attempt ended before its choice did. reason: one of SETBACKS. resumed: it gave tokens."""
        self._workers.setbacks.labels(_known(reason, SETBACKS)).inc()
        if reason == "preempted":
            self._workers.preemptions.inc()
            self.totals.preemptions += 1
        if resumed:
            self._workers.resumes.labels(_known(reason, RESUMES)).inc()
            self.totals.resumes += 1

    def worker_used(self, pool: Pool, worker_id: str, cpu_s: float) -> None:
        """A worker's process has used cpu_s more seconds of processor time."""
        self._lives.cpu.labels(pool.value, worker_id).inc(cpu_s)

    def move_ended(self, outcome: MoveOutcome) -> None:
        """A row's move to another decode worker has ended."""
        self._workers.moves.labels(outcome.value).inc()

    def worker_restarted(self, pool: Pool, reason: str) -> None:
        """A worker is being replaced. reason: one of RESTARTS."""
        self._lives.restarts.labels(pool.value, _known(reason, RESTARTS)).inc()
        self.totals.worker_restarts += 1

    # The number of workers, told by whoever changes it.

    def scaled(self, pool: Pool, direction: str) -> None:
        """A pool's target has changed. direction: one of DIRECTIONS, else ValueError."""
        if direction not in DIRECTIONS:
            raise ValueError(f"a pool is scaled up or down, not {direction!r}")
        self._lives.scalings.labels(pool.value, direction).inc()

    # The event loop, told by its own timer.

    def loop_lagged(self, seconds: float) -> None:
        """A timer fired so many seconds late."""
        self._lives.loop_lag.observe(seconds)


def _known(value: str, known: tuple[str, ...]) -> str:
    return value if value in known else OTHER
