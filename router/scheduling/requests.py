"""One request in the scheduler, and each of its choices: phase, token log, times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from router.scheduling.phases import LEGAL_PHASES, TIMED_AS, IllegalPhase, Phase
from router.scheduling.place import Place
from router.scheduling.values import Ending, Request
from twinpool.errors import DeadlineExceeded
from twinpool.types import AttemptId, HandoffId, HolderId, Timing, Usage

NO_ATTEMPT = AttemptId("")


@dataclass(slots=True, eq=False)
class Handoff:
    """One reading of a prompt, and the cache that comes of it, for these attempts of these choices.

    transport: of the pair, which may be gone when the cache comes; None unless a cache is on its way.
    """

    id: HandoffId
    choices: Mapping[AttemptId, Choice]
    transport: str | None = None


@dataclass(slots=True)
class Move:
    """A row on its way to another decode worker: the hand-off that brings it, and the attempt it goes on as.

    copying: the room is there, and the row's worker has been told to copy.
    """

    handoff: HandoffId
    attempt: AttemptId
    decode_id: str
    copying: bool = False


@dataclass(slots=True, eq=False)
class RequestState:
    """A request the scheduler holds. place: among all requests, kept for good. arrived_at: when its call
    came, before its text was tokenized. expires_at: its deadline.

    choices: those that have not ended, by index; the request ends with the last of them. endings: of those
    that have ended well, in the order in which they did. num_ended_tokens: of all that have ended.
    """

    request: Request
    place: Place
    arrived_at: float
    expires_at: float
    choices: dict[int, Choice] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    num_ended_tokens: int = 0

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def usage(self) -> Usage:
        """Tokens of its prompt, and of all its answers so far."""
        num_open_tokens = sum(choice.usage.completion_tokens for choice in self.choices.values())
        return Usage(len(self.request.prompt_ids), self.num_ended_tokens + num_open_tokens)

    def expiry(self, now: float) -> DeadlineExceeded | None:
        """The error that names the phase (of the first choice), if its deadline has passed."""
        if now < self.expires_at:
            return None
        phase = next(iter(self.choices.values())).phase
        words = f"the deadline passed while {phase.value.replace('_', ' ')}"
        return DeadlineExceeded(words, phase=TIMED_AS[phase].removesuffix("_s"))


@dataclass(slots=True, eq=False)
class Choice:
    """One answer of the request `of`. index: which.

    log: the ids of all tokens accepted, which is all that another attempt goes on with.
    blocked_since: when no worker had room for it first, while queued.
    num_resumes: attempts that went on with tokens of earlier ones.
    row_failed_on: by attempt, the id of the worker whose engine failed on its row alone.
    attempt: the current try, empty while queued. handoff: which it is of; None while queued. prefill_id and
    decode_id: worker ids of the current try.
    move: set while its row is being moved off a decode worker that drains. move_again_at: not before.
    """

    of: RequestState
    index: int
    entered_at: float
    phase: Phase = Phase.QUEUED
    log: list[int] = field(default_factory=list)
    attempt: AttemptId = NO_ATTEMPT
    prefill_id: str = ""
    decode_id: str | None = None
    handoff: Handoff | None = None
    move: Move | None = None
    move_again_at: float = -math.inf
    blocked_since: float | None = None
    num_failed_attempts: int = 0
    row_failed_on: dict[AttemptId, str] = field(default_factory=dict)
    num_resumes: int = 0
    _seconds: dict[str, float] = field(default_factory=dict)

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.of.request

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.of.request_id

    @property
    def place(self) -> Place:
        """The request's place."""
        return self.of.place

    @property
    def usage(self) -> Usage:
        """Tokens of the prompt, and of this answer so far."""
        return Usage(len(self.request.prompt_ids), len(self.log))

    @property
    def holder(self) -> HolderId:
        """Who holds its blocks on the decode worker: its attempt, once that has been told to admit it."""
        assert self.handoff is not None  # noqa: S101 (whoever asks has placed it)
        is_admitted = self.phase in (Phase.HANDING_OFF, Phase.DECODING)
        return self.attempt if is_admitted else self.handoff.id

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
            raise IllegalPhase(f"choice {self.index} of {self.request_id}: {self.phase} to {phase}")
        name = TIMED_AS[self.phase]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self.entered_at
        self.phase = phase
        self.entered_at = now

    def found_no_room(self, now: float) -> None:
        """No worker had room for it."""
        if self.blocked_since is None:
            self.blocked_since = now

    def timing(self) -> Timing:
        """Seconds by phase so far."""
        return Timing(**self._seconds)
