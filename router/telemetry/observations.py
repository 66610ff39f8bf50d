"""Turns what passes through the dispatcher into metrics and lines of the log; decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.scheduling.commands import Emit, HandoffEnded, HandoffOutcome, MoveOutcome, SetBack
from router.scheduling.fleet import Fleet
from router.scheduling.values import Request
from router.telemetry import request_log
from router.telemetry.metrics import Metrics
from twinpool.errors import DeadlineExceeded, TwinpoolError
from twinpool.session.messages import (
    Command,
    Event,
    LoadReport,
    Prefill,
    PrefillStep,
    StepDone,
)
from twinpool.types import Pool, Usage


@dataclass(slots=True)
class _Seen:
    """A user's request in flight. num_answer_tokens: of its choices that have ended."""

    num_prompt_tokens: int
    arrived_at: float
    newest_at: float
    num_tokens: int = 0
    num_answer_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """Tokens of its prompt, and of its answer so far."""
        return Usage(self.num_prompt_tokens, self.num_tokens)


class Observations:
    """Belongs to the event loop's thread. Canaries are not observed.

    user_request: the user's request whose current attempt it is, if any.
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
        self._metrics.request_failed()
        request_log.failed(request_id, seen.usage, now - seen.arrived_at, error)
        if isinstance(error, DeadlineExceeded):
            self._metrics.request_expired(error.phase)

    def sent(self, worker_id: str, command: Command) -> None:
        """A worker is told something."""
        if not isinstance(command, Prefill):
            return
        request_id = self._user_request(command.attempt) or ""
        if request_id in self._seen:
            request_log.attempted(request_id, command.attempt, worker_id)

    def emitted(self, emit: Emit, now: float) -> None:
        """Tokens go out to a client."""
        seen, output = self._seen.get(emit.request_id), emit.output
        if seen is None:
            return
        if output.tokens and seen.num_tokens == 0:
            self._metrics.first_token(now - seen.arrived_at, len(output.tokens))
        elif output.tokens:
            self._metrics.token_gap(now - seen.newest_at, len(output.tokens))
        seen.num_tokens += len(output.tokens)
        seen.newest_at = now
        if output.ending is not None:
            seen.num_answer_tokens += output.ending.num_tokens
        if emit.last and (ending := output.ending):
            usage = Usage(seen.num_prompt_tokens, seen.num_answer_tokens)
            self._metrics.request_finished(ending.finish_reason, ending.timing, usage)
            request_log.finished(emit.request_id, usage, ending)
            del self._seen[emit.request_id]

    def set_back(self, command: SetBack) -> None:
        """An attempt ended before its choice did."""
        if command.request_id in self._seen:
            self._metrics.set_back(command.setback.value, resumed=command.resumed)

    def handoff_ended(self, ended: HandoffEnded) -> None:
        """A cache has come to its decode worker, or will not."""
        if ended.request_id not in self._seen or ended.outcome is HandoffOutcome.ENDED:
            return
        if ended.outcome is HandoffOutcome.WRITTEN:
            self._metrics.handoff_done(ended.transport, ended.num_bytes, ended.seconds)
            return
        self._metrics.handoff_failed(ended.outcome)
        if ended.outcome is HandoffOutcome.REFUSED:
            self._metrics.lease_expired()

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
            case _:
                pass

    def _heard_of_usage(self, worker_id: str, load: LoadReport) -> None:
        """The scheduler still holds the report before, and none of a former life."""
        worker = self._fleet.worker(worker_id)
        if worker is not None:
            more_s = max(0.0, load.cpu_s - worker.load.cpu_s)
            self._metrics.worker_used(worker.pool, worker_id, more_s)
