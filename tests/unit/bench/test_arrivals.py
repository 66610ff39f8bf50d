"""When requests are due: the rate that was asked for, as bursty as asked, and the same for the same seed."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

import pytest

from twinpool.bench.arrivals import arrivals, traced_arrivals


def test_an_infinite_rate_is_all_at_once() -> None:
    assert arrivals(3, math.inf, 1.0, Random(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("burstiness", [0.3, 1.0, 5.0])
def test_the_mean_rate_is_exactly_the_one_asked_for(burstiness: float, seed: int) -> None:
    times = arrivals(500, 4.0, burstiness, Random(seed))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(125.0)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_a_gamma_distribution_of_that_shape_does(burstiness: float) -> None:
    times = arrivals(20_000, 1.0, burstiness, Random(1))
    gaps = [after - before for before, after in pairwise([0.0, *times])]
    assert fmean(gaps) == pytest.approx(1.0)
    assert pstdev(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_a_seed_decides() -> None:
    assert arrivals(9, 2.0, 1.0, Random(7)) == arrivals(9, 2.0, 1.0, Random(7))
    assert arrivals(9, 2.0, 1.0, Random(7)) != arrivals(9, 2.0, 1.0, Random(8))


def test_a_trace_keeps_its_times_but_for_the_speed() -> None:
    assert traced_arrivals([100.0, 101.0, 104.0], 2.0) == [0.0, 0.5, 2.0]
    assert traced_arrivals([], 2.0) == []
