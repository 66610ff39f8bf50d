"""What a model computes, in the words that kernels understand: they interpret it, and know no family.

What a new family computes otherwise becomes a field here, with the value that leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Role(StrEnum):
    """What a tensor is for, whatever a file calls it."""

    EMBEDDING = "embedding"
    FINAL_NORM = "final norm"
    OUTPUT = "output"
    # In each layer:
    ATTENTION_NORM = "attention norm"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    QUERY_BIAS = "query bias"
    KEY_BIAS = "key bias"
    VALUE_BIAS = "value bias"
    ATTENTION_OUTPUT = "attention output"
    MLP_NORM = "MLP norm"
    GATE = "gate"
    UP = "up"
    DOWN = "down"


TensorNames = Mapping[Role, str]
"""A family's names in one format of files; `{layer}` stands for a layer's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding over whole heads, in halves (Su et al., "RoFormer"); theta: its base."""

    theta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal attention; num_heads is a multiple of num_kv_heads. qkv_bias: of all three products."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    qkv_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """down(activation(gate(x)) * up(x)) (Shazeer, "GLU variants improve transformer")."""

    inner_size: int
    activation: Literal["silu"] = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """x += attention(norm(x)); x += mlp(norm(x)). Norms are root mean square, of norm_eps."""

    attention: Attention
    mlp: Mlp
    norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A decoder: embedding, layers, norm, output.

    layers: all cache alike, that is, with the same KV heads and head size.
    tied_output: the output's weights are the embedding's.
    tensor_names: in the prepared file of weights.
    """

    vocab_size: int
    hidden_size: int
    max_context_tokens: int
    layers: tuple[Layer, ...]
    norm_eps: float
    tied_output: bool
    tensor_names: TensorNames = field(hash=False)  # a mapping has none

    @property
    def num_layers(self) -> int:
        """Number of layers; at least 1."""
        return len(self.layers)
