"""The router's decisions: events in, commands and happenings out. Pure: no await, no clock, no network.

For one request, in order:

    Arrived ─► queued; a pair has room ─► Send Reserve
    Granted ─► Send Prefill                 (Refused: queued again at its old place)
    FirstToken ─► Emit, Send Admit          (its last token: Send Drop instead)
    StepDone ─► Emit each token             (its last: Send Drop)

An attempt that is lost, expired or preempted is set back: the request is queued again, and the next attempt
reads prompt and token log and goes on. Messages of an attempt that is not current any more are dropped; so
are tokens whose position is not the token log's length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from router.scheduling.attempts import Attempts
from router.scheduling.claims import Claim, Claims
from router.scheduling.commands import SchedulerSaid
from router.scheduling.draining import Draining
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
from router.scheduling.fleet import Fleet, Worker
from router.scheduling.happenings import CpuUsed, HandoffOutcome, StepTaken
from router.scheduling.ids import Ids
from router.scheduling.outbox import Outbox
from router.scheduling.pairing import Pairing
from router.scheduling.phases import Phase, Setback
from router.scheduling.placement import choose_pair, choose_prefill, has_slot
from router.scheduling.reasons import PREFILL_ENDED, RELEASED
from router.scheduling.requests import Choice
from router.scheduling.watch import StuckWatch
from twinpool.errors import PoolUnavailable
from twinpool.session import messages as m
from twinpool.types import HolderId, Pool

_FREE_NOTHING = m.StepDone | m.PrefillStep | m.FirstToken | m.Written | m.RowsPaused
"""Words of workers after which nothing fits that did not before."""

GIVEN_UP_RETRY_S = 30.0
"""Seconds after which clients may try again when a pool was given up: somebody must step in first."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What bounds placement and lives; see `twinpool.config`."""

    most_prompts: int
    most_rows: int
    overtake_s: float
    reservation_ttl_s: float
    most_attempts: int
    longest_request_s: float
    stuck_after_s: float


class Scheduler:
    """Continuous batching over both pools. ids: those that its hand-offs and attempts get."""

    def __init__(self, limits: SchedulerLimits, ids: Ids) -> None:
        self.fleet = Fleet()
        self._limits = limits
        self._outbox = Outbox(self.fleet)
        self._attempts = Attempts(self.fleet, self._outbox, ids, limits.most_attempts)
        self._placed = self._attempts.placed
        self._pairing = Pairing(self.fleet, self._outbox)
        self._watch = StuckWatch(self.fleet, self._outbox, limits.stuck_after_s)
        self._draining = Draining(
            self.fleet,
            self._outbox,
            self._attempts,
            most_rows=limits.most_rows,
            reservation_ttl_s=limits.reservation_ttl_s,
        )
        self._claims = Claims(
            self.fleet,
            most_prompts=limits.most_prompts,
            most_rows=limits.most_rows,
            overtake_s=limits.overtake_s,
        )
        self._given_up = ""
        self.queue = self._attempts.queue
        self.requests = self._attempts.requests

    @property
    def num_attempts(self) -> int:
        """Attempts that some worker may be working on."""
        return len(self._placed)

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerSaid]:
        """Take one event in; what to do and what happens, in order. now: seconds on a monotonic clock."""
        match event:
            case Arrived(request):
                self._attempts.arrive(request, self._limits.longest_request_s, now)
            case Cancelled(request_id):
                if held := self.requests.get(request_id):
                    self._attempts.leave(held, now)
            case Aborted(request_id):
                if held := self.requests.get(request_id):
                    self._attempts.abort(held, now)
            case Cut(request_id, index, position):
                held = self.requests.get(request_id)
                if held and (choice := held.choices.get(index)):
                    self._attempts.cut(choice, position, now)
            case WorkerUp(worker_id, hello):
                self._watch.replaced(worker_id)
                for pair in self.fleet.add(worker_id, hello, now):
                    self._pairing.join(pair, now)
            case WorkerDown():
                self._worker_down(event, now)
            case WorkerGone(pool, incarnation):
                self._pairing.worker_gone(pool, incarnation)
            case SeatClosed(worker_id):
                self._watch.replaced(worker_id)
            case Drain(worker_id, grace_s):
                if leaving := self.fleet.worker(worker_id):
                    self._draining.drain(leaving, grace_s, now)
            case WorkerSaid(worker_id, incarnation, message):
                worker = self.fleet.worker(worker_id)
                if worker is not None and worker.incarnation == incarnation:
                    self._hear(worker, message, now)
            case PairProven(prefill, decode):
                self._pairing.proven(prefill, decode)
            case PairFailed(prefill, decode):
                self._pairing.failed(prefill, decode, now)
            case PoolGivenUp(message):
                self._given_up = message
            case Tick():
                self._tick(now)
        if self._given_up:
            self._give_up_queue(now)
        elif _may_make_room(event):
            self._place(now)
        return self._outbox.take()

    @property
    def num_requests(self) -> int:
        """Users' requests in flight."""
        return sum(not state.request.is_canary for state in self.requests.values())

    @property
    def first_expires_at(self) -> float:
        """The earliest deadline of all requests; infinite without any."""
        return min((state.expires_at for state in self.requests.values()), default=math.inf)

    @property
    def choices(self) -> list[Choice]:
        """All choices that have not ended."""
        return [choice for state in self.requests.values() for choice in state.choices.values()]

    def _tick(self, now: float) -> None:
        self._pairing.rejoin(now)
        for worker in self._watch.tick(now):
            self._draining.target_lost(worker.worker_id, target_holds=True)
            # Whatever its engine has not handed over by now does not come.
            self._take_away(worker, (Phase.DECODING,), "its engine stands still", now)
        self._draining.tick(now)
        for state in list(self.requests.values()):
            if error := state.expiry(now):
                self._attempts.fail(state, error, now)

    def _give_up_queue(self, now: float) -> None:
        """A pool is gone for good: what is queued, or queued again, waits for nothing."""
        for state in {choice.of.request_id: choice.of for choice in self.queue}.values():
            error = PoolUnavailable(self._given_up, retry_after_s=GIVEN_UP_RETRY_S)
            self._attempts.fail(state, error, now)

    # What workers say.

    def _hear(self, worker: Worker, message: m.Event, now: float) -> None:
        self._take_counts(worker, message, now)
        worker.suspected = False
        match message:
            case m.PairJoined(decode) if worker.pool is Pool.DECODE:
                self._draining.joined(worker, decode)
            case m.PairBroken(decode) if worker.pool is Pool.DECODE:
                self._draining.broken(worker, decode, now)
            case m.PairJoined(decode, transport):
                self._pairing.joined(worker, decode, transport, now)
            case m.PairBroken(decode):
                self._pair_broken(worker, decode, now)
            case m.Granted(handoff):
                worker.charged.pop(handoff, None)
                if not self._attempts.granted(handoff, now) and (choice := self._placed.moving(handoff)):
                    self._attempts.copy(choice)
            case m.Refused(handoff):
                worker.charged.pop(handoff, None)
                self._draining.move_failed(handoff, now, target_holds=False)
                for choice in self._placed.held_by(handoff, Phase.RESERVING):
                    choice.found_no_room(now)
                    self._attempts.set_back(choice, Setback.REFUSED, "", now, held_by=(Pool.PREFILL,))
            case m.FirstToken(attempt, position):
                choice = self._placed.current(attempt, Phase.PREFILLING)
                if choice is not None and position == len(choice.log):
                    self._attempts.take_first_token(choice, message, now)
            case m.Written(handoff, num_bytes, handoff_s):
                for choice in self._placed.held_by(handoff):
                    written = HandoffOutcome.WRITTEN
                    self._attempts.end_handoff(choice, written, num_bytes=num_bytes, seconds=handoff_s)
            case m.PrefillEnded(handoff):
                worker.charged.pop(handoff, None)
                self._prefill_ended(worker, message, now)
            case m.Released(holder, reason, detail):
                worker.leaving.discard(holder)
                self._released(worker, holder, reason, detail, now)
            case m.StepDone(tokens=tokens):
                for row in tokens:
                    choice = self._placed.current(row.attempt, Phase.HANDING_OFF, Phase.DECODING)
                    if choice is not None and row.position == len(choice.log):
                        self._attempts.take_row_token(choice, row, now)
            case m.RowsPaused(attempts):
                self._make_room(worker, len(attempts), now)
            case m.RowMoved():
                self._draining.moved(message, now)
            case m.MoveFailed():
                self._draining.move_failed(message.to, now, target_holds=True)
            case m.QuarantineOverdue(handoff, writer):
                self._watch.quarantine_overdue(handoff, writer, now)

    def _take_counts(self, worker: Worker, message: m.Event, now: float) -> None:
        match message:
            case m.StepDone(tokens=tokens, step_s=step_s):
                self._outbox.put(StepTaken(Pool.DECODE, step_s, len(tokens), len(tokens)))
            case m.PrefillStep(num_prompts, num_tokens, step_s):
                self._outbox.put(StepTaken(Pool.PREFILL, step_s, num_prompts, num_tokens))
            case _:
                pass
        if load := m.load_of(message):
            if (more_s := load.cpu_s - worker.load.cpu_s) > 0:
                self._outbox.put(CpuUsed(worker.pool, worker.worker_id, more_s))
            worker.take_load(load, now)

    def _prefill_ended(self, prefill: Worker, ended: m.PrefillEnded, now: float) -> None:
        outcome = ended.outcome
        words = f"prefill worker {prefill.worker_id}: {outcome}{': ' + ended.detail if ended.detail else ''}"
        if outcome is m.PrefillOutcome.FAILED_ALONE:
            for attempt, choice in self._placed.read_for(ended.handoff).items():
                self._attempts.row_failed(choice, attempt, prefill.worker_id, words, now)
        self._placed.no_word_follows([ended.handoff])
        if outcome not in PREFILL_ENDED:
            return
        setback, handoff = PREFILL_ENDED[outcome]
        for choice in self._placed.held_by(ended.handoff, Phase.PREFILLING, Phase.HANDING_OFF):
            if outcome is m.PrefillOutcome.PAIR_LOST:
                self._suspect(choice.decode_id)
            self._attempts.set_back(choice, setback, words, now, handoff=handoff)

    def _released(
        self, decode: Worker, holder: HolderId, reason: m.ReleaseReason, detail: str, now: float
    ) -> None:
        self._draining.move_failed(holder, now, target_holds=False)
        words = f"decode worker {decode.worker_id}: {reason}{': ' + detail if detail else ''}"
        for choice in self._placed.held_by(holder):
            setback, handoff = RELEASED[reason]
            if reason is m.ReleaseReason.NEVER_BEGUN and choice.phase is Phase.PREFILLING:
                setback = Setback.EXPIRED  # in the prefill worker's queue, where nothing was wrong with it
            if reason is m.ReleaseReason.CONNECTION_ENDED:
                self._suspect(choice.prefill_id)
            if reason is m.ReleaseReason.FAILED_ALONE:
                self._attempts.row_failed(choice, choice.attempt, decode.worker_id, words, now)
            self._attempts.set_back(choice, setback, words, now, held_by=(Pool.PREFILL,), handoff=handoff)

    def _suspect(self, worker_id: str | None) -> None:
        if worker := self.fleet.worker(worker_id):
            worker.suspected = True

    def _make_room(self, decode: Worker, num_paused: int, now: float) -> None:
        """Unless enough is coming back already, give up a row's move there, which costs least; if there is
        none, preempt the youngest request, never the oldest. Each paused row waits for one block.
        """
        if decode.leaving or decode.load.blocks_quarantined >= num_paused:
            return
        placed = self._placed.on(decode.worker_id)
        if not self._draining.give_up_move_to(decode, now) and len(placed) > 1:
            self._attempts.set_back(placed[-1], Setback.PREEMPTED, "it had to make room", now)

    # Workers and pairs that are lost.

    def _pair_broken(self, prefill: Worker, decode_incarnation: str, now: float) -> None:
        pair = self._pairing.of(prefill, decode_incarnation)
        if pair is None:
            return
        pair.broke(now)
        for choice in self._placed.on(prefill.worker_id):
            # Attempts that the prefill worker knows of, it ends itself.
            if choice.phase is Phase.RESERVING and choice.decode_id == pair.decode.worker_id:
                self._attempts.set_back(choice, Setback.EXPIRED, "the pair broke", now)

    def _worker_down(self, down: WorkerDown, now: float) -> None:
        worker = self.fleet.worker(down.worker_id)
        if worker is None or worker.incarnation != down.incarnation:
            return
        self.fleet.remove(worker.worker_id)
        self._watch.worker_left(worker)
        self._placed.no_word_follows(worker.charged)
        self._draining.worker_left(worker)
        self._draining.target_lost(worker.worker_id, target_holds=False)
        # Of what it was handing over, the decode worker knows whether the cache came, and says so.
        self._take_away(worker, (Phase.HANDING_OFF, Phase.DECODING), down.reason, now)

    def _take_away(self, worker: Worker, past_prefill: tuple[Phase, ...], why: str, now: float) -> None:
        """Set back what is placed on a worker; in the phases past_prefill, a prefill worker is not needed."""
        for choice in self._placed.on(worker.worker_id):
            if worker.pool is Pool.PREFILL and choice.phase in past_prefill:
                continue
            setback = Setback.EXPIRED if choice.phase is Phase.RESERVING else Setback.WORKER_LOST
            words = f"{worker.pool} worker {worker.worker_id}: {why}"
            self._attempts.set_back(choice, setback, words, now, handoff=HandoffOutcome.PAIR_LOST)

    # Placing.

    def _place(self, now: float) -> None:
        """Give every queued choice that fits a pair, the oldest first.

        One that finds no room may be overtaken for overtake_s; after that, room is held for it on one pair.
        """
        claim = self._claims.current(self.queue, now)
        for choice in self.queue:
            if not any(has_slot(each, self._limits.most_prompts) for each in self.fleet.pool(Pool.PREFILL)):
                return
            if not self._try_place(choice, claim, now):
                choice.found_no_room(now)
            elif claim is not None and claim.over:
                claim = self._claims.current(self.queue, now)

    def _try_place(self, choice: Choice, claim: Claim | None, now: float) -> bool:
        limits = self._limits
        permits = claim.permits if claim else _anywhere
        if not choice.needs_decode:
            prefill = choose_prefill(self.fleet, choice, permits, most_prompts=limits.most_prompts)
            if prefill is not None:
                self._attempts.prefill_alone(choice, prefill, now)
            return prefill is not None
        pair = choose_pair(
            self.fleet, choice, permits, most_prompts=limits.most_prompts, most_rows=limits.most_rows
        )
        if pair is not None:
            self._attempts.reserve(choice, pair.prefill, pair.decode, limits.reservation_ttl_s, now)
        return pair is not None


def _anywhere(_choice: Choice, _prefill: Worker, _decode: Worker | None) -> bool:
    return True


def _may_make_room(event: SchedulerEvent) -> bool:
    """Whether a queued request might fit now that did not before; tokens alone free nothing."""
    if isinstance(event, WorkerSaid):
        return not isinstance(event.message, _FREE_NOTHING)
    return True
