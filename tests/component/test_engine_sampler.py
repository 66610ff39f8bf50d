"""A step's tokens are drawn row by row, each as if it were alone."""

from __future__ import annotations

import numpy as np

from twinpool.engine.batch import SamplingRow
from twinpool.engine.sampler import sample
from twinpool.sampling.params import SamplingParams
from twinpool.types import Token

VOCAB_SIZE = 500


def row(position: int, **params: float) -> SamplingRow:
    return SamplingRow(SamplingParams(max_tokens=1, **params), 0, position)  # type: ignore[arg-type]


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (12, VOCAB_SIZE)).astype(np.float32)
    kinds: list[dict[str, float]] = [
        {"temperature": 0.0},
        {"seed": 3},
        {"top_k": 5},
        {"top_p": 0.9, "temperature": 1.7},
        {"min_p": 0.1},
    ]
    rows = [row(index, **kinds[index % 5]) for index in range(12)]
    together = sample(logits, rows)
    assert [sample(logits[index : index + 1], [rows[index]])[0] for index in range(12)] == together
    assert sample(logits[::-1], rows[::-1]) == together[::-1]


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = np.zeros((2, VOCAB_SIZE), dtype=np.float32)
    logits[0, [490, 17, 300]] = 4.0
    logits[1, [499, 498]] = 4.0
    assert sample(logits, [row(0, temperature=0.0)] * 2) == [Token(17), Token(498)]


def test_positions_and_choices_draw_apart() -> None:
    logits = np.zeros((64, VOCAB_SIZE), dtype=np.float32)
    at_positions = sample(logits, [row(index) for index in range(64)])
    as_choices = sample(logits, [SamplingRow(SamplingParams(max_tokens=1), index, 0) for index in range(64)])
    assert len(set(at_positions)) > 50
    assert len(set(as_choices)) > 50


def test_no_rows() -> None:
    assert sample(np.empty((0, VOCAB_SIZE), dtype=np.float32), []) == []
