"""Reads a prepared model's tensors into the fused layers that the forward pass runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from twinpool.engine.kernels.tensor_file import TensorFile, open_tensors
from twinpool.engine.kernels.torch_cpu.linear import ROW_TILE, Linear
from twinpool.engine.models.description import ModelDescription, Role

_QKV_BIASES = (Role.QUERY_BIAS, Role.KEY_BIAS, Role.VALUE_BIAS)


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
class ModelWeights:
    """A whole model; embedding is `[vocab_size, hidden_size]`.

    row_multiple: the layers take rows in multiples of this.
    final_norm and lm_head are float32 in every mode. Logits in bfloat16 lie up to 0.125 apart at 16 to 32,
    so that the best ones tie; no library multiplies bfloat16 into float32 on CPUs, so the matrix is float32.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head: Linear
    row_multiple: int


def load_weights(file: Path, model: ModelDescription, dtype: torch.dtype, *, exact: bool) -> ModelWeights:
    """Cast each tensor once, fuse and lay out.

    exact: a row's bits do not depend on the rows that it is computed with.
    Raises ModelSourceError where the file is damaged, or lacks a tensor, or one has another shape.
    """
    with open_tensors(file, model) as tensors:
        return _Reader(tensors, model, dtype, exact).model()


class _Reader:
    def __init__(self, tensors: TensorFile, model: ModelDescription, dtype: torch.dtype, exact: bool) -> None:
        self._tensors = tensors
        self._model = model
        self._dtype = dtype
        self._exact = exact
        self._widths: dict[tuple[torch.Size, torch.dtype, bool], tuple[int, ...]] = {}

    def model(self) -> ModelWeights:
        embedding = self._tensor(Role.EMBEDDING)
        output = Role.EMBEDDING if self._model.tied_output else Role.OUTPUT
        lm_head = self._linear(self._tensor(output, dtype=torch.float32))
        layers = tuple(self._layer(number) for number in range(self._model.num_layers))
        return ModelWeights(
            embedding=embedding,
            layers=layers,
            final_norm=self._tensor(Role.FINAL_NORM, dtype=torch.float32),
            lm_head=lm_head,
            row_multiple=self._row_multiple(),
        )

    def _layer(self, number: int) -> LayerWeights:
        has_bias = self._model.layers[number].attention.qkv_bias
        return LayerWeights(
            attention_norm=self._tensor(Role.ATTENTION_NORM, number),
            qkv=self._fused(number, Role.QUERY, Role.KEY, Role.VALUE, biases=_QKV_BIASES if has_bias else ()),
            attention_output=self._fused(number, Role.ATTENTION_OUTPUT),
            mlp_norm=self._tensor(Role.MLP_NORM, number),
            gate_up=self._fused(number, Role.GATE, Role.UP),
            down=self._fused(number, Role.DOWN),
        )

    def _tensor(self, role: Role, layer: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
        # A copy even without a cast: the file may be replaced or truncated while the model runs.
        return self._tensors.read(role, layer).to(dtype or self._dtype, copy=True)

    def _fused(self, layer: int, *roles: Role, biases: Sequence[Role] = ()) -> Linear:
        bias = torch.cat([self._tensor(role, layer) for role in biases]) if biases else None
        parts = [self._tensor(role, layer) for role in roles]
        return self._linear(parts[0] if len(parts) == 1 else torch.cat(parts), bias)

    def _linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        linear = Linear(weight, bias)
        if self._exact:
            kind = weight.shape, weight.dtype, bias is None
            if kind not in self._widths:
                self._widths[kind] = linear.proven_widths()
            linear.restrict(self._widths[kind])
        return linear

    def _row_multiple(self) -> int:
        if self._exact:
            return max(widths[0] for widths in self._widths.values())
        # AMX takes 16 rows in less time than 1 to 8 (a 1536 x 576 product: 183 against 300 to 440 us); other
        # CPUs are faster the fewer rows there are.
        return ROW_TILE if torch.cpu.get_capabilities().get("amx_bf16", False) else 1
