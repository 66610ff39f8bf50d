"""Lays matrices out for the native products, as csrc/twinpool_native.h draws them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

STRIP = 16
"""Outputs that are computed at once; matrices are padded to whole strips."""
GROUP = 32
"""Neighbouring inputs whose codes share a scale and a minimum."""

Weights = Literal["float32", "bf16", "int8", "int4", "auto"]
"""What matrices are to be stored as; `auto` as they were rounded before."""
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Format(IntEnum):
    """How a matrix's weights are stored; the values are those of the C interface."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix of unsigned codes: a weight is scale * code + minimum.

    codes: `[outputs, inputs]`, of 8 bits, or below 16 for INT4.
    scales, minimums: `[outputs, groups]`, float16; the last group may hold fewer inputs.
    """

    codes: Bytes
    scales: NDArray[np.float16]
    minimums: NDArray[np.float16]

    def weights(self) -> Floats:
        """What the codes stand for, `[outputs, inputs]`."""
        inputs = self.codes.shape[1]
        scales, minimums = (
            np.repeat(part.astype(np.float32), GROUP, axis=1)[:, :inputs]
            for part in (self.scales, self.minimums)
        )
        return scales * self.codes + minimums


def pack_floats(format_: Format, weights: Floats) -> Bytes:
    """Strips of float32 or bfloat16 weights `[outputs, inputs]`, `[strips, bytes of a strip]`."""
    padded = _padded(weights, STRIP, 1)
    across = np.ascontiguousarray(padded.reshape(-1, STRIP, weights.shape[1]).transpose(0, 2, 1))
    stored = across if format_ is Format.FLOAT32 else to_bfloat16(across)
    return stored.reshape(len(across), -1).view(np.uint8)


def pack_codes(format_: Format, matrix: Codes) -> Bytes:
    """Strips of tiles of INT8 or INT4 codes, `[strips, bytes of a strip]`."""
    codes = _padded(matrix.codes, STRIP, GROUP)
    strips, groups = codes.shape[0] // STRIP, codes.shape[1] // GROUP
    # [strip, group, vector, output, input of four]
    vectors = codes.reshape(strips, STRIP, groups, GROUP // 4, 4).transpose(0, 2, 3, 1, 4)
    if format_ is Format.INT4:
        vectors = vectors[:, :, :4] | (vectors[:, :, 4:] << 4)
    parts = [np.ascontiguousarray(vectors).reshape(strips, groups, -1)]
    for numbers in (matrix.scales, matrix.minimums):
        across = _padded(numbers, STRIP, 1).reshape(strips, STRIP, groups).transpose(0, 2, 1)
        parts.append(np.ascontiguousarray(across).view(np.uint8))
    return np.concatenate(parts, axis=2).reshape(strips, -1)


def interleave(first: Bytes, second: Bytes) -> Bytes:
    """Strips of two matrices in turn."""
    return np.stack([first, second], axis=1).reshape(-1, first.shape[1])


def quantise(format_: Format, weights: Floats) -> Codes:
    """Round weights to codes: INT8 around zero, INT4 between each group's least and greatest."""
    outputs, inputs = weights.shape
    grouped = _padded(weights, 1, GROUP).reshape(outputs, -1, GROUP)
    if format_ is Format.INT8:
        scales = (np.abs(grouped).max(axis=2) / 127).astype(np.float16)
        minimums = scales * np.float16(-128)
    else:
        least = grouped.min(axis=2)
        minimums = least.astype(np.float16)
        scales = ((grouped.max(axis=2) - minimums) / 15).astype(np.float16)
    most = 255 if format_ is Format.INT8 else 15
    divisors = np.where(scales == 0, np.float32(1), scales.astype(np.float32))[..., None]
    codes = np.clip(np.rint((grouped - minimums.astype(np.float32)[..., None]) / divisors), 0, most)
    return Codes(codes.astype(np.uint8).reshape(outputs, -1)[:, :inputs], scales, minimums)


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Round finite numbers to the nearest bfloat16, ties to even; its bits."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def _padded(values: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    more = [(0, -size % to) for size, to in zip(values.shape, (rows, columns), strict=True)]
    return np.pad(values, more) if any(pad for _, pad in more) else values
