"""Cuts a step into the parts that attention computes at once, with what all layers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twinpool.engine.kernels.port import Segment
from twinpool.engine.kernels.torch_cpu.cache_index import CacheIndex
from twinpool.kv.layout import KvLayout

GROUP_BYTES = 8 << 20
"""Most bytes gathered at a time for the rows of a decode group, so that they are still in cache when read."""

PADDING_TOKENS = 512
"""Context tokens whose gathering and attending costs as much as computing one more group (75 us)."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Neighbouring rows of one new token each, whose contexts are padded to the same number of tokens.

    runs: `[num_layers, n]`, see CacheIndex.
    mask: added to the scores, `[num_rows * num_kv_heads, 1, padded_tokens]`.
    """

    first: int
    num_rows: int
    padded_tokens: int
    runs: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several new tokens of one sequence, after `start` that are in the cache.

    runs: None where start is 0, so that the chunk's own keys and values are the whole context.
    """

    first: int
    num_rows: int
    start: int
    padded_tokens: int
    runs: Tensor | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step's parts in row order, and the slots of its new tokens, `[num_layers, n]`, see CacheIndex."""

    slots: Tensor
    parts: tuple[DecodeGroup | Chunk, ...]


class StepPlanner:
    """Makes plans for one cache."""

    def __init__(self, layout: KvLayout, dtype: torch.dtype) -> None:
        self._layout = layout
        self._dtype = dtype
        self._index = CacheIndex(layout)
        layer_token_bytes = layout.token_bytes // layout.num_layers
        self._group_blocks = max(1, GROUP_BYTES // (layer_token_bytes * layout.block_size))
        self._padding_blocks = PADDING_TOKENS // layout.block_size

    def plan(self, segments: Sequence[Segment]) -> StepPlan:
        """Segments follow one another in the flat batch; neighbours of like length are computed together."""
        parts: list[DecodeGroup | Chunk] = []
        first = start = 0
        while start < len(segments):
            end = self._end_of_part(segments, start)
            part = segments[start:end]
            parts.append(self._chunk(first, part[0]) if part[0].num_new > 1 else self._group(first, part))
            first += sum(segment.num_new for segment in part)
            start = end
        return StepPlan(self._index.slots(segments), tuple(parts))

    def _end_of_part(self, segments: Sequence[Segment], start: int) -> int:
        """Take rows of one token while padding them alike costs less than another group would."""
        end, most = start + 1, self._blocks(segments[start])
        padding = 0
        while segments[start].num_new == 1 and end < len(segments) and segments[end].num_new == 1:
            blocks = self._blocks(segments[end])
            longest = max(most, blocks)
            padding += (longest - most) * (end - start) + longest - blocks
            if padding > self._padding_blocks or longest * (end + 1 - start) > self._group_blocks:
                break
            end, most = end + 1, longest
        return end

    def _blocks(self, segment: Segment) -> int:
        return self._layout.blocks_for(segment.context_tokens)

    def _group(self, first: int, segments: Sequence[Segment]) -> DecodeGroup:
        blocks = max(self._blocks(segment) for segment in segments)
        tokens = blocks * self._layout.block_size
        tables = np.empty((len(segments), blocks), dtype=np.int64)
        mask = np.zeros((len(segments), self._layout.num_kv_heads, 1, tokens), dtype=np.float32)
        for row, segment in enumerate(segments):
            used = self._blocks(segment)
            tables[row, :used] = segment.block_table[:used]
            # Padding reads the row's own numbers, never foreign ones.
            tables[row, used:] = segment.block_table[0]
            mask[row, ..., segment.context_tokens :] = -np.inf
        added = torch.from_numpy(mask).flatten(0, 1).to(self._dtype)
        return DecodeGroup(first, len(segments), tokens, self._index.runs(tables), added)

    def _chunk(self, first: int, segment: Segment) -> Chunk:
        start = segment.context_tokens - segment.num_new
        if start == 0:
            return Chunk(first, segment.num_new, 0, segment.num_new, None)
        blocks = self._blocks(segment)
        runs = self._index.runs(np.asarray(segment.block_table[:blocks], dtype=np.int64)[None])
        return Chunk(first, segment.num_new, start, blocks * self._layout.block_size, runs)
