"""The forward pass of a Llama over a flat batch of tokens and a paged KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

import torch
from torch import Tensor
from torch.nn import functional

from twinpool.engine.attention import AttentionBackend, Plan, Segment
from twinpool.engine.linear import padded_rows
from twinpool.engine.rotary import Rotary
from twinpool.engine.weights import LayerWeights, LlamaWeights
from twinpool.model.config import ModelConfig


class LlamaModel(Generic[Plan]):
    """Llama (Touvron et al., 2023) as Hugging Face computes it, numerically: norms and rotations in float32.

    The rows of every step are padded with dummy tokens to the multiple that the weights' layers take; padding
    is neither cached nor attended. computed_layer: called after each layer of a step.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: LlamaWeights,
        attention: AttentionBackend[Plan],
        computed_layer: Callable[[], None],
    ) -> None:
        self._config = config
        self._weights = weights
        self._attention = attention
        self._computed_layer = computed_layer
        self._rotary = Rotary(config.head_dim, config.rope_theta)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        segments: Sequence[Segment],
        logit_rows: Sequence[int],
    ) -> Tensor:
        """Compute one step and write its keys and values into the cache.

        token_ids, positions: flat, segment after segment. logit_rows: rows of the batch whose logits are
        wanted. Returns `[len(logit_rows), vocab_size]` in the weights' dtype.
        """
        padding = [0] * (padded_rows(len(token_ids), self._weights.row_multiple) - len(token_ids))
        hidden = functional.embedding(torch.tensor([*token_ids, *padding]), self._weights.embedding)
        rotation = self._rotary.at(torch.tensor([*positions, *padding]))
        plan = self._attention.plan(segments)
        for index, layer in enumerate(self._weights.layers):
            self._attend(layer, index, plan, hidden, rotation, len(token_ids))
            self._mlp(layer, hidden)
            self._computed_layer()
        return self._logits(hidden, logit_rows)

    def _attend(
        self,
        layer: LayerWeights,
        index: int,
        plan: Plan,
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor],
        num_rows: int,
    ) -> None:
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        qkv = layer.qkv(self._norm(hidden, layer.attention_norm))
        qkv = qkv.view(len(hidden), heads + 2 * kv_heads, -1)
        self._rotary.rotate_(qkv[:, : heads + kv_heads], *rotation)
        mixed = qkv.new_zeros(qkv.shape[0], heads, qkv.shape[2])
        q, kv = qkv[:num_rows, :heads], qkv[:num_rows, heads:]
        self._attention.attend(plan, index, q, kv, mixed[:num_rows])
        hidden.add_(layer.attention_output(mixed.flatten(1)))

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> None:
        gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        hidden.add_(layer.down(functional.silu(gate).mul_(up)))

    def _logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        if not rows:
            return hidden.new_empty(0, self._config.vocab_size)
        padding = [rows[0]] * (padded_rows(len(rows), self._weights.row_multiple) - len(rows))
        wanted = hidden[torch.tensor([*rows, *padding])]
        return self._weights.lm_head(self._norm(wanted, self._weights.final_norm))[: len(rows)]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm of each row (Zhang & Sennrich, 2019); torch computes it in float32."""
        return functional.rms_norm(x, weight.shape, weight, self._config.rms_norm_eps)
