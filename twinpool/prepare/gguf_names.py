"""What llama.cpp calls a Llama's tensors, and what transformers does.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#standardized-tensor-names.
"""

from __future__ import annotations

import re

from twinpool.errors import UnsupportedModel
from twinpool.prepare.weights import EMBEDDING, FINAL_NORM, OUTPUT

_WHOLE_MODEL_NAMES = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": FINAL_NORM,
    "output.weight": OUTPUT,
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def hugging_face_name(name: str) -> str:
    """The transformers name of a GGUF tensor. Raises UnsupportedModel for one that no plain Llama has."""
    if name in _WHOLE_MODEL_NAMES:
        return _WHOLE_MODEL_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise UnsupportedModel(f"GGUF tensor {name} is not part of a plain Llama")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"
