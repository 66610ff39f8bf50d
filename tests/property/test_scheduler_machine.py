"""Whatever order the world moves in and whatever is lost, every request ends once with the tokens of an
undisturbed run, and afterwards nobody holds anything."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.scheduling.events import Aborted
from router.scheduling.values import Request
from tests.support.simulation.decode import SimulatedDecode
from tests.support.simulation.fleet_witness import place
from tests.support.simulation.loop import BLOCK_SIZE
from tests.support.simulation.system import FAULTS, GRACE_S, SECONDS, SimulatedSystem
from tests.support.simulation.witness import Answer
from twinpool.sampling.params import SamplingParams
from twinpool.types import Pool

pytestmark = pytest.mark.timeout(400)  # a failure is made small for up to five minutes

CHOICE = st.integers(0, 1 << 16)
PROMPT = st.tuples(
    st.integers(1, 7),
    st.builds(SamplingParams, max_tokens=st.integers(1, 5) | st.just(20), ignore_eos=st.booleans()),
    st.none() | st.integers(0, 9),
    st.sampled_from([None, None, None, 1.0, 6.0]),
    st.sampled_from([None, None, None, 0, 1, 3]),
)
"""Tokens of the prompt, parameters, tokens before end of sequence, the deadline in seconds, and the position
at which engines fail on it."""


class SchedulerMachine(RuleBasedStateMachine):
    """Draws what happens to a scheduler among simulated workers."""

    def __init__(self) -> None:
        super().__init__()
        self.system = SimulatedSystem()

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
        self.system = SimulatedSystem(num_blocks, sockets=sockets, most_attempts=most_attempts)
        self.system.start(prefill, decode, ready=ready)

    @rule(prompts=st.lists(PROMPT, min_size=1, max_size=3))
    def arrive(self, prompts: list[tuple[int, SamplingParams, int | None, float | None, int | None]]) -> None:
        for num_prompt, asked, num_tokens, timeout_s, poison_at in prompts:
            number = len(self.system.router.watched) + 1
            prompt_ids = (number,) * num_prompt
            fits = self.system.world.num_blocks * BLOCK_SIZE - num_prompt
            params = replace(asked, max_tokens=min(asked.max_tokens, fits))
            request = Request(f"r{number}", prompt_ids, params, timeout_s=timeout_s)
            self.system.router.submit(request, Answer(number, num_tokens, poison_at))

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
        still = None if stalled is None else self.system.some_worker(stalled)
        for _ in range(num_actions):
            self.system.act(order, stalled=still, repeats=repeats)
        self.system.see_whether_still_shaken()
        self.system.let_time_pass(seconds, at_once=jumps)
        if replaces:
            self.system.replace_lost_workers()

    @rule(choice=CHOICE)
    def take_room(self, choice: int) -> None:
        """A decode worker refuses its next reservation: somebody else was there first."""
        worker = self.system.some_worker(choice)
        if isinstance(worker, SimulatedDecode):
            worker.refuses_next = True

    @precondition(lambda self: self.system.router.waiting_clients())
    @rule(choice=CHOICE, abort=st.booleans())
    def give_up(self, choice: int, abort: bool) -> None:
        """A client leaves, or a request is aborted."""
        router = self.system.router
        waiting = router.waiting_clients()
        name = waiting[choice % len(waiting)]
        if not abort:
            router.leave(name)
            return
        router.watched[name].aborted = True
        router.feed(Aborted(name))
        assert router.watched[name].ended

    @rule(choice=CHOICE, what=st.sampled_from(FAULTS))
    def go_wrong(self, choice: int, what: str) -> None:
        self.system.strike(self.system.some_worker(choice), what)

    @rule(choice=CHOICE, grace_s=GRACE_S, retires=st.booleans())
    def drain(self, choice: int, grace_s: float, retires: bool) -> None:
        """A worker is to leave, for good or to be started anew; nothing is lost by it."""
        self.system.tell_to_drain(self.system.some_worker(choice), grace_s, retires=retires)

    @rule(pool=st.sampled_from(Pool))
    def grow(self, pool: Pool) -> None:
        self.system.grow(pool)

    @invariant()
    def what_holds_always(self) -> None:
        self.system.check_what_holds_always()

    @invariant()
    def the_queue_is_in_order_of_place_after_canaries_and_resumed_requests(self) -> None:
        places = [place(choice) for choice in self.system.scheduler.queue]
        assert places == sorted(places)

    def teardown(self) -> None:
        self.system.end()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
