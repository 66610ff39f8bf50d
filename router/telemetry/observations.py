"""Turns what the scheduler says into metrics; asks nothing back."""

from __future__ import annotations

from dataclasses import dataclass

from router.scheduling.commands import Emit, SchedulerSaid
from router.scheduling.happenings import (
    CpuUsed,
    HandoffEnded,
    HandoffOutcome,
    MoveEnded,
    RequestFailed,
    RequestFinished,
    RequestLeft,
    RequestQueued,
    SetBack,
    StepTaken,
)
from router.telemetry.metrics import Metrics
from twinpool.errors import DeadlineExceeded


@dataclass(slots=True)
class _Open:
    """A user's request. newest_at: when its newest tokens came; None before the first."""

    arrived_at: float
    newest_at: float | None = None


class Observations:
    """Belongs to the event loop's thread. Of requests only users' are counted: those it was told of."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._open: dict[str, _Open] = {}

    def hear(self, said: SchedulerSaid, now: float) -> None:
        """The scheduler says something."""
        match said:
            case Emit(request_id, output):
                if output.tokens and (request := self._open.get(request_id)):
                    self._count_tokens(request, len(output.tokens), now)
            case StepTaken(pool, seconds, batch, num_tokens):
                self._metrics.step(pool, seconds, batch=batch, num_tokens=num_tokens)
            case CpuUsed(pool, worker_id, seconds):
                self._metrics.worker_used(pool, worker_id, seconds)
            case RequestQueued(request_id, arrived_at):
                self._open[request_id] = _Open(arrived_at)
                self._metrics.request_admitted()
            case RequestFinished(request_id, usage, endings):
                del self._open[request_id]
                reasons = [ending.finish_reason for ending in endings]
                self._metrics.request_finished(reasons, endings[-1].timing, usage)
            case RequestFailed(request_id, error=error):
                del self._open[request_id]
                self._metrics.request_failed()
                if isinstance(error, DeadlineExceeded):
                    self._metrics.request_expired(error.phase)
            case RequestLeft(request_id):
                del self._open[request_id]
                self._metrics.request_left()
            case SetBack(request_id, setback, resumed):
                if request_id in self._open:
                    self._metrics.set_back(setback.value, resumed=resumed)
            case HandoffEnded(request_id):
                if request_id in self._open:
                    self._count_handoff(said)
            case MoveEnded(outcome):
                self._metrics.move_ended(outcome)
            case _:
                pass

    def _count_tokens(self, request: _Open, num_tokens: int, now: float) -> None:
        if request.newest_at is None:
            self._metrics.first_token(now - request.arrived_at, num_tokens)
        else:
            self._metrics.token_gap(now - request.newest_at, num_tokens)
        request.newest_at = now

    def _count_handoff(self, ended: HandoffEnded) -> None:
        match ended.outcome:
            case HandoffOutcome.ENDED:
                pass
            case HandoffOutcome.WRITTEN:
                self._metrics.handoff_done(ended.transport, ended.num_bytes, ended.seconds)
            case outcome:
                self._metrics.handoff_failed(outcome)
                if outcome is HandoffOutcome.REFUSED:
                    self._metrics.lease_expired()
