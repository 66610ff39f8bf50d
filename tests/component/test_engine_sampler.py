"""A step's tokens are drawn row by row, each as if it were alone."""

from __future__ import annotations

import pytest
import torch

from twinpool.engine.batch import SamplingRow
from twinpool.engine.sampler import sample
from twinpool.sampling.params import SamplingParams

VOCAB_SIZE = 500


def row(position: int, **params: float) -> SamplingRow:
    return SamplingRow(SamplingParams(max_tokens=1, **params), 0, position)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_draws_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(12, VOCAB_SIZE, generator=generator) * 3).to(dtype)
    kinds: list[dict[str, float]] = [
        {"temperature": 0.0},
        {"seed": 3},
        {"top_k": 5},
        {"top_p": 0.9, "temperature": 1.7},
    ]
    rows = [row(index, **kinds[index % 4]) for index in range(12)]
    together = sample(logits, rows)
    assert [sample(logits[index : index + 1], [rows[index]])[0] for index in range(12)] == together
    assert sample(logits.flip(0), rows[::-1]) == together[::-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_lowest_of_equal_ids(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, VOCAB_SIZE, dtype=dtype)
    logits[0, [490, 17, 300]] = 4.0
    logits[1, [499, 498]] = 4.0
    assert sample(logits, [row(0, temperature=0.0)] * 2) == [17, 498]


def test_positions_and_choices_draw_apart() -> None:
    logits = torch.zeros(64, VOCAB_SIZE)
    at_positions = sample(logits, [row(index) for index in range(64)])
    as_choices = sample(logits, [SamplingRow(SamplingParams(max_tokens=1), index, 0) for index in range(64)])
    assert len(set(at_positions)) > 50
    assert len(set(as_choices)) > 50


def test_no_rows() -> None:
    assert sample(torch.empty(0, VOCAB_SIZE), []) == []
