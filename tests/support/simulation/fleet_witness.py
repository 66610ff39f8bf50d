"""Watches what a scheduler says about workers, and knows independently what it may tell them."""

from __future__ import annotations

from collections.abc import Container, Mapping

from hypothesis import event as seen

from router.scheduling.commands import ReplaceCause, ReplaceWorker
from router.scheduling.events import SchedulerEvent, WorkerSaid
from router.scheduling.happenings import HandoffEnded, HandoffOutcome
from router.scheduling.phases import Phase
from router.scheduling.requests import Choice
from router.scheduling.scheduler import Scheduler, SchedulerLimits
from tests.support.simulation.prefill import LIMITS
from tests.support.simulation.witness import Watched
from tests.support.simulation.workers import Worker
from twinpool.session import messages as m
from twinpool.types import AttemptId, HandoffId, HolderId, Pool

STOOD_STILL = (m.ReleaseReason.EXPIRED, m.ReleaseReason.NEVER_BEGUN, m.ReleaseReason.WRITER_GONE)


class FleetWitness:
    """What the router has heard of workers, and what they have been told.

    workers: those in seats, by id. decodes: incarnations of decode workers. watched: requests, by name.
    requests: by each hand-off that was ever made, and each attempt. attempts: by hand-off, what it is for.
    reserved and prefilled: hand-offs that workers were told to; prefilled: when.
    leaving: by worker, what it was told to drop and has not said to be gone. moved_at: by incarnation, when
    the router last heard that it moves. draining: by incarnation, when its grace ends. moves: hand-offs by
    which rows move; whether their copy was asked for. num_moving: those whose end has not been said.
    handing_off: requests with a hand-off whose end has not been said. holder: the choice that arrived first
    of those for which room is to be held. held: decode workers that may hold it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        limits: SchedulerLimits,
        workers: Mapping[str, Worker],
        decodes: Container[str],
        watched: Mapping[str, Watched],
    ) -> None:
        self.scheduler = scheduler
        self.limits = limits
        self.workers = workers
        self.decodes = decodes
        self.watched = watched
        self.requests: dict[HolderId, Watched] = {}
        self.attempts: dict[HandoffId, tuple[AttemptId, ...]] = {}
        self.reserved: set[HandoffId] = set()
        self.prefilled: dict[HandoffId, float] = {}
        self.admitted: set[AttemptId] = set()
        self.draining: dict[str, float] = {}
        self.moves: dict[HandoffId, bool] = {}
        self.num_moving = 0
        self.handing_off: set[str] = set()
        self.holder: Choice | None = None
        self.held: set[str] = set()
        self.leaving: dict[str, set[HolderId]] = {}
        self.moved_at: dict[str, tuple[int, float]] = {}
        self.replacing: dict[str, tuple[Pool, float]] = {}
        self.ticked_at = 0.0

    # What the router hears.

    def up(self, worker: Worker, now: float) -> None:
        self.leaving[worker.worker_id] = set()
        self.moved_at[worker.incarnation] = (0, now)
        self.replacement_over(worker.worker_id)

    def down(self, worker: Worker) -> None:
        self.leaving[worker.worker_id] = set()
        if worker.incarnation in self.draining:
            self.replacement_over(worker.worker_id)

    def replacement_over(self, worker_id: str) -> None:
        self.replacing.pop(worker_id, None)

    def drain(self, worker: Worker, until: float) -> None:
        self.draining[worker.incarnation] = min(until, self.draining.get(worker.incarnation, until))

    def tick(self, now: float) -> None:
        if now - self.ticked_at > 1.0:
            self.moved_at = {life: (turns, now) for life, (turns, _) in self.moved_at.items()}
        self.ticked_at = now
        for choice in self.placed_on_still():
            self.watched[choice.request_id].may_fail = True

    def placed_on_still(self) -> list[Choice]:
        """Choices whose attempts wait for a worker that has stood still for too long."""
        fleet = self.scheduler.fleet.workers()
        still = {each.worker_id for each in fleet if not self.moves_on(each.incarnation)}
        placed = [choice for choice in self.scheduler.choices if choice.phase is not Phase.QUEUED]
        return [choice for choice in placed if still & self.needed_by(choice)]

    def needed_by(self, choice: Choice) -> set[str | None]:
        """Workers without which a placed choice does not go on."""
        if choice.phase is Phase.DECODING:
            return {choice.decode_id, choice.move.decode_id if choice.move else None}
        return {choice.decode_id, choice.prefill_id}

    def hear(self, event: SchedulerEvent, now: float) -> None:
        if not isinstance(event, WorkerSaid) or event.incarnation not in self.moved_at:
            return
        message = event.message
        load = message if isinstance(message, m.LoadReport) else getattr(message, "load", None)
        if load is not None and load.progress != self.moved_at[event.incarnation][0]:
            self.moved_at[event.incarnation] = (load.progress, now)
        worker = self.workers.get(event.worker_id)
        if isinstance(message, m.Released) and worker and worker.incarnation == event.incarnation:
            self.leaving[event.worker_id].discard(message.holder)
        if self.scheduler.fleet.by_incarnation(event.incarnation) is not None:
            self.hear_of_row(message)
        if isinstance(message, m.Released) and message.reason in STOOD_STILL:
            self.hand_off_stood_still(message)
        if isinstance(message, m.PrefillEnded) and message.outcome is m.PrefillOutcome.PAIR_LOST:
            self.hand_off_was_not_answered(message, now)

    def hear_of_row(self, message: m.Event) -> None:
        """An engine failed on a row alone; a decode worker's word of an attempt that is over is too late."""
        match message:
            case m.PrefillEnded(handoff, m.PrefillOutcome.FAILED_ALONE):
                self.requests[handoff].row_failed.update(self.attempts[handoff])
            case m.Released(holder, m.ReleaseReason.FAILED_ALONE):
                current = {choice.attempt for choice in self.scheduler.choices}
                self.requests[holder].row_failed.update(current & {holder})
            case _:
                pass

    def hand_off_stood_still(self, message: m.Released) -> None:
        """Time was lost, though nothing else: that may cost its request too."""
        for choice in self.scheduler.choices:
            queued = message.reason is m.ReleaseReason.NEVER_BEGUN and choice.phase is Phase.PREFILLING
            if choice.handoff and message.holder in (choice.attempt, choice.handoff.id) and not queued:
                self.watched[choice.request_id].may_fail = True

    def hand_off_was_not_answered(self, message: m.PrefillEnded, now: float) -> None:
        """The same of a decode worker that is late with its answer, by more than a worker waits for it."""
        for choice in self.scheduler.choices:
            waited_s = now - self.prefilled.get(message.handoff, now)
            its_own = choice.handoff is not None and choice.handoff.id == message.handoff
            if its_own and waited_s > LIMITS.accept_timeout_s:
                self.watched[choice.request_id].may_fail = True

    # What the scheduler may say.

    def may_make_room(self, event: SchedulerEvent) -> list[str]:
        """Requests that a worker's paused rows may preempt, the one to take last."""
        if not isinstance(event, WorkerSaid) or not isinstance(event.message, m.RowsPaused):
            return []
        coming = event.message.load.blocks_quarantined
        if self.leaving[event.worker_id] or coming >= len(event.message.attempts):
            return []
        choices = [
            choice
            for choice in self.scheduler.choices
            if choice.decode_id == event.worker_id and choice.phase is not Phase.QUEUED
        ]
        return [choice.request_id for choice in sorted(choices, key=lambda choice: choice.place)[1:]]

    def handoff_ended(self, ended: HandoffEnded) -> None:
        """Said once for each hand-off, and before anything else becomes of its request."""
        seen(f"a hand-off: {ended.outcome}")
        assert (ended.num_bytes > 0) == (ended.outcome is HandoffOutcome.WRITTEN)
        self.handing_off.remove(ended.request_id)

    def check_drained(self, worker: Worker, incarnation: str) -> None:
        """Only a worker that is empty, as was asked, is ended."""
        assert worker.incarnation == incarnation
        assert incarnation in self.draining
        assert worker.holds_nothing

    def check_replaced(self, command: ReplaceWorker, now: float) -> None:
        """Only what has not moved, or has written, for too long is replaced; half a pool at a time."""
        worker = self.workers[command.worker_id]
        assert worker.incarnation == command.incarnation
        if command.cause is ReplaceCause.STUCK:
            assert now - self.moved_at[command.incarnation][1] > self.limits.stuck_after_s
        asked = self.replacing.items()
        under_way = [each for each, (pool, at) in asked if pool is worker.pool and now - at < 60]
        assert command.worker_id not in under_way
        num_seats = sum(each.pool is worker.pool for each in self.workers.values())
        assert len(under_way) < max(1, num_seats // 2)
        self.replacing[command.worker_id] = (worker.pool, now)

    def takes_new(self, incarnation: str) -> bool:
        """Whether it is not to leave, and moved not long before the router last looked."""
        return incarnation not in self.draining and self.moves_on(incarnation)

    def moves_on(self, incarnation: str) -> bool:
        """Whether it moved not long before the router last looked."""
        return self.ticked_at - self.moved_at[incarnation][1] <= self.limits.stuck_after_s

    def check_told(self, worker: Worker, command: m.Command, placed: list[Watched], now: float) -> None:
        """A worker in service may be told this now. placed: gets the request, if this places one."""
        assert self.scheduler.fleet.worker(worker.worker_id) is not None
        match command:
            case m.Reserve(handoff, attempts, num_tokens, writer):
                assert self.takes_new(worker.incarnation)
                watched = self.made(handoff, attempts)
                self.reserved.add(handoff)
                least = len(watched.request.prompt_ids) + len(watched.log) + 1
                if writer in self.decodes:
                    assert writer in self.draining
                    assert (
                        least
                        <= num_tokens
                        <= len(watched.request.prompt_ids) + watched.request.params.max_tokens
                    )
                    self.moves[handoff] = False
                    self.num_moving += 1
                else:
                    assert self.takes_new(writer)
                    assert num_tokens == least
                    placed.append(watched)
            case m.Prefill(handoff, attempts, decode=decode):
                assert not {worker.incarnation, decode} & set(self.draining)
                assert handoff not in self.prefilled
                assert (decode is not None) == (handoff in self.reserved)
                self.prefilled[handoff] = now
                ids = tuple(attempt.id for attempt in attempts)
                watched = self.requests[handoff] if decode else self.made(handoff, ids)
                assert self.attempts[handoff] == ids
                assert list(command.output_ids) == watched.log
                watched.overtaken_at = None
                if decode is None:
                    placed.append(watched)
                else:
                    assert watched.request.request_id not in self.handing_off
                    self.handing_off.add(watched.request.request_id)
            case m.MoveRow(_, to, decode):
                assert worker.incarnation in self.draining
                assert decode not in self.draining
                assert self.moves[to] is False
                self.moves[to] = True
            case m.Admit(attempt, handoff):
                assert handoff in self.reserved
                assert attempt in self.attempts[handoff]
                assert self.moves.get(handoff, handoff in self.prefilled)
                assert attempt not in self.admitted
                self.admitted.add(attempt)
            case m.Drop(holder):
                assert holder in self.admitted or (holder in self.reserved and not self.is_admitted(holder))
                self.leaving[worker.worker_id].add(holder)

    def made(self, handoff: HandoffId, attempts: tuple[AttemptId, ...]) -> Watched:
        """A hand-off is new, and its attempts: the request that they are for."""
        assert not {handoff, *attempts} & self.requests.keys()
        choices = self.scheduler.choices
        ids = [(choice, {choice.attempt, choice.move and choice.move.attempt}) for choice in choices]
        (request_id,) = {choice.request_id for choice, its in ids if its.intersection(attempts)}
        self.attempts[handoff] = attempts
        self.requests |= dict.fromkeys((handoff, *attempts), self.watched[request_id])
        return self.requests[handoff]

    def is_admitted(self, handoff: HolderId) -> bool:
        """Whether a hand-off's attempts hold what it held."""
        return any(
            attempt in self.admitted
            for each in self.attempts
            if each == handoff
            for attempt in self.attempts[each]
        )

    def check_rows_failed(self) -> None:
        """No engine gets a row on which two have failed."""
        for watched in self.watched.values():
            over = watched.ended or watched.left or watched.is_canary
            assert over or len(watched.row_failed) < 2

    def check_order(self, placed: list[Watched], now: float) -> None:
        """Those placed at once go in the queue's order, and who is overtaken is known to wait for room."""
        names = [each.request.request_id for each in placed if not each.is_canary]
        waiting = {choice.request_id: choice for choice in self.scheduler.choices}
        places = [place(waiting[name]) for name in names]
        assert places == sorted(places)
        for choice in self.scheduler.queue:
            older = self.watched[choice.request_id]
            if older.is_canary or not any(place(choice) < other for other in places):
                continue
            if older.overtaken_at is None:
                older.overtaken_at = now
            assert choice.blocked_since is not None
            assert choice.blocked_since <= older.overtaken_at

    def overdue(self, now: float) -> Choice | None:
        """The queued request that arrived first of those that have found no room for long enough."""
        overdue = [
            choice
            for choice in self.scheduler.queue
            if not choice.request.is_canary
            and choice.blocked_since is not None
            and now - choice.blocked_since >= self.limits.overtake_s
        ]
        return min(overdue, key=lambda choice: choice.place, default=None)

    def check_held(self, before: Choice | None, placed: list[Watched], now: float) -> None:
        """One decode worker takes no request that arrived later unless the overdue one fits beside it.

        before: the overdue request before this event.
        """
        choice = self.overdue(now)
        if choice is None or choice is not before or not choice.needs_decode:
            self.holder = None
            return
        workers = [pair.decode for pair in self.scheduler.fleet.pairs() if pair.usable]
        able = {
            each.incarnation: each
            for each in workers
            if each.takes_new and choice.most_tokens <= each.capacity_tokens
        }
        held = self.held & set(able) if choice is self.holder else set()
        self.holder, self.held = choice, held or set(able)
        names = {each.request.request_id for each in placed}
        choices = [each for each in self.scheduler.choices if each.request_id in names]
        bound = [each for each in choices if not each.request.is_canary and each.place > choice.place]
        # Where others were placed too, they may be those who left it no room.
        free = {each.decode_id for each in choices if each not in bound}
        for decode_id in {each.decode_id for each in bound} - free - {None}:
            decode = self.scheduler.fleet.worker(decode_id)
            assert decode is not None
            num_blocks = decode.blocks_for(choice.num_tokens + 1) + decode.load.running
            if num_blocks > decode.blocks_free or decode.num_rows >= self.limits.most_rows:
                self.held.discard(decode.incarnation)
        assert self.held or not able, "room is held for it nowhere"


def place(choice: Choice) -> tuple[bool, bool, int]:
    """Canaries, then resumed requests, then new ones; each by place."""
    return (not choice.request.is_canary, not choice.log, choice.place)
