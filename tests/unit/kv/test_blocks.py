"""How many blocks tokens take."""

from __future__ import annotations

import pytest

from twinpool.kv.blocks import blocks_for, reservation_tokens


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_a_block_begun_is_a_block_taken(num_tokens: int, num_blocks: int) -> None:
    assert blocks_for(num_tokens, 16) == num_blocks


def test_a_reservation_covers_what_is_known_and_the_first_token() -> None:
    assert reservation_tokens(10) == 11
