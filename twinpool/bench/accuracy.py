"""How far narrow weights move what a model says: against the same model in float32, over a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.kernels.port import KernelSettings, Segment
from twinpool.engine.runner import Engine
from twinpool.kv.storage import KvStorage

PROSE = Path(__file__).with_name("prose.txt")
"""A text of some 600 tokens, the same for everybody."""
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of one format. kernels: what computed it.

    divergence: mean Kullback-Leibler divergence of the next token's distribution from float32's, in nats.
    agreement: share of positions where the likeliest token is float32's. perplexity: of the text.
    """

    kernels: str
    divergence: float
    agreement: float
    perplexity: float


def log_probabilities(
    model: PreparedModel, dtype: str, settings: KernelSettings, token_ids: Sequence[int]
) -> tuple[str, NDArray[np.float64]]:
    """What computed, and the next token's log-probabilities after each token, `[tokens, vocab_size]`."""
    layout = cache_layout(model.description, block_size=_BLOCK_TOKENS, dtype=dtype)
    num_blocks = layout.blocks_for(len(token_ids))
    engine = Engine.load(model, KvStorage(layout, num_blocks), settings)
    whole = Segment(len(token_ids), len(token_ids), range(num_blocks))
    logits = engine.kernel.step(token_ids, [whole], range(len(token_ids))).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return f"{engine.kernel.facts}, cache in {dtype}", logits


def accuracy_of(
    kernels: str,
    ours: NDArray[np.float64],
    reference: NDArray[np.float64],
    token_ids: Sequence[int],
) -> Accuracy:
    """Compare log-probabilities after each token of a text with those of the reference."""
    divergence = (np.exp(reference) * (reference - ours)).sum(axis=1).mean()
    agreement = (ours.argmax(axis=1) == reference.argmax(axis=1)).mean()
    likelihood = ours[np.arange(len(token_ids) - 1), token_ids[1:]].mean()
    return Accuracy(kernels, float(divergence), float(agreement), float(np.exp(-likelihood)))
