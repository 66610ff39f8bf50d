"""Linear layers over rows of activations, with weights laid out once for oneDNN."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ROW_TILE = 16
"""Rows of the one shape that exact layers run on.

Matrix libraries pick a kernel, and with it an order of summation, by the number of rows: here MKL's float32
rows differ in bits below 4 rows and, on two threads, at 5 to 11; oneDNN's at 1. In tiles of 16 a row's bits
are the same alone, among 16 and in a prompt, on one thread and on two. 16 is the largest tile that does not
slow a decode step: 16 rows take about as long as reading the weights from memory. Prefill pays 4 to 13 % of
its linear time on one thread and 10 to 40 % on two, against one product over 256 rows.
"""


def padded_rows(num_rows: int, multiple: int) -> int:
    """num_rows rounded up to a multiple."""
    return -(-num_rows // multiple) * multiple


class Linear:
    """y = x W^T without bias.

    exact: run in tiles of ROW_TILE rows; the caller pads x to a multiple of it.
    """

    def __init__(self, weight: Tensor, *, exact: bool) -> None:
        """weight: `[out_features, in_features]`, float32 or bfloat16; may be dropped by the caller after."""
        self._exact = exact
        self._packed = _prepacks(weight.dtype)
        # oneDNN's own blocked layout: at 1 to 16 rows up to twice as fast as a plain matrix, never slower.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROW_TILE) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x: `[rows, in_features]`; returns `[rows, out_features]`."""
        if self._exact and x.shape[0] > ROW_TILE:
            return torch.cat([self._product(tile) for tile in torch.split(x, ROW_TILE)])
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        if self._packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
            return product
        return functional.linear(x, self._weight)


def _prepacks(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes in this format here; elsewhere torch's own product is used."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
