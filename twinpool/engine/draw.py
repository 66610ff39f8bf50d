"""The random choice of one token: a counter-based number, and the distribution that it inverts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinpool.types import RowParams

_MASK64 = (1 << 64) - 1


def uniform(seed: int, choice_index: int, position: int) -> float:
    """The random number in [0, 1) for one token: a function of its arguments alone.

    Philox4x64-10 with key (seed, choice) and counter position + 1 (Salmon et al., "Parallel random numbers:
    as easy as 1, 2, 3", SC'11), so that a resumed choice draws what an undisturbed one would have drawn.
    """
    key = np.array([seed & _MASK64, choice_index], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    raw = int(np.random.Philox(key=key, counter=counter).random_raw())
    return (raw >> 11) * 2.0**-53


def draw(logits: NDArray[np.float64], params: RowParams, number: float) -> int:
    """Invert the cumulative distribution, taken in order of token ids, at number in [0, 1).

    logits: `[vocab_size]`. Temperature (above 0) comes first, then top-k, then top-p over what top-k kept.
    """
    weights = np.exp((logits - logits.max()) / params.temperature)
    if 0 < params.top_k < weights.size:
        threshold = np.partition(weights, -params.top_k)[-params.top_k]
        _keep_largest(weights, params.top_k, threshold)
    if params.top_p < 1.0:
        _keep_nucleus(weights, params.top_p)
    cumulative = np.cumsum(weights)
    # The first sum above the number's share, so that a token of weight 0 is never drawn.
    index = int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
    # The share may round up to the whole sum.
    return index if index < weights.size else int(np.flatnonzero(weights)[-1])


def _keep_nucleus(weights: NDArray[np.float64], top_p: float) -> None:
    """Set to 0 all but the smallest set of largest weights whose share reaches top_p; one always stays.

    Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    total = weights.sum()
    # Weights below this add up to less than the share that is cut, so the nucleus lies above: a short sort.
    # The largest weight is 1, and stays whatever the rounding.
    candidates = weights[weights >= min((1.0 - top_p) * total / weights.size, 1.0)]
    descending = np.sort(candidates)[::-1]
    count = int(np.searchsorted(np.cumsum(descending), top_p * total)) + 1
    count = min(count, descending.size)
    _keep_largest(weights, count, descending[count - 1])


def _keep_largest(weights: NDArray[np.float64], count: int, threshold: float) -> None:
    """Set to 0 all but the count largest weights, the smallest of which is threshold; lowest ids win ties."""
    above = int(np.count_nonzero(weights > threshold))
    ties = np.flatnonzero(weights == threshold)
    weights[weights < threshold] = 0.0
    weights[ties[count - above :]] = 0.0
