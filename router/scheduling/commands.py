"""What the scheduler wants done; all it says is that and what happens, in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.scheduling.happenings import Happening
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
class Drained:
    """A draining worker holds nothing any more: it may be ended."""

    worker_id: str
    incarnation: str


SchedulerCommand = Drained | Send | Emit | Fail | ProbePair | ReplaceWorker
SchedulerSaid = SchedulerCommand | Happening
