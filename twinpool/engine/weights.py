"""Reads a prepared model's tensors into the fused layers that the forward pass runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from twinpool.engine.linear import ROW_TILE, Linear
from twinpool.errors import ModelSourceError
from twinpool.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer; norms are `[hidden_size]`.

    qkv: queries, keys and values in one product, in this order. gate_up: gate, then up.
    """

    attention_norm: Tensor
    qkv: Linear
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """A whole model; embedding is `[vocab_size, hidden_size]`.

    row_multiple: the layers take rows in multiples of this.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head: Linear
    row_multiple: int


class TensorSource(Protocol):
    """Tensors by name, as an open safetensors file gives them."""

    def get_tensor(self, name: str) -> Tensor:
        """Raises SafetensorError for an unknown name."""
        ...


def load_weights(file: Path, config: ModelConfig, dtype: torch.dtype, *, exact: bool) -> LlamaWeights:
    """Map the file, cast each tensor once, fuse and lay out.

    exact: a row's bits do not depend on the rows that it is computed with.
    Raises ModelSourceError where the file is damaged, or lacks a tensor, or one has another shape.
    """
    try:
        with safe_open(file, framework="pt") as source:
            return _Reader(source, config, dtype, exact).model()
    except (SafetensorError, OSError) as error:
        raise ModelSourceError(f"cannot read weights from {file}: {error}") from error


class _Reader:
    """Knows Hugging Face's names and shapes of a Llama's tensors."""

    def __init__(self, source: TensorSource, config: ModelConfig, dtype: torch.dtype, exact: bool) -> None:
        self._source = source
        self._config = config
        self._dtype = dtype
        self._exact = exact
        self._widths: dict[torch.Size, tuple[int, ...]] = {}

    def model(self) -> LlamaWeights:
        config = self._config
        vocabulary = (config.vocab_size, config.hidden_size)
        embedding = self._tensor("model.embed_tokens", *vocabulary)
        head = embedding if config.tie_word_embeddings else self._tensor("lm_head", *vocabulary)
        layers = tuple(self._layer(f"model.layers.{index}.") for index in range(config.num_layers))
        lm_head = self._linear(head)
        return LlamaWeights(
            embedding=embedding,
            layers=layers,
            final_norm=self._tensor("model.norm", config.hidden_size),
            lm_head=lm_head,
            row_multiple=self._row_multiple(),
        )

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        return LayerWeights(
            attention_norm=self._tensor(prefix + "input_layernorm", hidden),
            qkv=self._linear(
                self._tensor(attention + "q_proj", q_size, hidden),
                self._tensor(attention + "k_proj", kv_size, hidden),
                self._tensor(attention + "v_proj", kv_size, hidden),
            ),
            attention_output=self._linear(self._tensor(attention + "o_proj", hidden, q_size)),
            mlp_norm=self._tensor(prefix + "post_attention_layernorm", hidden),
            gate_up=self._linear(
                self._tensor(mlp + "gate_proj", inner, hidden), self._tensor(mlp + "up_proj", inner, hidden)
            ),
            down=self._linear(self._tensor(mlp + "down_proj", hidden, inner)),
        )

    def _tensor(self, name: str, *shape: int) -> Tensor:
        tensor = self._source.get_tensor(name + ".weight")
        if tuple(tensor.shape) != shape:
            raise ModelSourceError(
                f"tensor {name}.weight has shape {tuple(tensor.shape)}; the configuration says {shape}"
            )
        # A copy even without a cast: the file may be replaced or truncated while the model runs.
        return tensor.to(self._dtype, copy=True)

    def _linear(self, *parts: Tensor) -> Linear:
        weight = parts[0] if len(parts) == 1 else torch.cat(parts)
        linear = Linear(weight)
        if self._exact:
            if weight.shape not in self._widths:
                self._widths[weight.shape] = linear.proven_widths()
            linear.restrict(self._widths[weight.shape])
        return linear

    def _row_multiple(self) -> int:
        if self._exact:
            return max(widths[0] for widths in self._widths.values())
        # AMX takes 16 rows in less time than 1 to 8 (a 1536 x 576 product: 183 against 300 to 440 us); other
        # CPUs are faster the fewer rows there are.
        return ROW_TILE if torch.cpu.get_capabilities().get("amx_bf16", False) else 1
