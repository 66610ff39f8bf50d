"""The router's decisions: events in, commands out. Pure: no await, no clock, no network.

For one request, in order:

    Arrived ─► queued; a pair has room ─► Send Reserve
    Granted ─► Send Prefill                 (Refused: queued again at its old place)
    FirstToken ─► Emit, Send Admit          (its last token: Send Revoke instead)
    StepDone ─► Emit each token             (its last: Send Evict)

Messages of an attempt that is not current any more are dropped; so are tokens whose position is not the
token log's length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.ports import Ending, Output
from router.scheduling.commands import Emit, Fail, ProbePair, ReplaceWorker, SchedulerCommand, Send
from router.scheduling.events import (
    Aborted,
    Arrived,
    Cancelled,
    PairProven,
    PoolGivenUp,
    SchedulerEvent,
    Tick,
    WorkerDown,
    WorkerSaid,
    WorkerUp,
)
from router.scheduling.fleet import PROBE_AGAIN_S, Fleet, Pair, Worker
from router.scheduling.placement import choose_pair, choose_prefill, has_slot, reserved_tokens
from router.scheduling.requests import Phase, RequestState
from router.scheduling.waiting import WaitingQueue
from twinpool import messages as m
from twinpool.errors import PoolUnavailable, TwinpoolError, WorkerLost
from twinpool.types import FinishReason, Pool, ServedBy

MAX_REQUEUES = 5
"""Times a request goes back to the queue because its reservation was gone before it was used."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds placement; see `twinpool.config.RouterConfig`."""

    most_prompts: int
    most_rows: int
    overtake_s: float
    reservation_ttl_s: float


class Scheduler:
    """Continuous batching over both pools.

    new_attempt: draws an id that is unique for all time.
    """

    def __init__(self, limits: Limits, new_attempt: Callable[[], str]) -> None:
        self.fleet = Fleet()
        self.queue = WaitingQueue()
        self.requests: dict[str, RequestState] = {}
        self._limits = limits
        self._new_attempt = new_attempt
        self._attempts: dict[str, RequestState] = {}
        self._num_arrived = 0
        self._commands: list[SchedulerCommand] = []

    @property
    def num_attempts(self) -> int:
        """Attempts that some worker may be working on."""
        return len(self._attempts)

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerCommand]:
        """Take one event in; what to do about it, in order. now: seconds on a monotonic clock."""
        self._commands = []
        match event:
            case Arrived(request):
                self._num_arrived += 1
                state = RequestState(request, self._num_arrived, now)
                self.requests[request.request_id] = state
                self.queue.add(state)
            case Cancelled(request_id):
                if held := self.requests.get(request_id):
                    self._end(held, now)
            case Aborted(request_id):
                if held := self.requests.get(request_id):
                    self._finish(held, (), FinishReason.ABORT, now)
            case WorkerUp(worker_id, hello):
                for pair in self.fleet.add(worker_id, hello):
                    self._join(pair)
            case WorkerDown():
                self._worker_down(event, now)
            case WorkerSaid(worker_id, incarnation, message):
                worker = self.fleet.worker(worker_id)
                if worker is not None and worker.incarnation == incarnation:
                    self._hear(worker, message, now)
            case PairProven(prefill, decode):
                self._pair_proven(prefill, decode)
            case PoolGivenUp(message):
                for state in self.queue:
                    self._fail(state, PoolUnavailable(message), now)
            case Tick():
                self._rejoin(now)
        if _may_make_room(event):
            self._place(now)
        return self._commands

    # What workers say.

    def _hear(self, worker: Worker, message: m.Event, now: float) -> None:
        self._take_load(worker, message)
        match message:
            case m.PairJoined(decode, transport):
                self._pair_joined(worker, decode, transport, now)
            case m.PairBroken(decode):
                if pair := self._pair_of(worker, decode):
                    self._pair_broken(pair, now)
            case m.Granted(attempt):
                worker.charged.pop(attempt, None)
                if state := self._current(attempt, Phase.RESERVING):
                    self._prefill(state, now)
            case m.Refused(attempt):
                worker.charged.pop(attempt, None)
                if state := self._current(attempt, Phase.RESERVING):
                    state.found_no_room(now)
                    self._requeue(state, now)
            case m.FirstToken():
                self._first_token(message, now)
            case m.PrefillEnded(attempt, outcome, detail):
                worker.charged.pop(attempt, None)
                self._prefill_ended(attempt, outcome, detail, now)
            case m.Released(attempt, reason, detail):
                self._released(attempt, reason, detail, now)
            case m.StepDone(tokens=tokens):
                for row_token in tokens:
                    self._row_token(row_token, now)
            case m.QuarantineOverdue(attempt, writer):
                if owner := self.fleet.by_incarnation(writer):
                    why = f"keeps writing to revoked blocks of {attempt}"
                    self._commands.append(ReplaceWorker(owner.worker_id, writer, why))

    def _take_load(self, worker: Worker, message: m.Event) -> None:
        match message:
            case m.LoadReport():
                worker.load = message
            case m.Granted() | m.Refused() | m.PrefillEnded() | m.Released() | m.StepDone():
                worker.load = message.load

    def _first_token(self, first: m.FirstToken, now: float) -> None:
        state = self._current(first.attempt, Phase.PREFILLING)
        if state is None or first.position != len(state.log):
            return
        state.log.append(first.token)
        if first.finish_reason is not None:
            if state.decode_id is not None:
                self._send(state.decode_id, m.Revoke(first.attempt))
            self._finish(state, (first.token,), first.finish_reason, now, holds=False)
            return
        if state.decode_id is None:
            self._fail(state, WorkerLost("the prefill worker went past the last token"), now)
            return
        self._emit(state, (first.token,))
        request = state.request
        admit = m.Admit(first.attempt, 0, len(request.prompt_ids), tuple(state.log), request.params)
        self._send(state.decode_id, admit)
        state.enter(Phase.HANDING_OFF, now)

    def _row_token(self, row: m.RowToken, now: float) -> None:
        state = self._current(row.attempt, Phase.HANDING_OFF, Phase.DECODING)
        if state is None or row.position != len(state.log):
            return
        if state.phase is Phase.HANDING_OFF:
            state.enter(Phase.DECODING, now)
        state.log.append(row.token)
        if row.finish_reason is None:
            self._emit(state, (row.token,))
        else:
            self._finish(state, (row.token,), row.finish_reason, now)

    def _prefill_ended(self, attempt: str, outcome: m.PrefillOutcome, detail: str, now: float) -> None:
        state = self._current(attempt, Phase.PREFILLING, Phase.HANDING_OFF)
        if state is None or outcome in (m.PrefillOutcome.DONE, m.PrefillOutcome.STOPPED):
            return  # who had it stopped says why: the decode worker released it, or a session is lost
        if outcome is m.PrefillOutcome.REFUSED:
            self._requeue(state, now)
        else:
            message = f"prefill worker {state.prefill_id}: {outcome}{': ' + detail if detail else ''}"
            self._fail(state, WorkerLost(message), now)

    def _released(self, attempt: str, reason: m.ReleaseReason, detail: str, now: float) -> None:
        state = self._current(attempt, *(phase for phase in Phase if phase is not Phase.ENDED))
        if state is None:
            return
        unused = (m.ReleaseReason.EXPIRED, m.ReleaseReason.GONE)
        if reason in unused and state.phase in (Phase.PREFILLING, Phase.HANDING_OFF):
            self._send(state.prefill_id, m.CancelPrefill(attempt))
            self._requeue(state, now)
            return
        message = f"decode worker {state.decode_id}: {reason}{': ' + detail if detail else ''}"
        self._fail(state, WorkerLost(message), now, holds_decode=False)

    # Workers and pairs.

    def _join(self, pair: Pair) -> None:
        pair.rejoin_at = None
        hello = pair.decode.hello
        self._send(pair.prefill.worker_id, m.JoinPair(hello.incarnation, hello.endpoint))

    def _rejoin(self, now: float) -> None:
        for pair in self.fleet.pairs():
            if pair.rejoin_at is not None and now >= pair.rejoin_at:
                self._join(pair)

    def _pair_of(self, prefill: Worker, decode_incarnation: str) -> Pair | None:
        decode = self.fleet.by_incarnation(decode_incarnation)
        return self.fleet.pair(prefill.worker_id, decode.worker_id) if decode else None

    def _pair_joined(self, prefill: Worker, decode_incarnation: str, transport: str, now: float) -> None:
        pair = self._pair_of(prefill, decode_incarnation)
        if pair is None:
            self._send(prefill.worker_id, m.LeavePair(decode_incarnation))
            return
        pair.transport = transport
        pair.rejoin_at = now + PROBE_AGAIN_S
        self._commands.append(
            ProbePair(prefill.worker_id, pair.decode.worker_id, prefill.incarnation, decode_incarnation)
        )

    def _pair_proven(self, prefill: str, decode: str) -> None:
        worker = self.fleet.by_incarnation(prefill)
        pair = self._pair_of(worker, decode) if worker else None
        if pair is not None and pair.transport:
            pair.proven = True
            pair.num_failures = 0
            pair.rejoin_at = None

    def _pair_broken(self, pair: Pair, now: float) -> None:
        pair.broke(now)
        ids = (pair.prefill.worker_id, pair.decode.worker_id)
        for state in list(self._attempts.values()):
            if state.phase is Phase.RESERVING and (state.prefill_id, state.decode_id) == ids:
                self._withdraw(state)
                self._requeue(state, now)

    def _worker_down(self, down: WorkerDown, now: float) -> None:
        worker = self.fleet.worker(down.worker_id)
        if worker is None or worker.incarnation != down.incarnation:
            return
        self.fleet.remove(worker.worker_id)
        if worker.pool is Pool.DECODE:
            for prefill in self.fleet.pool(Pool.PREFILL):
                self._send(prefill.worker_id, m.LeavePair(worker.incarnation))
        for state in list(self._attempts.values()):
            if worker.worker_id in (state.prefill_id, state.decode_id):
                self._attempt_lost(state, worker, down.reason, now)

    def _attempt_lost(self, state: RequestState, worker: Worker, reason: str, now: float) -> None:
        if state.phase is Phase.RESERVING:
            self._withdraw(state)
            self._requeue(state, now)
        elif worker.pool is Pool.DECODE or state.phase is Phase.PREFILLING:
            self._fail(state, WorkerLost(f"{worker.pool} worker {worker.worker_id}: {reason}"), now)
        # Else the prefill worker died after its first token: the decode worker knows whether the cache came.

    # Placing.

    def _place(self, now: float) -> None:
        """Give every queued request that fits a pair, the oldest first.

        One that finds no room may be overtaken for overtake_s; after that, none is reserved before it.
        """
        for state in self.queue:
            if not any(has_slot(each, self._limits.most_prompts) for each in self.fleet.pool(Pool.PREFILL)):
                return
            if self._try_place(state, now):
                continue
            if state.request.pair is None and state.found_no_room(now) >= self._limits.overtake_s:
                return

    def _try_place(self, state: RequestState, now: float) -> bool:
        limits = self._limits
        if not state.needs_decode:
            prefill = choose_prefill(self.fleet, state, most_prompts=limits.most_prompts)
            if prefill is None:
                return False
            self._begin_attempt(state, prefill, None)
            self._prefill(state, now)
            return True
        pair = choose_pair(self.fleet, state, most_prompts=limits.most_prompts, most_rows=limits.most_rows)
        if pair is None:
            return False
        self._begin_attempt(state, pair.prefill, pair.decode)
        num_tokens = reserved_tokens(state)
        pair.decode.charged[state.attempt] = pair.decode.blocks_for(num_tokens)
        writer = pair.prefill.incarnation
        reserve = m.Reserve(state.attempt, num_tokens, writer, limits.reservation_ttl_s)
        self._send(pair.decode.worker_id, reserve)
        state.enter(Phase.RESERVING, now)
        return True

    def _begin_attempt(self, state: RequestState, prefill: Worker, decode: Worker | None) -> None:
        self.queue.remove(state)
        state.attempt = self._new_attempt()
        state.prefill_id = prefill.worker_id
        state.decode_id = decode.worker_id if decode else None
        self._attempts[state.attempt] = state
        prefill.charged[state.attempt] = prefill.blocks_for(state.num_tokens)

    def _prefill(self, state: RequestState, now: float) -> None:
        request = state.request
        decode = self.fleet.worker(state.decode_id)
        state.blocked_since = None
        prefill = m.Prefill(
            attempt=state.attempt,
            choice_index=0,
            prompt_ids=request.prompt_ids,
            output_ids=tuple(state.log),
            params=request.params,
            decode=decode.incarnation if decode else None,
        )
        self._send(state.prefill_id, prefill)
        state.enter(Phase.PREFILLING, now)

    def _requeue(self, state: RequestState, now: float) -> None:
        """Queue a request again, at its old place, with a new attempt to come."""
        began = state.phase is not Phase.RESERVING
        if not began:
            self._uncharge_prefill(state)
        state.num_requeues += began
        if state.num_requeues > MAX_REQUEUES:
            self._fail(state, WorkerLost(f"its reservation was gone {state.num_requeues} times"), now)
            return
        del self._attempts[state.attempt]
        state.enter(Phase.QUEUED, now)
        state.attempt = ""
        self.queue.add(state)

    def _uncharge_prefill(self, state: RequestState) -> None:
        """The prefill worker was never told of the attempt, so it will not report its end."""
        prefill = self.fleet.worker(state.prefill_id)
        if prefill is not None:
            prefill.charged.pop(state.attempt, None)

    # Ending.

    def _emit(self, state: RequestState, tokens: tuple[int, ...]) -> None:
        self._commands.append(Emit(state.request_id, Output(0, tokens)))

    def _finish(
        self,
        state: RequestState,
        tokens: tuple[int, ...],
        reason: FinishReason,
        now: float,
        *,
        holds: bool = True,
    ) -> None:
        """The choice's terminal event. holds: whether workers still work on it."""
        decode_id = state.decode_id if state.phase in (Phase.HANDING_OFF, Phase.DECODING) else None
        workers = ServedBy(state.prefill_id, decode_id)
        self._end(state, now, withdraw=holds)
        self._commands.append(
            Emit(state.request_id, Output(0, tokens, Ending(reason, state.timing(), workers)))
        )

    def _fail(
        self, state: RequestState, error: TwinpoolError, now: float, *, holds_decode: bool = True
    ) -> None:
        if not holds_decode:
            state.decode_id = None
        self._end(state, now)
        self._commands.append(Fail(state.request_id, error))

    def _end(self, state: RequestState, now: float, *, withdraw: bool = True) -> None:
        """Forget a request, and let both workers free what they hold for it."""
        if state.phase is Phase.QUEUED:
            self.queue.remove(state)
        else:
            if withdraw:
                self._withdraw(state)
            del self._attempts[state.attempt]
        state.enter(Phase.ENDED, now)
        del self.requests[state.request_id]

    def _withdraw(self, state: RequestState) -> None:
        """Tell the workers of the current attempt to drop it."""
        if state.phase is Phase.RESERVING:
            self._uncharge_prefill(state)
        elif state.phase in (Phase.PREFILLING, Phase.HANDING_OFF):
            self._send(state.prefill_id, m.CancelPrefill(state.attempt))
        if state.decode_id is None:
            return
        early = state.phase in (Phase.RESERVING, Phase.PREFILLING)
        command = m.Revoke(state.attempt) if early else m.Evict(state.attempt)
        self._send(state.decode_id, command)

    def _send(self, worker_id: str, command: m.Command) -> None:
        if self.fleet.worker(worker_id) is not None:
            self._commands.append(Send(worker_id, command))

    def _current(self, attempt: str, *phases: Phase) -> RequestState | None:
        state = self._attempts.get(attempt)
        return state if state is not None and state.phase in phases else None


def _may_make_room(event: SchedulerEvent) -> bool:
    """Whether a queued request might fit now that did not before; tokens alone free nothing."""
    if isinstance(event, WorkerSaid):
        return not isinstance(event.message, m.StepDone | m.FirstToken | m.Written)
    return True
