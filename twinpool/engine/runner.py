"""The engine of one worker: turns chunks and rows into tokens over the worker's own cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.batch import DecodeRow, PrefillChunk, SamplingRow
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.kernels.load import load_kernel
from twinpool.engine.kernels.port import KernelSettings, Segment, StepKernel
from twinpool.errors import ModelSourceError
from twinpool.kv.storage import KvStorage
from twinpool.sampling.params import SamplingParams
from twinpool.types import Token

_WARM_UP_TOKENS = 16
"""Of each of two chunks."""


class Engine:
    """Computes steps in the caller's thread, one at a time.

    It owns the weights, and writes into blocks of the storage that the caller lists and owns. Inputs are
    trusted: the router has checked ids, lengths and block tables before.
    """

    def __init__(self, kernel: StepKernel, storage: KvStorage) -> None:
        self.kernel = kernel
        self.storage = storage

    @classmethod
    def load(
        cls,
        model: PreparedModel,
        storage: KvStorage,
        settings: KernelSettings | None = None,
        layers_computed: ctypes.c_int64 | None = None,
    ) -> Self:
        """Read the weights: in float32 where the storage is, else as the settings say.

        layers_computed: raised after each layer of a step. In float32, kernels are exact without being told.
        Raises ModelSourceError where the weights are damaged, or the storage is not for this model.
        """
        layout = storage.layout
        if layout != cache_layout(model.description, block_size=layout.block_size, dtype=layout.dtype):
            raise ModelSourceError(f"a cache of {layout} does not fit model {model.name}")
        settings = settings or KernelSettings()
        if layout.dtype == "float32":
            settings = replace(settings, exact=True)
        computed = ctypes.c_int64() if layers_computed is None else layers_computed
        return cls(load_kernel(model, storage, settings, computed), storage)

    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Token | None]:
        """Compute chunks of different prompts; returns each one's token, None where `sample` is None."""
        segments = [
            Segment(len(chunk.token_ids), chunk.start + len(chunk.token_ids), chunk.block_table)
            for chunk in chunks
        ]
        samples = [chunk.sample for chunk in chunks]
        return self._step([token for chunk in chunks for token in chunk.token_ids], segments, samples)

    def decode(self, rows: Sequence[DecodeRow]) -> list[Token]:
        """Compute one decode step; returns one token per row, in the rows' order."""
        # Rows of like length are attended together where they are neighbours.
        order = sorted(range(len(rows)), key=lambda index: rows[index].position)
        batch = [rows[index] for index in order]
        segments = [Segment(1, row.position + 1, row.block_table) for row in batch]
        logits = self.kernel.step([row.token_id for row in batch], segments, range(len(batch)))
        tokens = dict(zip(order, self.kernel.draw(logits, [row.sample for row in batch]), strict=True))
        return [Token(tokens[index]) for index in range(len(rows))]

    def warm_up(self) -> None:
        """Run prefill and decode steps on the first blocks, which must be free; no result is kept.

        The first steps of a process are slow: libraries choose kernels, and buffers are allocated. Few tokens
        do: after 32 a step of 256 takes as long as after 256, which took 1.1 s to read, and in bfloat16 7 s.
        """
        layout, num_blocks = self.storage.layout, self.storage.num_blocks
        half = min(_WARM_UP_TOKENS, (num_blocks * layout.block_size - 1) // 2)
        table = range(layout.blocks_for(2 * half + 1))
        row = SamplingRow(SamplingParams(max_tokens=1, temperature=0.0), 0, 2 * half + 1)
        if half:
            self.prefill([PrefillChunk([0] * half, 0, table)])
            self.prefill([PrefillChunk([0] * half, half, table, row)])
        self.decode([DecodeRow(0, 2 * half, table, row)] * 2)

    def _step(
        self,
        token_ids: Sequence[int],
        segments: Sequence[Segment],
        samples: Sequence[SamplingRow | None],
    ) -> list[Token | None]:
        wanted, ends, end = [], [], 0
        for segment, row in zip(segments, samples, strict=True):
            end += segment.num_new
            if row is not None:
                wanted.append(row)
                ends.append(end - 1)
        tokens = iter(self.kernel.draw(self.kernel.step(token_ids, segments, ends), wanted))
        return [None if row is None else Token(next(tokens)) for row in samples]
