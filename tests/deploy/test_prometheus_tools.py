"""What Prometheus's own tool says of the rules, the configuration and the dashboards' queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from scripts import make_dashboards
from tests.support.paths import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)
VARIABLES = {"$__rate_interval": "5m", "$job": "twinpool"}


def promtool(*arguments: str | Path) -> str:
    """Its output; fails with it."""
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_configuration_and_its_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yaml")


def test_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yaml")


def test_an_alert_that_never_fires_is_found(tmp_path: Path) -> None:
    rules = (FOLDER / "rules.yaml").read_text()
    changed = rules.replace('up{job="twinpool"} == 0', 'up{job="twinpool"} == 2')
    assert changed != rules
    (tmp_path / "rules.yaml").write_text(changed)
    cases = yaml.safe_load((FOLDER / "rules_test.yaml").read_text())
    cases["tests"] = [case for case in cases["tests"] if case["name"] == "a router that does not answer"]
    assert cases["tests"]
    (tmp_path / "rules_test.yaml").write_text(yaml.safe_dump(cases))
    with pytest.raises(AssertionError, match="TwinpoolTargetDown"):
        promtool("test", "rules", tmp_path / "rules_test.yaml")


def test_every_query_of_a_dashboard_is_valid(tmp_path: Path) -> None:
    exprs = [
        target["expr"]
        for text in make_dashboards.render().values()
        for panel in json.loads(text)["panels"]
        for target in panel.get("targets", [])
    ]
    for variable, value in VARIABLES.items():
        exprs = [expr.replace(variable, value) for expr in exprs]
    exprs = [re.sub(r"\$\w+", ".*", expr) for expr in exprs]
    rules = [{"record": f"query:{index}", "expr": expr} for index, expr in enumerate(exprs)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)
