"""Shared fixtures. One Spark session serves the whole run; it is started by the first test that asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pathlib import Path

    from odfchain.spark.session import SparkEngine

# "ci" is what `make test` runs: reproducible. "local" explores; "deep" is for a long look before a release.
settings.register_profile(
    "ci", derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("local", max_examples=300, deadline=None)
settings.register_profile("deep", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    """The one Spark engine of the run."""
    from odfchain.spark.session import SparkEngine

    engine = SparkEngine(tmp_path_factory.mktemp("spark"), conf={"spark.sql.shuffle.partitions": "2"})
    yield engine
    engine.close()


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    """A folder for slices that are not committed."""
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder
