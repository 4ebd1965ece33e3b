"""What branches, diffs and merges mean: numbered cases, read from the fixtures, input and expectation."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.cli.main import COMMANDS
from tests.kit.branch_cases import Case, commands_of, corruptions, hold, load

CASES = load()
PLAYED = [name for name in CASES if commands_of(CASES[name]) <= set(COMMANDS)]
CORRUPTED = [
    pytest.param(changed, id=f"{name}-{what}")
    for name in ("own-rows", "1", "6", "6-theirs")
    if name in PLAYED
    for what, changed in corruptions(CASES[name])
]


@pytest.mark.parametrize("name", PLAYED)
def test_case(tmp_path: Path, name: str) -> None:
    hold(CASES[name], tmp_path)


@pytest.mark.parametrize("case", CORRUPTED)
def test_a_corrupted_expectation_fails(tmp_path: Path, case: Case) -> None:
    """So each kind of expectation is looked at."""
    with pytest.raises(AssertionError):
        hold(case, tmp_path)
