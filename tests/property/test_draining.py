"""Rows move off workers that leave, and whatever is struck meanwhile: every request ends once with the tokens
of an undisturbed run, and afterwards nobody holds anything."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.scheduling.phases import Phase
from router.scheduling.requests import Choice
from router.scheduling.values import Request
from tests.support.simulation.system import FAULTS, GRACE_S, SECONDS, SimulatedSystem
from tests.support.simulation.witness import Answer
from twinpool.sampling.params import SamplingParams
from twinpool.types import Pool

pytestmark = pytest.mark.timeout(400)  # a failure is made small for up to five minutes

NUM_BLOCKS = 60
"""Room enough for rows to move."""
MOST_TURNS = 300
FAULT = st.tuples(st.sampled_from(["source", "target", "any"]), st.sampled_from(FAULTS))


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests arrive, and a worker whose rows have much to do drains; once one moves, something is struck.

    prompts: numbers of tokens. strike: which side, and how. num_turns: what happens after that.
    """

    prompts: list[int]
    seed: int
    grace_s: float
    retires: bool
    grows: bool
    strike: tuple[str, str] | None
    num_turns: int
    seconds: float


SCENE = st.builds(
    Scene,
    prompts=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    seed=st.integers(0, 1 << 32),
    grace_s=GRACE_S,
    retires=st.booleans(),
    grows=st.booleans(),
    strike=st.none() | FAULT,
    num_turns=st.sampled_from([5, 20, 80]),
    seconds=SECONDS,
)


class Stage(SimulatedSystem):
    """The system, in which scenes are played. repeats: whether messages come again, late."""

    repeats = False

    def play(self, scene: Scene) -> None:
        order = random.Random(scene.seed)
        self.replace_lost_workers()
        for num_prompt in scene.prompts:
            self.arrive_with_much_to_do(num_prompt, order)
        row = self.soon(order, lambda choice: choice.phase is Phase.DECODING)
        if row is None:
            return
        source = self.workers[str(row.decode_id)]
        self.tell_to_drain(source, scene.grace_s, retires=scene.retires)
        if scene.grows:
            self.grow(Pool.DECODE)
        row = self.soon(order, lambda choice: choice.move is not None)
        if row is not None and row.move is not None and scene.strike is not None:
            sides = {"source": source, "target": self.workers[row.move.decode_id]}
            side, fault = scene.strike
            self.go_on(order, order.randrange(30))
            self.strike(sides.get(side) or self.some_worker(scene.seed), fault)
        self.go_on(order, scene.num_turns)
        self.let_time_pass(scene.seconds, at_once=False)

    def arrive_with_much_to_do(self, num_prompt: int, order: random.Random) -> None:
        number = len(self.router.watched) + 1
        params = SamplingParams(order.randint(12, 60), ignore_eos=True)
        self.router.submit(Request(f"r{number}", (number,) * num_prompt, params), Answer(number, None))

    def soon(self, order: random.Random, wanted: Callable[[Choice], bool]) -> Choice | None:
        """A choice of which this holds, once there is one; None if there is none for long."""
        for _ in range(MOST_TURNS):
            for choice in self.scheduler.choices:
                if wanted(choice):
                    return choice
            self.go_on(order, 1)
        return None

    def go_on(self, order: random.Random, num_turns: int) -> None:
        for _ in range(num_turns):
            self.act(order, repeats=self.repeats, ticks=True)
            self.check_what_holds_always()


@settings(max_examples=150, deadline=None)
@given(
    prefill=st.integers(1, 2),
    decode=st.integers(2, 3),
    sockets=st.booleans(),
    repeats=st.booleans(),
    scenes=st.lists(SCENE, min_size=1, max_size=4),
)
def test_rows_move_while_they_go_on_and_nothing_is_lost(
    prefill: int, decode: int, sockets: bool, repeats: bool, scenes: list[Scene]
) -> None:
    stage = Stage(NUM_BLOCKS, sockets=sockets, most_attempts=2)
    stage.repeats = repeats
    stage.start(prefill, decode, ready=True)
    for scene in scenes:
        stage.play(scene)
    stage.end()
