"""A copy goes out block by block, and the last word with it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from twinpool.types import HandoffId
from twinpool.worker.courier import Courier
from twinpool.worker.turn import Copied, Copy


class SenderLog:
    """A `HandoffSender` that takes everything, written down."""

    transport = "log"

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def begin(self, handoff: HandoffId) -> None:
        self.said.append(("begin", handoff))

    def push(self, handoff: HandoffId, source_blocks: Sequence[int], first: int) -> bool:
        self.said.append(("push", handoff, *source_blocks, first))
        return True

    def renew(self, handoff: HandoffId) -> None:
        self.said.append(("renew", handoff))

    def written(self, handoff: HandoffId) -> bool:
        self.said.append(("written", handoff))
        return True

    def stopped(self, handoff: HandoffId) -> None:
        self.said.append(("stopped", handoff))

    def close(self) -> None:
        self.said.append(("close",))


@pytest.mark.parametrize(
    ("blocks", "is_last", "said"),
    [
        ((7, 8), False, [("push", "a", 7, 8, 3)]),
        ((7, 8), True, [("push", "a", 7, 8, 3), ("written", "a")]),
        ((), True, [("written", "a")]),
    ],
)
def test_blocks_are_pushed_if_there_are_any_and_the_last_word_said_behind_them(
    blocks: tuple[int, ...], is_last: bool, said: list[tuple[object, ...]]
) -> None:
    sender = SenderLog()
    copy = Copy("d", HandoffId("a"), blocks, 3, is_last)
    assert Courier({"d": sender}, lambda lost: None).copy(copy) == Copied(copy)
    assert sender.said == said
