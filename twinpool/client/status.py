"""What the operations service tells: the system's state, its workers and its pairs."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.totals import Totals
from twinpool.types import Pool, Timing, WorkerState


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Requests waiting for a prefill worker, and their prompts' tokens."""

    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. running, waiting: prompts of a prefill worker, rows and reservations of a decode worker.

    reason: why it is not up, in words; empty while it is. cpus: of its machine, cpus_usable: those that it
    may use, kernels: what it computes with; 0 and empty where it has not told.
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
    cpus: int = 0
    cpus_usable: int = 0
    kernels: str = ""


@dataclass(frozen=True, slots=True)
class PairStatus:
    """One prefill-decode pair, by worker ids. ready: a canary has passed through it."""

    prefill: str
    decode: str
    transport: str
    ready: bool


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
    totals: Totals = field(default_factory=Totals)

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
