"""Turns what passes through the dispatcher into metrics; decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.metrics import Metrics
from router.ports import Output, Request
from router.scheduling.commands import SetBack
from router.scheduling.fleet import Fleet
from twinpool.messages import (
    Command,
    Event,
    Prefill,
    PrefillEnded,
    PrefillOutcome,
    Released,
    ReleaseReason,
    StepDone,
    Written,
)
from twinpool.types import Pool, Usage

SMOOTHING = 0.2
"""Weight of the newest interval between two prefills in the running mean."""


@dataclass(slots=True)
class _Seen:
    """A user's request in flight."""

    num_prompt_tokens: int
    arrived_at: float
    newest_at: float
    num_tokens: int = 0


class Observations:
    """Belongs to the event loop's thread. Canaries are not observed.

    serves_user: whether an attempt is the current one of a user's request. What is said of any other is no
    user's hand-off, or one whose end is counted already.
    """

    def __init__(self, metrics: Metrics, fleet: Fleet, serves_user: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._serves_user = serves_user
        self._seen: dict[str, _Seen] = {}
        self._prefill_at: float | None = None
        self._seconds_per_start = 0.1

    def arrived(self, request: Request, now: float) -> None:
        """A request is queued."""
        if request.pair is None:
            self._seen[request.request_id] = _Seen(len(request.prompt_ids), now, now)

    def forget(self, request_id: str) -> None:
        """A request ended without an ending."""
        self._seen.pop(request_id, None)

    def sent(self, command: Command, now: float, *, waiting: bool) -> None:
        """A worker is told something. waiting: whether requests still queue behind it."""
        if not isinstance(command, Prefill):
            return
        if self._prefill_at is not None:
            interval = now - self._prefill_at
            self._seconds_per_start += SMOOTHING * (interval - self._seconds_per_start)
        # With an empty queue the time to the next one says how few come, not how fast they go.
        self._prefill_at = now if waiting else None

    def seconds_per_start(self) -> float:
        """How long it takes, of late, until one request leaves the queue: an honest time to try again."""
        return min(max(self._seconds_per_start, 0.05), 60.0)

    def emitted(self, request_id: str, output: Output, now: float) -> None:
        """Tokens go out to a client."""
        seen = self._seen.get(request_id)
        if seen is None:
            return
        if output.token_ids and seen.num_tokens == 0:
            self._metrics.first_token(now - seen.arrived_at, len(output.token_ids))
        elif output.token_ids:
            self._metrics.token_gap(now - seen.newest_at, len(output.token_ids))
        seen.num_tokens += len(output.token_ids)
        seen.newest_at = now
        if output.ending is not None:
            usage = Usage(seen.num_prompt_tokens, seen.num_tokens)
            self._metrics.request_finished(output.ending.finish_reason, output.ending.timing, usage)
            del self._seen[request_id]

    def set_back(self, command: SetBack) -> None:
        """An attempt ended before its choice did."""
        if command.request_id in self._seen:
            self._metrics.set_back(command.setback.value, resumed=command.resumed)

    def heard(self, worker_id: str, event: Event) -> None:
        """A worker speaks; the scheduler has not heard it yet."""
        match event:
            case StepDone(tokens=tokens, step_s=step_s):
                self._metrics.step(Pool.DECODE, step_s, len(tokens))
            case Written(attempt) | Released(attempt) | PrefillEnded(attempt) if self._serves_user(attempt):
                self._heard_of_handoff(worker_id, event)
            case _:
                pass

    def _heard_of_handoff(self, worker_id: str, event: Event) -> None:
        match event:
            case Written(num_bytes=num_bytes, handoff_s=handoff_s):
                self._metrics.handoff_done(self._transport(worker_id), num_bytes, handoff_s)
            case Released(reason=ReleaseReason.EXPIRED):
                self._metrics.lease_expired()
            case Released(reason=ReleaseReason.HANDOFF_FAILED, detail=detail):
                self._metrics.handoff_failed("checksum" if "checksum" in detail else "failed")
            case PrefillEnded(outcome=PrefillOutcome.REFUSED | PrefillOutcome.PAIR_LOST as outcome):
                self._metrics.handoff_failed(outcome.value)
            case _:
                pass

    def _transport(self, decode_id: str) -> str:
        """All of a decode worker's pairs of one host share a transport; the first one's stands for it."""
        pairs = (pair for pair in self._fleet.pairs() if pair.decode.worker_id == decode_id)
        return next((pair.transport for pair in pairs if pair.transport), "")
