"""What a family's file says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from twinpool.engine.models.description import ModelDescription, TensorNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models whose config and files are read alike.

    model_type, architecture: what config.json calls it.
    describe: reads its fields; raises UnsupportedModel naming a field, or a feature not computed here.
    gguf_architecture, gguf_names: what a GGUF file calls it, and its tensors.
    gguf_pairs_neighbours: there, the rows that rotary embedding turns together are neighbours.
    """

    model_type: str
    architecture: str
    describe: Callable[[Mapping[str, object]], ModelDescription]
    gguf_architecture: str
    gguf_names: TensorNames
    gguf_pairs_neighbours: bool
