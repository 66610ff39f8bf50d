"""The table of our engine beside others: medians, ratios, and engines that have no figures."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from benchmarks.peers.table import Contestant, figures, limits, table
from benchmarks.peers.watched import watched

pytestmark = pytest.mark.unit


def printed(one: float, sixteen: float, prompt: float) -> dict[str, Any]:
    """What a driver prints."""
    return {
        "decode": [
            {"batch": 1, "context": 64, "tokens_per_s": one},
            {"batch": 16, "context": 544, "tokens_per_s": sixteen},
        ],
        "prefill": [{"prompt": 512, "tokens_per_s": prompt}],
        "threads": 2,
    }


def contestant(name: str, *runs: tuple[float, float, float], ours: bool = False) -> Contestant:
    return Contestant(name, ours, [figures(printed(*run)) for run in runs], others_cpu=0.04)


def test_the_ratio_is_of_medians_and_of_the_best_peer_for_each_figure() -> None:
    ours = contestant("ours", (90, 200, 1000), (120, 300, 1100), (100, 900, 1050), ours=True)
    alone = contestant("ours, 1 thread", (500, 500, 500), ours=True)
    low = contestant("low", (50, 600, 100))
    high = contestant("high", (80, 400, 4200))
    assert table([ours, alone, low, high]).splitlines() == [
        "| tokens/s | 1 row after 64 | 16 rows after 544 | prefill of 512 | others' CPU |",
        "| --- | --- | --- | --- | --- |",
        "| ours | 100 | 300 | 1,050 | 4% |",
        "| ours, 1 thread | 500 | 500 | 500 | 4% |",
        "| low | 50 | 600 | 100 | 4% |",
        "| high | 80 | 400 | 4,200 | 4% |",
        "| ours ÷ best peer | 1.25 | 0.50 | 0.25 |  |",
    ]


def test_a_peer_that_failed_is_named_with_its_reason_and_compared_with_nothing() -> None:
    ours = contestant("ours", (100, 300, 1050), ours=True)
    lines = table([ours, Contestant("vllm", failure="did not finish within 340 s")]).splitlines()
    assert lines[3:] == ["| ours ÷ best peer | – | – | – |  |", "", "vllm: did not finish within 340 s"]


def test_a_peer_that_failed_in_a_later_round_keeps_its_figures() -> None:
    ours = contestant("ours", (100, 300, 1000), ours=True)
    other = contestant("other", (50, 600, 2000))
    other.failure = "did not finish within 340 s"
    text = table([ours, other])
    assert "| ours ÷ best peer | 2.00 | 0.50 | 0.50 |" in text
    assert text.endswith("\n\nother: did not finish within 340 s")


def test_limits_are_medians_by_number_of_threads() -> None:
    rounds = [
        {
            "limits": [
                {"threads": 1, "read_gb_per_s": read, "products_g_per_s": 50.0},
                {"threads": 2, "read_gb_per_s": 2 * read, "products_g_per_s": 100.0},
            ]
        }
        for read in (10.0, 14.0, 30.0)
    ]
    assert limits(rounds).splitlines() == [
        "1 thread: memory read at 14.0 GB/s, 50.0 billion float32 products/s",
        "2 threads: memory read at 28.0 GB/s, 100.0 billion float32 products/s",
    ]


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("print('warming up'); print('{\"threads\": 2}')", {"result": {"threads": 2}}),
        ("print('nothing')", {"failure": "printed no result"}),
        ("raise SystemExit('no such model')", {"failure": "ended with 1: no such model"}),
    ],
)
def test_a_watched_program_gives_its_last_json_line_or_its_reason(
    program: str, outcome: dict[str, Any]
) -> None:
    found = watched([sys.executable, "-c", program], 60)
    assert 0 <= found.pop("others_cpu") <= 1
    assert found == outcome


def test_a_program_that_does_not_end_is_killed() -> None:
    endless = "import threading; threading.Event().wait()"
    assert watched([sys.executable, "-c", endless], 0.2)["failure"] == "did not finish within 0.2 s"
