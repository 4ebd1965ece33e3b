"""The cases of branches once more, with Spark for whatever there is to read: the rows are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.branches.intervals import Engine
from odfchain.cli.main import COMMANDS
from odfchain.spark.session import SparkEngine
from tests.kit.branch_cases import commands_of, hold, load

CASES = load()
COMPARING = ("correct", "diff", "merge", "revert")
PLAYED = [
    name
    for name, case in CASES.items()
    if commands_of(case) <= set(COMMANDS) and commands_of(case) & set(COMPARING)
]
ALSO_QUICKLY = ("6-theirs",)


@pytest.fixture
def _by_spark(engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    by_spark = Engine(lambda: engine.session, above=0)
    monkeypatch.setattr("odfchain.api.branching.engine_of", lambda _: by_spark)


@pytest.mark.usefixtures("_by_spark")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALSO_QUICKLY else pytest.mark.soak) for name in PLAYED]
)
def test_case_by_spark(tmp_path: Path, name: str) -> None:
    hold(CASES[name], tmp_path)
