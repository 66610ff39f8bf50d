"""The dashboards under load: every panel has something to show, and its curves are what the clients saw."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from scripts import make_dashboards
from tests.support.system.running import RunningSystem, quiesce
from tests.support.system.scraping import PROMETHEUS, WHY_SKIPPED, Prometheus, eventually

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason=WHY_SKIPPED)
NUM_CLIENTS = 4
LEAST_REQUESTS = 4
"""That each client makes; it goes on while the panels are asked."""
RATE_INTERVAL_S = 4
STEP_S = 0.25
AGREEMENT = 0.2
"""A rate guesses what happens between two scrapes: by what share a curve's area may differ from the truth."""
RIGHTLY_EMPTY = {
    ("Twinpool / Overview", "Not served", "refused: {{reason}}"),
    ("Twinpool / Overview", "Not served", "expired: {{phase}}"),
    ("Twinpool / Overview", "Setbacks", "{{reason}}"),
    ("Twinpool / Pools and workers", "Replaced and scaled", "{{pool}} {{reason}}"),
    ("Twinpool / Pools and workers", "Replaced and scaled", "{{pool}} {{direction}}"),
}
"""What shows only that which went wrong, or was changed."""


@dataclass(frozen=True)
class Asked:
    """One query of a panel, as Grafana would send it. instant: for its value now."""

    board: str
    panel: str
    legend: str
    expr: str
    instant: bool

    @property
    def name(self) -> tuple[str, str, str]:
        return self.board, self.panel, self.legend


def queries() -> Iterator[Asked]:
    for text in make_dashboards.render().values():
        board = json.loads(text)
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                expr = target["expr"].replace("$__rate_interval", f"{RATE_INTERVAL_S}s")
                expr = re.sub(r"\$\w+", ".*", expr.replace("$job", "twinpool"))
                yield Asked(board["title"], panel["title"], target["legendFormat"], expr, target["instant"])


QUERIES = {asked.name: asked for asked in queries()}


@dataclass(frozen=True)
class Load:
    """What the clients did, by their own count; times in seconds since 1970.

    empty: the queries that had nothing to show meanwhile.
    """

    since: float
    until: float
    num_requests: int
    num_prompt_tokens: int
    num_tokens: int
    empty: set[tuple[str, str, str]]


@pytest.fixture(scope="module")
def system(one_pair: RunningSystem) -> RunningSystem:
    return one_pair


@pytest.fixture(scope="module")
def load(system: RunningSystem, server: Prometheus) -> Load:
    """Clients ask one request after the other while every panel is looked at."""
    over, since = threading.Event(), time.time()

    def ask_on(client: int) -> list[tuple[int, int]]:
        """(prompt tokens, tokens) of each answer."""
        usages = list[tuple[int, int]]()
        while len(usages) < LEAST_REQUESTS or not over.is_set():
            prompt = [1 + client] * (30 * (1 + client))
            answer = system.client.complete(prompt, max_tokens=12, ignore_eos=True, timeout=60.0)
            usages.append((len(prompt), len(answer.token_ids)))
        return usages

    def empty() -> set[tuple[str, str, str]]:
        return {asked.name for asked in QUERIES.values() if not shows(server, asked, since)}

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        asking = [clients.submit(ask_on, client) for client in range(NUM_CLIENTS)]
        try:
            found = eventually(empty, lambda names: names <= RIGHTLY_EMPTY)
        finally:
            over.set()
    usages = [usage for each in asking for usage in each.result()]
    num_prompt_tokens, num_tokens = map(sum, zip(*usages, strict=True))
    return Load(since, time.time(), len(usages), num_prompt_tokens, num_tokens, found)


def shows(server: Prometheus, asked: Asked, since: float) -> bool:
    """Whether there is a number, now or on the curve so far."""
    if asked.instant:
        values = list(server.values(asked.expr).values())
    else:
        values = [value for curve in server.curves(asked.expr, since, time.time(), STEP_S) for value in curve]
    return not all(map(math.isnan, values))


def test_every_panel_shows_something_while_requests_run(load: Load) -> None:
    assert load.empty <= RIGHTLY_EMPTY


def test_what_may_be_empty_is_asked_for() -> None:
    assert QUERIES.keys() >= RIGHTLY_EMPTY
    assert len(QUERIES) == len([*queries()]), "two queries have one name"


@pytest.mark.parametrize(
    ("panel", "legend", "truth"),
    [
        ("Tokens", "in", "num_prompt_tokens"),
        ("Tokens", "out", "num_tokens"),
        ("Endings", "{{finished_reason}}", "num_requests"),
    ],
)
def test_the_area_under_a_curve_is_what_the_clients_counted(
    server: Prometheus, load: Load, panel: str, legend: str, truth: str
) -> None:
    asked = QUERIES["Twinpool / Overview", panel, legend]
    until = load.until + 2 * RATE_INTERVAL_S
    eventually(time.time, lambda now: now > until)
    curves = server.curves(asked.expr, load.since, until, STEP_S)
    area = sum(map(sum, curves)) * STEP_S
    assert area == pytest.approx(getattr(load, truth), rel=AGREEMENT)
    assert [curve[-1] for curve in curves] == [0] * len(curves)


def test_a_number_is_gone_when_the_requests_are(server: Prometheus, load: Load) -> None:
    """What has nothing to say now says nothing, and not what it was."""
    for panel in ("Errors", "TTFT ≤ 2.5 s"):
        asked = QUERIES["Twinpool / Overview", panel, "__auto"]
        eventually(lambda expr=asked.expr: server.values(expr), lambda values: not values)  # type: ignore[misc]


def test_the_system_is_at_rest_after_all(system: RunningSystem, load: Load) -> None:
    quiesce(system)
