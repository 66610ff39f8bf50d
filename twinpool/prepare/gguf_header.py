"""Checks what a GGUF file's header declares against the file's own size, before a reader believes it.

Header: magic, version, number of tensors, number of metadata values; then the values, then the tensors'
descriptions (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). A reader makes objects for as many
as are declared, so 49 bytes that declare 2^62 would take all memory.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGUF_MAGIC, GGMLQuantizationType, GGUFValueType

from twinpool.errors import ModelSourceError, UnsupportedModel

MOST_ELEMENTS = 1 << 22
"""Of all arrays together: each becomes an object of some hundred bytes. A large vocabulary has a million."""
_MOST_DIMENSIONS = 4
_DEEPEST_ARRAY = 4
_SCALAR_BYTES = {
    GGUFValueType.UINT8: 1,
    GGUFValueType.INT8: 1,
    GGUFValueType.BOOL: 1,
    GGUFValueType.UINT16: 2,
    GGUFValueType.INT16: 2,
    GGUFValueType.UINT32: 4,
    GGUFValueType.INT32: 4,
    GGUFValueType.FLOAT32: 4,
    GGUFValueType.UINT64: 8,
    GGUFValueType.INT64: 8,
    GGUFValueType.FLOAT64: 8,
}


def check_gguf_header(path: Path) -> None:
    """Raises ModelSourceError where the file is too small for what it declares, or is no GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Header(data).check()
    except (OSError, ValueError, struct.error) as error:
        raise ModelSourceError(f"{path} is not a readable GGUF file: {error}") from error


class _Header:
    """Walks over the header, and never past the file's end. Raises ValueError, or struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self._num_elements = 0

    def check(self) -> None:
        if self._number("<I") != GGUF_MAGIC:
            raise ValueError("it does not begin with GGUF")
        if self._number("<I") & 0xFFFF == 0:
            raise UnsupportedModel("GGUF files of the other byte order are not supported")
        num_tensors, num_values = self._number("<Q"), self._number("<Q")
        for _ in range(num_values):
            self._skip_string()
            self._skip_value(self._number("<I"), depth=0)
        ends = [self._skip_tensor() for _ in range(num_tensors)]
        if max(ends, default=0) > len(self._data) - self._at:
            raise ValueError("a tensor's data goes past the file's end")

    def _number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return int(value)

    def _skip(self, num_bytes: int) -> None:
        if num_bytes > len(self._data) - self._at:
            raise ValueError(f"{num_bytes} bytes are declared at {self._at}, past the file's end")
        self._at += num_bytes

    def _skip_string(self) -> None:
        self._skip(self._number("<Q"))

    def _skip_value(self, kind: int, depth: int) -> None:
        if kind == GGUFValueType.STRING:
            self._skip_string()
        elif kind == GGUFValueType.ARRAY:
            self._skip_array(depth)
        else:
            self._skip(_SCALAR_BYTES[GGUFValueType(kind)])

    def _skip_array(self, depth: int) -> None:
        kind, num_elements = self._number("<I"), self._number("<Q")
        self._num_elements += num_elements
        if self._num_elements > MOST_ELEMENTS or depth == _DEEPEST_ARRAY:
            raise ValueError(f"its arrays have more than {MOST_ELEMENTS} elements, or go too deep")
        if kind in _SCALAR_BYTES:
            self._skip(num_elements * _SCALAR_BYTES[GGUFValueType(kind)])
            return
        for _ in range(num_elements):
            self._skip_value(kind, depth + 1)

    def _skip_tensor(self) -> int:
        """Where its data ends, counted from where all tensors' data begins."""
        self._skip_string()
        num_dimensions = self._number("<I")
        if num_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {num_dimensions} dimensions")
        num_elements = math.prod(self._number("<Q") for _ in range(num_dimensions))
        block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(self._number("<I"))]
        return self._number("<Q") + num_elements // block_elements * block_bytes
