"""What the router and its workers say to each other, as frozen dataclasses.

`twinpool.session.codec` turns them into protobuf and back, field by field of the same name;
`proto/twinpool/v1/worker.proto` comments every field, and `twinpool.session.streams` says what travels
over which stream. Ids of hand-offs and attempts are never used twice; see `twinpool.types`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from twinpool.protocol import SESSION, Versions
from twinpool.sampling.params import SamplingParams
from twinpool.types import AttemptId, FinishReason, HandoffEndpoint, HandoffId, HolderId, Pool, Token


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Counts of one worker at one moment.

    progress: turns of the engine's loop, idle ones included, and layers computed (see `Pulse`).
    step_s: seconds of its newest step.
    cpu_s: processor time of the worker's process. rss_bytes: its memory, shared pages it touched included.
    """

    running: int = 0
    waiting: int = 0
    blocks_free: int = 0
    blocks_quarantined: int = 0
    handoffs: int = 0
    blocks_cached: int = 0
    progress: int = 0
    step_s: float = 0.0
    cpu_s: float = 0.0
    rss_bytes: int = 0


# Router to prefill worker.


@dataclass(frozen=True, slots=True)
class JoinPair:
    """Open the hand-off connection to a decode worker (an incarnation)."""

    decode: str
    endpoint: HandoffEndpoint


@dataclass(frozen=True, slots=True)
class LeavePair:
    """Close it."""

    decode: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a hand-off, and which answer of the request it is a try of."""

    id: AttemptId
    choice_index: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Read prompt and token log, choose the next token, hand the cache to `decode` (None: keep it).

    attempts: one for each choice; prompt and log are alike for all. place: the request's among all, kept when
    it resumes; the lower goes first.
    """

    handoff: HandoffId
    attempts: tuple[Attempt, ...]
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    params: SamplingParams
    decode: str | None
    place: int


@dataclass(frozen=True, slots=True)
class CancelPrefill:
    """Stop reading a prompt and free its blocks."""

    handoff: HandoffId


# Router to decode worker.


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set blocks aside for num_tokens; only `writer` (an incarnation) may fill them, for these attempts."""

    handoff: HandoffId
    attempts: tuple[AttemptId, ...]
    num_tokens: int
    writer: str
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Admit:
    """Let an attempt's row into the batch once its hand-off's cache is written.

    output_ids: the token log, newest last.
    """

    attempt: AttemptId
    handoff: HandoffId
    choice_index: int
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Drop:
    """Let a hand-off or an attempt go, whatever it holds: a reservation, or a row."""

    holder: HolderId


@dataclass(frozen=True, slots=True)
class WriterGone:
    """A prefill worker's process is gone."""

    writer: str


@dataclass(frozen=True, slots=True)
class MoveRow:
    """Copy a row's cache into the reservation `to` of the decode worker `decode` while the row goes on.

    Ends in RowMoved, MoveFailed, or the row's own end.
    """

    attempt: AttemptId
    to: HandoffId
    decode: str


# Router to any worker.


@dataclass(frozen=True, slots=True)
class Audit:
    """Check your own books, at the next boundary of the engine's steps; answered by `Audited`."""

    audit_id: str


ControlCommand = JoinPair | LeavePair | WriterGone
WorkCommand = MoveRow | Prefill | CancelPrefill | Reserve | Admit | Drop | Audit
Command = ControlCommand | WorkCommand


# Worker to router.


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of every control stream. versions: of the protocol that the worker speaks.

    cpus: of its machine. cpus_usable: those that it may use. kernels: what computes, in words.
    0 and empty where it does not tell.
    """

    pool: Pool
    incarnation: str
    pid: int
    blocks_total: int
    block_size: int
    kv_bytes: int
    endpoint: HandoffEndpoint = field(default_factory=HandoffEndpoint)
    versions: Versions = SESSION
    cpus: int = 0
    cpus_usable: int = 0
    kernels: str = ""


@dataclass(frozen=True, slots=True)
class PairJoined:
    """The connection to a decode incarnation is open."""

    decode: str
    transport: str


@dataclass(frozen=True, slots=True)
class PairBroken:
    """It ended, or could not be opened."""

    decode: str
    reason: str


@dataclass(frozen=True, slots=True)
class FirstToken:
    """An attempt's first token. position: its index in the token log."""

    attempt: AttemptId
    position: int
    token: Token
    finish_reason: FinishReason | None
    num_computed_tokens: int


class PrefillOutcome(StrEnum):
    """How a hand-off left a prefill worker. FAILED_ALONE: the engine failed on this prompt by itself."""

    DONE = "done"
    STOPPED = "stopped"
    REFUSED = "refused"
    PAIR_LOST = "pair_lost"
    FAILED = "failed"
    FAILED_ALONE = "failed_alone"


@dataclass(frozen=True, slots=True)
class PrefillEnded:
    """A hand-off holds nothing on the prefill worker any more. detail: for people alone."""

    handoff: HandoffId
    outcome: PrefillOutcome
    detail: str
    load: LoadReport


@dataclass(frozen=True, slots=True)
class Granted:
    """Blocks are set aside."""

    handoff: HandoffId
    load: LoadReport


@dataclass(frozen=True, slots=True)
class Refused:
    """Not enough free blocks now."""

    handoff: HandoffId
    load: LoadReport


@dataclass(frozen=True, slots=True)
class Written:
    """A hand-off's cache has arrived whole."""

    handoff: HandoffId
    num_bytes: int
    handoff_s: float


class ReleaseReason(StrEnum):
    """Why a hand-off or an attempt left a decode worker.

    EXPIRED: no progress since its writer began. NEVER_BEGUN: its writer did not even begin in time.
    WRITER_GONE: nor will it, being no more. CONNECTION_ENDED: the writer's has, so it may be dead.
    DAMAGED: a block is not as it was sent. HANDOFF_FAILED: the cache did not come for another reason.
    FAILED_ALONE: the engine failed on this row by itself.
    """

    EVICTED = "evicted"
    REVOKED = "revoked"
    EXPIRED = "expired"
    NEVER_BEGUN = "never_begun"
    WRITER_GONE = "writer_gone"
    CONNECTION_ENDED = "connection_ended"
    DAMAGED = "damaged"
    HANDOFF_FAILED = "handoff_failed"
    GONE = "gone"
    FAILED = "failed"
    FAILED_ALONE = "failed_alone"


@dataclass(frozen=True, slots=True)
class Released:
    """Its holder has nothing usable on the decode worker any more; load counts quarantined blocks.

    detail: more on the reason, for people alone.
    """

    holder: HolderId
    reason: ReleaseReason
    detail: str
    load: LoadReport


@dataclass(frozen=True, slots=True)
class RowToken:
    """One row's token. position: its index in the token log."""

    attempt: AttemptId
    position: int
    token: Token
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class StepDone:
    """One decode step of a worker's whole batch."""

    step: int
    tokens: tuple[RowToken, ...]
    step_s: float
    load: LoadReport


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """One step of a prefill worker: chunks of num_prompts prompts, num_tokens together."""

    num_prompts: int
    num_tokens: int
    step_s: float


@dataclass(frozen=True, slots=True)
class RowsPaused:
    """Rows that were not stepped for want of a block; said again while it lasts."""

    attempts: tuple[AttemptId, ...]
    load: LoadReport


@dataclass(frozen=True, slots=True)
class RowMoved:
    """A row's cache is whole in the reservation `to`, and the row is not stepped here any more.

    position: length of the token log at that moment.
    """

    attempt: AttemptId
    to: HandoffId
    position: int


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """A row goes on where it was."""

    attempt: AttemptId
    to: HandoffId
    detail: str


@dataclass(frozen=True, slots=True)
class QuarantineOverdue:
    """A writer has not let go of a hand-off's blocks in time; `writer` is the incarnation to end."""

    handoff: HandoffId
    writer: str


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks of one worker by owner; they sum to its pool. A prefill worker's prompts count as rows.

    cached: shared blocks, each counted once.
    """

    free: int = 0
    reserved: int = 0
    rows: int = 0
    cached: int = 0
    quarantined: int = 0


class HeldStage(StrEnum):
    """Where a holder is in its life: the first three on a prefill worker, the others on a decode worker."""

    WAITING = "waiting"
    READING = "reading"
    HANDING_OFF = "handing_off"
    RESERVED = "reserved"
    WRITING = "writing"
    WRITTEN = "written"
    ADMITTED = "admitted"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Holding:
    """What one holder has of a worker; of blocks in quarantine, that is the hand-off.

    num_blocks: its own. age_s: seconds it has been in this stage; on a prefill worker, since it came.
    """

    holder: HolderId
    stage: HeldStage
    num_blocks: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Audited:
    """A worker's books, all of one moment. problems: what does not agree with what, in words."""

    audit_id: str
    blocks: BlockCounts
    held: tuple[Holding, ...]
    problems: tuple[str, ...]


ControlEvent = Hello | PairJoined | PairBroken | QuarantineOverdue
WorkEvent = (
    FirstToken
    | PrefillEnded
    | Granted
    | Refused
    | Written
    | Released
    | StepDone
    | PrefillStep
    | RowsPaused
    | RowMoved
    | MoveFailed
    | Audited
    | LoadReport
)
Event = ControlEvent | WorkEvent


def load_of(event: Event) -> LoadReport | None:
    """The counts that a worker's event is, or comes with."""
    match event:
        case LoadReport():
            return event
        case (
            PrefillEnded(load=load)
            | Granted(load=load)
            | Refused(load=load)
            | Released(load=load)
            | StepDone(load=load)
            | RowsPaused(load=load)
        ):
            return load
        case _:
            return None
