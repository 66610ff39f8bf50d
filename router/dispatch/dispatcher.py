"""Drives the scheduler: feeds it what happens, and carries out what it decides. The router's one loop.

a request arrives, a worker speaks, a second passes ─► Scheduler.handle ─► sends, tokens, errors
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from router.audit.auditor import Auditor
from router.dispatch.drain_rate import DrainRate
from router.dispatch.seats import Roster
from router.dispatch.snapshots import take_snapshot
from router.dispatch.submission import Sink, Submission
from router.dispatch.worker_session import WorkerSession
from router.scheduling.commands import (
    Drained,
    Emit,
    Fail,
    ProbePair,
    ReplaceWorker,
    SchedulerSaid,
    Send,
)
from router.scheduling.events import (
    Aborted,
    Arrived,
    Cancelled,
    Cut,
    Drain,
    PairFailed,
    PairProven,
    PoolGivenUp,
    SchedulerEvent,
    SeatClosed,
    Tick,
    WorkerDown,
    WorkerGone,
    WorkerSaid,
    WorkerUp,
)
from router.scheduling.ids import Ids
from router.scheduling.scheduler import GIVEN_UP_RETRY_S, Scheduler, SchedulerLimits
from router.scheduling.values import Request
from router.telemetry import request_log
from router.telemetry.metrics import Metrics
from router.telemetry.observations import Observations
from twinpool.config import ServeConfig
from twinpool.errors import DuplicateRequestId, PoolUnavailable, QueueFull, ServerDraining
from twinpool.session.messages import Audited, Command, Event, Hello, Prefill
from twinpool.types import Pool
from twinpool.views import Snapshot, Verification

log = logging.getLogger(__name__)
TICK_S = 0.1
LEAST_TICK_S = 0.01
"""However close deadlines are together."""
Listener = Callable[[SchedulerSaid, float], None]
"""Hears all that the scheduler says, with the time; decides nothing."""
UNKNOWN_CAPACITY_TOKENS = 1 << 31
"""Before the first worker of each pool has come up, only the model's context limits a request."""


class Pools(Protocol):
    """Who starts, proves and ends workers, as the scheduler decides. Called on the event loop."""

    async def probe(self, pair: ProbePair) -> bool:
        """Let a canary through a pair; whether it passed."""
        ...

    def replace(self, command: ReplaceWorker) -> None:
        """Have a worker ended and started anew."""
        ...

    def drained(self, command: Drained) -> None:
        """A draining worker holds nothing any more."""
        ...


class RunningDispatcher:
    """The `Dispatcher` of the real system; everything runs on one event loop."""

    def __init__(
        self,
        config: ServeConfig,
        model_name: str,
        metrics: Metrics,
        roster: Roster,
        pools: Pools,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = SchedulerLimits(
            most_prompts=config.router.prefill_max_prompts,
            most_rows=config.engine.max_batch_rows,
            overtake_s=config.router.overtake_s,
            reservation_ttl_s=config.handoff.reservation_ttl_s,
            most_attempts=config.router.max_attempts,
            longest_request_s=config.router.max_request_s,
            stuck_after_s=config.router.stuck_after_s,
        )
        self.scheduler = Scheduler(limits, Ids(epoch=secrets.token_hex(6)))
        self._pools = pools
        self.serving_changed = asyncio.Event()
        self._config = config
        self._model_name = model_name
        self._roster = roster
        self._clock = clock
        self._began_at = clock()
        self._totals = metrics.totals
        self._drain_rate = DrainRate()
        self._listeners: tuple[Listener, ...] = (Observations(metrics).hear, request_log.hear)
        self._sinks: dict[str, Sink] = {}
        self._sessions: dict[str, WorkerSession] = {}
        self._auditor = Auditor(self.scheduler, self._send, config.handoff.quarantine_report_s)
        self._probes: set[asyncio.Task[None]] = set()
        self._draining = False
        self._given_up: dict[Pool | None, str] = {}
        self._capacity = UNKNOWN_CAPACITY_TOKENS

    # Dispatcher.

    def submit(self, request: Request, sink: Sink) -> Submission:
        """Queue a request; see `Dispatcher.submit`."""
        if not request.is_canary:
            self.require_room(len(request.prompt_ids))
        if request.request_id in self.scheduler.requests:
            raise DuplicateRequestId(f"request {request.request_id!r} is in flight")
        self._sinks[request.request_id] = sink
        self._feed(Arrived(request))
        return _Submitted(self, request.request_id, sink)

    def require_room(self, num_tokens: int = 1) -> None:
        """Refuse what cannot be queued now; see `Dispatcher.require_room`."""
        self._check_open()
        self._check_queue(num_tokens)

    def abort(self, request_id: str) -> bool:
        """End a request; see `Dispatcher.abort`."""
        if request_id not in self.scheduler.requests:
            return False
        self._feed(Aborted(request_id))
        return True

    def max_request_tokens(self) -> int:
        """Most tokens of prompt and answer that fit either side's whole pool."""
        self._capacity = self.scheduler.fleet.capacity_tokens() or self._capacity
        return self._capacity

    def snapshot(self) -> Snapshot:
        """The state now."""
        state = take_snapshot(self._model_name, self.serving, self.scheduler, self._roster)
        most_running = {
            Pool.PREFILL: self._config.router.prefill_max_prompts,
            Pool.DECODE: self._config.engine.max_batch_rows,
        }
        totals = replace(self._totals, uptime_s=self._clock() - self._began_at)
        return replace(state, most_running=most_running, totals=totals)

    async def verify(self) -> Verification:
        """Who holds what; see `Dispatcher.verify`."""
        return await self._auditor.verify()

    @property
    def serving(self) -> bool:
        """Whether users' requests have a pair to go to."""
        return self.scheduler.fleet.serves() and not self._draining and not self._given_up

    # Submissions.

    def left(self, request_id: str, sink: Sink) -> None:
        """A request's reader has left."""
        if not self._is_open(request_id, sink):
            return
        del self._sinks[request_id]
        self._feed(Cancelled(request_id))

    def cut(self, request_id: str, sink: Sink, choice_index: int, position: int) -> None:
        """A choice's text has ended."""
        if self._is_open(request_id, sink):
            self._feed(Cut(request_id, choice_index, position))

    # Workers, from who keeps them.

    def worker_up(self, worker_id: str, hello: Hello, session: WorkerSession) -> None:
        """A session is open."""
        self._sessions[worker_id] = session
        self._feed(WorkerUp(worker_id, hello))

    def worker_said(self, worker_id: str, incarnation: str, event: Event) -> None:
        """A worker's event."""
        if isinstance(event, Audited):
            self._auditor.heard(event)
            return
        self._feed(WorkerSaid(worker_id, incarnation, event))

    def worker_down(self, worker_id: str, incarnation: str, reason: str) -> None:
        """A session is gone."""
        self._sessions.pop(worker_id, None)
        self._feed(WorkerDown(worker_id, incarnation, reason))

    def worker_gone(self, pool: Pool, incarnation: str) -> None:
        """A process has ended."""
        self._feed(WorkerGone(pool, incarnation))

    def seat_closed(self, worker_id: str) -> None:
        """No worker of this name will come any more."""
        self._feed(SeatClosed(worker_id))

    def drain_worker(self, worker_id: str, grace_s: float) -> None:
        """A worker is to leave: nothing new goes to it, and what it has after grace_s is set back."""
        self._feed(Drain(worker_id, grace_s))

    def give_up(self, pool: Pool | None, message: str) -> None:
        """A pool has no worker and will get none; without a pool: neither has any."""
        self._given_up[pool] = message
        self._feed(PoolGivenUp(message))

    def take_back(self, pool: Pool) -> None:
        """A pool will get a worker after all."""
        if self._given_up.pop(pool, None) is not None:
            self._feed(PoolGivenUp(next(iter(self._given_up.values()), "")))

    def drain(self) -> None:
        """Take no more requests; those admitted go on."""
        self._draining = True
        self.serving_changed.set()

    async def tick_forever(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Let time pass, and no deadline by much: its client gives up itself soon after."""
        while True:
            until_first_s = self.scheduler.first_expires_at - self._clock()
            await sleep(min(TICK_S, max(LEAST_TICK_S, until_first_s)))
            self._feed(Tick())

    def _is_open(self, request_id: str, sink: Sink) -> bool:
        """Whether it has not ended; another request may have its id by now."""
        return self._sinks.get(request_id) is sink

    def _check_open(self) -> None:
        if self._draining:
            raise ServerDraining("the server is stopping", retry_after_s=1.0)
        if self._given_up:
            raise PoolUnavailable(next(iter(self._given_up.values())), retry_after_s=GIVEN_UP_RETRY_S)
        if not self._roster.has_served:
            raise PoolUnavailable("no prefill-decode pair is ready yet", retry_after_s=1.0)

    def _check_queue(self, num_tokens: int) -> None:
        """Refuse what the queue has no room for; an empty queue takes any one request."""
        queue, limits = self.scheduler.queue, self._config.router
        if queue.num_requests >= limits.queue_max_requests:
            full = f"{limits.queue_max_requests} requests wait already, which is the limit"
            num_starts = queue.num_requests - limits.queue_max_requests + 1
        elif queue.num_requests and queue.num_tokens + num_tokens > limits.queue_max_tokens:
            full = f"{queue.num_tokens} prompt tokens wait already; the limit is {limits.queue_max_tokens}"
            too_many = queue.num_tokens + num_tokens - limits.queue_max_tokens
            # As many requests of the mean length as have so many tokens; all of them make room for any other.
            num_starts = min(math.ceil(too_many * queue.num_requests / queue.num_tokens), queue.num_requests)
        else:
            return
        raise QueueFull(full, retry_after_s=self._drain_rate.retry_after_s(self._clock(), num_starts))

    def _feed(self, event: SchedulerEvent) -> None:
        was_serving = self.serving
        now = self._clock()
        all_said = self.scheduler.handle(event, now)
        for said in all_said:
            self._carry_out(said)
        # Only then: a listener's bug costs no command, and workers do not wait for it.
        for hear in self._listeners:
            for said in all_said:
                hear(said, now)
        if self.serving != was_serving:
            self._roster.has_served = self._roster.has_served or self.serving
            self.serving_changed.set()

    def _carry_out(self, said: SchedulerSaid) -> None:
        """Do what the scheduler wants done; of what it says happens, nothing is."""
        match said:
            case Send(worker_id, worker_command):
                if isinstance(worker_command, Prefill):
                    self._drain_rate.started(self._clock(), waiting=self.scheduler.queue.num_requests > 0)
                self._send(worker_id, worker_command)
            case Emit():
                self._emit(said)
            case Fail(request_id, error):
                if sink := self._sinks.pop(request_id, None):
                    sink.fail(error)
            case ProbePair():
                task = asyncio.create_task(self._prove(said))
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)
            case ReplaceWorker():
                about = {"worker": said.worker_id, "incarnation": said.incarnation}
                log.error("worker %s is replaced: %s", said.worker_id, said.reason, extra=about)
                self._pools.replace(said)
            case Drained():
                self._pools.drained(said)
            case _:
                pass

    def _send(self, worker_id: str, command: Command) -> None:
        self._sessions[worker_id].send(command)

    def _emit(self, emit: Emit) -> None:
        sink = self._sinks.get(emit.request_id)
        if sink is None:
            return
        if emit.last:
            del self._sinks[emit.request_id]
        sink.put(emit.output, last=emit.last)

    async def _prove(self, pair: ProbePair) -> None:
        passed = False
        try:
            passed = await self._pools.probe(pair)
        except Exception:
            log.exception("a canary from %s to %s broke", pair.prefill_id, pair.decode_id)
        if passed:
            self._roster.proven(pair.prefill_id, pair.decode_id)
        outcome = PairProven if passed else PairFailed
        self._feed(outcome(pair.prefill, pair.decode))


@dataclass(frozen=True, slots=True)
class _Submitted:
    """See `Submission`."""

    dispatcher: RunningDispatcher
    request_id: str
    sink: Sink

    def leave(self) -> None:
        self.dispatcher.left(self.request_id, self.sink)

    def cut(self, choice_index: int, position: int) -> None:
        self.dispatcher.cut(self.request_id, self.sink, choice_index, position)
