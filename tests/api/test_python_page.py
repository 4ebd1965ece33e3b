"""`docs/python.md`: what it shows runs, and it names everything that the package exports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import odfchain as odf
from odfchain.api.executing import Engines
from odfchain.spark.session import SparkEngine
from tests.kit.support import ROOT, code_of

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = code_of("docs/python.md", "python")


def test_every_example_runs(engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Engines, "_engine_of_settings", lambda _: engine)  # the one that tests share
    names: dict[str, object] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/python.md, example {number}", "exec"), names)  # noqa: S102


def test_every_exported_name_has_an_example() -> None:
    used = set(re.findall(r"\bodf\.(\w+)", "\n".join(BLOCKS)))
    assert set(odf.__all__) - used == set()


def test_what_is_in_the_three_modules_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    errors = {
        name for name, kind in vars(odf.errors).items() if name.endswith("Error") and isinstance(kind, type)
    }
    assert (set(odf.results.__all__) | errors) - named - {"OdfchainError"} == set()
    assert "odf.results.IngestOutcome" in PAGE
