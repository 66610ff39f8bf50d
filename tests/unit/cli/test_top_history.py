"""What `twinpool top` makes of two statuses and of many: rates, means, and cells over the last minutes."""

from __future__ import annotations

import pytest

from twinpool.cli.top_history import (
    WINDOW_S,
    History,
    Line,
    Measure,
    itl_s,
    queue_depth,
    requests_per_s,
    tokens_in_per_s,
    tokens_out_per_s,
    ttft_s,
)
from twinpool.client.status import QueueStatus, Status
from twinpool.totals import Totals

CELLS = 60
CELL_S = WINDOW_S / CELLS


def status(totals: Totals, queue: int = 0) -> Status:
    return Status("tiny", True, QueueStatus(queue, 10 * queue), queue, (), (), 0, totals=totals)


def seen(*states: Status, measure: Measure, interval_s: float = 1.0) -> Line:
    history = History(interval_s)
    for state in states:
        history.add(state)
    return history.line(measure, CELLS)


BEFORE = Totals(
    uptime_s=100.0,
    requests_admitted=10,
    first_tokens=10,
    ttft_sum_s=1.0,
    token_gaps=90,
    token_gap_sum_s=9.0,
    generation_tokens=100,
    prefill_tokens=1000,
)
AFTER = Totals(
    uptime_s=102.0,
    requests_admitted=13,
    first_tokens=14,
    ttft_sum_s=3.0,
    token_gaps=130,
    token_gap_sum_s=10.0,
    generation_tokens=144,
    prefill_tokens=1500,
)


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        (ttft_s, 0.5),
        (itl_s, 0.025),
        (tokens_out_per_s, 22.0),
        (tokens_in_per_s, 250.0),
        (requests_per_s, 1.5),
        (queue_depth, 4.0),
    ],
)
def test_two_statuses_make_means_and_rates(measure: Measure, value: float) -> None:
    line = seen(status(BEFORE, queue=9), status(AFTER, queue=4), measure=measure)
    assert line.now == pytest.approx(value)


@pytest.mark.parametrize("measure", [ttft_s, itl_s, tokens_out_per_s, queue_depth])
def test_one_status_makes_none(measure: Measure) -> None:
    assert seen(status(BEFORE), measure=measure) == Line(None, None, (None,) * CELLS)
    assert seen(measure=measure) == Line(None, None, (None,) * CELLS)


def test_a_mean_of_nothing_is_unknown_and_a_rate_of_nothing_zero() -> None:
    idle = (status(Totals(uptime_s=5.0)), status(Totals(uptime_s=7.0)))
    assert seen(*idle, measure=ttft_s).now is None
    assert seen(*idle, measure=tokens_out_per_s).now == 0.0


def test_a_second_router_begins_anew() -> None:
    line = seen(status(AFTER), status(Totals(uptime_s=1.0)), measure=tokens_out_per_s)
    assert line == Line(None, None, (None,) * CELLS)
    more = Totals(uptime_s=2.0, generation_tokens=7)
    line = seen(status(AFTER), status(Totals(uptime_s=1.0)), status(more), measure=tokens_out_per_s)
    assert line.now == line.most == 7.0


def test_now_is_the_last_seconds_and_cells_are_the_last_minutes() -> None:
    """Ten tokens a second for 150 s, then none for 60 s."""
    states = [
        status(Totals(uptime_s=float(second), generation_tokens=10 * min(second, 150)))
        for second in range(211)
    ]
    line = seen(*states, measure=tokens_out_per_s)
    assert line.now == 0.0
    assert line.most == 10.0
    busy = round((150 - (210 - WINDOW_S)) / CELL_S) - 1
    assert line.cells[:busy] == (10.0,) * busy
    assert set(line.cells[busy + 1 : -1]) == {0.0}


def test_cells_stay_what_they_were_as_time_goes_on() -> None:
    history, cells = History(1.0), []
    for second in range(300):
        history.add(status(Totals(uptime_s=float(second), generation_tokens=second**2)))
        cells.append(history.line(tokens_out_per_s, CELLS).cells)
    moved = round(6 / CELL_S)
    assert cells[-1][: -moved - 1] == cells[-7][moved:-1]


def test_a_short_queue_between_two_cells_ends_is_seen() -> None:
    states = [status(Totals(uptime_s=second / 2), queue=50 * (second == 101)) for second in range(120)]
    line = seen(*states, measure=queue_depth, interval_s=0.5)
    assert (line.now, line.most) == (0.0, 50.0)
    assert line.cells.count(50.0) == 1


def test_looks_far_apart_make_fewer_cells() -> None:
    states = [status(Totals(uptime_s=30.0 * number, generation_tokens=number)) for number in range(20)]
    line = seen(*states, measure=tokens_out_per_s, interval_s=30.0)
    assert [cell is None for cell in line.cells] == [True] * (CELLS - 3) + [False] * 3
    assert line.now == pytest.approx(1 / 30)


def test_what_is_too_old_to_be_shown_is_forgotten() -> None:
    history = History(1.0)
    for second in range(2000):
        history.add(status(Totals(uptime_s=float(second))))
    assert len(history._looks) < 3 * WINDOW_S
