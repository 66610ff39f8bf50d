"""What a model needs in memory: its weights, and the KV cache of the requests it serves."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from twinpool.checkpoint.home import in_home
from twinpool.checkpoint.prepared import CONFIG_FILE, read_description
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.kernels.native.library import native_library
from twinpool.engine.models.description import ModelDescription
from twinpool.engine.models.tensors import tensors_of
from twinpool.errors import ModelSourceError
from twinpool.prepare.pull import prepared_path

_WEIGHT_BITS = {"bf16": 16, "int8": 8 + 1, "int4": 4 + 1}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Sizes of one model. dtype: of the cache. weights: bf16, int8 or int4; or float32, as the cache."""

    model: ModelDescription
    dtype: str
    weights: str = "bf16"

    @property
    def weights_bytes(self) -> int:
        """All weights; tied embeddings count once. Narrow ones have a scale and a minimum for 32 of them."""
        bits = 32 if self.dtype == "float32" else _WEIGHT_BITS[self.weights]
        return sum(prod(spec.shape) for spec in tensors_of(self.model)) * bits // 8

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return cache_layout(self.model, block_size=1, dtype=self.dtype).token_bytes

    def kv_bytes(self, num_tokens: int, num_requests: int = 1) -> int:
        """The cache of so many requests of so many tokens each (prompt and answer together)."""
        return self.kv_bytes_per_token * num_tokens * num_requests

    def requests_that_fit(self, kv_memory_bytes: int, num_tokens: int, block_size: int = 1) -> int:
        """How many requests of num_tokens a cache of kv_memory_bytes holds at once, in whole blocks."""
        block_bytes = self.kv_bytes_per_token * block_size
        blocks_per_request = -(-num_tokens // block_size)
        return kv_memory_bytes // block_bytes // blocks_per_request


def most_weights(weights: str, kernels: str) -> str:
    """The widest format that `--weights` may come to; both as in `EngineConfig`."""
    if weights != "auto":
        return weights
    return "bf16" if kernels == "torch" or native_library() is None else "int8"


def find_description(model: str, cache_dir: Path | None = None) -> ModelDescription:
    """The description of a model that was pulled, or of a local folder, of which config.json is enough.

    Raises ModelSourceError if neither holds.
    """
    folder = in_home(model)
    if not (folder / CONFIG_FILE).is_file():
        prepared = prepared_path(model, cache_dir)
        if prepared is None:
            raise ModelSourceError(f"{model} is not prepared yet: run `twinpool pull {model}` first")
        folder = prepared
    return read_description(folder)
