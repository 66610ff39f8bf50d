"""Whatever order the world moves in and whatever is lost, every request ends once with the tokens of an
undisturbed run, and afterwards nobody holds anything."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import event as seen
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.ports import Request
from router.scheduling.commands import (
    Drained,
    Emit,
    Fail,
    MoveEnded,
    ProbePair,
    ReplaceCause,
    ReplaceWorker,
    Send,
    SetBack,
)
from router.scheduling.events import (
    Aborted,
    Arrived,
    Cancelled,
    Drain,
    PairFailed,
    PairProven,
    SchedulerEvent,
    Tick,
    WorkerDown,
    WorkerSaid,
    WorkerUp,
)
from router.scheduling.requests import Phase, RequestState, Setback
from router.scheduling.scheduler import Scheduler, SchedulerLimits
from tests.property.simulated_decode import SimulatedDecode
from tests.property.simulated_prefill import SimulatedPrefill
from tests.property.simulated_workers import BLOCK_SIZE, Action, Down, Worker, World
from tests.property.witness import Answer, Watched
from twinpool import messages as m
from twinpool.types import Pool, RowParams

pytestmark = pytest.mark.timeout(400)  # a failure is made small for up to five minutes

LIMITS = SchedulerLimits(
    most_prompts=2,
    most_rows=3,
    overtake_s=1.0,
    reservation_ttl_s=4.0,
    most_attempts=2,
    longest_request_s=3600.0,
    stuck_after_s=5.0,
)
CANARY_TIMEOUT_S = 30.0
CHOICE = st.integers(0, 1 << 16)
SECONDS = st.sampled_from([0.0, 0.0, 0.25, 1.0, 2.0, 4.0])
PROMPT = st.tuples(
    st.integers(1, 7),
    st.builds(RowParams, max_tokens=st.integers(1, 5) | st.just(20), ignore_eos=st.booleans()),
    st.none() | st.integers(0, 9),
    st.sampled_from([None, None, None, 1.0, 6.0]),
)
"""Tokens of the prompt, parameters, tokens before end of sequence, and the deadline in seconds."""
WITH_LOAD = (m.Granted, m.Refused, m.PrefillEnded, m.Released, m.StepDone, m.RowsPaused)
OF_ATTEMPTS = (*WITH_LOAD, m.FirstToken, m.Written, m.RowMoved, m.MoveFailed)
MOST_ROUNDS = 400
MOST_ACTIONS = 5000
TICK_SHARE = 0.2
GRACE_S = st.sampled_from([10.0, 3.0, 1.0, 0.0])
TICK_S = 0.5
DRAIN_MARGIN_S = 5.0
"""After the grace period, until a worker has let go of what was set back, if nothing stands still."""
MOST_OF_A_POOL = 3
FAULTS = ["dies", "dies", "loses its session", "loses its connections", "stops", "fails a call"]


class SchedulerMachine(RuleBasedStateMachine):
    """The scheduler among simulated workers.

    shaken: a loss may not have come through everywhere yet. leaving: by worker, what it was told to drop
    and has not said to be gone. moved_at: by incarnation, when the router last heard that it moves.
    draining: by incarnation, when its grace ends. moves: attempts that rows move to; whether their copy was
    asked for. num_moving: those whose end has not been said.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limits = LIMITS
        self.scheduler = self.new_scheduler()
        self.now = 0.0
        self.shaken = False
        self.workers: dict[str, Worker] = {}
        self.lives: list[Worker] = []
        self.decodes: dict[str, SimulatedDecode] = {}
        self.watched: dict[str, Watched] = {}
        self.reserved: set[str] = set()
        self.prefilled: set[str] = set()
        self.admitted: set[str] = set()
        self.probes: deque[ProbePair] = deque()
        self.proofs: deque[PairProven | PairFailed] = deque()
        self.draining: dict[str, float] = {}
        self.moves: dict[str, bool] = {}
        self.num_moving = 0
        self.leaving: dict[str, set[str]] = {}
        self.moved_at: dict[str, tuple[int, float]] = {}
        self.replacing: tuple[str, float] | None = None
        self.ticked_at = 0.0
        self.world = self.new_world()
        self.canaries: dict[str, ProbePair] = {}
        self.heard: deque[WorkerSaid] = deque(maxlen=8)

    def new_scheduler(self) -> Scheduler:
        numbers = itertools.count(1)
        return Scheduler(self.limits, new_attempt=lambda: f"try-{next(numbers)}")

    def new_world(self, num_blocks: int = 6, *, sockets: bool = True) -> World:
        return World(num_blocks, self.model, lambda: self.now, sockets, self.decodes)

    # The world's rules.

    @initialize(
        num_blocks=st.sampled_from([6, 6, 24]),
        prefill=st.integers(1, 2),
        decode=st.integers(1, 2),
        ready=st.booleans(),
        sockets=st.booleans(),
        most_attempts=st.sampled_from([1, 2, 4]),
    )
    def start(
        self, num_blocks: int, prefill: int, decode: int, ready: bool, sockets: bool, most_attempts: int
    ) -> None:
        self.limits = replace(LIMITS, most_attempts=most_attempts)
        self.scheduler = self.new_scheduler()
        self.world = self.new_world(num_blocks, sockets=sockets)
        self.tick()
        for worker_id in (*(f"p{n}" for n in range(prefill)), *(f"d{n}" for n in range(decode))):
            self.bring_up(worker_id)
        if ready:
            self.settle()

    @rule(prompts=st.lists(PROMPT, min_size=1, max_size=3))
    def arrive(self, prompts: list[tuple[int, RowParams, int | None, float | None]]) -> None:
        for num_prompt, asked, num_tokens, timeout_s in prompts:
            number = len(self.watched) + 1
            prompt_ids = (number,) * num_prompt
            fits = self.world.num_blocks * BLOCK_SIZE - num_prompt
            params = replace(asked, max_tokens=min(asked.max_tokens, fits))
            request = Request(f"r{number}", prompt_ids, params, timeout_s=timeout_s)
            self.submit(request, Answer(number, num_tokens))

    @rule(
        num_actions=st.sampled_from([2, 8, 40]),
        seed=CHOICE,
        stalled=st.none() | CHOICE,
        repeats=st.booleans(),
        seconds=SECONDS,
        jumps=st.booleans(),
        replaces=st.booleans(),
    )
    def move(
        self,
        num_actions: int,
        seed: int,
        stalled: int | None,
        repeats: bool,
        seconds: float,
        jumps: bool,
        replaces: bool,
    ) -> None:
        """Messages are delivered, prompts read, rows stepped in any order; then time passes.

        stalled: one worker stands still for a while, and what it said is late. jumps: the router does.
        """
        order = random.Random(seed)
        still = None if stalled is None else self.some_worker(stalled)
        for _ in range(num_actions):
            self.act(order, stalled=still, repeats=repeats)
        about_to = any(worker.stopped or worker.fails_next for worker in self.workers.values())
        self.shaken = self.shaken and (about_to or bool(self.actions()))
        self.let_time_pass(seconds, at_once=jumps)
        if replaces:
            self.replace_lost_workers()

    @rule(choice=CHOICE)
    def take_room(self, choice: int) -> None:
        """A decode worker refuses its next reservation: somebody else was there first."""
        worker = self.some_worker(choice)
        if isinstance(worker, SimulatedDecode):
            worker.refuses_next = True

    @precondition(lambda self: self.waiting_clients())
    @rule(choice=CHOICE, abort=st.booleans())
    def give_up(self, choice: int, abort: bool) -> None:
        """A client leaves, or a request is aborted."""
        waiting = self.waiting_clients()
        name = waiting[choice % len(waiting)]
        if not abort:
            self.leave(name)
            return
        self.watched[name].aborted = True
        self.feed(Aborted(name))
        assert self.watched[name].ended

    @rule(choice=CHOICE, what=st.sampled_from(FAULTS))
    def go_wrong(self, choice: int, what: str) -> None:
        self.strike(self.some_worker(choice), what)

    @rule(choice=CHOICE, grace_s=GRACE_S, retires=st.booleans())
    def drain(self, choice: int, grace_s: float, retires: bool) -> None:
        """A worker is to leave, for good or to be started anew; nothing is lost by it."""
        self.tell_to_drain(self.some_worker(choice), grace_s, retires=retires)

    @rule(pool=st.sampled_from(Pool))
    def grow(self, pool: Pool) -> None:
        """A pool gets one more worker."""
        names = (f"{pool[0]}{number}" for number in range(MOST_OF_A_POOL))
        if name := next((name for name in names if name not in self.workers), None):
            self.bring_up(name)

    # What holds always.

    @invariant()
    def every_open_request_is_known_and_no_other(self) -> None:
        expected = {name for name, watched in self.watched.items() if not watched.ended and not watched.left}
        assert set(self.scheduler.requests) == expected

    @invariant()
    def the_queue_is_in_order_of_first_arrival_after_canaries_and_resumed_requests(self) -> None:
        places = [place(state) for state in self.scheduler.queue]
        assert places == sorted(places)

    @invariant()
    def no_prefill_worker_is_given_more_than_it_holds(self) -> None:
        for worker in self.scheduler.fleet.pool(Pool.PREFILL):
            assert len(worker.charged) <= LIMITS.most_prompts
            assert worker.blocks_free >= 0

    @invariant()
    def no_decode_worker_holds_more_than_it_has(self) -> None:
        for decode in self.decodes.values():
            load = decode.custody.load()
            assert 0 <= load.blocks_free + load.blocks_quarantined <= self.world.num_blocks
            assert load.running + load.waiting <= self.world.num_blocks

    def check_what_holds_always(self) -> None:
        """For those who play other than by the rules."""
        self.every_open_request_is_known_and_no_other()
        self.no_prefill_worker_is_given_more_than_it_holds()
        self.no_decode_worker_holds_more_than_it_has()

    def teardown(self) -> None:
        """Nothing more goes wrong: every request ends, and then nobody holds anything."""
        self.settle()
        assert not self.waiting_clients()
        assert not self.scheduler.requests
        assert not self.scheduler.queue
        assert not self.scheduler.num_attempts
        assert self.scheduler.fleet.serves()
        assert self.num_moving == 0
        for worker in self.scheduler.fleet.workers():
            assert not worker.charged
            assert not worker.leaving
            assert self.workers[worker.worker_id].idle
            assert replace(worker.load, progress=0) == m.LoadReport(blocks_free=self.world.num_blocks)

    # How the world works.

    def let_time_pass(self, seconds: float, *, at_once: bool) -> None:
        step_s = seconds if at_once else min(seconds, TICK_S)
        for _ in range(round(seconds / step_s) if seconds else 1):
            self.now += step_s
            for worker in self.lives:
                if worker.alive and seconds:
                    worker.time_passes()
            self.tick()

    def tick(self) -> None:
        if self.now - self.ticked_at > 1.0:
            self.moved_at = {life: (turns, self.now) for life, (turns, _) in self.moved_at.items()}
        self.ticked_at = self.now
        self.feed(Tick())
        for name in self.waiting_clients():
            watched = self.watched[name]
            assert self.now < watched.arrived_at + (watched.request.timeout_s or LIMITS.longest_request_s)
        for request_id in list(self.canaries):
            if self.now - self.watched[request_id].arrived_at >= CANARY_TIMEOUT_S:
                self.leave(request_id)

    def settle(self) -> None:
        """Everything moves until nothing moves any more."""
        undisturbed_since = self.now
        for _ in range(MOST_ROUNDS):
            self.replace_lost_workers()
            for turn in range(MOST_ACTIONS):
                if not (actions := self.actions()):
                    break
                actions[turn % len(actions)]()
                if turn % 10 == 0:
                    self.tick()
            else:
                raise AssertionError("it goes round in circles")
            if self.is_settled():
                return
            if any(worker.stopped for worker in self.workers.values()):
                undisturbed_since = self.now
            for worker in self.scheduler.fleet.workers():
                until = max(self.draining.get(worker.incarnation, self.now), undisturbed_since)
                assert self.now <= until + DRAIN_MARGIN_S, "it does not get empty"
            self.let_time_pass(TICK_S, at_once=True)
        raise AssertionError(f"still not settled: {list(self.scheduler.requests.values())}")

    def is_settled(self) -> bool:
        if self.lost_workers() or any(worker.stopped for worker in self.workers.values()):
            return False
        fleet = self.scheduler.fleet
        drained = not any(worker.draining for worker in fleet.workers())
        return not self.scheduler.requests and fleet.serves() and drained

    def actions(self, stalled: Worker | None = None) -> list[Action]:
        """All that can happen next."""
        moving = [worker for worker in self.lives if worker is not stalled]
        actions = [action for worker in moving for action in worker.actions()]
        actions += [self.hear_from(worker) for worker in moving if worker.events]
        if self.probes:
            actions.append(self.send_canary)
        if self.proofs:
            actions.append(lambda: self.feed(self.proofs.popleft()))
        return actions

    def hear_from(self, worker: Worker) -> Action:
        def hear() -> None:
            event = worker.events.popleft()
            if isinstance(event, Down):
                self.leaving[worker.worker_id] = set()
                if worker.incarnation in self.draining:
                    self.replacement_over(worker.worker_id)
                self.feed(WorkerDown(worker.worker_id, worker.incarnation, "lost"))
                return
            said = WorkerSaid(worker.worker_id, worker.incarnation, event)
            if isinstance(event, OF_ATTEMPTS):
                self.heard.append(said)
            self.feed(said)

        return hear

    def say_again(self, said: WorkerSaid) -> None:
        """A message comes once more, late; its counts are those the router has."""
        worker = self.scheduler.fleet.worker(said.worker_id)
        message = said.message
        if isinstance(message, WITH_LOAD) and worker is not None:
            message = replace(message, load=worker.load)
        self.feed(replace(said, message=message))

    def bring_up(self, worker_id: str) -> None:
        incarnation = f"{worker_id}-{len(self.lives)}"
        worker: Worker
        if worker_id.startswith("p"):
            worker = SimulatedPrefill(worker_id, incarnation, self.world)
        else:
            worker = self.decodes[incarnation] = SimulatedDecode(worker_id, incarnation, self.world)
        self.workers[worker_id] = worker
        self.lives.append(worker)
        self.leaving[worker_id] = set()
        self.moved_at[incarnation] = (0, self.now)
        self.replacement_over(worker_id)
        self.feed(WorkerUp(worker_id, worker.hello()))

    def replacement_over(self, worker_id: str) -> None:
        if self.replacing is not None and self.replacing[0] == worker_id:
            self.replacing = None

    def model(self, prompt: int, position: int) -> int:
        return self.watched[f"r{prompt}"].answer.token(position)

    def lost_workers(self) -> list[Worker]:
        """Those the router has let go of."""
        fleet = self.scheduler.fleet
        return [worker for worker in self.workers.values() if fleet.worker(worker.worker_id) is None]

    def replace_lost_workers(self) -> None:
        for worker in self.lost_workers():
            worker.die()
            if worker.retired:
                del self.workers[worker.worker_id]
            else:
                self.bring_up(worker.worker_id)

    def staying(self, pool: Pool) -> list[Worker]:
        """Those whose seats are filled again."""
        return [worker for worker in self.workers.values() if worker.pool is pool and not worker.retired]

    def some_worker(self, choice: int) -> Worker:
        workers = list(self.workers.values())
        return workers[choice % len(workers)]

    def tell_to_drain(self, worker: Worker, grace_s: float, *, retires: bool) -> None:
        if self.scheduler.fleet.worker(worker.worker_id) is None:
            return
        worker.retired = worker.retired or (retires and len(self.staying(worker.pool)) > 1)
        until = self.now + grace_s
        self.draining[worker.incarnation] = min(until, self.draining.get(worker.incarnation, until))
        self.feed(Drain(worker.worker_id, grace_s))

    def act(
        self,
        order: random.Random,
        *,
        stalled: Worker | None = None,
        repeats: bool = False,
        ticks: bool = False,
    ) -> None:
        """Something happens; now and then a message comes again, or the clock ticks, if so asked."""
        if actions := self.actions(stalled):
            order.choice(actions)()
        if repeats and self.heard and order.random() < 0.2:
            self.say_again(order.choice(self.heard))
        if ticks and order.random() < TICK_SHARE:
            self.tick()

    def submit(self, request: Request, answer: Answer) -> None:
        self.watched[request.request_id] = Watched(request, answer, self.now, may_fail=self.shaken)
        self.feed(Arrived(request))

    def strike(self, worker: Worker, what: str) -> None:
        self.shake()
        match what:
            case "dies":
                worker.die()
            case "loses its session":
                worker.lose_session()
            case "stops":
                worker.stopped = True
            case "fails a call":
                worker.fails_next = True
            case _:
                worker.senders.lose_all()

    def shake(self) -> None:
        """Something is lost: it may cost all open requests, and those that come before it is known."""
        self.shaken = True
        for watched in self.watched.values():
            watched.may_fail = True

    def leave(self, request_id: str) -> None:
        self.watched[request_id].left = True
        self.canaries.pop(request_id, None)
        self.feed(Cancelled(request_id))

    def waiting_clients(self) -> list[str]:
        return [
            name
            for name, watched in self.watched.items()
            if not (watched.ended or watched.left or watched.is_canary)
        ]

    def send_canary(self) -> None:
        probe = self.probes.popleft()
        number = len(self.watched) + 1
        name = f"r{number}"
        self.canaries[name] = probe
        params = RowParams(2, ignore_eos=True)
        self.submit(
            Request(name, (number,), params, (probe.prefill_id, probe.decode_id)), Answer(number, None)
        )

    # What the scheduler says.

    def feed(self, event: SchedulerEvent) -> None:
        placed: list[Watched] = []
        self.note(event)
        candidates = self.may_make_room(event)
        for command in self.scheduler.handle(event, self.now):
            match command:
                case Send(worker_id, worker_command):
                    self.send(self.workers[worker_id], worker_command, placed)
                case Emit(request_id, output):
                    self.watched[request_id].hear(output, self.now)
                    if output.ending is not None and request_id in self.canaries:
                        probe = self.canaries.pop(request_id)
                        self.proofs.append(PairProven(probe.prefill, probe.decode))
                case Fail(request_id, error):
                    self.watched[request_id].fail(error, self.now, self.limits.most_attempts)
                    if request_id in self.canaries:
                        failed = self.canaries.pop(request_id)
                        self.proofs.append(PairFailed(failed.prefill, failed.decode))
                case SetBack(request_id, setback, resumed):
                    if setback is Setback.PREEMPTED:
                        assert candidates.pop() == request_id
                        candidates.clear()
                    assert setback is not Setback.DRAINED or self.draining
                    self.watched[request_id].set_back(setback, self.limits.most_attempts, resumed=resumed)
                case ProbePair():
                    assert not {command.prefill, command.decode} & set(self.draining)
                    self.probes.append(command)
                case MoveEnded(outcome):
                    seen(f"a row's move: {outcome}")
                    self.num_moving -= 1
                case Drained(worker_id, incarnation):
                    self.end_drained(self.workers[worker_id], incarnation)
                case ReplaceWorker():
                    self.check_replaced(command)
                    self.shake()
                    self.workers[command.worker_id].die()
        self.check_order(placed)

    def note(self, event: SchedulerEvent) -> None:
        """What the router hears now."""
        if not isinstance(event, WorkerSaid) or event.incarnation not in self.moved_at:
            return
        message = event.message
        load = message if isinstance(message, m.LoadReport) else getattr(message, "load", None)
        if load is not None and load.progress != self.moved_at[event.incarnation][0]:
            self.moved_at[event.incarnation] = (load.progress, self.now)
        worker = self.workers.get(event.worker_id)
        if isinstance(message, m.Released) and worker and worker.incarnation == event.incarnation:
            self.leaving[event.worker_id].discard(message.attempt)
        if isinstance(message, m.Released) and message.reason is m.ReleaseReason.EXPIRED:
            self.hand_off_stood_still(message)

    def hand_off_stood_still(self, message: m.Released) -> None:
        """Time was lost, though nothing else: that may cost its request too."""
        for state in self.scheduler.requests.values():
            queued = message.detail == m.NEVER_BEGUN and state.phase is Phase.PREFILLING
            if state.attempt == message.attempt and not queued:
                self.watched[state.request_id].may_fail = True

    def may_make_room(self, event: SchedulerEvent) -> list[str]:
        """Requests that a worker's paused rows may preempt, the one to take last."""
        if not isinstance(event, WorkerSaid) or not isinstance(event.message, m.RowsPaused):
            return []
        if self.leaving[event.worker_id]:
            return []
        states = [
            state
            for state in self.scheduler.requests.values()
            if state.decode_id == event.worker_id and state.phase is not Phase.QUEUED
        ]
        return [state.request_id for state in sorted(states, key=lambda state: state.arrival)[1:]]

    def end_drained(self, worker: Worker, incarnation: str) -> None:
        """A worker that is empty, as was asked, is ended."""
        assert worker.incarnation == incarnation
        assert incarnation in self.draining
        assert worker.holds_nothing
        worker.die()

    def check_replaced(self, command: ReplaceWorker) -> None:
        """Only what has not moved, or has written, for too long is replaced; and one after the other."""
        assert self.workers[command.worker_id].incarnation == command.incarnation
        if command.cause is ReplaceCause.STUCK:
            assert self.now - self.moved_at[command.incarnation][1] > LIMITS.stuck_after_s
        assert self.replacing is None or self.now - self.replacing[1] >= 60
        self.replacing = (command.worker_id, self.now)

    def takes_new(self, incarnation: str) -> bool:
        """Whether it is not to leave, and moved not long before the router last looked."""
        moved_at = self.moved_at[incarnation][1]
        return incarnation not in self.draining and self.ticked_at - moved_at <= LIMITS.stuck_after_s

    def send(self, worker: Worker, command: m.Command, placed: list[Watched]) -> None:
        assert self.scheduler.fleet.worker(worker.worker_id) is not None
        match command:
            case m.Reserve(attempt, num_tokens, writer):
                assert self.takes_new(worker.incarnation)
                assert attempt not in self.reserved | self.prefilled
                self.reserved.add(attempt)
                watched = self.watched_by_attempt(attempt)
                least = len(watched.request.prompt_ids) + len(watched.log) + 1
                if writer in self.decodes:
                    assert writer in self.draining
                    assert (
                        least
                        <= num_tokens
                        <= len(watched.request.prompt_ids) + watched.request.params.max_tokens
                    )
                    self.moves[attempt] = False
                    self.num_moving += 1
                else:
                    assert self.takes_new(writer)
                    assert num_tokens == least
                    placed.append(watched)
            case m.Prefill(attempt, decode=decode):
                assert not {worker.incarnation, decode} & set(self.draining)
                assert attempt not in self.prefilled
                assert (decode is not None) == (attempt in self.reserved)
                self.prefilled.add(attempt)
                watched = self.watched_by_attempt(attempt)
                assert list(command.output_ids) == watched.log
                watched.overtaken_at = None
                if decode is None:
                    placed.append(watched)
            case m.MoveRow(_, to, decode):
                assert worker.incarnation in self.draining
                assert decode not in self.draining
                assert self.moves[to] is False
                self.moves[to] = True
            case m.Admit(attempt):
                assert attempt in self.reserved
                assert self.moves.get(attempt, attempt in self.prefilled)
                assert attempt not in self.admitted
                self.admitted.add(attempt)
            case m.Revoke(attempt) | m.Evict(attempt):
                self.leaving[worker.worker_id].add(attempt)
        if worker.alive and worker.session:
            worker.commands.append(command)

    def watched_by_attempt(self, attempt: str) -> Watched:
        states = self.scheduler.requests.values()
        held = (state for state in states if attempt in (state.attempt, state.move and state.move.attempt))
        return self.watched[next(held).request_id]

    def check_order(self, placed: list[Watched]) -> None:
        """Those placed at once go in the queue's order, and none that waits is overtaken without end."""
        names = [each.request.request_id for each in placed if not each.is_canary]
        places = [place(self.scheduler.requests[name]) for name in names]
        assert places == sorted(places)
        for state in self.scheduler.queue:
            older = self.watched[state.request_id]
            if older.is_canary or not any(place(state) < other for other in places):
                continue
            if older.overtaken_at is None:
                older.overtaken_at = self.now
            assert self.now - older.overtaken_at < LIMITS.overtake_s


def place(state: RequestState) -> tuple[bool, bool, int]:
    """Canaries, then resumed requests, then new ones; each by first arrival."""
    return (state.request.pair is None, not state.log, state.arrival)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
