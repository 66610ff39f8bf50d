"""A copy goes out block by block, and the last word with it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from twinpool.worker.courier import Courier
from twinpool.worker.turn import Copied, Copy


class SenderLog:
    """A `HandoffSender` that takes everything, written down."""

    transport = "log"

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def begin(self, attempt: str) -> None:
        self.said.append(("begin", attempt))

    def push(self, attempt: str, source_blocks: Sequence[int], first: int) -> bool:
        self.said.append(("push", attempt, *source_blocks, first))
        return True

    def renew(self, attempt: str) -> None:
        self.said.append(("renew", attempt))

    def written(self, attempt: str) -> bool:
        self.said.append(("written", attempt))
        return True

    def stopped(self, attempt: str) -> None:
        self.said.append(("stopped", attempt))

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
    copy = Copy("d", "a", blocks, 3, is_last)
    assert Courier({"d": sender}, lambda lost: None).copy(copy) == Copied(copy)
    assert sender.said == said
