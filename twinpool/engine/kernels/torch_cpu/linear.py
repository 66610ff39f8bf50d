"""Linear layers over rows of activations, with weights laid out once for oneDNN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

ROW_TILE = 16
"""Rows of the one shape whose bits are the reference in exact layers."""

_WIDTHS = (4, 8, 16, 32, 64, 128, 256)
_MAX_PROBE_PRODUCTS = 1 << 30  # Multiplications; keeps the probes of a whole model below half a second.


class Linear:
    """y = x W^T + b.

    Matrix libraries pick a kernel, and with it an order of summation, by the number of rows: here MKL's
    float32 rows differ in bits below 4 rows and, on two threads, at 5 to 11; oneDNN's at 1 row. An exact
    layer therefore runs only on numbers of rows for which it has proved that each row's bits are those of
    a 16-row tile, so that they are the same alone, in a batch and in a prompt. Here all of 4 to 256 pass,
    and exactness costs next to nothing; where none but 16 does, a decode step of one row takes 50 % longer
    in float32 (52 against 36 ms of linear layers) and prefill 15 % (584 against 505 ms for 256 rows).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: `[out_features, in_features]`, float32 or bfloat16; the caller may drop it afterwards.

        bias: `[out_features]`, of the same type.
        """
        self._shape, self._dtype = weight.shape, weight.dtype
        self._packed = _prepacks(weight.dtype)
        # oneDNN's own blocked layout: at 1 to 16 rows up to twice as fast as a plain matrix, never slower.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROW_TILE) if self._packed else weight
        self._bias = bias
        self._widths: tuple[int, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """x: `[rows, in_features]`; returns `[rows, out_features]`.

        rows: a multiple of row_multiple.
        """
        if not self._widths or x.shape[0] in self._widths:
            return self._product(x)
        pieces = torch.split(x, split_rows(x.shape[0], self._widths))
        return torch.cat([self._product(piece) for piece in pieces])

    @property
    def row_multiple(self) -> int:
        """The layer takes rows in multiples of this."""
        return self._widths[0] if self._widths else 1

    def restrict(self, widths: Sequence[int]) -> None:
        """Make the layer exact: run it on these numbers of rows only, powers of 2, ascending."""
        self._widths = tuple(widths)

    def proven_widths(self) -> tuple[int, ...]:
        """Numbers of rows at which every row has the bits that it has in a tile of ROW_TILE, ascending.

        The kernel depends on shape, format and threads, not on the numbers, and two orders of summation do
        not agree on thousands of random sums: one trial proves it.
        """
        limit = max(ROW_TILE, _MAX_PROBE_PRODUCTS // self._shape.numel())
        candidates = [width for width in _WIDTHS if width <= limit]
        rows = torch.randn(candidates[-1], self._shape[1], generator=torch.Generator().manual_seed(0))
        rows = rows.to(self._dtype)
        reference = torch.cat([self._product(tile) for tile in torch.split(rows, ROW_TILE)])
        return tuple(
            width
            for width in candidates
            if width == ROW_TILE or torch.equal(self._product(rows[:width]), reference[:width])
        )

    def _product(self, x: Tensor) -> Tensor:
        if self._packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return product
        return functional.linear(x, self._weight, self._bias)


def split_rows(num_rows: int, widths: Sequence[int]) -> list[int]:
    """Cut num_rows, a multiple of the least of the ascending widths, into as few of them as there can be."""
    pieces: list[int] = []
    for width in reversed(widths):
        count, num_rows = divmod(num_rows, width)
        pieces.extend([width] * count)
    return pieces


def padded_rows(num_rows: int, multiple: int) -> int:
    """num_rows rounded up to a multiple."""
    return -(-num_rows // multiple) * multiple


def _prepacks(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes in this format here; elsewhere torch's own product is used."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
