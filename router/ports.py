"""What the gRPC services need from the dispatcher, and the values that pass between them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from twinpool.session.messages import BlockCounts, HeldAttempt, LoadReport
from twinpool.totals import Totals
from twinpool.types import FinishReason, Pool, RowParams, ServedBy, Timing, WorkerState


@dataclass(frozen=True, slots=True)
class Request:
    """A validated, tokenized request.

    pair: worker ids (prefill, decode) that alone may serve it, for canaries; None: any.
    A request with a pair is not counted among users' requests.
    timeout_s: seconds its client is willing to wait, from its arrival; None: as long as the server is.
    waited_s: seconds since its arrival when it is submitted; its text had to be tokenized.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: RowParams
    pair: tuple[str, str] | None = None
    timeout_s: float | None = None
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a choice ended well. num_resumes: how often a new attempt went on with its token log."""

    finish_reason: FinishReason
    timing: Timing
    workers: ServedBy
    num_resumes: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one choice, all that came since the last Output; ending is set in the last only."""

    choice_index: int
    token_ids: tuple[int, ...]
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as `status` and the gauges show it. load: its newest report.

    reason: why it is not up, in words; empty while it is, or has just been asked for.
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
    held: tuple[HeldAttempt, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """Who holds what. at_rest: nothing is held anywhere, and there is no request."""

    at_rest: bool
    workers: tuple[VerifiedWorker, ...]


class Outputs(Protocol):
    """What comes of one request; see `Dispatcher.submit`."""

    def __aiter__(self) -> AsyncIterator[Output]: ...

    async def __anext__(self) -> Output: ...

    async def aclose(self) -> None:
        """The reader leaves; a request that has not ended is cancelled."""
        ...


class PoolScaler(Protocol):
    """Changes the pools while they serve. All methods belong to the event loop's thread."""

    def set_size(self, pool: Pool, size: int) -> int:
        """Start workers, or drain and end some; the size before. Raises InvalidRequest."""
        ...

    def drain(self, worker_id: str) -> None:
        """Have one worker leave. Raises UnknownWorker, InvalidRequest where it is its pool's last."""
        ...

    def renew(self, worker_ids: list[str]) -> AsyncGenerator[tuple[str, str], None]:
        """Drain, end and start anew these workers, one at a time; each one's id and new incarnation.

        Raises UnknownWorker before the first, StartFailed if one does not become ready again.
        """
        ...

    def all_of(self, pool: Pool) -> list[str]:
        """The ids of a pool's workers."""
        ...


class Dispatcher(Protocol):
    """The running system behind the services. All methods belong to the event loop's thread."""

    def submit(self, request: Request) -> Outputs:
        """Queue a request, or raise QueueFull, PoolUnavailable, ServerDraining, DuplicateRequestId.

        The iterator yields at least one Output and ends after the one with an ending. It raises the
        request's typed error if it fails. Tokens that come while nobody reads merge into one Output.
        Closing the iterator (aclose) cancels the request.
        """
        ...

    def require_room(self) -> None:
        """Raise what `submit` would raise now for a request of one token; so that nothing is spent on it."""
        ...

    def abort(self, request_id: str) -> bool:
        """End a request with FinishReason.ABORT; False if no such request is in flight."""
        ...

    def max_request_tokens(self) -> int:
        """Most tokens of prompt and answer that fit either side's whole pool."""
        ...

    def snapshot(self) -> Snapshot:
        """The state now."""
        ...

    async def verify(self) -> Verification:
        """Have all workers audit their blocks and compare: within a bound, whatever workers do."""
        ...
