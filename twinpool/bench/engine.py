"""How fast an engine is, alone: tokens a second of decode steps and of prefill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.batch import DecodeRow, PrefillChunk, SamplingRow
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.kernels.port import KernelFacts, KernelSettings
from twinpool.engine.runner import Engine
from twinpool.kv.storage import KvStorage
from twinpool.sampling.params import SamplingParams

BLOCK_TOKENS = 16
CHUNK_TOKENS = 256
"""Prompt tokens in a step, as workers have by default."""
_FEWEST_SAMPLES = 3
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Speed:
    """Median of `samples` tries. rows: of a decode step, or 1; tokens: of each context, or of a prompt."""

    rows: int
    tokens: int
    tokens_per_s: float
    samples: int


class EngineBench:
    """An engine with a cache for so many rows of so many tokens; nothing else is to use the machine."""

    def __init__(
        self, model: PreparedModel, dtype: str, settings: KernelSettings, *, most_rows: int, most_tokens: int
    ) -> None:
        layout = cache_layout(model.description, block_size=BLOCK_TOKENS, dtype=dtype)
        self._row_blocks = layout.blocks_for(most_tokens + 1)
        self._vocab_size = model.description.vocab_size
        self._engine = Engine.load(model, KvStorage(layout, most_rows * self._row_blocks), settings)
        self._engine.warm_up()

    @property
    def kernel(self) -> KernelFacts:
        """What computes."""
        return self._engine.kernel.facts

    def decode(self, num_rows: int, context_tokens: int, seconds: float) -> Speed:
        """Steps of so many rows, each after a context of so many tokens, whose numbers do not matter."""
        sample = SamplingRow(_GREEDY, 0, context_tokens + 1)
        rows = [DecodeRow(100 + row, context_tokens, self._table(row), sample) for row in range(num_rows)]
        return _measure(lambda: self._engine.decode(rows), num_rows, context_tokens, num_rows, seconds)

    def prefill(self, prompt_tokens: int, seconds: float) -> Speed:
        """One prompt at a time, in chunks as workers have them."""
        ids = [(7 * at + 100) % self._vocab_size for at in range(prompt_tokens)]
        sample = SamplingRow(_GREEDY, 0, prompt_tokens)
        chunks = [
            PrefillChunk(
                ids[start : start + CHUNK_TOKENS],
                start,
                self._table(0),
                sample if start + CHUNK_TOKENS >= prompt_tokens else None,
            )
            for start in range(0, prompt_tokens, CHUNK_TOKENS)
        ]

        def read() -> None:
            for chunk in chunks:
                self._engine.prefill([chunk])

        return _measure(read, 1, prompt_tokens, prompt_tokens, seconds)

    def _table(self, row: int) -> Sequence[int]:
        return range(row * self._row_blocks, (row + 1) * self._row_blocks)


def _measure(
    step: Callable[[], object], rows: int, tokens: int, tokens_of_step: int, seconds: float
) -> Speed:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < _FEWEST_SAMPLES or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return Speed(rows, tokens, tokens_of_step / median(took), len(took))
