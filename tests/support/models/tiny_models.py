"""Writes tiny models with random weights, as GGUF files and as folders in Hugging Face's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.support.models import tiny_tokenizers

_LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM, _HIDDEN, _INNER = 2, 4, 2, 32, 128, 160
_CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}
TEMPLATE = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"


def write_gguf(
    path: Path,
    matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    metadata: Mapping[str, object] | None = None,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    family: str = "llama",
) -> Path:
    """A model whose matrices have one type; norms and biases are F32, as everywhere.

    metadata replaces or adds values, None removes one. tensors adds tensors, or gives one another shape.
    """
    pieces = tiny_tokenizers.pieces_of(tiny_tokenizers.byte_level(), with_added_tokens=False)
    values = _metadata([*pieces, tiny_tokenizers.END], family) | dict(metadata or {})
    writer = gguf.GGUFWriter(path, str(values.pop("general.architecture")))
    for key, value in values.items():
        if value is not None:
            _add(writer, key, value)
    generator = np.random.default_rng(0)
    for name, shape in (_shapes(len(pieces) + 1, family) | dict(tensors or {})).items():
        weights = generator.normal(size=shape).astype(np.float32)
        kind = matrix_type if len(shape) == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    tied: bool = True,
    shard: str = "1GB",
    family: str = "llama",
) -> Path:
    """A model as transformers saves it, with a tokenizer; shard is the most that one file holds."""
    backend = tiny_tokenizers.byte_level()
    torch.manual_seed(0)
    config_class, model_class = _CLASSES[family]
    config = config_class(
        vocab_size=backend.get_vocab_size(),
        hidden_size=_HIDDEN,
        intermediate_size=_INNER,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=backend.token_to_id(tiny_tokenizers.END),
    )
    model = model_class(config)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}'
    )
    return folder


def _metadata(tokens: list[str], family: str) -> dict[str, object]:
    merges = [f"{left} {right}" for left, right in tiny_tokenizers.BYTE_MERGES]
    return {
        "general.architecture": family,
        "general.name": "tiny",
        f"{family}.block_count": _LAYERS,
        f"{family}.context_length": 512,
        f"{family}.embedding_length": _HIDDEN,
        f"{family}.feed_forward_length": _INNER,
        f"{family}.attention.head_count": _HEADS,
        f"{family}.attention.head_count_kv": _KV_HEADS,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.dimension_count": _HEAD_DIM,
        f"{family}.rope.freq_base": 1e4,
        f"{family}.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.chat_template": TEMPLATE,
    }


def _shapes(vocab_size: int, family: str) -> dict[str, tuple[int, ...]]:
    keys = _KV_HEADS * _HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab_size, _HIDDEN),
        "output_norm.weight": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        prefix = f"blk.{layer}."
        shapes |= {
            prefix + "attn_norm.weight": (_HIDDEN,),
            prefix + "attn_q.weight": (_HEADS * _HEAD_DIM, _HIDDEN),
            prefix + "attn_k.weight": (keys, _HIDDEN),
            prefix + "attn_v.weight": (keys, _HIDDEN),
            prefix + "attn_output.weight": (_HIDDEN, _HEADS * _HEAD_DIM),
            prefix + "ffn_norm.weight": (_HIDDEN,),
            prefix + "ffn_gate.weight": (_INNER, _HIDDEN),
            prefix + "ffn_up.weight": (_INNER, _HIDDEN),
            prefix + "ffn_down.weight": (_HIDDEN, _INNER),
        }
        if family == "qwen2":
            shapes |= {
                prefix + "attn_q.bias": (_HEADS * _HEAD_DIM,),
                prefix + "attn_k.bias": (keys,),
                prefix + "attn_v.bias": (keys,),
            }
    return shapes


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
