"""Prompts share a prefill step: short ones soon, the oldest always, never more than the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefill_worker.chunking import compose_chunks

REMAINING = st.lists(st.integers(1, 300), max_size=12)
BUDGET = st.integers(1, 300)


@pytest.mark.parametrize(
    ("remaining", "budget", "chunks"),
    [
        ([], 8, []),
        ([5], 8, [5]),
        ([8], 8, [8]),
        ([9], 8, [8]),
        ([100, 3], 8, [5, 3]),
        ([100, 20], 8, [2, 6]),
        ([3, 100], 8, [3, 5]),
        ([100, 30, 4, 2], 8, [2, 0, 4, 2]),
        ([100, 30, 4, 3], 8, [2, 0, 3, 3]),
        ([100, 5, 5], 8, [2, 5, 1]),
        ([1, 1, 1], 2, [1, 1, 0]),
        ([9, 9], 1, [1, 0]),
    ],
)
def test_the_oldest_has_a_quarter_and_the_shortest_the_rest(
    remaining: list[int], budget: int, chunks: list[int]
) -> None:
    assert compose_chunks(remaining, budget) == chunks


@given(REMAINING, BUDGET)
def test_the_budget_is_used_up_and_never_exceeded(remaining: list[int], budget: int) -> None:
    chunks = compose_chunks(remaining, budget)
    assert sum(chunks) == min(budget, sum(remaining))
    assert all(0 <= chunk <= left for chunk, left in zip(chunks, remaining, strict=True))


@given(REMAINING.filter(bool), BUDGET)
def test_the_oldest_is_never_starved(remaining: list[int], budget: int) -> None:
    assert compose_chunks(remaining, budget)[0] >= min(remaining[0], max(1, budget // 4))


@given(REMAINING, BUDGET)
def test_a_longer_prompt_that_is_not_the_oldest_waits_for_the_shorter(
    remaining: list[int], budget: int
) -> None:
    chunks = compose_chunks(remaining, budget)
    advanced = [left for left, chunk in zip(remaining[1:], chunks[1:], strict=True) if chunk]
    unread = [left for left, chunk in zip(remaining[1:], chunks[1:], strict=True) if chunk < left]
    assert not advanced or not unread or max(advanced) <= min(unread)
