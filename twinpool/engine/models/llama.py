"""Llama (Touvron et al., 2023), and what is one under another name (SmolLM2, TinyLlama, ...).

GGUF names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#standardized-tensor-names.
"""

from __future__ import annotations

from twinpool.engine.models.config_fields import Config
from twinpool.engine.models.decoder import describe_decoder, refuse
from twinpool.engine.models.description import ModelDescription, Role, TensorNames
from twinpool.engine.models.family import Family

TENSOR_NAMES: TensorNames = {
    Role.EMBEDDING: "model.embed_tokens.weight",
    Role.FINAL_NORM: "model.norm.weight",
    Role.OUTPUT: "lm_head.weight",
    Role.ATTENTION_NORM: "model.layers.{layer}.input_layernorm.weight",
    Role.QUERY: "model.layers.{layer}.self_attn.q_proj.weight",
    Role.KEY: "model.layers.{layer}.self_attn.k_proj.weight",
    Role.VALUE: "model.layers.{layer}.self_attn.v_proj.weight",
    Role.ATTENTION_OUTPUT: "model.layers.{layer}.self_attn.o_proj.weight",
    Role.MLP_NORM: "model.layers.{layer}.post_attention_layernorm.weight",
    Role.GATE: "model.layers.{layer}.mlp.gate_proj.weight",
    Role.UP: "model.layers.{layer}.mlp.up_proj.weight",
    Role.DOWN: "model.layers.{layer}.mlp.down_proj.weight",
}

GGUF_NAMES: TensorNames = {
    Role.EMBEDDING: "token_embd.weight",
    Role.FINAL_NORM: "output_norm.weight",
    Role.OUTPUT: "output.weight",
    Role.ATTENTION_NORM: "blk.{layer}.attn_norm.weight",
    Role.QUERY: "blk.{layer}.attn_q.weight",
    Role.KEY: "blk.{layer}.attn_k.weight",
    Role.VALUE: "blk.{layer}.attn_v.weight",
    Role.ATTENTION_OUTPUT: "blk.{layer}.attn_output.weight",
    Role.MLP_NORM: "blk.{layer}.ffn_norm.weight",
    Role.GATE: "blk.{layer}.ffn_gate.weight",
    Role.UP: "blk.{layer}.ffn_up.weight",
    Role.DOWN: "blk.{layer}.ffn_down.weight",
}


def _describe(config: Config) -> ModelDescription:
    refuse(config, ("attention_bias", "mlp_bias", "sliding_window"))
    return describe_decoder(config, TENSOR_NAMES)


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    describe=_describe,
    gguf_architecture="llama",
    gguf_names=GGUF_NAMES,
    gguf_pairs_neighbours=True,
)
