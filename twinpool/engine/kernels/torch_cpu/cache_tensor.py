"""A worker's cache as torch sees it."""

from __future__ import annotations

import torch
from torch import Tensor

from twinpool.kv.storage import KvStorage

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def cache_tensor(storage: KvStorage) -> Tensor:
    """A view: `[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]`, contiguous."""
    layout = storage.layout
    flat = torch.from_numpy(storage.blocks).view(-1).view(TORCH_DTYPES[layout.dtype])
    return flat.view(storage.num_blocks, *layout.block_shape)
