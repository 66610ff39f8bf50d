"""Figures of a run, against values computed by hand."""

from __future__ import annotations

from math import sqrt

import pytest

from tests.support.bench_records import FAILED, ONE_TOKEN, RECORDS, THREE_TOKENS, UNFINISHED
from twinpool.bench.metrics import (
    Effort,
    Spread,
    latencies,
    measure,
    meets,
    most_at_once,
    percentile,
    spread,
    tokens_by_time,
)
from twinpool.bench.records import Answer, Answered, Record, answer_of

EFFORT = Effort(duration_s=8.0, cpu_s=0.002)


def test_latencies_of_one_answer() -> None:
    assert answer_of(THREE_TOKENS) == Answer(ttft_s=1.0, e2el_s=4.0, tpot_s=1.5, itls_s=[1.0, 2.0])
    assert answer_of(ONE_TOKEN) == Answer(ttft_s=2.0, e2el_s=2.0, tpot_s=None, itls_s=[])
    assert answer_of(FAILED) is answer_of(UNFINISHED) is None


def test_tokens_are_counted_by_the_server_and_not_by_chunks() -> None:
    two_chunks = Record(0.0, 0.0, 0.0, [1.0, 2.0], 3.0, Answered(1, 5))
    answer = answer_of(two_chunks)
    assert answer is not None
    assert answer.tpot_s == 0.5
    assert tokens_by_time([two_chunks], 1.0) == [0.0, 2.5, 2.5]


def test_an_answer_without_a_chunk_has_its_first_token_at_its_end() -> None:
    assert answer_of(Record(0.0, 0.0, 1.0, [], 3.0, Answered(1, 1))) == Answer(2.0, 2.0, None, [])


def test_counts_and_rates() -> None:
    metrics = measure(RECORDS, EFFORT, (50,), {})
    assert (metrics.completed, metrics.failed, metrics.unfinished) == (2, 1, 2)
    assert (metrics.total_input_tokens, metrics.total_output_tokens) == (30, 4)
    assert (metrics.request_throughput, metrics.output_throughput) == (0.25, 0.5)
    assert metrics.total_token_throughput == 34 / 8
    assert metrics.request_goodput is None
    assert metrics.max_concurrent_requests == 3
    # Of the seconds from 4 to 5 and from 5 to 6: one chunk of one token each.
    assert metrics.max_output_tokens_per_s == 1.0
    assert metrics.cpu_us_per_token == pytest.approx(500.0)
    assert metrics.cpu_share == 0.00025
    assert metrics.late_ms is not None
    assert metrics.late_ms.percentiles[100] == 500.0


def test_spreads_leave_out_what_is_not_defined() -> None:
    spreads = measure(RECORDS, EFFORT, (50, 90), {}).spreads
    assert spreads["ttft"] == Spread(1500.0, 1500.0, 500.0, {50: 1500.0, 90: 1900.0})
    assert spreads["tpot"] == Spread(1500.0, 1500.0, 0.0, {50: 1500.0, 90: 1500.0})
    assert spreads["itl"] == Spread(1500.0, 1500.0, 500.0, {50: 1500.0, 90: 1900.0})
    assert spreads["e2el"] == Spread(3000.0, 3000.0, 1000.0, {50: 3000.0, 90: 3800.0})
    assert measure([ONE_TOKEN], EFFORT, (50,), {}).spreads["tpot"] is None


@pytest.mark.parametrize(
    ("objectives", "good"),
    [
        ({"ttft": 1000.0}, 1),
        ({"ttft": 999.9}, 0),
        ({"ttft": 2000.0}, 2),
        ({"tpot": 1.0}, 1),  # an answer of one token has none to be too slow
        ({"tpot": 1500.0, "e2el": 3999.0}, 1),
        ({"itl": 1999.0}, 1),  # one gap is longer
        ({"itl": 2000.0}, 2),
    ],
)
def test_goodput_counts_answers_that_meet_every_objective(objectives: dict[str, float], good: int) -> None:
    assert measure(RECORDS, EFFORT, (50,), objectives).request_goodput == good / 8


def test_an_objective_is_for_each_gap() -> None:
    answer = Answer(0.0, 3.0, 1.0, [0.5, 2.5])
    assert not meets(answer, {"itl": 2000.0})
    assert meets(answer, {"itl": 2500.0, "tpot": 1000.0})
    assert latencies([answer], "itl") == [500.0, 2500.0]


def test_percentiles_are_between_neighbours() -> None:
    assert [percentile([1.0, 2.0, 4.0], percent) for percent in (0, 25, 50, 75, 100)] == [1, 1.5, 2, 3, 4]
    assert percentile([7.0], 99) == 7.0
    assert spread([4.0, 1.0, 1.0], (50,)) == Spread(2.0, 1.0, sqrt(2), {50: 1.0})
    assert spread([], (50,)) is None


def test_one_that_ends_as_another_is_sent_is_over() -> None:
    assert most_at_once([Record(0, sent_s=0.0, ended_s=1.0), Record(1, sent_s=1.0, ended_s=2.0)]) == 1
    assert most_at_once([]) == 0


def test_a_run_of_nothing_has_no_figures() -> None:
    metrics = measure([Record(0.0)], Effort(0.0, 0.0), (50,), {"ttft": 1.0})
    assert (metrics.completed, metrics.request_throughput, metrics.request_goodput) == (0, 0.0, 0.0)
    assert metrics.cpu_us_per_token is None
    assert metrics.late_ms is None
