"""The report of a soak: every test with its outcome and figures, whether one process ran them or two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.support import IMPORTABLE

TOYS = """\
def test_counts(record_property):
    record_property("kills", 42)

def test_fails():
    assert not "a fault"
"""


@pytest.mark.parametrize("processes", [["-p", "no:xdist"], ["-n", "2"]], ids=["one", "two"])
def test_each_test_is_in_the_report(tmp_path: Path, processes: list[str]) -> None:
    (tmp_path / "test_toys.py").write_text(TOYS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    path = tmp_path / "build" / "soak-report.json"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *processes,
         "-p", "tests.kit.soak_report", "--soak-report", path, tmp_path],
        cwd=tmp_path, env=IMPORTABLE | {"HYPOTHESIS_PROFILE": "deep"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["profile"] == "deep"
    tests = {test["name"]: test for test in report["tests"]}
    assert {name: (test["outcome"], test["figures"]) for name, test in tests.items()} == {
        "test_toys.py::test_counts": ("passed", {"kills": 42}),
        "test_toys.py::test_fails": ("failed", {}),
    }
    assert all(test["seconds"] >= 0 for test in tests.values())
    assert "test_toys.py::test_counts  kills 42\n" in done.stdout
    assert [each.name for each in path.parent.iterdir()] == [path.name]
