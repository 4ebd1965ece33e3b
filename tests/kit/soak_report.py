"""A pytest plugin that keeps what tests found out: `pytest -p tests.kit.soak_report --soak-report FILE`.

FILE gets a JSON object for each test: name, outcome, seconds, and the figures that it gave to `record_property`.
At the end the same is printed as a table, of the tests that have figures or did not pass.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

SAVED_EVERY = 60  # [s]


class SoakReport:
    """Collects in the process that was started; with several processes that is the one that runs no tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = {}
        self.saved = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = self.tests.setdefault(
            report.nodeid, {"name": report.nodeid, "outcome": "passed", "seconds": 0.0, "figures": {}}
        )
        found["seconds"] = round(found["seconds"] + report.duration, 3)
        found["figures"] |= dict(report.user_properties)
        if not report.passed and found["outcome"] != "failed":
            found["outcome"] = "failed" if report.failed else "skipped"
        if time.monotonic() > self.saved + SAVED_EVERY:
            self.save()

    def pytest_sessionfinish(self) -> None:
        self.save()

    def save(self) -> None:
        """Complete or as it was: a run that is stopped leaves no half of a file, and what it found out until then."""
        self.saved = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        report = {"profile": os.environ.get("HYPOTHESIS_PROFILE", "ci"), "tests": list(self.tests.values())}
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
        draft.replace(self.path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"figures ({self.path})")
        for test in self.tests.values():
            if test["figures"] or test["outcome"] != "passed":
                figures = ", ".join(f"{name} {value}" for name, value in test["figures"].items())
                line = f"{test['outcome']:7} {test['seconds']:9,.1f} s  {test['name']}  {figures}"
                terminalreporter.write_line(line.rstrip())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-report", type=Path, help="the file that gets what tests found out")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--soak-report")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SoakReport(path.absolute()))
