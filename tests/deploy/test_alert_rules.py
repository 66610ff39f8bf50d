"""The alert rules ask for what is there, say what to do, and are each seen to fire once."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from scripts.dashboards.overview import FAULTS, TPOT_SLO, TTFT_SLO
from scripts.metrics_catalogue import Family, queryable
from tests.support.deploy.promql import problems
from tests.support.paths import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
KNOWN = queryable() | {"up": Family("", "up", "gauge", "", {})}
KNOWN |= {
    rule["record"]: Family("", rule["record"], "gauge", "", dict.fromkeys(rule.get("labels", ()), ()))
    for rule in RULES
    if "record" in rule
}


def kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_nothing_that_is_not_there(rule: dict[str, Any]) -> None:
    assert not problems(rule["expr"], KNOWN)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_is_wrong_and_where_its_runbook_is(alert: dict[str, Any]) -> None:
    assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{kebab(alert['alert'])}"
    assert alert["annotations"]["summary"]
    assert alert["labels"]["severity"] in ("critical", "warning")


def test_every_alert_is_seen_to_fire() -> None:
    tests = yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]
    fired = {
        case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case["exp_alerts"]
    }
    fired |= {
        name
        for test in tests
        for case in test.get("promql_expr_test", [])
        if case["exp_samples"]
        for name in re.findall(r'ALERTS\{alertname="(\w+)",alertstate="firing"', case["expr"])
    }
    assert fired == {alert["alert"] for alert in ALERTS}


def test_rules_and_dashboard_mean_the_same_objectives() -> None:
    bounds = {
        (rule["labels"]["slo"], bound)
        for rule in RULES
        if "slo" in rule.get("labels", ())
        for bound in re.findall(r'le="([^"]+)"', rule["expr"])
    }
    assert bounds == {("ttft", TTFT_SLO), ("tpot", TPOT_SLO)}


def test_rules_and_dashboard_mean_the_same_failures() -> None:
    (failed,) = [rule["expr"] for rule in RULES if rule.get("record") == "twinpool:calls_failed:rate5m"]
    assert re.findall(r'code=~"([^"]+)"', failed) == [FAULTS.removeprefix("~")]


def test_the_scrape_configuration_names_the_job_that_rules_rely_on() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert [scrape["job_name"] for scrape in config["scrape_configs"]] == ["twinpool"]
    assert config["rule_files"] == ["rules.yaml"]
