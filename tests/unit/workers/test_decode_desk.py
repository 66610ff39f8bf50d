"""A decode desk steps the oldest rows, pauses those without a block, and moves rows between the steps."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from decode_worker.desk import (
    Books,
    DecodeDesk,
    Errand,
    Evict,
    Grow,
    Grown,
    Paused,
    RowLeft,
    TokensDrawn,
    Word,
)
from twinpool.engine.apart import Failed
from twinpool.engine.batch import DecodeRow
from twinpool.kv.reservations import RowReady
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import (
    Admit,
    Audit,
    MoveFailed,
    MoveRow,
    ReleaseReason,
    RowMoved,
    RowToken,
)
from twinpool.transfer.words import Accepted, Begin, Ended, Ending, GiveUp, PairLost
from twinpool.types import AttemptId, FinishReason, HandoffId, Token
from twinpool.worker.turn import Copied, Copy, CopyFailed, CopyStopped, Stepped, Turn

BLOCK_SIZE = 2
COPIED_PER_STEP = 2
TARGET = "d1-1"


class Table:
    """A desk and what it wants, turn by turn. free: blocks that rows may take. The engine draws 7."""

    def __init__(self, *, max_rows: int = 8, free: Iterable[int] = ()) -> None:
        self.free = list(free)
        self.desk = DecodeDesk(
            BLOCK_SIZE, max_rows=max_rows, eos_token_ids=frozenset(), copied_per_step=COPIED_PER_STEP
        )
        self.words: list[Word] = []

    def hear(self, *messages: RowReady | Evict | MoveRow | Accepted | Ended | PairLost | Audit) -> None:
        for message in messages:
            self.desk.hear(message, 0.0)

    def plan(self) -> Turn[Word, Errand, AttemptId, DecodeRow]:
        turn = self.desk.plan(0.0)
        self.words += turn.words
        assert not (turn.errands and turn.step)
        return turn

    def turn(self) -> Turn[Word, Errand, AttemptId, DecodeRow]:
        """Carry one turn out, with every copy and row going well."""
        turn = self.plan()
        for errand in turn.errands:
            if isinstance(errand, Copy):
                self.desk.hear(Copied(errand), 0.0)
            else:
                self.desk.hear(Grown(errand.attempt, self.free.pop(0) if self.free else None), 0.0)
        if turn.step:
            self.desk.apply(Stepped(turn.step, [Token(7)] * len(turn.step), 0.1))
        return turn

    def step(self) -> list[str]:
        """Turns, up to the next that computes, or would if there were a row."""
        while (turn := self.turn()).errands:
            pass
        return list(turn.step)

    def said(self) -> list[Word]:
        """What was said since it was last asked, but for tokens."""
        words, self.words = self.words, []
        return [word for word in words if not isinstance(word, TokensDrawn)]


def row(attempt: str, num_prompt: int = 2, max_tokens: int = 50) -> RowReady:
    """A row with one token in its log, and room for that."""
    num_blocks = -(-(num_prompt + 1) // BLOCK_SIZE)
    return RowReady(
        Admit(
            AttemptId(attempt),
            HandoffId(f"to {attempt}"),
            0,
            (1,) * num_prompt,
            (5,),
            SamplingParams(max_tokens),
        ),
        tuple(range(num_blocks)),
    )


def moving(attempt: str = "a", num_prompt: int = 12, num_shared: int = 0) -> Table:
    """A row that moves, whose move is accepted."""
    to = HandoffId(f"{attempt}'")
    table = Table(free=range(100, 120))
    table.hear(row(attempt, num_prompt), MoveRow(AttemptId(attempt), to, TARGET))
    table.turn()
    assert Begin(TARGET, to) in table.said()
    table.hear(Accepted(to, num_shared))
    return table


def test_the_rows_that_came_first_are_stepped_up_to_the_limit() -> None:
    table = Table(max_rows=2)
    table.hear(row("a"), row("b"), row("c"))
    assert table.step() == ["a", "b"]
    table.hear(Evict(AttemptId("a")))
    table.free = [9, 10]
    assert table.step() == ["b", "c"]


def test_a_row_asks_for_a_block_when_its_newest_token_needs_one_the_oldest_first() -> None:
    table = Table()
    table.hear(row("a"), row("b"))
    assert table.step() == ["a", "b"]
    assert table.step() == ["a", "b"]
    assert table.plan().errands == [Grow(AttemptId("a")), Grow(AttemptId("b"))]


def test_a_row_without_a_block_pauses_while_the_others_go_on_and_asks_again_every_step() -> None:
    table = Table(free=[9])
    table.hear(row("a"), row("b"))
    assert [table.step() for _ in range(3)] == [["a", "b"], ["a", "b"], ["a"]]
    assert table.said() == [Paused((AttemptId("b"),))]
    assert table.turn().errands == [Grow(AttemptId("b"))]
    table.free = [10, 11]
    assert list(table.turn().step) == ["a"]
    assert table.said() == [Paused((AttemptId("b"),))]
    assert table.step() == ["a", "b"]
    assert table.said() == []


def test_if_all_rows_pause_it_is_said_and_nothing_more_is_to_be_done() -> None:
    table = Table()
    table.hear(row("a"))
    table.step()
    table.step()
    assert table.turn().errands == [Grow(AttemptId("a"))]
    turn = table.turn()
    assert (turn.errands, turn.step) == ([], {})
    assert list(turn.words) == [Paused((AttemptId("a"),))]


@pytest.mark.parametrize(
    ("alone", "reason"), [(True, ReleaseReason.FAILED_ALONE), (False, ReleaseReason.FAILED)]
)
def test_tokens_are_told_by_step_and_a_row_whose_step_failed_leaves(
    alone: bool, reason: ReleaseReason
) -> None:
    table = Table()
    table.hear(row("a"), row("b", max_tokens=2))
    step = table.plan().step
    table.desk.apply(Stepped(step, [Failed(RuntimeError(), alone), Token(7)], 0.1))
    assert table.step() == []  # b has its last token, and waits to be evicted
    left, drawn = table.words
    assert left == RowLeft(AttemptId("a"), reason, "RuntimeError")
    assert drawn == TokensDrawn(1, (RowToken(AttemptId("b"), 1, Token(7), FinishReason.LENGTH),), 0.1)
    table.said()
    table.hear(Evict(AttemptId("b")))
    table.plan()
    assert table.said() == [RowLeft(AttemptId("b"), ReleaseReason.EVICTED)]
    assert table.desk.holds_nothing


@pytest.mark.parametrize("num_prompt", [11, 12])
def test_a_row_is_copied_a_few_blocks_between_steps_and_the_rest_with_the_last_word(num_prompt: int) -> None:
    table = moving(num_prompt=num_prompt)
    copies = []
    while not any(isinstance(word, RowMoved) for word in table.words):
        turn = table.turn()
        copies += [errand for errand in turn.errands if isinstance(errand, Copy)]
        if turn.errands and isinstance(turn.errands[0], Copy):
            assert len(turn.errands[0].blocks) <= COPIED_PER_STEP
            following = table.turn()
            assert not any(isinstance(errand, Copy) for errand in following.errands)
    assert [copy.is_last for copy in copies] == [False] * (len(copies) - 1) + [True]
    copied = [block for copy in copies for block in copy.blocks]
    (moved,) = (word for word in table.said() if isinstance(word, RowMoved))
    num_cached = num_prompt + moved.position - 1
    num_first = -(-(num_prompt + 1) // BLOCK_SIZE)
    assert copied == [*range(num_first), *range(100, 120)][: -(-num_cached // BLOCK_SIZE)]
    assert table.step() == []


def test_blocks_that_are_shared_there_are_not_copied() -> None:
    copies = []
    table = moving(num_shared=3)
    while not any(isinstance(word, RowMoved) for word in table.words):
        copies += [errand for errand in table.turn().errands if isinstance(errand, Copy)]
    copied = [block for copy in copies for block in copy.blocks]
    assert copied[:4] == [3, 4, 5, 6]
    assert copies[0].first == 0
    assert copies[-1].first + len(copies[-1].blocks) == len(copied)


def test_a_row_goes_on_here_where_its_copy_fails() -> None:
    table = moving()
    (copy,) = table.plan().errands
    assert isinstance(copy, Copy)
    table.desk.hear(CopyFailed(copy, "ValueError"), 0.0)
    assert table.step() == ["a"]
    assert table.said() == [
        GiveUp(TARGET, HandoffId("a'")),
        MoveFailed(AttemptId("a"), HandoffId("a'"), "ValueError"),
    ]


def test_a_copy_that_was_stopped_is_not_tried_again() -> None:
    table = moving()
    (copy,) = table.plan().errands
    assert isinstance(copy, Copy)
    table.desk.hear(CopyStopped(copy), 0.0)
    assert table.step() == ["a"]
    assert table.step() == ["a"]
    table.hear(Ended(HandoffId("a'"), Ending.STOPPED))
    table.step()
    assert MoveFailed(AttemptId("a"), HandoffId("a'"), "stopped") in table.said()


def test_a_moving_row_is_copied_also_while_nothing_can_be_stepped() -> None:
    table = moving()
    table.free = []
    steps = [list(table.turn().step) for _ in range(12)]
    assert steps.count([AttemptId("a")]) == 1
    assert any(isinstance(word, RowMoved) for word in table.said())


def test_a_move_ends_with_its_pair_or_its_row() -> None:
    table = moving()
    table.hear(PairLost(TARGET, "reset"))
    table.plan()
    assert table.said() == [MoveFailed(AttemptId("a"), HandoffId("a'"), "reset")]
    table.hear(MoveRow(AttemptId("a"), HandoffId("a2"), TARGET))
    table.plan()
    table.hear(Evict(AttemptId("a")))
    table.plan()
    assert table.said() == [
        Begin(TARGET, HandoffId("a2")),
        GiveUp(TARGET, HandoffId("a2")),
        RowLeft(AttemptId("a"), ReleaseReason.EVICTED),
    ]
    table.hear(MoveRow(AttemptId("a"), HandoffId("a3"), TARGET))
    table.plan()
    assert table.said() == [MoveFailed(AttemptId("a"), HandoffId("a3"), "there is no such row")]


def test_an_audit_is_answered_behind_all_that_was_said_before() -> None:
    table = Table()
    table.hear(row("a"), row("b"), Audit("audit"), Evict(AttemptId("a")))
    left, books = table.plan().words
    assert left == RowLeft(AttemptId("a"), ReleaseReason.EVICTED)
    assert books == Books("audit", {AttemptId("b"): [0, 1]}, num_entered=2)
