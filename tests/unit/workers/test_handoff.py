"""What a writer copies: each block once, but for those that the decode worker shares."""

from __future__ import annotations

from twinpool.types import HandoffId
from twinpool.worker.handoff import Handoff
from twinpool.worker.turn import Copy

BLOCKS = [5, 6, 7, 8]


def accepted(num_shared: int) -> Handoff:
    handoff = Handoff("d", HandoffId("a"))
    handoff.begin()
    handoff.accept(num_shared)
    return handoff


def test_blocks_are_copied_from_the_first_on_and_only_once() -> None:
    handoff = accepted(0)
    assert handoff.copy(BLOCKS, 2, is_last=False) == Copy("d", HandoffId("a"), [5, 6], 0, is_last=False)
    handoff.num_copied += 2
    assert handoff.copy(BLOCKS, 2, is_last=False) is None
    assert handoff.copy(BLOCKS, 4, is_last=True) == Copy("d", HandoffId("a"), [7, 8], 2, is_last=True)


def test_blocks_that_are_shared_there_are_left_out_and_not_counted() -> None:
    handoff = accepted(2)
    assert handoff.copy(BLOCKS, 1, is_last=False) is None
    assert handoff.copy(BLOCKS, 2, is_last=False) is None
    assert handoff.copy(BLOCKS, 3, is_last=False) == Copy("d", HandoffId("a"), [7], 0, is_last=False)
    handoff.num_copied += 1
    assert handoff.num_there == 3
    assert handoff.copy(BLOCKS, 4, is_last=True) == Copy("d", HandoffId("a"), [8], 1, is_last=True)


def test_the_last_word_is_due_even_where_everything_is_shared() -> None:
    assert accepted(4).copy(BLOCKS, 4, is_last=True) == Copy("d", HandoffId("a"), [], 0, is_last=True)


def test_nothing_is_copied_before_it_is_accepted() -> None:
    handoff = Handoff("d", HandoffId("a"))
    assert handoff.copy(BLOCKS, 4, is_last=True) is None
    handoff.begin()
    assert handoff.copy(BLOCKS, 4, is_last=True) is None
