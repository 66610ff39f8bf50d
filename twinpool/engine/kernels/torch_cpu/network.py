"""The forward pass of a described model over a flat batch of tokens and a paged KV cache."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from twinpool.engine.batch import SamplingRow
from twinpool.engine.draw import draw_token
from twinpool.engine.kernels.port import KernelFacts, Segment
from twinpool.engine.kernels.torch_cpu.attention import TorchAttention
from twinpool.engine.kernels.torch_cpu.attention_plan import StepPlan
from twinpool.engine.kernels.torch_cpu.linear import padded_rows
from twinpool.engine.kernels.torch_cpu.rotary import Rotary
from twinpool.engine.kernels.torch_cpu.weights import LayerWeights, ModelWeights
from twinpool.engine.models.description import Mlp, ModelDescription
from twinpool.kv.storage import KvStorage

_ACTIVATIONS = {"silu": functional.silu}


class TorchKernel:
    """A StepKernel that computes as Hugging Face does, numerically: norms and rotations in float32.

    The rows of every step are padded with dummy tokens to the multiple that the weights' layers take; padding
    is neither cached nor attended. layers_computed: raised after each layer of a step.
    """

    def __init__(
        self,
        model: ModelDescription,
        weights: ModelWeights,
        storage: KvStorage,
        layers_computed: ctypes.c_int64,
    ) -> None:
        self._model = model
        self._weights = weights
        self._attention = TorchAttention(storage)
        self._layers_computed = layers_computed
        self.facts = KernelFacts("torch", storage.layout.dtype, "torch 1")
        ropes = {layer.attention.rope: layer.attention.head_dim for layer in model.layers}
        self._rotaries = {rope: Rotary(head_dim, rope.theta) for rope, head_dim in ropes.items()}

    @torch.inference_mode()
    def step(
        self, token_ids: Sequence[int], segments: Sequence[Segment], logit_rows: Sequence[int]
    ) -> NDArray[np.float32]:
        """See StepKernel."""
        padding = [0] * (padded_rows(len(token_ids), self._weights.row_multiple) - len(token_ids))
        hidden = functional.embedding(torch.tensor([*token_ids, *padding]), self._weights.embedding)
        positions = torch.tensor([*_positions(segments), *padding])
        rotations = {rope: rotary.at(positions) for rope, rotary in self._rotaries.items()}
        plan = self._attention.plan(segments)
        for index, (layer, weights) in enumerate(zip(self._model.layers, self._weights.layers, strict=True)):
            x = _norm(hidden, weights.attention_norm, layer.norm_eps)
            hidden.add_(self._attend(index, plan, x, rotations[layer.attention.rope], len(token_ids)))
            hidden.add_(_mlp(layer.mlp, weights, _norm(hidden, weights.mlp_norm, layer.norm_eps)))
            self._layers_computed.value += 1
        return self._logits(hidden, logit_rows)

    def draw(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[int]:
        """See StepKernel."""
        return [draw_token(values, row) for values, row in zip(logits, rows, strict=True)]

    def _attend(
        self,
        index: int,
        plan: StepPlan,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        num_rows: int,
    ) -> Tensor:
        """The attention of a layer over the normed rows x, of which the first num_rows are no padding."""
        described, weights = self._model.layers[index].attention, self._weights.layers[index]
        heads, kv_heads = described.num_heads, described.num_kv_heads
        qkv = weights.qkv(x).view(len(x), heads + 2 * kv_heads, -1)
        self._rotaries[described.rope].rotate_(qkv[:, : heads + kv_heads], *rotation)
        mixed = qkv.new_zeros(qkv.shape[0], heads, qkv.shape[2])
        q, kv = qkv[:num_rows, :heads], qkv[:num_rows, heads:]
        self._attention.attend(plan, index, q, kv, mixed[:num_rows])
        return weights.attention_output(mixed.flatten(1))

    def _logits(self, hidden: Tensor, rows: Sequence[int]) -> NDArray[np.float32]:
        if not rows:
            return np.empty((0, self._model.vocab_size), dtype=np.float32)
        weights = self._weights
        padding = [rows[0]] * (padded_rows(len(rows), weights.lm_head.row_multiple) - len(rows))
        wanted = hidden[torch.tensor([*rows, *padding])].float()
        logits = weights.lm_head(_norm(wanted, weights.final_norm, self._model.norm_eps))[: len(rows)]
        return logits.numpy()


def _mlp(mlp: Mlp, weights: LayerWeights, x: Tensor) -> Tensor:
    gate, up = weights.gate_up(x).chunk(2, dim=-1)
    return weights.down(_ACTIVATIONS[mlp.activation](gate).mul_(up))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm of each row (Zhang & Sennrich, 2019); torch computes it in float32."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def _positions(segments: Sequence[Segment]) -> Iterator[int]:
    for segment in segments:
        yield from range(segment.context_tokens - segment.num_new, segment.context_tokens)
