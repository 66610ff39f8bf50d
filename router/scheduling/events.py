"""What the scheduler is told. Time comes beside each event, on one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

from router.scheduling.values import Request
from twinpool.session.messages import Event, Hello
from twinpool.types import Pool


@dataclass(frozen=True, slots=True)
class Arrived:
    """A validated request is queued."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Its client left; nobody hears of it any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """Somebody asked for its end; its client hears finish reason abort."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A choice's text ends before its tokens do: it ends well, and has but so many of them."""

    request_id: str
    choice_index: int
    position: int


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A session with a worker is open. worker_id: its name, kept by its replacement."""

    worker_id: str
    hello: Hello


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """A worker's session is over. Its process may live on, for another router too: see `WorkerGone`."""

    worker_id: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker's process has ended for certain: before or after its `WorkerDown`."""

    pool: Pool
    incarnation: str


@dataclass(frozen=True, slots=True)
class SeatClosed:
    """No worker of this name will come any more."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Drain:
    """A worker is to leave: nothing new goes to it. After grace_s, what it still has is set back."""

    worker_id: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    """A worker's message, as it came."""

    worker_id: str
    incarnation: str
    message: Event


@dataclass(frozen=True, slots=True)
class PairProven:
    """A canary has passed from one worker to the other; ids of incarnations."""

    prefill: str
    decode: str


@dataclass(frozen=True, slots=True)
class PairFailed:
    """A canary did not pass; ids of incarnations."""

    prefill: str
    decode: str


@dataclass(frozen=True, slots=True)
class PoolGivenUp:
    """A pool has no worker and will not get one; an empty message: all have hope again."""

    message: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


SchedulerEvent = (
    Arrived
    | Cancelled
    | Aborted
    | Cut
    | WorkerUp
    | WorkerDown
    | WorkerGone
    | SeatClosed
    | Drain
    | WorkerSaid
    | PairProven
    | PairFailed
    | PoolGivenUp
    | Tick
)
