"""Reads a model out of a GGUF file: its config, and its weights as float32 in Hugging Face's layout.

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

from twinpool.engine.models.description import Role
from twinpool.engine.models.registry import describe_model, gguf_family
from twinpool.engine.models.tensors import name_of, role_of
from twinpool.errors import ModelSourceError, UnsupportedModel
from twinpool.prepare.gguf_header import check_gguf_header
from twinpool.prepare.weights import SourceTensor

_TENSOR_TYPES = {
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
}
# Metadata that is read here, after the architecture's name; the rest could change what the model computes.
_READ = {
    "vocab_size",
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "context_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
}
# Metadata known to change nothing at this value.
_NEUTRAL = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scale_linear": 1.0,
    "rope.scaling.factor": 1.0,
    "rope.scaling.finetuned": False,
    "rope.scaling.type": "none",
}


class GgufFile:
    """An open GGUF file; tensors are read from disk when asked for.

    config: what Hugging Face's config.json of this model says. description: what the model computes.
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelSourceError if the file is damaged, UnsupportedModel naming what is not
        computed here."""
        check_gguf_header(path)
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, LookupError, OverflowError) as error:
            raise ModelSourceError(f"{path} is not a readable GGUF file: {error}") from error
        self._family = gguf_family(self.value("general.architecture"))
        self._refuse_other_metadata()
        self.config = self._read_config()
        self.description = describe_model(self.config)
        self._refuse_other_head_sizes()

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
                name=self._name(tensor.name),
                dtype="F32",
                shape=tuple(int(size) for size in reversed(tensor.shape)),
                num_bytes=4 * int(tensor.n_elements),
                read=partial(self._read, tensor),
            )

    def _name(self, name: str) -> str:
        """The name in the prepared file of a tensor of this one."""
        found = role_of(self._family.gguf_names, name)
        if found is None:
            raise UnsupportedModel(f"GGUF tensor {name} is not part of such a model")
        return name_of(self.description.tensor_names, *found)

    def _read(self, tensor: gguf.ReaderTensor) -> memoryview:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type)
        if self._family.gguf_pairs_neighbours:
            role, layer = role_of(self._family.gguf_names, tensor.name) or (None, None)
            if layer is not None and role in (Role.QUERY, Role.KEY):
                attention = self.description.layers[layer].attention
                num_heads = attention.num_heads if role is Role.QUERY else attention.num_kv_heads
                weights = unpermute(weights, num_heads)
        return np.ascontiguousarray(weights, dtype="<f4").data.cast("B")

    def _key(self, name: str) -> str:
        return f"{self._family.gguf_architecture}.{name}"

    def _refuse_other_metadata(self) -> None:
        neutral = {self._key(name): value for name, value in _NEUTRAL.items()} | {"split.count": 0}
        read = {self._key(name) for name in _READ}
        for key in self._reader.fields:
            if key in read or not key.startswith((self._key(""), "split.count")):
                continue
            if key not in neutral or self.value(key) != neutral[key]:
                raise UnsupportedModel(f"{key} is not supported (the file sets it to {self.value(key)!r})")

    def _read_config(self) -> dict[str, object]:
        heads = self.value(self._key("attention.head_count"))
        tokens = self.value("tokenizer.ggml.tokens", ())
        output = name_of(self._family.gguf_names, Role.OUTPUT, None)
        return {
            "architectures": [self._family.architecture],
            "model_type": self._family.model_type,
            "vocab_size": self.value(self._key("vocab_size"), len(tokens)),
            "hidden_size": self.value(self._key("embedding_length")),
            "intermediate_size": self.value(self._key("feed_forward_length")),
            "num_hidden_layers": self.value(self._key("block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": self.value(self._key("attention.head_count_kv"), heads),
            "head_dim": self.value(self._key("attention.key_length")),
            "max_position_embeddings": self.value(self._key("context_length")),
            "rope_theta": self.value(self._key("rope.freq_base"), 10000.0),
            "rms_norm_eps": self.value(self._key("attention.layer_norm_rms_epsilon")),
            "tie_word_embeddings": output not in {tensor.name for tensor in self._reader.tensors},
        }

    def _refuse_other_head_sizes(self) -> None:
        head_dim = self.description.layers[0].attention.head_dim
        for key in (self._key("rope.dimension_count"), self._key("attention.value_length")):
            if self.value(key, head_dim) != head_dim:
                raise UnsupportedModel(f"{key} other than the head size {head_dim} is not supported")


def unpermute(weights: np.ndarray[Any, np.dtype[Any]], num_heads: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Undo llama.cpp's row order of query and key weights.

    GGUF pairs neighbouring rows of a head for the rotary embedding, transformers pairs a row with the one
    half a head further (llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute).
    """
    rows, *rest = weights.shape
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, *rest)
    return pairs.swapaxes(1, 2).reshape(weights.shape)
