"""The memory layout of one worker's KV cache: what a block holds and how many fit a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from twinpool.kv.blocks import blocks_for

_ROW_BYTES: Mapping[str, Callable[[int], int]] = {
    "float32": lambda head_dim: 4 * head_dim,
    "bfloat16": lambda head_dim: 2 * head_dim,
    "int8": lambda head_dim: head_dim + 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Shape of the cache, the same in every worker of a pair.

    A block is one contiguous run of memory, so that it is also the unit of hand-off and of checksums:

        block 0                                   block 1
        [layer 0 K | layer 0 V | layer 1 K | ...] [layer 0 K | ...
         K or V: num_kv_heads x block_size x head_dim

    dtype: float32, bfloat16 or int8; then a token's head_dim codes are followed by their scale in float32.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in _ROW_BYTES:
            raise ValueError(f"a cache holds {' or '.join(_ROW_BYTES)}, not {self.dtype!r}")
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def token_bytes(self) -> int:
        """Bytes that one token's keys and values take, over all layers."""
        return self.num_layers * 2 * self.num_kv_heads * _ROW_BYTES[self.dtype](self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.token_bytes * self.block_size

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """(num_layers, 2, num_kv_heads, block_size, head_dim); index 0 of the second is K, 1 is V."""
        return (self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    def num_blocks(self, budget_bytes: int) -> int:
        """Whole blocks that fit into budget_bytes; may be 0."""
        return budget_bytes // self.block_bytes

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that num_tokens tokens take."""
        return blocks_for(num_tokens, self.block_size)
