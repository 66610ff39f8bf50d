"""The cache's memory of one worker, its own or a buffer shared with another process."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinpool.kv.layout import KvLayout

_PAGE_BYTES = 4096


class KvStorage:
    """All KV blocks of one worker, as bytes: kernels know what numbers they are.

    blocks: uint8 `[num_blocks, block_bytes]`, contiguous; each block is
    `[num_layers, 2, num_kv_heads, block_size, head_dim]` in the layout's format.

    Without a buffer the storage owns zeroed memory. With one (any writable Python buffer, such as an mmap of
    a memfd) it is a view: it keeps the buffer alive, and leaves its bytes as they are. It knows nothing of
    who owns which block.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, buffer: object | None = None) -> None:
        """Raises ValueError where the buffer is smaller than num_blocks blocks."""
        if num_blocks < 1:
            raise ValueError("a cache needs at least one block")
        num_bytes = num_blocks * layout.block_bytes
        memory = mmap.mmap(-1, num_bytes) if buffer is None else buffer
        flat = np.frombuffer(memory, dtype=np.uint8, count=num_bytes)  # type: ignore[call-overload] # (any buffer)
        self.layout = layout
        self.num_blocks = num_blocks
        self.blocks: NDArray[np.uint8] = flat.reshape(num_blocks, layout.block_bytes)
        self.touch()

    def touch(self) -> None:
        """Map every page now, by reading: a first touch later would cost ten times a copy."""
        self.blocks.reshape(-1)[::_PAGE_BYTES].max()

    def clear_blocks(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with zeros."""
        for block_id in block_ids:
            self.blocks[block_id] = 0

    def block_checksum(self, block_id: int) -> int:
        """CRC-32 of a block's bytes."""
        return zlib.crc32(self.blocks[block_id].data)


def copy_blocks(src: KvStorage, src_ids: Sequence[int], dst: KvStorage, dst_ids: Sequence[int]) -> None:
    """Copy whole blocks, all layers at once; src_ids[i] goes to dst_ids[i].

    Raises ValueError where the layouts or the numbers of ids differ.
    """
    if src.layout != dst.layout:
        raise ValueError(f"cache layouts differ: {src.layout} and {dst.layout}")
    for src_id, dst_id in zip(src_ids, dst_ids, strict=True):
        dst.blocks[dst_id] = src.blocks[src_id]
