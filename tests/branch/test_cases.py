"""What branches, diffs and merges mean: numbered cases, read from the fixtures, input and expectation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.branch_cases import Case, corruptions, hold, load

CASES = load()
CORRUPTED = [
    pytest.param(changed, id=f"{name}-{what}")
    for name in ("own-rows", "1", "6", "6-theirs")
    for what, changed in corruptions(CASES[name])
]


@pytest.mark.parametrize("name", CASES)
def test_case(tmp_path: Path, name: str) -> None:
    hold(CASES[name], tmp_path)


@pytest.mark.parametrize("case", CORRUPTED)
def test_a_corrupted_expectation_fails(tmp_path: Path, case: Case) -> None:
    """So each kind of expectation is looked at."""
    with pytest.raises(AssertionError):
        hold(case, tmp_path)
