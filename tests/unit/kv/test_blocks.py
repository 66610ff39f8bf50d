"""How many blocks tokens take."""

from __future__ import annotations

import pytest

from twinpool.kv.blocks import blocks_for, leaves_rows_room, reservation_tokens


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_a_block_begun_is_a_block_taken(num_tokens: int, num_blocks: int) -> None:
    assert blocks_for(num_tokens, 16) == num_blocks


def test_a_reservation_covers_what_is_known_and_the_first_token() -> None:
    assert reservation_tokens(10) == 11


@pytest.mark.parametrize(("num_blocks", "leaves"), [(0, True), (4, True), (5, False)])
def test_a_free_block_must_remain_for_each_running_row(num_blocks: int, leaves: bool) -> None:
    assert leaves_rows_room(num_blocks, free=7, num_rows=3) is leaves
