"""Manifests that mean harm: each is refused, and nothing of it reaches the terminal as it is."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from tests.kit.support import FIXTURES, Run

FOLDER = FIXTURES / "hostile" / "manifests"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
FORBIDDEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
LONGEST = 10_000


def refused(workspace: Path, manifest: Path, expected: dict[str, Any], run: Run) -> None:
    Workspace.init(workspace)
    code, out, err = run("-w", workspace, "--no-color", "add", manifest)
    assert (code, out) == (expected["exit"], ""), err[:1_000]
    for text in expected["says"]:
        assert text in err, err[:1_000]
    if "hint" in expected:
        assert err.endswith(f"add {expected['hint']}\n")
    assert not {c for c in err if unicodedata.category(c) in FORBIDDEN} - {"\n"}
    assert len(Workspace.open(workspace)) == 0


@pytest.mark.parametrize("name", EXPECTED["files"])
def test_a_manifest(name: str, tmp_path: Path, run: Run) -> None:
    refused(tmp_path, FOLDER / name, EXPECTED["files"][name], run)


@pytest.mark.parametrize("name", EXPECTED["generated"])
def test_a_large_manifest(name: str, tmp_path: Path, run: Run) -> None:
    case = EXPECTED["generated"][name]
    manifest = tmp_path / name
    manifest.write_text("".join(text * count for text, count in case["parts"]), encoding="utf-8")
    refused(tmp_path, manifest, case, run)


def test_every_manifest_is_expected() -> None:
    found = {path.name for path in FOLDER.iterdir()} - {"expected.json", "README.md"}
    assert found == set(EXPECTED["files"])
