"""When a client that found the queue full is told to come back."""

from __future__ import annotations

import pytest

from router.dispatch.drain_rate import GUESS_S, LEAST_S, MARGIN, MOST_S, NUM_GAPS, DrainRate


def draining(*gaps: float) -> tuple[DrainRate, float]:
    """A queue that has drained at these gaps, over and over, and the time of its last start."""
    rate, now = DrainRate(), 100.0
    rate.started(now, waiting=True)
    for index in range(NUM_GAPS):
        now += gaps[index % len(gaps)]
        rate.started(now, waiting=True)
    return rate, now


def test_before_anything_is_known_it_is_a_guess() -> None:
    assert DrainRate().retry_after_s(0.0, 1) == MARGIN * GUESS_S


def test_by_then_a_request_has_left_even_after_the_longest_gap_of_late() -> None:
    rate, now = draining(0.0, 0.0, 0.0, 2.0)
    assert rate.retry_after_s(now, 1) == MARGIN * 2.0


def test_a_place_further_away_takes_a_mean_gap_for_each_start_more() -> None:
    rate, now = draining(0.5, 1.5)
    assert rate.retry_after_s(now, 4) == MARGIN * 1.5 + 3 * 1.0


def test_a_queue_that_stands_still_makes_the_time_longer() -> None:
    rate, now = draining(0.1)
    assert rate.retry_after_s(now + 8.0, 1) == pytest.approx(MARGIN * 8.0)
    assert rate.retry_after_s(now + 1000.0, 1) == MOST_S


def test_the_time_of_an_empty_queue_is_no_gap() -> None:
    rate, now = draining(0.25)
    rate.started(now + 0.25, waiting=False)
    rate.started(now + 500.0, waiting=True)
    assert rate.retry_after_s(now + 500.0, 1) == MARGIN * 0.25


def test_a_very_fast_queue_still_leaves_clients_a_moment() -> None:
    rate, now = draining(0.001)
    assert rate.retry_after_s(now, 1) == LEAST_S
