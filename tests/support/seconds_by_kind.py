"""Tells at the end of a run what each kind of test has cost, so that whoever adds to it sees it."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import PurePath

import pytest


class SecondsByKind:
    """A pytest plugin. A kind is the folder below tests; its seconds include fixtures."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: Counter[str] = Counter()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = PurePath(report.nodeid.partition("::")[0]).parts[1]
        self._seconds[kind] += report.duration
        self._tests[kind] += report.when == "call"

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds by kind")
        for kind, seconds in sorted(self._seconds.items(), key=lambda item: -item[1]):
            terminalreporter.line(f"{seconds:8.1f} s  {kind} ({self._tests[kind]} tests)")
