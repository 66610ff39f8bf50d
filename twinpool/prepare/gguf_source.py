"""Reads a Llama out of a GGUF file: its shape, and its weights as float32 in Hugging Face's layout.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from twinpool.errors import ModelSourceError, UnsupportedModel
from twinpool.model.config import ModelConfig
from twinpool.prepare.gguf_header import check_gguf_header
from twinpool.prepare.gguf_names import hugging_face_name
from twinpool.prepare.weights import SourceTensor

_TENSOR_TYPES = {
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
}
# Metadata of the architecture that is read here; the rest could change what the model computes.
_READ = {
    "llama.vocab_size",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.block_count",
    "llama.context_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
}
# Metadata known to change nothing at this value.
_NEUTRAL = {
    "llama.attention.causal": True,
    "llama.expert_count": 0,
    "llama.expert_used_count": 0,
    "llama.rope.scale_linear": 1.0,
    "llama.rope.scaling.factor": 1.0,
    "llama.rope.scaling.finetuned": False,
    "llama.rope.scaling.type": "none",
    "split.count": 0,
}


class GgufFile:
    """An open GGUF file; tensors are read from disk when asked for."""

    def __init__(self, path: Path) -> None:
        """Raises ModelSourceError if the file is damaged, UnsupportedModel if it holds no plain Llama."""
        check_gguf_header(path)
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, LookupError, OverflowError) as error:
            raise ModelSourceError(f"{path} is not a readable GGUF file: {error}") from error
        architecture = self.value("general.architecture")
        if architecture != "llama":
            raise UnsupportedModel(f"GGUF architecture {architecture!r} is not supported, only 'llama'")
        for key in self._reader.fields:
            if key in _READ or not key.startswith(("llama.", "split.count")):
                continue
            if key not in _NEUTRAL or self.value(key) != _NEUTRAL[key]:
                raise UnsupportedModel(f"{key} is not supported (the file sets it to {self.value(key)!r})")
        self.config = self._read_config()

    def value(self, key: str, default: Any = None) -> Any:
        """A metadata value in Python types, or the default where the file has none."""
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def tensors(self) -> Iterator[SourceTensor]:
        """All tensors, in Hugging Face's names and layout, float32 whatever the file stores.

        Raises UnsupportedModel naming a tensor or a tensor type that is not known here.
        """
        for tensor in self._reader.tensors:
            if tensor.tensor_type not in _TENSOR_TYPES:
                kind = tensor.tensor_type.name
                raise UnsupportedModel(f"GGUF tensor type {kind} of {tensor.name} is not supported")
            yield SourceTensor(
                name=hugging_face_name(tensor.name),
                dtype="F32",
                shape=tuple(int(size) for size in reversed(tensor.shape)),
                num_bytes=4 * int(tensor.n_elements),
                read=partial(self._read, tensor),
            )

    def _read(self, tensor: gguf.ReaderTensor) -> memoryview:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name:
            weights = unpermute(weights, self.config.num_heads)
        elif ".attn_k." in tensor.name:
            weights = unpermute(weights, self.config.num_kv_heads)
        return np.ascontiguousarray(weights, dtype="<f4").data.cast("B")

    def _read_config(self) -> ModelConfig:
        heads, hidden = self.value("llama.attention.head_count"), self.value("llama.embedding_length")
        names = {tensor.name for tensor in self._reader.tensors}
        config = ModelConfig.from_json(
            {
                "model_type": "llama",
                "vocab_size": self.value("llama.vocab_size", len(self.value("tokenizer.ggml.tokens", ()))),
                "hidden_size": hidden,
                "intermediate_size": self.value("llama.feed_forward_length"),
                "num_hidden_layers": self.value("llama.block_count"),
                "num_attention_heads": heads,
                "num_key_value_heads": self.value("llama.attention.head_count_kv", heads),
                "head_dim": self.value("llama.attention.key_length"),
                "max_position_embeddings": self.value("llama.context_length"),
                "rope_theta": self.value("llama.rope.freq_base", 10000.0),
                "rms_norm_eps": self.value("llama.attention.layer_norm_rms_epsilon"),
                "tie_word_embeddings": "output.weight" not in names,
            }
        )
        for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
            if self.value(key, config.head_dim) != config.head_dim:
                raise UnsupportedModel(f"{key} other than the head size {config.head_dim} is not supported")
        return config


def unpermute(weights: np.ndarray[Any, np.dtype[Any]], num_heads: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Undo llama.cpp's row order of query and key weights.

    GGUF pairs neighbouring rows of a head for the rotary embedding, transformers pairs a row with the one
    half a head further (llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute).
    """
    rows, *rest = weights.shape
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, *rest)
    return pairs.swapaxes(1, 2).reshape(weights.shape)
