"""The cache tensor of one worker, over its own memory or over a buffer shared with another process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from twinpool.kv.layout import KvLayout

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PAGE_BYTES = 4096


class KvStorage:
    """All KV blocks of one worker.

    tensor: `[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]`, contiguous.

    Without a buffer the storage owns zeroed memory. With one (any writable Python buffer, such as an mmap of
    a memfd) it is a view: it keeps the buffer alive, and leaves its bytes as they are. It knows nothing of
    who owns which block.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, buffer: object | None = None) -> None:
        """Raises ValueError where the buffer is smaller than num_blocks blocks."""
        num_bytes = num_blocks * layout.block_bytes
        if num_blocks < 1:
            raise ValueError("a cache needs at least one block")
        if buffer is None:
            flat = torch.zeros(num_bytes, dtype=torch.uint8)
        else:
            flat = torch.frombuffer(buffer, dtype=torch.uint8, count=num_bytes)
        self.layout = layout
        self.num_blocks = num_blocks
        self._bytes = flat.view(num_blocks, layout.block_bytes)
        self.tensor: Tensor = flat.view(TORCH_DTYPES[layout.dtype]).view(num_blocks, *layout.block_shape)
        self.touch()

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Views of one layer's keys and values, each `[num_blocks, num_kv_heads, block_size, head_dim]`."""
        return self.tensor[:, index, 0], self.tensor[:, index, 1]

    def block_bytes_view(self) -> Tensor:
        """The same memory as uint8 `[num_blocks, block_bytes]`."""
        return self._bytes

    def touch(self) -> None:
        """Map every page now, by reading: a first touch later would cost ten times a copy."""
        self._bytes.view(-1)[::_PAGE_BYTES].max()

    def clear_blocks(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with zeros."""
        for block_id in block_ids:
            self._bytes[block_id].zero_()

    def block_checksum(self, block_id: int) -> int:
        """CRC-32 of a block's bytes."""
        return zlib.crc32(self._bytes[block_id].numpy().data)


def copy_blocks(src: KvStorage, src_ids: Sequence[int], dst: KvStorage, dst_ids: Sequence[int]) -> None:
    """Copy whole blocks, all layers at once; src_ids[i] goes to dst_ids[i].

    Raises ValueError where the layouts or the numbers of ids differ.
    """
    if src.layout != dst.layout:
        raise ValueError(f"cache layouts differ: {src.layout} and {dst.layout}")
    source, target = src.block_bytes_view(), dst.block_bytes_view()
    for src_id, dst_id in zip(src_ids, dst_ids, strict=True):
        target[dst_id].copy_(source[src_id])
