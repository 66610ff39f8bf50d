"""Qwen2 and Qwen2.5 (Yang et al., "Qwen2 technical report"): a Llama whose attention products have biases."""

from __future__ import annotations

from twinpool.engine.models import llama
from twinpool.engine.models.config_fields import Config
from twinpool.engine.models.decoder import describe_decoder, refuse
from twinpool.engine.models.description import ModelDescription, Role, TensorNames
from twinpool.engine.models.family import Family

TENSOR_NAMES: TensorNames = {
    **llama.TENSOR_NAMES,
    Role.QUERY_BIAS: "model.layers.{layer}.self_attn.q_proj.bias",
    Role.KEY_BIAS: "model.layers.{layer}.self_attn.k_proj.bias",
    Role.VALUE_BIAS: "model.layers.{layer}.self_attn.v_proj.bias",
}

GGUF_NAMES: TensorNames = {
    **llama.GGUF_NAMES,
    Role.QUERY_BIAS: "blk.{layer}.attn_q.bias",
    Role.KEY_BIAS: "blk.{layer}.attn_k.bias",
    Role.VALUE_BIAS: "blk.{layer}.attn_v.bias",
}


def _describe(config: Config) -> ModelDescription:
    # Published configs name a window that this switch leaves unused.
    refuse(config, ("use_sliding_window",))
    return describe_decoder(config, TENSOR_NAMES, qkv_bias=True)


QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    describe=_describe,
    gguf_architecture="qwen2",
    gguf_names=GGUF_NAMES,
    gguf_pairs_neighbours=False,
)
