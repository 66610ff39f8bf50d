"""Small random models as transformers computes them, prepared for the engine: an oracle independent of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from twinpool.checkpoint.manifest import WEIGHTS_FILE, Manifest
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.kernels.port import KernelSettings, Segment
from twinpool.engine.models.registry import describe_model
from twinpool.engine.runner import Engine
from twinpool.kv.storage import KvStorage

VOCAB_SIZE = 101
NUM_BLOCKS = 64


@dataclass(frozen=True)
class Shape:
    """What models differ in."""

    num_heads: int = 6
    num_kv_heads: int = 2
    hidden_size: int = 48
    head_dim: int = 8
    tied: bool = False
    family: str = "llama"


SHAPES = {
    "multi-head": Shape(num_heads=4, num_kv_heads=4, head_dim=12),
    "grouped-query": Shape(),
    "multi-query": Shape(num_heads=4, num_kv_heads=1, head_dim=12),
    "tied": Shape(tied=True),
    "wide-heads": Shape(num_heads=4, num_kv_heads=2, head_dim=16),
    "qwen2": Shape(family="qwen2"),
    "qwen2 tied": Shape(family="qwen2", tied=True),
}
_CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


def random_model(shape: Shape) -> PreTrainedModel:
    """A float32 model whose logits are large enough for differences to show."""
    torch.manual_seed(7)
    config_class, model_class = _CLASSES[shape.family]
    config = config_class(
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.hidden_size,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=shape.tied,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    model: PreTrainedModel = model_class(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
        else:
            parameter.data.uniform_(0.5, 1.5)
    return model


def prepare(model: PreTrainedModel, folder: Path) -> PreparedModel:
    """Write a model as `pull` would."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    save_file(tensors, folder / WEIGHTS_FILE)
    manifest = Manifest(
        name="random",
        source="tests",
        weights_sha256="0",
        bos_token_id=None,
        eos_token_ids=(0,),
        adds_bos=False,
        special_tokens={},
    )
    return PreparedModel(folder, describe_model(model.config.to_dict()), manifest)


def load_engine(
    prepared: PreparedModel, *, block_size: int = 4, dtype: str = "float32", **settings: Any
) -> Engine:
    """An engine over a cache full of NaN, as a bad former owner might leave it.

    settings: of `KernelSettings`.
    """
    layout = cache_layout(prepared.description, block_size=block_size, dtype=dtype)
    storage = KvStorage(layout, NUM_BLOCKS)
    storage.blocks[:] = 0xFF  # NaN in floating-point formats, and in the scales of int8
    return Engine.load(prepared, storage, KernelSettings(**settings))


def reference_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """transformers' logits of every position, `[len(token_ids), vocab_size]`."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits


class Sequences:
    """Runs segments of sequences through an engine's kernel and returns the logits of every new token."""

    def __init__(self, engine: Engine) -> None:
        self._kernel = engine.kernel

    def step(self, pieces: Sequence[tuple[Sequence[int], int, Sequence[int]]]) -> list[Tensor]:
        """Compute pieces at once: a sequence's tokens so far, its first new position, its block table."""
        token_ids = [token for tokens, start, _ in pieces for token in tokens[start:]]
        segments = [Segment(len(tokens) - start, len(tokens), table) for tokens, start, table in pieces]
        logits = self._kernel.step(token_ids, segments, range(len(token_ids)))
        return list(torch.split(torch.from_numpy(logits), [segment.num_new for segment in segments]))
