"""Makes the parts of an image from a checkpoint's tensors, each matrix in the narrowest format allowed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from twinpool.engine.kernels.native.image import Entry, Part
from twinpool.engine.kernels.native.layout import (
    Bytes,
    Codes,
    Floats,
    Format,
    Weights,
    interleave,
    pack_codes,
    pack_floats,
    quantise,
)
from twinpool.engine.kernels.tensor_file import TensorFile
from twinpool.engine.models.description import ModelDescription, Role

_QKV = (Role.QUERY, Role.KEY, Role.VALUE)
_QKV_BIASES = (Role.QUERY_BIAS, Role.KEY_BIAS, Role.VALUE_BIAS)


def parts_of(model: ModelDescription, tensors: TensorFile, weights: Weights) -> Iterator[tuple[Entry, Bytes]]:
    """All parts of a model, one at a time.

    weights: `auto` gives each matrix the width that its numbers were rounded to before, if that was 4 or 8
    bits, and 8 bits otherwise. `int4` and `int8` are the most that a matrix of layers may have.
    Raises ModelSourceError where a tensor is missing or misshapen.
    """
    packer = _Packer(tensors, weights)
    yield packer.matrix(Part.EMBEDDING, None, Role.EMBEDDING)
    for number, layer in enumerate(model.layers):
        yield packer.vector(Part.ATTENTION_NORM, number, Role.ATTENTION_NORM)
        yield packer.matrix(Part.QKV, number, *_QKV)
        if layer.attention.qkv_bias:
            yield packer.vector(Part.QKV_BIAS, number, *_QKV_BIASES)
        yield packer.matrix(Part.ATTENTION_OUTPUT, number, Role.ATTENTION_OUTPUT)
        yield packer.vector(Part.MLP_NORM, number, Role.MLP_NORM)
        yield packer.gate_up(number)
        yield packer.matrix(Part.DOWN, number, Role.DOWN)
    yield packer.vector(Part.FINAL_NORM, None, Role.FINAL_NORM)
    if not model.tied_output:
        yield packer.matrix(Part.OUTPUT, None, Role.OUTPUT)


class _Packer:
    def __init__(self, tensors: TensorFile, weights: Weights) -> None:
        self._tensors = tensors
        self._weights = weights

    def vector(self, part: Part, layer: int | None, *roles: Role) -> tuple[Entry, Bytes]:
        values = self._floats(layer, *roles)
        return Entry(part, layer, Format.FLOAT32, len(values), 1), values.view(np.uint8)

    def matrix(self, part: Part, layer: int | None, *roles: Role) -> tuple[Entry, Bytes]:
        values = self._floats(layer, *roles)
        format_, (strips,) = self._packed([values], part)
        return Entry(part, layer, format_, *values.shape), strips

    def gate_up(self, layer: int) -> tuple[Entry, Bytes]:
        gate, up = self._floats(layer, Role.GATE), self._floats(layer, Role.UP)
        format_, strips = self._packed([gate, up], Part.GATE_UP)
        outputs = 16 * 2 * len(strips[0])
        return Entry(Part.GATE_UP, layer, format_, outputs, gate.shape[1]), interleave(*strips)

    def _floats(self, layer: int | None, *roles: Role) -> Floats:
        parts = [self._tensors.read(role, layer).float().numpy() for role in roles]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _packed(self, matrices: list[Floats], part: Part) -> tuple[Format, list[Bytes]]:
        """Strips of matrices in one format."""
        if self._weights in ("float32", "bf16"):
            format_ = Format.FLOAT32 if self._weights == "float32" else Format.BFLOAT16
            return format_, [pack_floats(format_, values) for values in matrices]
        for format_ in (Format.INT4, Format.INT8):
            exact = [quantise(format_, values) for values in matrices]
            if all(_is_exact(codes, values) for codes, values in zip(exact, matrices, strict=True)):
                return format_, [pack_codes(format_, codes) for codes in exact]
        # Embeddings and outputs are never rounded to 4 bits: they hold the rarest tokens.
        ends = part in (Part.EMBEDDING, Part.OUTPUT)
        format_ = Format.INT4 if self._weights == "int4" and not ends else Format.INT8
        return format_, [pack_codes(format_, quantise(format_, values)) for values in matrices]


def _is_exact(codes: Codes, weights: Floats) -> bool:
    """Whether codes stand for these numbers, but for the last bit of a product and a sum in float32."""
    tolerance = 2.0**-22 * float(np.abs(weights).max(initial=0))
    return bool(np.allclose(codes.weights(), weights, rtol=0, atol=tolerance))
