"""A step's tokens are drawn row by row, each as if it were alone; natively the same ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.models.model_oracle import SHAPES, load_engine, prepare, random_model
from twinpool.engine.batch import SamplingRow
from twinpool.engine.draw import draw_token
from twinpool.engine.kernels.port import StepKernel
from twinpool.sampling.params import SamplingParams

VOCAB_SIZE = 500


@pytest.fixture(scope="module", params=["torch", "native"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StepKernel:
    model = prepare(random_model(SHAPES["grouped-query"]), tmp_path_factory.mktemp("model"))
    return load_engine(model, kernels=request.param, threads=2).kernel


def row(position: int, **params: float) -> SamplingRow:
    return SamplingRow(SamplingParams(max_tokens=1, **params), 0, position)  # type: ignore[arg-type]


def test_a_row_draws_the_same_alone_and_among_others(kernel: StepKernel) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (12, VOCAB_SIZE)).astype(np.float32)
    kinds: list[dict[str, float]] = [
        {"temperature": 0.0},
        {"seed": 3},
        {"top_k": 5},
        {"top_p": 0.9, "temperature": 1.7},
        {"min_p": 0.1},
    ]
    rows = [row(index, **kinds[index % 5]) for index in range(12)]
    together = kernel.draw(logits, rows)
    assert [kernel.draw(logits[index : index + 1], [rows[index]])[0] for index in range(12)] == together
    assert kernel.draw(logits[::-1], rows[::-1]) == together[::-1]


def test_greedy_takes_the_lowest_of_equal_ids(kernel: StepKernel) -> None:
    logits = np.zeros((2, VOCAB_SIZE), dtype=np.float32)
    logits[0, [490, 17, 300]] = 4.0
    logits[1, [499, 498]] = 4.0
    assert kernel.draw(logits, [row(0, temperature=0.0)] * 2) == [17, 498]


def test_positions_and_choices_draw_apart(kernel: StepKernel) -> None:
    logits = np.zeros((64, VOCAB_SIZE), dtype=np.float32)
    at_positions = kernel.draw(logits, [row(index) for index in range(64)])
    as_choices = kernel.draw(
        logits, [SamplingRow(SamplingParams(max_tokens=1), index, 0) for index in range(64)]
    )
    assert len(set(at_positions)) > 50
    assert len(set(as_choices)) > 50


def test_no_rows(kernel: StepKernel) -> None:
    assert kernel.draw(np.empty((0, VOCAB_SIZE), dtype=np.float32), []) == []


def test_rows_without_a_number_are_refused(kernel: StepKernel) -> None:
    logits = np.zeros((2, VOCAB_SIZE), dtype=np.float32)
    logits[1] = np.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="no logit is a number"):
            kernel.draw(logits, [row(0, temperature=temperature)] * 2)


def _logits(kind: np.random.Generator, size: int) -> NDArray[np.float32]:
    """Of one row: spread widely or hardly, with many ties, or masked."""
    logits = kind.normal(0, kind.choice([0.01, 1, 3, 10]), size)
    if kind.random() < 0.4:
        logits = np.round(logits * 2) / 2
    if kind.random() < 0.2:
        logits[kind.random(size) < 0.3] = -np.inf
        logits[0] = 1
    return logits.astype(np.float32)


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 255, 257, VOCAB_SIZE, 5000])
def test_native_kernels_draw_what_the_definition_says(size: int, tmp_path: Path) -> None:
    kernel = load_engine(prepare(random_model(SHAPES["grouped-query"]), tmp_path), kernels="native").kernel
    kind = np.random.default_rng(size)
    for position in range(150):
        logits = _logits(kind, size)
        params = SamplingParams(
            max_tokens=1,
            temperature=float(kind.choice([0, 0.1, 0.7, 1, 2, 50])),
            top_k=int(kind.choice([0, 0, 1, 5, 50, size, size + 1, size - 1])),
            top_p=float(kind.choice([1, 1, 0.9, 0.5, 0.99, 1e-6])),
            min_p=float(kind.choice([0, 0, 0.05, 0.5, 1])),
            seed=int(kind.integers(0, 2**63)),
        )
        drawn = SamplingRow(params, int(kind.integers(0, 5)), position)
        assert kernel.draw(logits[None], [drawn]) == [draw_token(logits, drawn)], params
