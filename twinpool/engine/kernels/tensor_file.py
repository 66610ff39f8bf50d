"""The tensors of a prepared model's file, by what they are for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from twinpool.engine.models.description import ModelDescription, Role
from twinpool.engine.models.tensors import tensors_of
from twinpool.errors import ModelSourceError


class _Source(Protocol):
    """Tensors by name, as an open safetensors file gives them."""

    def get_tensor(self, name: str) -> Tensor:
        """Raises SafetensorError for an unknown name."""
        ...


class TensorFile:
    """An open file; see open_tensors."""

    def __init__(self, source: _Source, model: ModelDescription) -> None:
        self._source = source
        self._specs = {(spec.role, spec.layer): spec for spec in tensors_of(model)}

    def read(self, role: Role, layer: int | None = None) -> Tensor:
        """A tensor over the mapped file, which may be replaced or truncated while a model runs: copy it.

        Raises ModelSourceError where its shape is not what the configuration says.
        """
        spec = self._specs[role, layer]
        tensor = self._source.get_tensor(spec.name)
        if tuple(tensor.shape) != spec.shape:
            raise ModelSourceError(
                f"tensor {spec.name} has shape {tuple(tensor.shape)}; the configuration says {spec.shape}"
            )
        return tensor


@contextmanager
def open_tensors(file: Path, model: ModelDescription) -> Iterator[TensorFile]:
    """Map a file of weights. Raises ModelSourceError where it is damaged or lacks a tensor that is read."""
    try:
        with safe_open(file, framework="pt") as source:
            yield TensorFile(source, model)
    except (SafetensorError, OSError) as error:
        raise ModelSourceError(f"cannot read weights from {file}: {error}") from error
