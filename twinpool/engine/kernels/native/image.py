"""A model's weights as the native engine reads them: one file, mapped by all workers of a node.

    matrices, as csrc/twinpool_native.h draws them, and vectors of float32, each at a multiple of 64 bytes
    JSON: [[part, layer, format, outputs, inputs, offset], ...]
    where the JSON begins, 8 bytes, little-endian

An image is made from a prepared model when it is first needed, and lies in that folder; where none can be
written, each worker has a copy of its own.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO

import numpy as np

from twinpool.engine.kernels.native.layout import Bytes, Format
from twinpool.engine.kernels.native.library import Matrix

REVISION = 1
"""Raised when the layout changes, or the rules by which weights are rounded."""
_ALIGNMENT = 64


class Part(StrEnum):
    """What a matrix or vector of an image is for."""

    EMBEDDING = "embedding"
    OUTPUT = "output"
    FINAL_NORM = "final norm"
    ATTENTION_NORM = "attention norm"
    QKV = "qkv"
    QKV_BIAS = "qkv bias"
    ATTENTION_OUTPUT = "attention output"
    MLP_NORM = "MLP norm"
    GATE_UP = "gate up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Entry:
    """Which part it is, and of which layer, if of any. A vector has one input."""

    part: Part
    layer: int | None
    format: Format
    outputs: int
    inputs: int


class Image:
    """An image in memory. Addresses hold as long as the object does."""

    def __init__(self, file: BinaryIO) -> None:
        """Map a whole file, which the caller may close. Raises ValueError where it is none."""
        self._memory = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
        text = self._memory[int.from_bytes(self._memory[-8:].tobytes(), "little") : -8].tobytes()
        self._at: dict[tuple[Part, int | None], tuple[Entry, int]] = {}
        for part, layer, format_, outputs, inputs, offset in json.loads(text):
            entry = Entry(Part(part), layer, Format(format_), outputs, inputs)
            self._at[entry.part, entry.layer] = entry, offset

    @property
    def formats(self) -> frozenset[Format]:
        """Of the layers' matrices."""
        return frozenset(entry.format for entry, _ in self._at.values() if entry.part is Part.GATE_UP)

    def matrix(self, part: Part, layer: int | None = None) -> Matrix:
        """A matrix for the native engine."""
        entry, offset = self._at[part, layer]
        return Matrix(entry.format, entry.outputs, entry.inputs, 0, self._memory.ctypes.data + offset)

    def vector(self, part: Part, layer: int | None = None) -> int:
        """The address of a vector of float32."""
        return int(self._memory.ctypes.data) + self._at[part, layer][1]


def write_image(file: BinaryIO, parts: Iterable[tuple[Entry, Bytes]]) -> None:
    """Write an image from the start of an empty file."""
    listed = []
    for entry, data in parts:
        file.write(bytes(-file.tell() % _ALIGNMENT))
        listed.append([entry.part, entry.layer, entry.format, entry.outputs, entry.inputs, file.tell()])
        file.write(data.data.cast("B"))
    start = file.tell()
    file.write(json.dumps(listed).encode() + start.to_bytes(8, "little"))
    file.flush()
