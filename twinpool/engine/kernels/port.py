"""The port through which an engine has its steps computed: one call for the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinpool.engine.batch import SamplingRow
from twinpool.engine.kernels.cores import SharedCores


@dataclass(frozen=True, slots=True)
class Segment:
    """One sequence's share of a step.

    num_new: its rows in the flat batch, consecutive; their positions end at context_tokens - 1.
    context_tokens: tokens in the cache once the step has written.
    block_table: block ids in order, enough for context_tokens.
    """

    num_new: int
    context_tokens: int
    block_table: Sequence[int]


def fresh_blocks(segments: Sequence[Segment], block_size: int) -> list[int]:
    """Blocks that a step starts to fill and does not fill to the end.

    It clears them, so that nothing of a former owner is left in what becomes a request's cache.
    """
    fresh = []
    for segment in segments:
        last = (segment.context_tokens - 1) // block_size
        starts_here = last * block_size >= segment.context_tokens - segment.num_new
        if starts_here and segment.context_tokens % block_size:
            fresh.append(segment.block_table[last])
    return fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings:
    """How a model is to be computed; see `EngineConfig`, whose fields these are, but for the threads.

    threads: to compute with, at most. cores: where native kernels see how many others leave them.
    exact: a row's bits may not depend on the rows it is computed with.
    """

    weights: str = "auto"
    kernels: str = "auto"
    threads: int = 1
    exact: bool = False
    cores: SharedCores | None = None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What computes, in words for people and for comparison.

    name: such as `native avx2`. weights: the format of the layers' matrices.
    revision: equal for kernels that compute the same numbers but for rounding.
    """

    name: str
    weights: str
    revision: str

    def __str__(self) -> str:
        return f"{self.name}, {self.weights}"


class StepKernel(Protocol):
    """Computes steps of one model over one cache, as the model's description says; called by one thread."""

    @property
    def facts(self) -> KernelFacts:
        """What this kernel is."""
        ...

    def step(
        self, token_ids: Sequence[int], segments: Sequence[Segment], logit_rows: Sequence[int]
    ) -> NDArray[np.float32]:
        """Compute one step and write its keys and values into the cache.

        token_ids: flat, segment after segment. logit_rows: those whose logits are wanted, ascending.
        Returns `[len(logit_rows), vocab_size]`, never rounded below float32, whatever the weights' format is.
        """
        ...

    def draw(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[int]:
        """Draw one token per row of logits `[len(rows), vocab_size]`, as `twinpool.engine.draw` defines it.

        Temperature 0 takes the most likely token, among equals the one of lowest id. A row's token depends on
        its own logits, parameters, choice and position alone, never on other rows.
        Raises ValueError where none of a row's logits is a number.
        """
        ...
