"""Checks a source's tensors against the model's description, and writes the one file that holds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from twinpool.engine.models.description import ModelDescription
from twinpool.engine.models.tensors import Shape, tensors_of
from twinpool.errors import ModelSourceError, UnsupportedModel
from twinpool.prepare.progress import Progress


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor to be written.

    dtype: as safetensors spells it (F32, F16, BF16). read: its bytes, row-major and little-endian.
    """

    name: str
    dtype: str
    shape: Shape
    num_bytes: int
    read: Callable[[], bytes | memoryview]


def in_file_order(model: ModelDescription, tensors: Iterable[SourceTensor]) -> list[SourceTensor]:
    """The source's tensors in the order of the file, once they are seen to be just what the model has.

    Raises UnsupportedModel naming a tensor that it has not, ModelSourceError naming one that is missing or
    misshapen.
    """
    found = {tensor.name: tensor for tensor in tensors}
    if model.num_layers > len(found):
        raise ModelSourceError(f"{model.num_layers} layers are declared, but there are {len(found)} tensors")
    shapes = {spec.name: spec.shape for spec in tensors_of(model)}
    for tensor in found.values():
        if tensor.name not in shapes:
            raise UnsupportedModel(f"tensor {tensor.name} is not part of such a model")
        if tensor.shape != shapes[tensor.name]:
            raise ModelSourceError(f"tensor {tensor.name} is {tensor.shape}, not {shapes[tensor.name]}")
    missing = [name for name in shapes if name not in found]
    if missing:
        raise ModelSourceError(f"{len(missing)} tensors are missing, the first is {missing[0]}")
    return [found[name] for name in shapes]


def write_weights(path: Path, tensors: list[SourceTensor], progress: Progress) -> str:
    """Write a safetensors file one tensor at a time, so a model larger than memory passes through.

    Format: https://github.com/huggingface/safetensors#format. Returns the file's SHA-256 in hex.
    """
    header = _header(tensors)
    digest = hashlib.sha256(header)
    progress.step("writing weights", sum(tensor.num_bytes for tensor in tensors))
    with path.open("wb") as file:
        file.write(header)
        for tensor in tensors:
            data = tensor.read()
            if len(data) != tensor.num_bytes:
                raise ModelSourceError(f"tensor {tensor.name} has {len(data)} bytes, not {tensor.num_bytes}")
            digest.update(data)
            file.write(data)
            progress.advance(len(data))
    return digest.hexdigest()


def _header(tensors: list[SourceTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.num_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
