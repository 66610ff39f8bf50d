"""One request in the scheduler: its phase, its token log, its times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from router.scheduling.place import Place
from router.scheduling.values import Request
from twinpool.errors import DeadlineExceeded
from twinpool.types import Timing


class Phase(StrEnum):
    """Where a request is.

        queued ─► reserving ─► prefilling ─► handing off ─► decoding ─► ended
           ▲          │             │              │            │
           └──────────┴─────────────┴──────────────┴────────────┘  refused, expired, preempted, or lost

    Whatever brings it back to the queue, the next attempt reads prompt and token log, and goes on.

    A choice with one token left goes from queued straight to prefilling, and from there to ended.
    """

    QUEUED = "queued"
    RESERVING = "reserving"
    PREFILLING = "prefilling"
    HANDING_OFF = "handing_off"
    DECODING = "decoding"
    ENDED = "ended"


LEGAL_PHASES = frozenset(
    {
        (Phase.QUEUED, Phase.RESERVING),
        (Phase.QUEUED, Phase.PREFILLING),
        (Phase.RESERVING, Phase.PREFILLING),
        (Phase.PREFILLING, Phase.HANDING_OFF),
        (Phase.HANDING_OFF, Phase.DECODING),
        (Phase.RESERVING, Phase.QUEUED),
        (Phase.PREFILLING, Phase.QUEUED),
        (Phase.HANDING_OFF, Phase.QUEUED),
        (Phase.DECODING, Phase.QUEUED),
        *((phase, Phase.ENDED) for phase in Phase if phase is not Phase.ENDED),
    }
)

TIMED_AS = {
    Phase.QUEUED: "queue_s",
    Phase.RESERVING: "queue_s",
    Phase.PREFILLING: "prefill_s",
    Phase.HANDING_OFF: "handoff_wait_s",
    Phase.DECODING: "decode_s",
}
"""Which of `Timing`'s phases a request's time goes to; an attempt made again adds to the same ones."""


class Setback(StrEnum):
    """Why an attempt ended before its choice did."""

    REFUSED = "refused"
    EXPIRED = "expired"
    PREEMPTED = "preempted"
    WORKER_LOST = "worker_lost"
    HANDOFF_FAILED = "handoff_failed"
    ENGINE_FAILED = "engine_failed"
    DRAINED = "drained"


COUNTED = frozenset({Setback.WORKER_LOST, Setback.HANDOFF_FAILED, Setback.ENGINE_FAILED})
"""Setbacks that use up one of a request's attempts; the others are the system's ordinary life."""


class IllegalPhase(RuntimeError):
    """A request was about to skip a phase of its life: a bug."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """A cache on its way from a prefill worker. transport: of the pair, which may be gone when it comes."""

    transport: str


@dataclass(slots=True)
class Move:
    """A row on its way to another decode worker: the attempt and the worker that it will go on with.

    copying: the room is there, and the row's worker has been told to copy.
    """

    attempt: str
    decode_id: str
    copying: bool = False


@dataclass(slots=True, eq=False)
class RequestState:
    """A request the scheduler holds. place: among all requests, kept for good.

    log: every token accepted. blocked_since: when no worker had room for it first, while queued.
    expires_at: its deadline. num_resumes: attempts that went on with tokens of earlier ones.
    attempt: the current try, empty while queued. prefill_id and decode_id: worker ids of the current try.
    handoff: set from the command to prefill until its cache has come, or will not come.
    move: set while its row is being moved off a decode worker that drains. move_again_at: not before.
    """

    request: Request
    place: Place
    entered_at: float
    phase: Phase = Phase.QUEUED
    log: list[int] = field(default_factory=list)
    attempt: str = ""
    prefill_id: str = ""
    decode_id: str | None = None
    handoff: Handoff | None = None
    move: Move | None = None
    move_again_at: float = -math.inf
    blocked_since: float | None = None
    expires_at: float = math.inf
    num_failed_attempts: int = 0
    num_resumes: int = 0
    _seconds: dict[str, float] = field(default_factory=dict)

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        """Tokens a prefill has to read: prompt and token log."""
        return len(self.request.prompt_ids) + len(self.log)

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and answer at the end, if nothing ends it before."""
        return len(self.request.prompt_ids) + self.request.params.max_tokens

    @property
    def needs_decode(self) -> bool:
        """Whether more than one token is left to produce."""
        return self.request.params.max_tokens - len(self.log) > 1

    def enter(self, phase: Phase, now: float) -> None:
        """Change the phase; the time since the last change goes to the phase left."""
        if (self.phase, phase) not in LEGAL_PHASES:
            raise IllegalPhase(f"request {self.request_id}: {self.phase} to {phase}")
        name = TIMED_AS[self.phase]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self.entered_at
        self.phase = phase
        self.entered_at = now

    def expiry(self, now: float) -> DeadlineExceeded | None:
        """The error that names the phase, if its deadline has passed."""
        if now < self.expires_at:
            return None
        words = f"the deadline passed while {self.phase.value.replace('_', ' ')}"
        return DeadlineExceeded(words, phase=TIMED_AS[self.phase].removesuffix("_s"))

    def found_no_room(self, now: float) -> float:
        """No worker had room for it; for how many seconds that has been so."""
        if self.blocked_since is None:
            self.blocked_since = now
        return now - self.blocked_since

    def timing(self) -> Timing:
        """Seconds by phase so far."""
        return Timing(**self._seconds)
