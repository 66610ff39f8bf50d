"""Which tensors a Llama has, and the writer of the one file that holds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from twinpool.errors import ModelSourceError, UnsupportedModel
from twinpool.model.config import ModelConfig
from twinpool.prepare.progress import Progress

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor to be written.

    dtype: as safetensors spells it (F32, F16, BF16). read: its bytes, row-major and little-endian.
    """

    name: str
    dtype: str
    shape: Shape
    num_bytes: int
    read: Callable[[], bytes | memoryview]


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every weight, in the order of the file (Hugging Face's LlamaForCausalLM)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (query, hidden),
            prefix + "self_attn.k_proj.weight": (key, hidden),
            prefix + "self_attn.v_proj.weight": (key, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, query),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    shapes[FINAL_NORM] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[OUTPUT] = (config.vocab_size, hidden)
    return shapes


def in_file_order(config: ModelConfig, tensors: Iterable[SourceTensor]) -> list[SourceTensor]:
    """The source's tensors in the order of the file, once they are seen to be just what the config asks for.

    Raises UnsupportedModel naming a tensor that no Llama has, ModelSourceError naming one that is missing or
    misshapen.
    """
    found = {tensor.name: tensor for tensor in tensors}
    if config.num_layers > len(found):
        raise ModelSourceError(f"{config.num_layers} layers are declared, but there are {len(found)} tensors")
    shapes = expected_shapes(config)
    for tensor in found.values():
        if tensor.name not in shapes:
            raise UnsupportedModel(f"tensor {tensor.name} is not part of a plain Llama")
        if tensor.shape != shapes[tensor.name]:
            raise ModelSourceError(f"tensor {tensor.name} is {tensor.shape}, not {shapes[tensor.name]}")
    missing = [name for name in shapes if name not in found]
    if missing:
        raise ModelSourceError(f"{len(missing)} tensors are missing, the first is {missing[0]}")
    return [found[name] for name in shapes]


def write_weights(path: Path, tensors: list[SourceTensor], progress: Progress) -> str:
    """Write a safetensors file one tensor at a time, so a model larger than memory passes through.

    Format: https://github.com/huggingface/safetensors#format. Returns the file's SHA-256 in hex.
    """
    header = _header(tensors)
    digest = hashlib.sha256(header)
    progress.step("writing weights", sum(tensor.num_bytes for tensor in tensors))
    with path.open("wb") as file:
        file.write(header)
        for tensor in tensors:
            data = tensor.read()
            if len(data) != tensor.num_bytes:
                raise ModelSourceError(f"tensor {tensor.name} has {len(data)} bytes, not {tensor.num_bytes}")
            digest.update(data)
            file.write(data)
            progress.advance(len(data))
    return digest.hexdigest()


def _header(tensors: list[SourceTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.num_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
