"""Where tokens and blocks lie in the cache tensor, as row numbers for one indexed copy per layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinpool.engine.kernels.port import Segment
from twinpool.kv.layout import KvLayout


class CacheIndex:
    """Row numbers into two flat views of the cache tensor.

    slots: `[num_blocks * num_layers * 2 * num_kv_heads * block_size, head_dim]`, one token of one head a row.
    runs:  `[num_blocks * num_layers * 2 * num_kv_heads, block_size * head_dim]`, one block of one head a row.

    Both come for all layers at once, `[num_layers, n]`: from layer to layer they differ by a constant.
    """

    def __init__(self, layout: KvLayout) -> None:
        self._layout = layout
        # Keys of all heads, then values of all heads: the 2 * num_kv_heads runs of one block and layer.
        self._heads = np.arange(2 * layout.num_kv_heads, dtype=np.int64)
        self._layers = np.arange(layout.num_layers, dtype=np.int64)[:, None] * self._heads.size

    def slots(self, segments: Sequence[Segment]) -> Tensor:
        """Slots that the new tokens' keys and values go to, `[num_layers, rows * 2 * num_kv_heads]`."""
        size = self._layout.block_size
        blocks, offsets = [], []
        for segment in segments:
            positions = np.arange(segment.context_tokens - segment.num_new, segment.context_tokens)
            blocks.append(np.asarray(segment.block_table, dtype=np.int64)[positions // size])
            offsets.append(positions % size)
        runs = self._runs(np.concatenate(blocks)[:, None] * self._block_runs + self._heads)
        offset = np.concatenate(offsets)[:, None].repeat(self._heads.size, axis=1).reshape(-1)
        return torch.from_numpy(runs * size + offset)

    def runs(self, tables: NDArray[np.int64]) -> Tensor:
        """Runs of whole contexts: from `[rows, blocks]` to `[num_layers, 2 * rows * num_kv_heads * blocks]`.

        Gathered in this order they are `[2, rows, num_kv_heads, blocks * block_size, head_dim]`.
        """
        heads = self._heads.reshape(2, 1, self._layout.num_kv_heads, 1)
        return torch.from_numpy(self._runs(tables[None, :, None, :] * self._block_runs + heads))

    @property
    def _block_runs(self) -> int:
        return self._layout.num_layers * int(self._heads.size)

    def _runs(self, first_layer: NDArray[np.int64]) -> NDArray[np.int64]:
        return first_layer.reshape(1, -1) + self._layers
