"""The random choice of one token: counter-based numbers, and the race of tokens that they decide.

What draws mean is defined here; native kernels compute the same, several times faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinpool.engine.batch import SamplingRow
from twinpool.sampling.params import SamplingParams

_MASK64 = (1 << 64) - 1


def uniforms(seed: int, choice_index: int, position: int, size: int) -> NDArray[np.float64]:
    """The random numbers in (0, 1] for one token, as many as may be drawn: a function of its arguments alone.

    Philox4x64-10 with key (seed, choice) and counters (1, position), (2, position), ..., of four numbers each
    (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), so that a resumed choice draws what
    an undisturbed one would have drawn.
    """
    key = np.array([seed & _MASK64, choice_index], dtype=np.uint64)
    counter = np.array([0, position, 0, 0], dtype=np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(size)
    return np.asarray((raw >> np.uint64(11)) + np.uint64(1), dtype=np.float64) * 2.0**-53


def draw_token(logits: NDArray[np.float32], row: SamplingRow) -> int:
    """The next token of a row; logits is `[vocab_size]`. Raises ValueError where none is a number."""
    if np.isnan(logits).all():
        raise ValueError("no logit is a number")
    if row.params.temperature == 0:
        # numpy's argmax takes a tenth of the time of torch's, and promises the first of equals.
        return int(np.nanargmax(logits))
    numbers = uniforms(row.params.seed, row.choice_index, row.position, len(logits))
    return draw(logits.astype(np.float64), row.params, numbers)


def draw(logits: NDArray[np.float64], params: SamplingParams, numbers: NDArray[np.float64]) -> int:
    """The token that comes first, where each comes after -log(number) / weight: it has its weight's share.

    logits, numbers: `[vocab_size]`. Temperature (above 0) comes first, then min-p, top-k and top-p, each over
    what is left; vLLM's order. The race is the Gumbel-max trick (Maddison et al., "A* sampling", NIPS'14).
    Inverting the cumulative distribution would need one number, and would shift every later token's share by
    the rounding of all before it: a resumed choice, whose cache was computed in another order, would soon
    draw another token.
    """
    weights = np.exp((logits - logits.max()) / params.temperature)
    if params.min_p > 0:
        # The likeliest token weighs 1 (Nguyen et al., "Turning up the heat: min-p sampling", ICLR'25).
        weights[weights < params.min_p] = 0.0
    if 0 < params.top_k < weights.size:
        threshold = np.partition(weights, -params.top_k)[-params.top_k]
        _keep_largest(weights, params.top_k, threshold)
    if params.top_p < 1.0:
        _keep_nucleus(weights, params.top_p)
    # The likeliest token, of weight 1, sets a time to beat. As -log(u) >= 1 - u, few need a logarithm.
    time_to_beat = -np.log(numbers[weights.argmax()])
    fast = np.flatnonzero(1.0 - numbers <= weights * time_to_beat)
    fast = fast[weights[fast] > 0]
    with np.errstate(over="ignore"):
        times = -np.log(numbers[fast]) / weights[fast]
    return int(fast[times.argmin()])


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
