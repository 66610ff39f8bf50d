"""Native products equal numpy's in float64, in every format, on the edges of strips, groups and rows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from twinpool.engine.kernels.native.layout import (
    Bytes,
    Floats,
    Format,
    pack_codes,
    pack_floats,
    quantise,
    to_bfloat16,
)
from twinpool.engine.kernels.native.library import Library, Matrix, builds

ROWS = (1, 2, 3, 4, 5, 6, 7, 13, 48, 49, 193)
SHAPES = ((16, 32), (1, 1), (17, 33), (48, 40), (15, 64), (100, 576))
USABLE = [library for name, file in builds().items() if (library := Library(file, name)).usable()]
# Of the greatest result: float32's own, and that of activations in 16 and in 8 bits.
TOLERANCE = {Format.FLOAT32: 2e-6, Format.BFLOAT16: 2e-6, Format.INT8: 1e-4, Format.INT4: 0.02}


def stored(format_: Format, weights: Floats) -> tuple[Bytes, Floats]:
    """Weights in strips, and what is left of them."""
    if format_ is Format.FLOAT32:
        return pack_floats(format_, weights), weights
    if format_ is Format.BFLOAT16:
        return pack_floats(format_, weights), (to_bfloat16(weights).astype(np.uint32) << 16).view(np.float32)
    codes = quantise(format_, weights)
    return pack_codes(format_, codes), codes.weights()


def aligned(data: Bytes) -> Bytes:
    """A copy at a multiple of 64 bytes, as images have it."""
    memory = np.empty(data.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + data.nbytes] = data.reshape(-1)
    return memory[start : start + data.nbytes]


def product(library: Library, matrix: Matrix, x: Floats, threads: int) -> Floats:
    out = np.empty((len(x), matrix.outputs), np.float32)
    assert library.product(ctypes.byref(matrix), len(x), x.ctypes.data, out.ctypes.data, threads) == 0
    return out


def test_this_processor_runs_a_build() -> None:
    assert USABLE or not builds()


@pytest.mark.parametrize("library", USABLE, ids=lambda library: library.variant)
@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_equal_numpys(library: Library, format_: Format, outputs: int, inputs: int) -> None:
    random = np.random.default_rng(outputs)
    strips, weights = stored(format_, random.standard_normal((outputs, inputs), dtype=np.float32))
    num_strips, groups = -(-outputs // 16), -(-inputs // 32)
    strip_bytes = {
        "FLOAT32": 64 * inputs,
        "BFLOAT16": 32 * inputs,
        "INT8": 576 * groups,
        "INT4": 320 * groups,
    }
    assert strips.nbytes == num_strips * strip_bytes[format_.name]
    memory = aligned(strips)
    matrix = Matrix(format_, outputs, inputs, 0, memory.ctypes.data)
    for rows in ROWS:
        x = random.standard_normal((rows, inputs), dtype=np.float32)
        ours = product(library, matrix, x, 1)
        theirs = x.astype(np.float64) @ weights.T.astype(np.float64)
        scale = np.abs(x).max() * np.abs(weights).max() * np.sqrt(inputs)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE[format_] * scale)
        # Neither threads nor neighbours change a bit of a row.
        np.testing.assert_array_equal(product(library, matrix, x, 2), ours)
        np.testing.assert_array_equal(product(library, matrix, x[-1:].copy(), 1), ours[-1:])


@pytest.mark.parametrize("library", USABLE, ids=lambda library: library.variant)
@pytest.mark.parametrize("format_", [Format.INT8, Format.INT4])
def test_the_greatest_codes_overflow_nothing(library: Library, format_: Format) -> None:
    """All codes, and all activations, at their ends and of one sign: the greatest sums there are."""
    weights = np.tile(np.array([[-1.0, 1.0]], np.float32), (16, 16))
    strips, rounded = stored(format_, weights)
    memory = aligned(strips)
    matrix = Matrix(format_, *weights.shape, 0, memory.ctypes.data)
    for x in (np.ones((1, 32), np.float32), -np.ones((1, 32), np.float32), rounded[:1].copy()):
        np.testing.assert_allclose(product(library, matrix, x, 1), x @ rounded.T, atol=0.05)


def test_rows_of_zeros_are_zeros() -> None:
    for library in USABLE:
        for format_ in (Format.INT8, Format.INT4):
            memory = aligned(stored(format_, np.zeros((16, 32), np.float32))[0])
            matrix = Matrix(format_, 16, 32, 0, memory.ctypes.data)
            assert not product(library, matrix, np.zeros((3, 32), np.float32), 1).any()
