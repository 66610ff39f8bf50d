"""What transformers reads from the default model's file, as scripts/make_reference.py noted it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tests.support.models.reference import FILE


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """The weights in float32, in one number, and the constants."""

    weights_sha256: str
    rope_theta: float
    rms_norm_eps: float
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool


def reference_model() -> ReferenceModel:
    """What the file says of the model."""
    return ReferenceModel(**json.loads(FILE.read_text())["about"]["model_read"])


def read_by_transformers(model: Any) -> ReferenceModel:
    """The same, of a model that transformers has just read. model: a LlamaForCausalLM in float32."""
    weights, config = model.state_dict(), model.config
    weights.pop("lm_head.weight")  # tied
    return ReferenceModel(
        weights_sha256=weights_sha256(weights),
        rope_theta=config.rope_parameters["rope_theta"],
        rms_norm_eps=config.rms_norm_eps,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
    )


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """Of all names, shapes and numbers, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {tuple(weights[name].shape)} {weights[name].dtype}\n".encode())
        digest.update(weights[name].contiguous().numpy().data)
    return digest.hexdigest()
