"""Whatever order the world moves in, every request ends once with the tokens of an undisturbed run, and
afterwards nobody holds anything."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.ports import Request
from router.scheduling.commands import Emit, Fail, ProbePair, ReplaceWorker, Send
from router.scheduling.events import (
    Aborted,
    Arrived,
    Cancelled,
    PairProven,
    SchedulerEvent,
    Tick,
    WorkerDown,
    WorkerSaid,
    WorkerUp,
)
from router.scheduling.scheduler import Limits, Scheduler
from tests.property.simulated_decode import SimulatedDecode
from tests.property.simulated_prefill import SimulatedPrefill
from tests.property.simulated_workers import NUM_BLOCKS, Action, Down, Worker
from tests.property.witness import Answer, Watched
from twinpool import messages as m
from twinpool.types import Pool, RowParams

pytestmark = pytest.mark.timeout(400)  # a failure is made small for up to five minutes

LIMITS = Limits(most_prompts=2, most_rows=3, overtake_s=1.0, reservation_ttl_s=4.0)
CANARY_TIMEOUT_S = 30.0
CHOICE = st.integers(0, 1 << 16)
SECONDS = st.sampled_from([0.0, 0.0, 0.25, 1.0, 2.0, 4.0])
PROMPT = st.tuples(
    st.integers(1, 7),
    st.builds(RowParams, max_tokens=st.integers(1, 5), ignore_eos=st.booleans()),
    st.none() | st.integers(0, 5),
)
"""Tokens of the prompt, parameters, and tokens before end of sequence."""
WITH_LOAD = (m.Granted, m.Refused, m.PrefillEnded, m.Released, m.StepDone)
OF_ATTEMPTS = (*WITH_LOAD, m.FirstToken, m.Written)
MOST_ROUNDS = 400


class SchedulerMachine(RuleBasedStateMachine):
    """The scheduler among simulated workers. shaken: a loss may not have come through everywhere yet."""

    def __init__(self) -> None:
        super().__init__()
        numbers = itertools.count(1)
        self.scheduler = Scheduler(LIMITS, new_attempt=lambda: f"try-{next(numbers)}")
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
        self.proofs: deque[PairProven] = deque()
        self.canaries: dict[str, ProbePair] = {}
        self.heard: deque[WorkerSaid] = deque(maxlen=8)

    # The world's rules.

    @initialize(prefill=st.integers(1, 2), decode=st.integers(1, 2), ready=st.booleans())
    def start(self, prefill: int, decode: int, ready: bool) -> None:
        for worker_id in (*(f"p{n}" for n in range(prefill)), *(f"d{n}" for n in range(decode))):
            self.bring_up(worker_id)
        if ready:
            self.settle()

    @rule(prompts=st.lists(PROMPT, min_size=1, max_size=3))
    def arrive(self, prompts: list[tuple[int, RowParams, int | None]]) -> None:
        for num_prompt, params, num_tokens in prompts:
            number = len(self.watched) + 1
            self.submit(Request(f"r{number}", (number,) * num_prompt, params), Answer(number, num_tokens))

    @rule(
        num_actions=st.sampled_from([2, 8, 40]),
        seed=CHOICE,
        stalled=st.none() | CHOICE,
        repeats=st.booleans(),
        seconds=SECONDS,
        replaces=st.booleans(),
    )
    def move(
        self, num_actions: int, seed: int, stalled: int | None, repeats: bool, seconds: float, replaces: bool
    ) -> None:
        """Messages are delivered, prompts read, rows stepped in any order; then time passes.

        stalled: one worker stands still, and what it said is late.
        """
        order = random.Random(seed)
        still = None if stalled is None else self.some_worker(stalled)
        for _ in range(num_actions):
            if actions := self.actions(still):
                order.choice(actions)()
            if repeats and self.heard and order.random() < 0.2:
                self.say_again(order.choice(self.heard))
        self.shaken = self.shaken and bool(self.actions())
        self.let_time_pass(seconds)
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

    @rule(choice=CHOICE, what=st.sampled_from(["dies", "loses its session", "loses its connections"]))
    def go_wrong(self, choice: int, what: str) -> None:
        worker = self.some_worker(choice)
        self.shake()
        match what:
            case "dies":
                worker.die()
            case "loses its session":
                worker.lose_session()
            case _ if isinstance(worker, SimulatedPrefill):
                worker.break_connections()

    # What holds always.

    @invariant()
    def every_open_request_is_known_and_no_other(self) -> None:
        expected = {name for name, watched in self.watched.items() if not watched.ended and not watched.left}
        assert set(self.scheduler.requests) == expected

    @invariant()
    def the_queue_is_in_order_of_first_arrival_after_canaries(self) -> None:
        places = [(state.request.pair is None, state.arrival) for state in self.scheduler.queue]
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
            assert 0 <= load.blocks_free + load.blocks_quarantined <= NUM_BLOCKS
            assert load.running + load.waiting <= NUM_BLOCKS

    def teardown(self) -> None:
        """Nothing more goes wrong: every request ends, and then nobody holds anything."""
        self.settle()
        assert not self.waiting_clients()
        assert not self.scheduler.requests
        assert not self.scheduler.queue
        assert not self.scheduler.num_attempts
        assert self.scheduler.fleet.serves()
        for worker in self.scheduler.fleet.workers():
            assert not worker.charged
            assert self.workers[worker.worker_id].idle
            if worker.pool is Pool.DECODE:
                assert worker.load == m.LoadReport(blocks_free=NUM_BLOCKS)

    # How the world works.

    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        for decode in self.decodes.values():
            if decode.alive:
                decode.custody.expire()
        self.feed(Tick())
        for request_id in list(self.canaries):
            if self.now - self.watched[request_id].arrived_at >= CANARY_TIMEOUT_S:
                self.leave(request_id)

    def settle(self) -> None:
        """Everything moves until nothing moves any more."""
        for _ in range(MOST_ROUNDS):
            self.replace_lost_workers()
            while actions := self.actions():
                actions[0]()
            if not self.scheduler.requests and self.scheduler.fleet.serves():
                return
            self.let_time_pass(0.5)
        raise AssertionError(f"still not settled: {list(self.scheduler.requests.values())}")

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
            worker = SimulatedPrefill(worker_id, incarnation, self.model, self.decodes)
        else:
            worker = SimulatedDecode(worker_id, incarnation, self.model, clock=lambda: self.now)
            self.decodes[incarnation] = worker
        self.workers[worker_id] = worker
        self.lives.append(worker)
        self.feed(WorkerUp(worker_id, worker.hello()))

    def model(self, prompt: int, position: int) -> int:
        return self.watched[f"r{prompt}"].answer.token(position)

    def lost_workers(self) -> list[Worker]:
        """Those the router has let go of."""
        fleet = self.scheduler.fleet
        return [worker for worker in self.workers.values() if fleet.worker(worker.worker_id) is None]

    def replace_lost_workers(self) -> None:
        for worker in self.lost_workers():
            worker.die()
            self.bring_up(worker.worker_id)

    def some_worker(self, choice: int) -> Worker:
        workers = list(self.workers.values())
        return workers[choice % len(workers)]

    def submit(self, request: Request, answer: Answer) -> None:
        self.watched[request.request_id] = Watched(request, answer, self.now, may_fail=self.shaken)
        self.feed(Arrived(request))

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
                    self.watched[request_id].fail(error)
                    self.canaries.pop(request_id, None)
                case ProbePair():
                    self.probes.append(command)
                case ReplaceWorker(worker_id, incarnation):
                    assert self.workers[worker_id].incarnation == incarnation
                    self.shake()
                    self.workers[worker_id].die()
        self.check_order(placed)

    def send(self, worker: Worker, command: m.Command, placed: list[Watched]) -> None:
        assert self.scheduler.fleet.worker(worker.worker_id) is not None
        match command:
            case m.Reserve(attempt, num_tokens):
                assert attempt not in self.reserved | self.prefilled
                self.reserved.add(attempt)
                watched = self.watched_by_attempt(attempt)
                request = watched.request
                assert num_tokens == len(request.prompt_ids) + request.params.max_tokens
                placed.append(watched)
            case m.Prefill(attempt, decode=decode):
                assert attempt not in self.prefilled
                assert (decode is not None) == (attempt in self.reserved)
                self.prefilled.add(attempt)
                watched = self.watched_by_attempt(attempt)
                assert list(command.output_ids) == watched.log
                watched.overtaken_at = None
                if decode is None:
                    placed.append(watched)
            case m.Admit(attempt):
                assert attempt in self.reserved & self.prefilled
                assert attempt not in self.admitted
                self.admitted.add(attempt)
        if worker.alive and worker.session:
            worker.commands.append(command)

    def watched_by_attempt(self, attempt: str) -> Watched:
        states = self.scheduler.requests.values()
        return self.watched[next(state.request_id for state in states if state.attempt == attempt)]

    def check_order(self, placed: list[Watched]) -> None:
        """The older of those placed at once goes first, and none that waits is overtaken without end."""
        arrivals = {name: number for number, name in enumerate(self.watched)}
        users = [each for each in placed if not each.is_canary]
        places = [arrivals[each.request.request_id] for each in users]
        assert places == sorted(places)
        for state in self.scheduler.queue:
            older = self.watched[state.request_id]
            if older.is_canary or not any(arrivals[state.request_id] < place for place in places):
                continue
            if older.overtaken_at is None:
                older.overtaken_at = self.now
            assert self.now - older.overtaken_at < LIMITS.overtake_s


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
