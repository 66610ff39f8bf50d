"""What operators are shown of a running system: its state, and what tests of it have found. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from twinpool.session.messages import BlockCounts, Holding, LoadReport
from twinpool.totals import Totals
from twinpool.types import Pool, Timing, WorkerState


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as `status` and the gauges show it. load: its newest report.

    reason: why it is not up, in words; empty while it is, or has just been asked for. cpus: of its machine,
    cpus_usable: those that it may use, kernels: what it computes with; 0 and empty while it is not up.
    """

    id: str
    pool: Pool
    state: WorkerState
    pid: int
    node: str
    incarnation: str
    blocks_total: int
    load: LoadReport
    reason: str = ""
    cpus: int = 0
    cpus_usable: int = 0
    kernels: str = ""

    @property
    def blocks_used(self) -> int:
        """Blocks neither free nor kept for reuse, quarantined ones included."""
        return self.blocks_total - self.load.blocks_free - self.load.blocks_cached


@dataclass(frozen=True, slots=True)
class PairView:
    """One prefill-decode pair, by worker ids. ready: a canary has passed through it."""

    prefill: str
    decode: str
    transport: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole system at one moment.

    most_running: prompts given to a prefill worker at a time, rows of a decode batch. totals: so far.
    """

    model: str
    serving: bool
    queue_requests: int
    queue_tokens: int
    num_requests: int
    workers: tuple[WorkerView, ...]
    pairs: tuple[PairView, ...]
    handoffs_in_flight: int
    target_workers: dict[Pool, int]
    most_running: dict[Pool, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)


@dataclass(frozen=True, slots=True)
class VerifiedWorker:
    """What was found on one worker. problems: in words, empty if all is well.

    answered: whether it told its books in time; if not, blocks and held are empty.
    """

    worker_id: str
    pool: Pool
    incarnation: str
    blocks_total: int
    answered: bool
    blocks: BlockCounts
    held: tuple[Holding, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """Who holds what. at_rest: nothing is held anywhere, and there is no request."""

    at_rest: bool
    workers: tuple[VerifiedWorker, ...]


class Hop(StrEnum):
    """Where a canary failed. NONE: nowhere."""

    NONE = "none"
    PAIR = "pair"
    RESERVE = "reserve"
    PREFILL = "prefill"
    HANDOFF = "handoff"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class PairCheck:
    """What one canary found. detail: what went wrong, in words; empty if nothing did."""

    pair: PairView
    failed_hop: Hop
    detail: str
    timing: Timing
