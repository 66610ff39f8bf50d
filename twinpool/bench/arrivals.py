"""When requests are sent, as seconds since a run began, known before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from random import Random


def arrivals(count: int, rate: float, burstiness: float, rng: Random) -> list[float]:
    """Times of a renewal process whose gaps are gamma-distributed, as `vllm bench serve` draws them.

    rate: requests a second; infinite: all at once. burstiness: the gamma distribution's shape; 1 is a Poisson
    process, less is burstier, more is more even. The last request comes at count / rate whatever was drawn,
    so that runs of different seeds offer the same load.
    """
    if math.isinf(rate):
        return [0.0] * count
    times = list(accumulate(rng.gammavariate(burstiness, 1.0) for _ in range(count)))
    return [time * (count / rate) / times[-1] for time in times]


def traced_arrivals(at_s: Sequence[float], speed: float) -> list[float]:
    """A trace's own times from its first request on, so many times as fast."""
    first = min(at_s, default=0.0)
    return [(time - first) / speed for time in at_s]
