"""A row's numbers do not depend on the rows it is computed with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.models.model_oracle import SHAPES, Sequences, Shape, load_engine, prepare, random_model
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.kernels.torch_cpu.linear import ROW_TILE, Linear, split_rows
from twinpool.engine.runner import Engine

LENGTHS = [17, 40, 3, 16, 25, 33, 8, 64, 1, 50, 29, 12, 31, 48, 5, 22]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    # Head size and hidden size of the default model, so that the same kernels run.
    shape = Shape(num_heads=9, num_kv_heads=3, hidden_size=576, head_dim=64)
    return prepare(random_model(shape), tmp_path_factory.mktemp("model"))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def prompt(length: int) -> list[int]:
    return [(length * 31 + at * 7) % 101 for at in range(length)]


def decode_step(engine: Engine, lengths: Sequence[int]) -> list[Tensor]:
    """Logits of one decode step after prompts of these lengths, each prefilled alone."""
    sequences = Sequences(engine)
    pieces, block = [], 0
    for length in lengths:
        ids = prompt(length + 1)
        table = range(block, block + length // 16 + 1)
        block += len(table)
        sequences.step([(ids[:-1], 0, table)])
        pieces.append((ids, length, table))
    return sequences.step(pieces)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decode_row_is_bit_identical_alone_and_in_a_batch(
    prepared: PreparedModel, dtype: str, threads: int, kernels: str
) -> None:
    lengths = [16 + length % 16 for length in LENGTHS]  # All in two blocks, so that none is padded.
    engine = load_engine(prepared, block_size=16, dtype=dtype, exact=True, threads=threads, kernels=kernels)
    together = decode_step(engine, lengths)
    for length, logits in zip(lengths, together, strict=True):
        assert torch.equal(decode_step(engine, [length])[0], logits)


@pytest.mark.parametrize(
    ("weights", "cache"),
    [("bf16", "bfloat16"), ("int8", "bfloat16"), ("int4", "bfloat16"), ("bf16", "int8"), ("int4", "int8")],
)
def test_native_rows_are_bit_identical_however_a_sequence_is_cut(
    prepared: PreparedModel, weights: str, cache: str, threads: int
) -> None:
    """Once a sequence's cache holds the same bytes, whatever follows is the same, too."""
    ids, cuts = prompt(90), [17, 18, 19, 60, 90]
    engine = load_engine(
        prepared, block_size=16, dtype=cache, kernels="native", weights=weights, threads=threads
    )
    whole = Sequences(engine).step([(ids, 0, range(6))])[0]
    pieces, others = [], (prompt(50), 0, range(12, 16))
    for start, end in zip([0, *cuts], cuts, strict=False):
        pieces += Sequences(engine).step([(ids[:end], start, range(6, 12)), others])[:1]
    assert torch.equal(torch.cat(pieces), whole)
    assert np.array_equal(engine.storage.blocks[:6], engine.storage.blocks[6:12])


def test_padding_to_a_longer_neighbour_changes_next_to_nothing(prepared: PreparedModel) -> None:
    engine = load_engine(prepared, block_size=16, kernels="torch")
    together = decode_step(engine, LENGTHS)
    for length, logits in zip(LENGTHS, together, strict=True):
        alone = decode_step(engine, [length])[0]
        torch.testing.assert_close(logits, alone, atol=1e-6 * float(alone.abs().max()), rtol=0)


def test_a_chunk_is_bit_identical_alone_and_among_others(
    prepared: PreparedModel, threads: int, kernels: str
) -> None:
    engine = load_engine(prepared, block_size=16, threads=threads, kernels=kernels)
    alone = Sequences(engine).step([(prompt(40), 0, [0, 1, 2])])[0]
    others = [(prompt(19), 0, [3, 4]), (prompt(40), 0, [5, 6, 7]), (prompt(7), 0, [8])]
    assert torch.equal(Sequences(engine).step(others)[1], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("out_features", "in_features"), [(960, 576), (576, 1536), (101, 48)])
def test_exact_layers_give_a_row_the_same_bits_in_any_place(
    dtype: torch.dtype, out_features: int, in_features: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    layer = Linear(torch.randn(out_features, in_features, generator=generator).to(dtype))
    layer.restrict(widths := layer.proven_widths())
    assert ROW_TILE in widths
    rows = torch.randn(6 * ROW_TILE, in_features, generator=generator).to(dtype)
    order = torch.randperm(len(rows), generator=generator)
    assert torch.equal(layer(rows)[order], layer(rows[order]))
    for width in (widths[0], ROW_TILE, 3 * ROW_TILE):
        assert torch.equal(layer(rows[:width]), layer(rows)[:width])


def test_layers_equal_a_plain_product() -> None:
    weight, rows = torch.randn(40, 24), torch.randn(44, 24)
    layer = Linear(weight)
    torch.testing.assert_close(layer(rows), rows @ weight.T)
    layer.restrict([4, 16])
    torch.testing.assert_close(layer(rows), rows @ weight.T)


@pytest.mark.parametrize(
    ("num_rows", "widths", "pieces"),
    [
        (4, [4, 16], [4]),
        (44, [4, 16], [16, 16, 4, 4, 4]),
        (300, [4, 256], [256] + [4] * 11),
        (32, [16], [16, 16]),
    ],
)
def test_rows_are_cut_into_few_pieces(num_rows: int, widths: list[int], pieces: list[int]) -> None:
    assert split_rows(num_rows, widths) == pieces


def test_shapes_cover_grouped_and_multi_query_attention() -> None:
    assert {shape.num_heads // shape.num_kv_heads for shape in SHAPES.values()} >= {1, 2, 3, 4}
