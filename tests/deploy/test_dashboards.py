"""Committed dashboards and metrics page are what the code makes, and ask for nothing that is not there."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from router.telemetry.metrics import Metrics
from scripts import make_dashboards, make_metrics_docs
from scripts.dashboards.grafana import DATASOURCE, GRID_COLUMNS
from scripts.metrics_catalogue import PROCESS, catalogue, queryable
from tests.support.deploy.promql import problems

BOARDS: dict[str, dict[str, Any]] = {
    path.name: json.loads(text) for path, text in make_dashboards.render().items()
}
KNOWN = queryable()


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str, str]]:
    """(where, expression, legend) of everything that a dashboard asks Prometheus for."""
    for name, board in BOARDS.items():
        for panel in panels(board):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"], target["legendFormat"]
        for note in board["annotations"]["list"]:
            yield f"{name}: {note['name']}", note["expr"], note["titleFormat"]
        for variable in board["templating"]["list"]:
            if query := re.fullmatch(r"label_values\((.+), (\w+)\)", variable.get("definition", "")):
                yield f"{name}: ${variable['name']}", query[1], f"{{{{{query[2]}}}}}"


def test_the_committed_dashboards_are_those_that_the_code_makes() -> None:
    stale = [path.name for path, text in make_dashboards.render().items() if path.read_text() != text]
    assert not stale, "run 'make metrics'"
    assert {path.name for path in make_dashboards.FOLDER.glob("*.json")} == set(BOARDS)


def test_the_committed_page_lists_the_metrics_that_the_code_shows() -> None:
    assert make_metrics_docs.PATH.read_text() == make_metrics_docs.render(), "run 'make metrics'"


@pytest.mark.parametrize(("where", "expr", "legend"), [*queries()])
def test_a_dashboard_asks_for_nothing_that_is_not_there(where: str, expr: str, legend: str) -> None:
    assert not problems(expr, KNOWN, legend)


@pytest.mark.parametrize(
    ("expr", "legend", "problem"),
    [
        ("twinpool_no_such_total", "", "there is no metric twinpool_no_such_total"),
        ("twinpool_requests", "", "there is no metric twinpool_requests"),
        ("twinpool_handoff_seconds", "", "there is no metric twinpool_handoff_seconds"),
        ("process_no_such", "", "there is no metric process_no_such"),
        ('twinpool_queue_tokens{pool="prefill"}', "", "twinpool_queue_tokens has no label pool"),
        ('twinpool_workers{state="asleep"}', "", "twinpool_workers has no state 'asleep'"),
        ('twinpool_workers{pool=~"prefill|middle"}', "", "twinpool_workers has no pool 'middle'"),
        (
            'twinpool_handoff_seconds_bucket{le="0.7"}',
            "",
            "twinpool_handoff_seconds_bucket has no le '0.7'",
        ),
        ('twinpool_handoff_seconds_sum{le="0.5"}', "", "twinpool_handoff_seconds_sum has no label le"),
        ("sum by (pool, colour) (twinpool_workers)", "", "nothing is labelled colour"),
        ("twinpool_workers", "{{pool}} {{colour}}", "nothing is labelled colour"),
    ],
)
def test_what_is_not_there_is_found(expr: str, legend: str, problem: str) -> None:
    assert problems(f"max(rate({expr}[5m])) > 0", KNOWN, legend) == [problem]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_dashboard_is_one_that_grafana_can_show(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    defined = {variable["name"] for variable in board["templating"]["list"]}
    asks = json.dumps([board["panels"], board["annotations"]])
    used = {*re.findall(r"\$\{?(\w+)", asks)} - {"__rate_interval"}
    assert used <= defined
    for panel in panels(board):
        assert panel["datasource"] == DATASOURCE
        assert panel["description"].endswith(".")
        assert all(target["datasource"] == DATASOURCE for target in panel["targets"])
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_number_is_that_of_now_and_not_the_last_of_the_hour(board: dict[str, Any]) -> None:
    for panel in panels(board):
        for target in panel["targets"]:
            assert target["instant"] is (panel["type"] == "stat")
            assert target["range"] is not target["instant"]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_all_that_is_shown_is_of_the_chosen_routers(board: dict[str, Any]) -> None:
    exprs = [target["expr"] for panel in panels(board) for target in panel["targets"]]
    exprs += [note["expr"] for note in board["annotations"]["list"]]
    for expr in exprs:
        num_metrics = len(re.findall(r"\b(?:twinpool|process)_\w+", expr))
        assert expr.count('{job="$job",instance=~"$instance"') == num_metrics > 0, expr


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_no_panel_hides_another(board: dict[str, Any]) -> None:
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in board["panels"])
        for x, y in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < GRID_COLUMNS


def test_every_metric_of_ours_is_seen_on_a_dashboard() -> None:
    asked = {name for _, expr, _ in queries() for name in KNOWN if name in expr}
    unseen = {each.name for each in catalogue() if not {*each.series()} & asked and each.name not in PROCESS}
    assert unseen == {"twinpool_cache_config_info"}


@pytest.mark.skipif(sys.platform != "linux", reason="process metrics come from Linux's /proc")
def test_the_metrics_of_the_routers_process_are_those_that_are_shown() -> None:
    names = {
        sample.name
        for family in Metrics().registry.collect()
        for sample in family.samples
        if family.name.startswith("process_")
    }
    assert names == set(PROCESS)
