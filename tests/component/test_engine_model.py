"""The forward pass equals transformers' own, however a sequence is cut into steps and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.support.models.model_oracle import (
    NUM_BLOCKS,
    SHAPES,
    VOCAB_SIZE,
    Sequences,
    load_engine,
    prepare,
    random_model,
    reference_logits,
)
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.batch import PrefillChunk, SamplingRow
from twinpool.engine.kernels.torch_cpu.cache_tensor import cache_tensor
from twinpool.sampling.params import SamplingParams
from twinpool.types import Token

Model = tuple[PreTrainedModel, PreparedModel, str]
"""transformers', ours, and the kernels that compute ours."""

TOLERANCE = 1e-4


KERNELS = ("torch", "native")
COMPUTED = [
    (shape, kernels)
    for shape in SHAPES
    for kernels in KERNELS
    if kernels == "torch" or SHAPES[shape].head_dim % 8 == 0
]


@pytest.fixture(scope="module", params=COMPUTED, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    shape, kernels = request.param
    theirs = random_model(SHAPES[shape])
    return theirs, prepare(theirs, tmp_path_factory.mktemp("model")), kernels


@pytest.fixture(scope="module", params=KERNELS)
def grouped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    model = random_model(SHAPES["grouped-query"])
    return model, prepare(model, tmp_path_factory.mktemp("model")), request.param


def tokens(count: int, seed: int = 0) -> list[int]:
    ids: list[int] = torch.randint(
        VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return ids


def scattered(count: int, seed: int = 0) -> list[int]:
    """Block ids in no order."""
    ids: list[int] = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed))[
        :count
    ].tolist()
    return ids


def run_in_pieces(model: Model, ids: Sequence[int], cuts: Sequence[int], block_size: int = 4) -> Tensor:
    """Logits of all positions, computed alone in steps that end at the cuts."""
    sequences = Sequences(load_engine(model[1], block_size=block_size, kernels=model[2]))
    table = scattered(-(-len(ids) // block_size))
    starts = [0, *cuts[:-1]]
    return torch.cat(
        [sequences.step([(ids[:end], start, table)])[0] for start, end in zip(starts, cuts, strict=True)]
    )


def assert_close(ours: Tensor, reference: Tensor) -> None:
    torch.testing.assert_close(ours, reference, atol=TOLERANCE, rtol=0)


def test_a_whole_prompt_equals_the_reference(model: Model) -> None:
    ids = tokens(37)
    assert_close(run_in_pieces(model, ids, [37]), reference_logits(model[0], ids))


def test_chunks_and_single_tokens_equal_the_reference(model: Model) -> None:
    ids = tokens(37)
    cuts = [13, 16, 29, *range(30, 38)]
    assert_close(run_in_pieces(model, ids, cuts), reference_logits(model[0], ids))


@pytest.mark.parametrize("length", range(1, 14))
def test_every_residue_of_the_block_size(grouped: Model, length: int) -> None:
    ids = tokens(length + 3)
    cuts = [length, length + 1, length + 2, length + 3]
    assert_close(run_in_pieces(grouped, ids, cuts), reference_logits(grouped[0], ids))


@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
def test_any_block_size(grouped: Model, block_size: int) -> None:
    ids = tokens(40)
    assert_close(run_in_pieces(grouped, ids, [17, 35, 36, 40], block_size), reference_logits(grouped[0], ids))


def test_a_prompt_longer_than_a_query_tile(grouped: Model) -> None:
    ids = tokens(210)
    reference = reference_logits(grouped[0], ids)
    assert_close(run_in_pieces(grouped, ids, [210]), reference)
    assert_close(run_in_pieces(grouped, ids, [30, 195, 210]), reference)


def test_chunks_of_several_prompts_and_decode_rows_share_a_step(grouped: Model) -> None:
    lengths = [5, 33, 1, 18, 90]
    prompts = [tokens(length, seed) for seed, length in enumerate(lengths)]
    blocks = iter(scattered(NUM_BLOCKS))
    tables = [[next(blocks) for _ in range(-(-length // 4))] for length in lengths]
    sequences = Sequences(load_engine(grouped[1], kernels=grouped[2]))
    halves = [length // 2 for length in lengths]
    begun = [i for i, half in enumerate(halves) if half]
    early = sequences.step([(prompts[i][: halves[i]], 0, tables[i]) for i in begun])
    late = sequences.step([(prompts[i], halves[i], tables[i]) for i in range(len(prompts))])
    for i, prompt in enumerate(prompts):
        parts = [early[begun.index(i)], late[i]] if i in begun else [late[i]]
        assert_close(torch.cat(parts), reference_logits(grouped[0], prompt))


def test_a_decode_batch_of_mixed_lengths_equals_the_reference(grouped: Model) -> None:
    lengths = [1, 2, 4, 5, 8, 9, 31, 32, 33, 60, 3, 7]
    prompts = [tokens(length + 1, seed) for seed, length in enumerate(lengths)]
    blocks = iter(scattered(NUM_BLOCKS))
    tables = [[next(blocks) for _ in range(-(-len(prompt) // 4))] for prompt in prompts]
    sequences = Sequences(load_engine(grouped[1], kernels=grouped[2]))
    sequences.step([(prompt[:-1], 0, table) for prompt, table in zip(prompts, tables, strict=True)])
    decoded = sequences.step(
        [(prompt, len(prompt) - 1, table) for prompt, table in zip(prompts, tables, strict=True)]
    )
    for prompt, logits in zip(prompts, decoded, strict=True):
        assert_close(logits, reference_logits(grouped[0], prompt)[-1:])


def test_a_step_writes_into_its_own_slots_only(grouped: Model) -> None:
    engine = load_engine(grouped[1], kernels=grouped[2])
    cache = cache_tensor(engine.storage)
    cache.fill_(3.0)
    Sequences(engine).step([(tokens(6), 0, [9, 2])])
    untouched = [block for block in range(engine.storage.num_blocks) if block not in (9, 2)]
    assert bool((cache[untouched] == 3.0).all())
    assert bool((cache[9] != 3.0).all())
    assert bool((cache[2, ..., :2, :] != 3.0).all())
    assert bool((cache[2, ..., 2:, :] == 0.0).all())


@pytest.mark.parametrize("kernels", KERNELS)
def test_bfloat16_tells_logits_apart_that_it_would_round_to_the_same(tmp_path: Path, kernels: str) -> None:
    theirs: Any = random_model(SHAPES["grouped-query"])
    theirs.bfloat16().float()
    ids = tokens(12)
    with torch.no_grad():
        hidden = theirs.model(torch.tensor([ids])).last_hidden_state[0, -1]
    rows = theirs.lm_head.weight.data
    best, widest = int((rows @ hidden).argmax()), int(hidden.abs().argmax())
    assert best > 0
    # Less by one step of one weight, so that the logits differ by a thousandth.
    rows[0] = rows[best]
    rows[0, widest] -= hidden[widest].sign() * rows[best, widest].abs() / 128
    engine = load_engine(prepare(theirs, tmp_path), dtype="bfloat16", kernels=kernels, weights="bf16")
    (logits,) = Sequences(engine).step([(ids, 0, scattered(3))])
    assert logits[-1].bfloat16()[0] == logits[-1].bfloat16()[best]
    sample = SamplingRow(SamplingParams(max_tokens=1, temperature=0.0), 0, 12)
    assert engine.prefill([PrefillChunk(ids, 0, scattered(3), sample)]) == [Token(best)]


def test_a_cache_in_int8_changes_logits_by_little_more_than_one_in_bfloat16(tmp_path: Path) -> None:
    prepared = prepare(random_model(SHAPES["grouped-query"]), tmp_path)
    ids = tokens(37)

    def logits_of(dtype: str) -> Tensor:
        engine = load_engine(prepared, dtype=dtype, kernels="native", weights="bf16")
        return Sequences(engine).step([(ids, 0, scattered(10))])[0]

    exact = reference_logits(random_model(SHAPES["grouped-query"]), ids)
    far, near = (float((logits_of(dtype) - exact).abs().mean()) for dtype in ("int8", "bfloat16"))
    assert 0.5 * near < far < 3 * near
    assert far < 0.02 * float(exact.std())
