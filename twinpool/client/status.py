"""What the operations service tells: the system's state, its workers and its pairs."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.types import Pool, Timing, WorkerState


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Requests waiting for a prefill worker, and their prompts' tokens."""

    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. running, waiting: prompts of a prefill worker, rows and reservations of a decode worker.

    reason: why it is not up, in words; empty while it is.
    """

    id: str
    pool: Pool
    state: WorkerState
    pid: int
    node: str
    incarnation: str
    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int
    blocks_quarantined: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PairStatus:
    """One prefill-decode pair, by worker ids. ready: a canary has passed through it."""

    prefill: str
    decode: str
    transport: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """What has happened since the router began; every figure only grows. Two of them make a rate or a mean.

    uptime_s: seconds the router has run. requests_finished: ended well, aborted ones included.
    requests_failed: ended with an error. requests_left: by their client. requests_rejected: never admitted.
    ttft_sum_s: of all first_tokens. token_gap_sum_s: of all token_gaps. generation_tokens: sent to clients.
    prefill_tokens: read by prefill workers, for canaries and resumed requests too.
    """

    uptime_s: float = 0.0
    requests_admitted: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_left: int = 0
    requests_rejected: int = 0
    first_tokens: int = 0
    ttft_sum_s: float = 0.0
    token_gaps: int = 0
    token_gap_sum_s: float = 0.0
    generation_tokens: int = 0
    prefill_tokens: int = 0
    resumes: int = 0
    preemptions: int = 0
    worker_restarts: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The whole system at one moment. requests: admitted and not ended.

    targets: workers that each pool should have. most_running: prompts given to a prefill worker at a time,
    rows of a decode batch; 0 where the server does not say. totals: so far.
    """

    model: str
    serving: bool
    queue: QueueStatus
    requests: int
    workers: tuple[WorkerStatus, ...]
    pairs: tuple[PairStatus, ...]
    handoffs_in_flight: int
    targets: dict[Pool, int] = field(default_factory=dict)
    most_running: dict[Pool, int] = field(default_factory=dict)
    totals: Totals = Totals()

    def pool(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        """One pool's workers."""
        return tuple(worker for worker in self.workers if worker.pool is pool)


@dataclass(frozen=True, slots=True)
class PairCheck:
    """What a canary through one pair found. failed_hop: None, or pair, reserve, prefill, handoff, decode."""

    pair: PairStatus
    failed_hop: str | None
    detail: str
    timing: Timing
