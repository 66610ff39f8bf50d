"""A prefill desk serves the oldest first, keeps hand-offs alive, and gives up what nobody answers."""

from __future__ import annotations

import pytest

from prefill_worker.desk import PrefillDesk, PrefillLimits, Word
from twinpool.engine.apart import Failed
from twinpool.engine.batch import PrefillChunk
from twinpool.kv.pool import BlockPool, Owner
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import (
    Attempt,
    CancelPrefill,
    FirstToken,
    Prefill,
    PrefillEnded,
    PrefillOutcome,
)
from twinpool.transfer.words import Accepted, Begin, Ended, Ending, GiveUp, PairLost, Renew
from twinpool.types import AttemptId, HandoffId, Token
from twinpool.worker.pulse import Pulse
from twinpool.worker.turn import Copied, Copy, CopyFailed, CopyStopped, Stepped, Turn

DECODE = "d0-1"
BLOCK_SIZE = 2
LIMITS = PrefillLimits(budget_tokens=4, accept_timeout_s=10.0, renewal_s=3.0)


class Table:
    """A desk and what it wants, turn by turn. now: its clock. The engine draws 7."""

    def __init__(self, num_blocks: int = 100) -> None:
        self.now = 0.0
        self.pool = BlockPool(num_blocks)
        self.desk = PrefillDesk(self.pool, BLOCK_SIZE, LIMITS, Pulse(), eos_token_ids=frozenset())
        self.words: list[Word] = []

    def hear(self, *messages: Prefill | CancelPrefill | Accepted | Ended | PairLost) -> None:
        for message in messages:
            self.desk.hear(message, self.now)

    def plan(self) -> Turn[Word, Copy, HandoffId, PrefillChunk]:
        turn = self.desk.plan(self.now)
        self.words += turn.words
        assert not (turn.errands and turn.step)
        return turn

    def read(self) -> list[str]:
        """Compute one step; whose chunks were in it."""
        turn = self.plan()
        assert not turn.errands
        results = [Token(7) if chunk.sample else None for chunk in turn.step.values()]
        self.desk.apply(Stepped(turn.step, results, 0.1))
        return list(turn.step)

    def copy(self) -> list[Copy]:
        """Plan, and let all copies succeed."""
        copies = list(self.plan().errands)
        for copy in copies:
            self.desk.hear(Copied(copy), self.now)
        return copies

    def said(self) -> list[Word]:
        """What was said since it was last asked, the words of a turn that would come now included."""
        self.plan()
        words, self.words = self.words, []
        return words

    def outcomes(self) -> dict[str, PrefillOutcome]:
        return {word.handoff: word.outcome for word in self.said() if isinstance(word, PrefillEnded)}


def prompt(arrival: int, num_tokens: int = 4, decode: str | None = DECODE) -> Prefill:
    attempts = (Attempt(AttemptId(f"of {arrival}"), 0),)
    return Prefill(
        HandoffId(str(arrival)), attempts, (arrival,) * num_tokens, (), SamplingParams(9), decode, arrival
    )


def accepted(*arrivals: int) -> list[Accepted]:
    return [Accepted(HandoffId(str(arrival)), 0) for arrival in arrivals]


def test_prompts_begin_and_are_read_in_the_order_of_their_arrival() -> None:
    table = Table()
    table.hear(prompt(3), prompt(1), prompt(2))
    steps = [table.read() for _ in range(3)]
    assert [word for word in table.words if isinstance(word, Begin)] == [
        Begin(DECODE, HandoffId(attempt)) for attempt in "123"
    ]
    assert steps == [["1"], ["2"], ["3"]]


def test_none_overtakes_one_that_waits_for_blocks() -> None:
    table = Table(num_blocks=4)
    table.hear(prompt(1, num_tokens=6))
    table.plan()
    table.hear(prompt(3, num_tokens=2), prompt(2, num_tokens=4))
    assert list(table.plan().step) == ["1"]  # the third would fit
    assert (table.desk.load().running, table.desk.load().waiting) == (1, 2)
    table.hear(CancelPrefill(HandoffId("1")))
    assert list(table.plan().step) == ["2", "3"]


def test_a_prompt_larger_than_all_blocks_ends_at_once() -> None:
    table = Table(num_blocks=2)
    table.hear(prompt(1, num_tokens=5), prompt(2, num_tokens=4))
    assert table.outcomes() == {"1": PrefillOutcome.FAILED}
    assert list(table.plan().step) == ["2"]


@pytest.mark.parametrize(("num_shared", "copied"), [(1, [(1, False), (2, True)]), (4, [(0, True)])])
def test_what_is_shared_there_is_not_copied(num_shared: int, copied: list[tuple[int, bool]]) -> None:
    table = Table()
    table.hear(prompt(1, num_tokens=7))
    table.plan()
    table.hear(Accepted(HandoffId("1"), num_shared))
    copies: list[Copy] = []
    for _ in range(2):
        table.read()
        copies += table.copy()
    assert [(len(copy.blocks), copy.is_last) for copy in copies] == copied
    assert copies[0].first == 0
    assert table.outcomes() == {"1": PrefillOutcome.DONE}


def test_what_is_complete_is_copied_before_the_next_step_and_the_rest_with_the_last_word() -> None:
    table = Table()
    table.hear(prompt(1, num_tokens=7))
    assert table.read() == ["1"]
    table.hear(*accepted(1))
    blocks = list(table.plan().errands[0].blocks)
    assert table.copy() == [Copy(DECODE, HandoffId("1"), blocks, 0, is_last=False)]
    assert table.read() == ["1"]
    (last,) = table.copy()
    assert (last.first, len(last.blocks), last.is_last) == (2, 2, True)
    kinds = [type(word) for word in table.said()]
    assert kinds.index(FirstToken) < kinds.index(PrefillEnded)
    assert table.pool.count(Owner.FREE) == 100


def test_blocks_of_one_that_ends_with_its_last_copy_are_there_for_the_next_step() -> None:
    table = Table(num_blocks=2)
    table.hear(prompt(1), prompt(2))
    table.read()
    table.hear(*accepted(1))
    table.copy()
    assert table.read() == ["2"]


def test_a_reservation_is_renewed_once_nothing_was_copied_for_so_long_and_not_before() -> None:
    table = Table(num_blocks=4)
    table.hear(prompt(1, num_tokens=8), prompt(2, num_tokens=8), *accepted(1, 2))
    table.read()
    table.now = 2.9
    table.copy()
    assert not [word for word in table.said() if isinstance(word, Renew)]
    table.now = 3.0
    assert table.said() == [Renew(DECODE, HandoffId("2"))]
    assert table.said() == []
    table.now = 5.9  # the first was copied at 2.9
    assert table.said() == [Renew(DECODE, HandoffId("1"))]
    table.now = 6.0
    assert table.said() == [Renew(DECODE, HandoffId("2"))]


def test_nothing_is_renewed_before_it_is_accepted() -> None:
    table = Table()
    table.hear(prompt(1))
    table.now = LIMITS.accept_timeout_s
    assert not [word for word in table.said() if isinstance(word, Renew)]


def test_a_decode_worker_that_does_not_answer_in_time_is_given_up() -> None:
    table = Table()
    table.hear(prompt(1), prompt(2))
    table.plan()
    table.hear(*accepted(2))
    table.now = LIMITS.accept_timeout_s
    assert table.outcomes() == {}
    table.now += 0.1
    gave_up, ended = (word for word in table.said() if not isinstance(word, Renew))
    assert gave_up == GiveUp(DECODE, HandoffId("1"))
    assert isinstance(ended, PrefillEnded)
    assert (ended.handoff, ended.outcome) == ("1", PrefillOutcome.PAIR_LOST)


def test_what_is_cancelled_before_it_has_begun_is_not_begun() -> None:
    table = Table()
    table.hear(prompt(1), CancelPrefill(HandoffId("1")))
    (ended,) = table.said()
    assert isinstance(ended, PrefillEnded)
    assert ended.outcome is PrefillOutcome.STOPPED


def test_a_hand_off_is_given_up_before_its_blocks_are_another_prompts() -> None:
    table = Table(num_blocks=2)
    table.hear(prompt(1), prompt(2))
    table.read()
    table.hear(*accepted(1), CancelPrefill(HandoffId("1")))
    turn = table.plan()
    assert list(turn.step) == ["2"]
    kinds = [type(word) for word in turn.words]
    assert kinds.index(GiveUp) < kinds.index(PrefillEnded)


def test_after_a_copy_that_was_stopped_there_is_none_until_it_is_heard_why() -> None:
    table = Table()
    table.hear(prompt(1))
    table.read()
    table.hear(*accepted(1))
    (copy,) = table.plan().errands
    table.desk.hear(CopyStopped(copy), table.now)
    turn = table.plan()
    assert (turn.errands, turn.step) == ([], {})
    table.hear(Ended(HandoffId("1"), Ending.STOPPED))
    assert table.outcomes() == {"1": PrefillOutcome.STOPPED}
    assert GiveUp(DECODE, HandoffId("1")) not in table.words


def test_a_copy_or_a_step_that_fails_costs_its_own_prompt_alone() -> None:
    table = Table()
    table.hear(prompt(1, num_tokens=2), prompt(2, num_tokens=2), *accepted(1, 2))
    table.read()
    first, second = table.plan().errands
    table.desk.hear(CopyFailed(first, "ValueError"), table.now)
    table.desk.hear(Copied(second), table.now)
    assert table.outcomes() == {"1": PrefillOutcome.FAILED, "2": PrefillOutcome.DONE}
    table.hear(prompt(3, decode=None), prompt(4, decode=None))
    step = table.plan().step
    failed: list[Token | Failed | None] = [Failed(RuntimeError(), alone=True)]
    table.desk.apply(Stepped(step, failed + [Token(7)] * (len(step) - 1), 0.1))
    assert table.outcomes() == {"3": PrefillOutcome.FAILED_ALONE}


def test_a_lost_pair_ends_its_prompts_and_no_others() -> None:
    table = Table()
    table.hear(prompt(1), prompt(2, decode="d1-1"))
    table.plan()
    table.hear(PairLost(DECODE, "reset"))
    assert table.outcomes() == {"1": PrefillOutcome.PAIR_LOST}
    table.hear(CancelPrefill(HandoffId("2")))
    assert table.outcomes() == {"2": PrefillOutcome.STOPPED}
    assert table.pool.count(Owner.FREE) == 100
