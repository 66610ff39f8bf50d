"""What the scheduler wants done, in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.scheduling.phases import Setback
from router.scheduling.values import Output
from twinpool.errors import TwinpoolError
from twinpool.session.messages import Command


@dataclass(frozen=True, slots=True)
class Send:
    """A command to a worker's session."""

    worker_id: str
    command: Command


@dataclass(frozen=True, slots=True)
class Emit:
    """Tokens of one choice, for its request's stream. last: the stream ends with this output's ending."""

    request_id: str
    output: Output
    last: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """A request's stream ends with an error."""

    request_id: str
    error: TwinpoolError


@dataclass(frozen=True, slots=True)
class ProbePair:
    """A pair is joined: let a canary through it, then say PairProven. Worker ids, and incarnations."""

    prefill_id: str
    decode_id: str
    prefill: str
    decode: str


class ReplaceCause(StrEnum):
    """Why a worker that lives is replaced."""

    STUCK = "stuck"
    QUARANTINE_OVERDUE = "quarantine_overdue"


@dataclass(frozen=True, slots=True)
class ReplaceWorker:
    """End this incarnation; the launcher starts another. reason: what was seen, in words."""

    worker_id: str
    incarnation: str
    reason: str
    cause: ReplaceCause


@dataclass(frozen=True, slots=True)
class SetBack:
    """An attempt ended and the request is queued again; for metrics.

    resumed: its client has had tokens of this attempt, and will have to wait for those of another.
    """

    request_id: str
    setback: Setback
    resumed: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """A draining worker holds nothing any more: it may be ended."""

    worker_id: str
    incarnation: str


class MoveOutcome(StrEnum):
    """What became of a row's move. ENDED: its request has, before."""

    MOVED = "moved"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class MoveEnded:
    """A row that was to leave a draining worker with its cache has, or has not; for metrics."""

    outcome: MoveOutcome


class HandoffOutcome(StrEnum):
    """What became of a hand-off.

    REFUSED: its reservation had run out of time. CHECKSUM: a block did not arrive as it was sent. ENDED: it
    was over, or its attempt was, for a reason of its own.
    """

    WRITTEN = "written"
    PAIR_LOST = "pair_lost"
    REFUSED = "refused"
    CHECKSUM = "checksum"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class HandoffEnded:
    """A cache came whole to a decode worker, or did not; for metrics. Once for each Prefill that names one.

    transport: of its pair. num_bytes and seconds: of a cache that came.
    """

    request_id: str
    outcome: HandoffOutcome
    transport: str
    num_bytes: int = 0
    seconds: float = 0.0


SchedulerCommand = (
    Drained | HandoffEnded | MoveEnded | Send | Emit | Fail | ProbePair | ReplaceWorker | SetBack
)
