"""What has happened, for whoever listens: nothing is to be done about it.

What happens to canaries is nobody's business but the pair's: of their arrival, way and end nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.scheduling.phases import Setback
from router.scheduling.values import Ending
from twinpool.errors import TwinpoolError
from twinpool.types import AttemptId, HandoffId, Pool, Usage


@dataclass(frozen=True, slots=True)
class RequestQueued:
    """A user's request is in the queue. arrived_at: when its call came, before its text was tokenized."""

    request_id: str
    arrived_at: float


@dataclass(frozen=True, slots=True)
class PrefillSent:
    """A prefill worker has been given a user's request to read, as this attempt."""

    request_id: str
    handoff: HandoffId
    attempt: AttemptId
    worker_id: str


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """All choices of a user's request have ended well, in this order."""

    request_id: str
    usage: Usage
    endings: tuple[Ending, ...]


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A user's request ended with an error, so many seconds after its arrival. usage: until then."""

    request_id: str
    usage: Usage
    seconds: float
    error: TwinpoolError


@dataclass(frozen=True, slots=True)
class RequestLeft:
    """The client of a request has gone, so many seconds after its arrival. usage: until then."""

    request_id: str
    usage: Usage
    seconds: float


@dataclass(frozen=True, slots=True)
class SetBack:
    """An attempt ended, and its choice is queued again.

    resumed: its client has had tokens of this attempt, and will have to wait for those of another.
    """

    request_id: str
    setback: Setback
    resumed: bool


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
    """A cache came whole to a decode worker, or did not. Once for each Prefill that names one.

    transport: of its pair. num_bytes and seconds: of a cache that came.
    """

    request_id: str
    outcome: HandoffOutcome
    transport: str
    num_bytes: int = 0
    seconds: float = 0.0


class MoveOutcome(StrEnum):
    """What became of a row's move. ENDED: its request has, before."""

    MOVED = "moved"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class MoveEnded:
    """A row that was to leave a draining worker with its cache has, or has not."""

    outcome: MoveOutcome


@dataclass(frozen=True, slots=True)
class StepTaken:
    """A worker made one step. batch: prompts or rows in it."""

    pool: Pool
    seconds: float
    batch: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class CpuUsed:
    """A worker's process has used so many more seconds of processor time."""

    pool: Pool
    worker_id: str
    seconds: float


Happening = (
    RequestQueued
    | PrefillSent
    | RequestFinished
    | RequestFailed
    | RequestLeft
    | SetBack
    | HandoffEnded
    | MoveEnded
    | StepTaken
    | CpuUsed
)
