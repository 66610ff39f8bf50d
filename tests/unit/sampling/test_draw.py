"""Tokens are drawn from the right distribution, by numbers that depend on seed, choice and position alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinpool.engine.draw import draw, uniforms
from twinpool.sampling.params import SamplingParams

Logits = NDArray[np.float64]

LOGITS = st.lists(st.floats(-50, 50), min_size=1, max_size=40).map(np.array)
SEEDS = st.integers(0, 2**64 - 1)


def numbers_for(logits: Logits, seed: int, position: int = 0) -> Logits:
    return uniforms(seed, 0, position, logits.size)


def params(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


def softmax(logits: Logits, temperature: float) -> Logits:
    weights = np.exp((logits - logits.max()) / temperature)
    return np.asarray(weights / weights.sum())


def kept_by_definition(
    logits: Logits, temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> set[int]:
    """The ids that may be drawn, by sorting and adding one after another."""
    shares = softmax(logits, temperature)
    order = sorted(range(len(shares)), key=lambda token: (-shares[token], token))
    order = [token for token in order if shares[token] >= min_p * shares.max()]
    if top_k:
        order = order[:top_k]
    goal = top_p * math.fsum(shares[order]) if top_p < 1 else math.inf
    kept: list[int] = []
    for token in order:
        kept.append(token)
        if math.fsum(shares[kept]) >= goal:
            break
    return set(kept)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x64-10 as the paper defines it."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c2, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
    return c0, c1, c2, c3


def test_the_oracle_gives_the_known_answer_of_its_authors() -> None:
    assert philox((0, 0, 0, 0), (0, 0))[:2] == (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC)


@given(SEEDS, st.integers(0, 100), st.integers(0, 100_000))
def test_numbers_are_the_generators(seed: int, choice: int, position: int) -> None:
    # numpy steps the counter before it draws. A change here would break every seed that a user wrote down.
    raw = [*philox((1, position, 0, 0), (seed, choice)), *philox((2, position, 0, 0), (seed, choice))]
    assert list(uniforms(seed, choice, position, 7)) == [((each >> 11) + 1) * 2.0**-53 for each in raw[:7]]


@given(SEEDS, st.integers(0, 100), st.integers(0, 100_000))
def test_numbers_lie_in_the_unit_interval_and_repeat(seed: int, choice: int, position: int) -> None:
    numbers = uniforms(seed, choice, position, 100)
    assert (numbers > 0).all()
    assert (numbers <= 1).all()
    assert (uniforms(seed, choice, position, 100) == numbers).all()


def test_seed_choice_and_position_each_change_the_numbers() -> None:
    numbers = {
        number for s in range(12) for c in range(12) for p in range(12) for number in uniforms(s, c, p, 8)
    }
    assert len(numbers) == 12**3 * 8


def test_numbers_are_uniform() -> None:
    numbers = [uniforms(seed, 0, position, 10) for seed in range(20) for position in range(20)]
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    expected = counts.sum() / 20
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 43.8  # 0.1 % of uniform samples exceed it at 19 degrees of freedom.


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 4, 1.0), (1.5, 0, 0.8)])
def test_frequencies_follow_the_distribution(temperature: float, top_k: int, top_p: float) -> None:
    logits = np.array([0.3, 2.0, -1.0, 1.5, 1.1, 0.0, 1.5, -3.0])
    kept = sorted(kept_by_definition(logits, temperature, top_k, top_p))
    shares = softmax(logits, temperature)[kept]
    shares /= shares.sum()
    drawn = [
        draw(logits, params(temperature, top_k, top_p), numbers_for(logits, 5, at)) for at in range(4000)
    ]
    counts = np.array([drawn.count(token) for token in kept])
    assert counts.sum() == len(drawn)
    chi_square = float(((counts - shares * 4000) ** 2 / (shares * 4000)).sum())
    assert chi_square < 24.4  # 0.1 % at 7 degrees of freedom, and less often at fewer.


@given(LOGITS, SEEDS, st.floats(0.1, 10), st.integers(0, 45), st.floats(0.01, 1), st.floats(0, 1))
def test_only_kept_tokens_are_drawn(
    logits: Logits, seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    token = draw(logits, params(temperature, top_k, top_p, min_p), numbers_for(logits, seed))
    # The set's edges may fall on either side of a rounding.
    nearly = min(1.0, top_p + 1e-9)
    assert token in kept_by_definition(logits, temperature, top_k, nearly, min_p * (1 - 1e-9))


def test_min_p_is_a_share_of_the_likeliest_and_comes_before_the_others() -> None:
    logits = np.log(np.array([0.5, 0.2, 0.15, 0.1, 0.05]))

    def drawn(**limits: float) -> set[int]:
        return {
            draw(logits, params(**limits), numbers_for(logits, 1, at))  # type: ignore[arg-type]
            for at in range(300)
        }

    assert drawn(min_p=0.25) == {0, 1, 2}
    assert drawn(min_p=0.39) == {0, 1}
    # The nucleus is one of what min-p keeps: 0.85 of all of it, which 0.7 reaches.
    assert drawn(min_p=0.25, top_p=0.82) == {0, 1}
    assert drawn(top_p=0.82) == {0, 1, 2}
    assert drawn(min_p=0.25, top_k=4) == {0, 1, 2}


@given(LOGITS, SEEDS, st.floats(1e-3, 1e3))
def test_one_kept_token_is_the_greedy_one(logits: Logits, seed: int, temperature: float) -> None:
    shares = softmax(logits, temperature)
    likeliest = int(np.argmax(shares))
    numbers = numbers_for(logits, seed)
    assert draw(logits, params(temperature, top_k=1), numbers) == likeliest
    assert draw(logits, params(temperature, top_p=1e-12), numbers) == likeliest
    assert shares[draw(logits, params(temperature, min_p=1.0), numbers)] == shares.max()


def test_logits_rounded_otherwise_draw_the_same_token() -> None:
    """As those of a resumed choice are, whose cache was computed in another order."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 3, (200, 20_000))
    others = logits + random.normal(0, 5e-5, logits.shape)
    numbers = [numbers_for(row, 5, position) for position, row in enumerate(logits)]
    drawn = [draw(row, params(), each) for row, each in zip(logits, numbers, strict=True)]
    assert [draw(row, params(), each) for row, each in zip(others, numbers, strict=True)] == drawn
    assert len(set(drawn)) > 100


@given(LOGITS, SEEDS, st.sampled_from([5e-324, 1e-300, 1e-30, 1e30, 1e300]), st.sampled_from([1.0, 0.5]))
def test_extreme_temperatures_draw_a_token(
    logits: Logits, seed: int, temperature: float, top_p: float
) -> None:
    with np.errstate(all="raise", under="ignore", over="ignore"):
        token = draw(logits, params(temperature, top_p=top_p), numbers_for(logits, seed))
    assert 0 <= token < len(logits)
    if temperature < 1e-29:
        assert logits[token] == pytest.approx(logits.max())


@pytest.mark.parametrize("number", [2.0**-53, 0.5, 1.0])
def test_a_token_without_weight_is_never_drawn(number: float) -> None:
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    for others in (2.0**-53, 0.5, 1.0):
        assert draw(logits, params(), np.array([others, number, others, others, others])) in (1, 3)


def test_ties_at_the_edge_keep_the_lowest_ids() -> None:
    logits = np.zeros(10)
    drawn = {draw(logits, params(top_k=3), numbers_for(logits, 1, at)) for at in range(200)}
    assert drawn == {0, 1, 2}
    drawn = {draw(logits, params(top_p=0.35), numbers_for(logits, 1, at)) for at in range(200)}
    assert drawn == {0, 1, 2, 3}
    assert draw(np.full(1001, 0.1), params(top_p=5e-324), np.full(1001, 0.9)) == 0
