"""Turns what passes through the dispatcher into metrics and lines of the log; decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.scheduling.commands import MoveOutcome, SetBack
from router.scheduling.fleet import Fleet
from router.scheduling.requests import Setback
from router.scheduling.values import Output, Request
from router.telemetry import request_log
from router.telemetry.metrics import Metrics
from twinpool.errors import DeadlineExceeded, TwinpoolError, WorkerLost
from twinpool.session.messages import (
    CONNECTION_ENDED,
    WRITER_GONE,
    Command,
    Event,
    LoadReport,
    Prefill,
    PrefillEnded,
    PrefillOutcome,
    PrefillStep,
    Released,
    ReleaseReason,
    StepDone,
    Written,
)
from twinpool.types import Pool, Usage


@dataclass(slots=True)
class _Seen:
    """A user's request in flight.

    handoff: the attempt whose cache is on its way to a decode worker, empty if none is; transport: how.
    """

    num_prompt_tokens: int
    arrived_at: float
    newest_at: float
    num_tokens: int = 0
    handoff: str = ""
    transport: str = ""

    @property
    def usage(self) -> Usage:
        """Tokens of its prompt, and of its answer so far."""
        return Usage(self.num_prompt_tokens, self.num_tokens)


class Observations:
    """Belongs to the event loop's thread. Canaries are not observed.

    user_request: the user's request whose current attempt it is, if any.

    A hand-off begins with the command to prefill, and its end is counted once, by what is heard of it first:
    a word of either worker, or the loss of one. A row's move is another attempt, and no hand-off.
    """

    def __init__(self, metrics: Metrics, fleet: Fleet, user_request: Callable[[str], str | None]) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._user_request = user_request
        self._seen: dict[str, _Seen] = {}

    def arrived(self, request: Request, now: float) -> None:
        """A request is queued."""
        if request.pair is None:
            arrived_at = now - request.waited_s
            self._seen[request.request_id] = _Seen(len(request.prompt_ids), arrived_at, arrived_at)
            self._metrics.request_admitted()

    def left(self, request_id: str, now: float) -> None:
        """A request ended without an ending: its client has left."""
        if seen := self._seen.pop(request_id, None):
            self._metrics.request_left()
            request_log.left(request_id, seen.usage, now - seen.arrived_at)

    def failed(self, request_id: str, error: TwinpoolError, now: float) -> None:
        """A request ended with an error."""
        seen = self._seen.pop(request_id, None)
        if seen is None:
            return
        self._handoff_over(seen, worker_lost=isinstance(error, WorkerLost))
        self._metrics.request_failed()
        request_log.failed(request_id, seen.usage, now - seen.arrived_at, error)
        if isinstance(error, DeadlineExceeded):
            self._metrics.request_expired(error.phase)

    def sent(self, worker_id: str, command: Command) -> None:
        """A worker is told something."""
        if not isinstance(command, Prefill):
            return
        request_id = self._user_request(command.attempt) or ""
        if seen := self._seen.get(request_id):
            request_log.attempted(request_id, command.attempt, worker_id)
            # Kept here, because the pair may be gone when the decode worker says that the cache came.
            seen.handoff = command.attempt if command.decode else ""
            seen.transport = self._transport(worker_id, command.decode)

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
            ending = output.ending
            self._metrics.request_finished(ending.finish_reason, ending.timing, seen.usage)
            request_log.finished(request_id, seen.usage, ending)
            del self._seen[request_id]

    def set_back(self, command: SetBack) -> None:
        """An attempt ended before its choice did."""
        if seen := self._seen.get(command.request_id):
            self._handoff_over(seen, worker_lost=command.setback is Setback.WORKER_LOST)
            self._metrics.set_back(command.setback.value, resumed=command.resumed)

    def move_ended(self, outcome: MoveOutcome) -> None:
        """A row has left a draining worker with its cache, or has not."""
        self._metrics.move_ended(outcome)

    def heard(self, worker_id: str, event: Event) -> None:
        """A worker speaks; the scheduler has not heard it yet."""
        load: LoadReport | None = event if isinstance(event, LoadReport) else getattr(event, "load", None)
        if load is not None:
            self._heard_of_usage(worker_id, load)
        match event:
            case StepDone(tokens=tokens, step_s=step_s):
                self._metrics.step(Pool.DECODE, step_s, batch=len(tokens), num_tokens=len(tokens))
            case PrefillStep(num_prompts, num_tokens, step_s):
                self._metrics.step(Pool.PREFILL, step_s, batch=num_prompts, num_tokens=num_tokens)
            case Written(attempt) | Released(attempt) | PrefillEnded(attempt):
                seen = self._seen.get(self._user_request(attempt) or "")
                if seen is not None and seen.handoff == attempt:
                    self._heard_of_handoff(seen, event)
            case _:
                pass

    def _heard_of_usage(self, worker_id: str, load: LoadReport) -> None:
        """The scheduler still holds the report before, and none of a former life."""
        worker = self._fleet.worker(worker_id)
        if worker is not None:
            more_s = max(0.0, load.cpu_s - worker.load.cpu_s)
            self._metrics.worker_used(worker.pool, worker_id, more_s)

    def _heard_of_handoff(self, seen: _Seen, event: Event) -> None:
        match event:
            case PrefillEnded(outcome=PrefillOutcome.DONE | PrefillOutcome.STOPPED):
                return  # the decode worker has the last word
            case Written(num_bytes=num_bytes, handoff_s=handoff_s):
                self._metrics.handoff_done(seen.transport, num_bytes, handoff_s)
            case Released(detail=detail) if detail in (CONNECTION_ENDED, WRITER_GONE):
                self._metrics.handoff_failed(PrefillOutcome.PAIR_LOST)
            case Released(reason=ReleaseReason.EXPIRED) | PrefillEnded(outcome=PrefillOutcome.REFUSED):
                self._metrics.lease_expired()  # the one notices at its end, the other when it asks to begin
                self._metrics.handoff_failed(PrefillOutcome.REFUSED)
            case Released(reason=ReleaseReason.HANDOFF_FAILED, detail=detail):
                self._metrics.handoff_failed("checksum" if "checksum" in detail else "failed")
            case PrefillEnded(outcome=PrefillOutcome.PAIR_LOST):
                self._metrics.handoff_failed(PrefillOutcome.PAIR_LOST)
            case _:
                pass
        seen.handoff = ""

    def _handoff_over(self, seen: _Seen, *, worker_lost: bool) -> None:
        """Its attempt is. A lost worker may be noticed before anything is heard of its connection's end."""
        if seen.handoff and worker_lost:
            self._metrics.handoff_failed(PrefillOutcome.PAIR_LOST)
        seen.handoff = ""

    def _transport(self, prefill_id: str, decode_incarnation: str | None) -> str:
        decode = self._fleet.by_incarnation(decode_incarnation) if decode_incarnation else None
        pair = self._fleet.pair(prefill_id, decode.worker_id) if decode else None
        return pair.transport if pair else ""
