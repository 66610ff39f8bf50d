"""What a cache block holds and how many fit."""

from __future__ import annotations

from typing import Any

import pytest

from twinpool.kv.layout import KvLayout


def layout(**changes: Any) -> KvLayout:
    fields: dict[str, Any] = {
        "num_layers": 30,
        "num_kv_heads": 3,
        "head_dim": 64,
        "block_size": 16,
        "dtype": "bfloat16",
    }
    return KvLayout(**(fields | changes))


def test_sizes() -> None:
    assert layout().token_bytes == 30 * 2 * 3 * 64 * 2
    assert layout().block_bytes == 16 * layout().token_bytes
    assert layout(dtype="float32").block_bytes == 2 * layout().block_bytes
    assert layout(dtype="int8").token_bytes == 30 * 2 * 3 * (64 + 4)


def test_blocks_that_fit_a_budget() -> None:
    size = layout().block_bytes
    assert [layout().num_blocks(budget) for budget in (0, size - 1, size, 3 * size + 1)] == [0, 0, 1, 3]


def test_blocks_that_tokens_take() -> None:
    assert [layout().blocks_for(count) for count in (0, 1, 15, 16, 17, 32)] == [0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"block_size": 0}, {"num_layers": -1}])
def test_impossible_layouts_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"float16|block_size|num_layers"):
        layout(**change)
