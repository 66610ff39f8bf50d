"""The cache that a described model takes."""

from __future__ import annotations

from twinpool.engine.models.description import ModelDescription
from twinpool.kv.layout import KvLayout


def cache_layout(model: ModelDescription, *, block_size: int, dtype: str) -> KvLayout:
    """The cache layout of a model; dtype is the cache's."""
    attention = model.layers[0].attention
    return KvLayout(
        num_layers=model.num_layers,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        block_size=block_size,
        dtype=dtype,
    )
