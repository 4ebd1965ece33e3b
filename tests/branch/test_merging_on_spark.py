"""The numbered cases of merges, computed by Spark: nothing comes out otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.branches.intervals import Engine
from odfchain.spark.session import SparkEngine
from tests.kit.branch_cases import commands_of, hold, load

CASES = {name: case for name, case in load().items() if "merge" in commands_of(case)}
FEW = ("19",)
"""The others are played by `make soak`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.soak]) for name in CASES]
)
def test_case(tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("odfchain.api.branching.engine_of", lambda _: Engine(lambda: engine.session, above=0))
    hold(CASES[name], tmp_path)
