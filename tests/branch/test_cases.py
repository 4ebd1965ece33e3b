"""What branches, diffs and merges mean: numbered cases, read from the fixtures, input and expectation.

Those that read rows are played once more by Spark: the rows are the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.branches.intervals import Engine
from odfchain.spark.session import SparkEngine
from tests.kit.branch_cases import Case, commands_of, corruptions, hold, load

CASES = load()
CORRUPTED = [
    pytest.param(changed, id=f"{name}-{what}")
    for name in ("own-rows", "1", "6", "6-theirs")
    for what, changed in corruptions(CASES[name])
]

COMPARING = {"correct", "diff", "merge", "revert"}
ALSO_QUICKLY = ("6-theirs", "19")
BY_SPARK = [
    pytest.param(name, marks=() if name in ALSO_QUICKLY else pytest.mark.soak)
    for name, case in CASES.items()
    if commands_of(case) & COMPARING
]


@pytest.mark.parametrize("name", CASES)
def test_case(tmp_path: Path, name: str) -> None:
    hold(CASES[name], tmp_path)


@pytest.mark.parametrize("case", CORRUPTED)
def test_a_corrupted_expectation_fails(tmp_path: Path, case: Case) -> None:
    """So each kind of expectation is looked at."""
    with pytest.raises(AssertionError):
        hold(case, tmp_path)


@pytest.mark.parametrize("name", BY_SPARK)
def test_case_by_spark(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    by_spark = Engine(lambda: engine.session, above=0)
    monkeypatch.setattr("odfchain.api.branching.engine_of", lambda _: by_spark)
    hold(CASES[name], tmp_path)
