"""The port through which an engine has its steps computed: one call for the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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


class StepKernel(Protocol):
    """Computes the steps of one model over one cache, as the model's description says; in one thread."""

    def step(
        self, token_ids: Sequence[int], segments: Sequence[Segment], logit_rows: Sequence[int]
    ) -> NDArray[np.float32]:
        """Compute one step and write its keys and values into the cache.

        token_ids: flat, segment after segment. logit_rows: rows of the batch whose logits are wanted.
        Returns `[len(logit_rows), vocab_size]`, never rounded below float32, whatever the weights' format is.
        """
        ...
