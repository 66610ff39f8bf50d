"""Whatever a prefill desk hears and however time passes: prompts get blocks in the order of their places, and
nobody overtakes; reservations are kept alive; silent decode workers are given up, and told so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from prefill_worker.desk import PrefillDesk, PrefillLimits, Word
from prefill_worker.prompts import Prompt
from twinpool.engine.apart import Failed
from twinpool.kv.blocks import blocks_for
from twinpool.kv.pool import BlockPool, Owner
from twinpool.sampling.params import SamplingParams
from twinpool.session import messages as m
from twinpool.transfer.words import Accepted, Begin, Ended, Ending, GiveUp, PairLost, Renew
from twinpool.types import AttemptId, HandoffId, Token
from twinpool.worker.handoff import State
from twinpool.worker.pulse import Pulse
from twinpool.worker.turn import Copied, Copy, CopyEnd, CopyFailed, CopyStopped, Stepped

pytestmark = pytest.mark.timeout(400)  # a failure is made small for up to five minutes

NUM_BLOCKS, BLOCK_SIZE = 5, 2
LIMITS = PrefillLimits(budget_tokens=3, accept_timeout_s=4.0, renewal_s=1.0)
EOS = 0
CHOICE = st.integers(0, 30)
COPY_ENDS: list[Callable[[Copy], CopyEnd]] = [
    *[Copied] * 6,
    CopyStopped,
    lambda copy: CopyFailed(copy, "OSError"),
]


class PrefillDeskMachine(RuleBasedStateMachine):
    """Plays everybody around one desk. begun: hand-offs whose `Begin` was said; accepted: those taken up.

    signs: when a hand-off's decode worker last had a sign of life of it. may_end: how each may, beside well.
    to_give_up: those whose decode worker is to hear next that nothing comes any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.desk = PrefillDesk(self.pool, BLOCK_SIZE, LIMITS, Pulse(), eos_token_ids=frozenset({EOS}))
        self.now = 0.0
        self.num_sent = 0
        self.begun: set[HandoffId] = set()
        self.accepted: set[HandoffId] = set()
        self.signs: dict[HandoffId, float] = {}
        self.may_end: dict[HandoffId, set[m.PrefillOutcome]] = {}
        self.to_give_up: set[HandoffId] = set()

    # What the desk holds, as it is.

    def prompts(self) -> list[Prompt]:
        return list(self.desk._prompts.values())

    def waiting(self) -> list[Prompt]:
        return sorted((each for each in self.prompts() if not each.blocks), key=place)

    def some(self, choice: int) -> Prompt:
        prompts = self.prompts()
        return prompts[choice % len(prompts)]

    def expect(self, handoff: HandoffId, outcome: m.PrefillOutcome) -> None:
        self.may_end[handoff].add(outcome)

    def expect_to_be_given_up(self, handoff: HandoffId, outcome: m.PrefillOutcome) -> None:
        self.expect(handoff, outcome)
        if handoff in self.begun:
            self.to_give_up.add(handoff)

    # What it hears.

    @rule(
        place=st.integers(1, 1000),
        num_tokens=st.integers(1, NUM_BLOCKS * BLOCK_SIZE),
        decode=st.sampled_from(["d0", "d0", "d1", None]),
    )
    def send(self, place: int, num_tokens: int, decode: str | None) -> None:
        self.num_sent += 1
        handoff = HandoffId(f"h{self.num_sent}")
        attempts = (m.Attempt(AttemptId(f"a{self.num_sent}"), 0),)
        params = SamplingParams(9)
        # Places are never the same: the number of the prompt tells like ones apart.
        unique = place * 1000 + self.num_sent
        self.may_end[handoff] = set()
        self.desk.hear(m.Prefill(handoff, attempts, (7,) * num_tokens, (), params, decode, unique), self.now)

    @precondition(lambda self: self.begun - self.accepted)
    @rule(choice=CHOICE)
    def accept(self, choice: int) -> None:
        asked = sorted(self.begun - self.accepted)
        handoff = asked[choice % len(asked)]
        self.accepted.add(handoff)
        self.desk.hear(Accepted(handoff, 0), self.now)

    @precondition(lambda self: self.prompts())
    @rule(choice=CHOICE)
    def cancel(self, choice: int) -> None:
        handoff = self.some(choice).id
        self.expect_to_be_given_up(handoff, m.PrefillOutcome.STOPPED)
        self.desk.hear(m.CancelPrefill(handoff), self.now)

    @precondition(lambda self: self.begun)
    @rule(choice=CHOICE, ending=st.sampled_from(Ending))
    def end(self, choice: int, ending: Ending) -> None:
        begun = sorted(self.begun)
        handoff = begun[choice % len(begun)]
        self.expect(handoff, m.PrefillOutcome(ending.value))
        self.desk.hear(Ended(handoff, ending), self.now)

    @precondition(lambda self: len(self.prompts()) > 1)
    @rule(decode=st.sampled_from(["d0", "d1"]))
    def lose_pair(self, decode: str) -> None:
        for prompt in self.prompts():
            if prompt.command.decode == decode:
                self.expect(prompt.id, m.PrefillOutcome.PAIR_LOST)
        self.desk.hear(PairLost(decode, "reset"), self.now)
        assert not [prompt for prompt in self.prompts() if prompt.command.decode == decode]

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.5, 5.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    # What it does.

    @rule(fails=st.sampled_from([False] * 9 + [True]), ends=st.lists(st.sampled_from(COPY_ENDS), min_size=6))
    def turn(self, fails: bool, ends: list[Callable[[Copy], CopyEnd]]) -> None:
        waited = {prompt.id for prompt in self.waiting()}
        overdue = self.overdue()
        for handoff in overdue:
            self.expect_to_be_given_up(handoff, m.PrefillOutcome.PAIR_LOST)
        turn = self.desk.plan(self.now)
        self.hear_words(turn.words)
        assert not self.overdue(), "a silent decode worker is given up"
        self.check_blocks(waited)
        self.check_signs({copy.handoff for copy in turn.errands})
        for copy, end in zip(turn.errands, [*ends, *[Copied] * len(turn.errands)], strict=False):
            self.carry_out(end(copy))
        if turn.step:
            self.check_step(turn.step.keys())
            results: list[Token | Failed | None] = [
                Token(7) if chunk.sample else None for chunk in turn.step.values()
            ]
            if fails:
                first = next(iter(turn.step))
                self.expect_to_be_given_up(first, m.PrefillOutcome.FAILED_ALONE)
                results[0] = Failed(RuntimeError(), alone=True)
            self.desk.apply(Stepped(turn.step, results, 0.1))

    def carry_out(self, end: CopyEnd) -> None:
        handoff = end.copy.handoff
        if isinstance(end, CopyFailed):
            self.expect_to_be_given_up(handoff, m.PrefillOutcome.FAILED)
        elif isinstance(end, Copied):
            self.signs[handoff] = self.now
        if isinstance(end, CopyStopped):
            # Its pair has said so before the copy did, or says so soon.
            self.expect(handoff, m.PrefillOutcome.STOPPED)
            self.desk.hear(end, self.now)
            self.desk.hear(Ended(handoff, Ending.STOPPED), self.now)
            return
        self.desk.hear(end, self.now)

    def hear_words(self, words: Sequence[Word]) -> None:
        for word in words:
            match word:
                case Begin(_, handoff):
                    assert handoff not in self.begun
                    self.begun.add(handoff)
                    self.signs[handoff] = self.now
                case Renew(_, handoff):
                    assert handoff in self.accepted
                    self.signs[handoff] = self.now
                case GiveUp(_, handoff):
                    assert handoff in self.begun
                    self.to_give_up.discard(handoff)
                case m.PrefillEnded(handoff, outcome):
                    assert outcome in self.may_end[handoff] | {m.PrefillOutcome.DONE}
                    assert handoff not in {prompt.id for prompt in self.prompts()}
                    self.begun.discard(handoff)
                    self.accepted.discard(handoff)
                case _:
                    pass
        assert not self.to_give_up, "its decode worker hears that nothing comes"

    # What holds after each plan.

    def overdue(self) -> set[HandoffId]:
        """Whose decode worker was asked, and has been silent for too long."""
        alive = {prompt.id for prompt in self.prompts()}
        asked = (self.begun - self.accepted) & alive
        return {each for each in asked if self.now - self.signs[each] > LIMITS.accept_timeout_s}

    def check_blocks(self, waited: set[HandoffId]) -> None:
        """Blocks are given in the order of places, and to all for whom there are any."""
        waiting = self.waiting()
        given = [prompt for prompt in self.prompts() if prompt.blocks and prompt.id in waited]
        if waiting:
            assert all(prompt.command.place < waiting[0].command.place for prompt in given), (
                "nobody overtakes"
            )
            needed = blocks_for(len(waiting[0].token_ids), BLOCK_SIZE)
            assert needed > self.pool.count(Owner.FREE), "nobody waits without need"

    def check_signs(self, copied: set[HandoffId]) -> None:
        """Reservations are kept alive, by copies or by words."""
        for prompt in self.prompts():
            if prompt.handoff is not None and prompt.handoff.state is State.ACCEPTED:
                is_fresh = self.now - self.signs[prompt.id] < LIMITS.renewal_s
                assert prompt.id in copied or is_fresh, "it is renewed before it can expire"

    def check_step(self, read: Collection[HandoffId]) -> None:
        """The oldest prompt that has blocks is read on in every step."""
        reading = [prompt for prompt in self.prompts() if prompt.blocks and prompt.num_remaining]
        assert min(reading, key=place).id in read

    def teardown(self) -> None:
        for prompt in self.prompts():
            self.expect_to_be_given_up(prompt.id, m.PrefillOutcome.STOPPED)
            self.desk.hear(m.CancelPrefill(prompt.id), self.now)
        self.hear_words(self.desk.plan(self.now).words)
        assert not self.prompts()
        assert self.pool.count(Owner.FREE) == NUM_BLOCKS


def place(prompt: Prompt) -> int:
    return prompt.command.place


TestPrefillDesk = PrefillDeskMachine.TestCase
TestPrefillDesk.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
