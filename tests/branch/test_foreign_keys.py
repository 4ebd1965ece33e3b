"""Foreign keys at commits and merges: numbered cases, read from the fixture, input and expectation."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.cli.main import COMMANDS
from tests.kit.foreign_key_cases import Case, Scene, load

CASES = load()


def played(case: Case) -> bool:
    return all(step["run"].split()[0] in COMMANDS for step in case.get("steps", []) if "run" in step)


@pytest.mark.parametrize("name", [name for name in CASES if played(CASES[name])])
def test_case(tmp_path: Path, name: str) -> None:
    Scene(CASES[name], tmp_path).hold()
