"""What the entrance needs from below, as protocols. All methods belong to the event loop's thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from router.dispatch.submission import Sink, Submission
from router.scheduling.values import Request
from twinpool.types import Pool
from twinpool.views import PairCheck, Snapshot, Verification


class Dispatcher(Protocol):
    """Serves requests."""

    def submit(self, request: Request, sink: Sink) -> Submission:
        """Queue a request, or raise QueueFull, PoolUnavailable, ServerDraining, DuplicateRequestId.

        The sink gets at least one output, the last with an ending, or the request's typed error.
        The submission must be left, whatever comes.
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


class Overseer(Protocol):
    """Knows the whole system."""

    def snapshot(self) -> Snapshot:
        """The state now."""
        ...

    async def verify(self) -> Verification:
        """Have all workers audit their blocks and compare: within a bound, whatever workers do."""
        ...


class PairChecker(Protocol):
    """Tests prefill-decode pairs, by worker ids."""

    async def check(self, prefill: str, decode: str) -> PairCheck:
        """Test one pair, within a bound. A pair that fails is a result, not an exception."""
        ...


class PoolScaler(Protocol):
    """Changes the pools while they serve."""

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
