"""What the operations service tells: the system's state, its workers and its pairs."""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.types import Pool, Timing, WorkerState


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Requests waiting for a prefill worker, and their prompts' tokens."""

    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. running, waiting: prompts of a prefill worker, rows and reservations of a decode worker."""

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


@dataclass(frozen=True, slots=True)
class PairStatus:
    """One prefill-decode pair, by worker ids. ready: a canary has passed through it."""

    prefill: str
    decode: str
    transport: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Status:
    """The whole system at one moment. requests: admitted and not ended."""

    model: str
    serving: bool
    queue: QueueStatus
    requests: int
    workers: tuple[WorkerStatus, ...]
    pairs: tuple[PairStatus, ...]
    handoffs_in_flight: int


@dataclass(frozen=True, slots=True)
class PairCheck:
    """What a canary through one pair found. failed_hop: None, or pair, reserve, prefill, handoff, decode."""

    pair: PairStatus
    failed_hop: str | None
    detail: str
    timing: Timing
