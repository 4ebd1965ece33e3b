"""Options of a query: said in a manifest, carried in the version, refused where they mean nothing."""

from __future__ import annotations

from typing import Any

import pytest

from odfchain.errors import ManifestError, TransformError
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.transform_options import lateness_option, split_version
from odfchain.transform.validate import with_versions

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: x
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: y}}]
      transform: {{kind: Sql, {}, query: SELECT 1}}
"""


def version_of(transform: str) -> Any:
    """The version that a transform gets when its manifest is added."""
    (snapshot,) = read_snapshots(MANIFEST.format(transform))
    (event,) = with_versions(snapshot).metadata
    return event.transform.version


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 day", 86_400),
        ("36 hours", 129_600),
        ("90m", 5_400),
        ("1 week", 604_800),
        ("2 hours 30 minutes", 9_000),
    ],
)
def test_a_lateness_is_recorded_at_the_end_of_the_version(text: str, seconds: int) -> None:
    version = version_of(f"engine: spark, allowedLateness: {text}")
    assert version == version_of("engine: spark") + f"+allowedLateness=PT{seconds}S"
    assert split_version(version) == (version_of("engine: spark"), seconds * 1_000)
    assert lateness_option(seconds * 1_000) == f"+allowedLateness=PT{seconds}S"


def test_a_lateness_goes_to_the_version_that_is_named() -> None:
    assert version_of("engine: spark, version: v, allowedLateness: 9s") == "v+allowedLateness=PT9S"


@pytest.mark.parametrize("none", ["0 s", "null", "0d"])
def test_no_lateness_is_no_option(none: str) -> None:
    assert version_of(f"engine: spark, allowedLateness: {none}") == version_of("engine: spark")


@pytest.mark.parametrize(
    "wrong", ["-1 day", "soon", "1 month", "3", "[1 day]", "1500 ms", "''", "1 day later"]
)
def test_what_is_no_length_of_time_is_refused_by_its_path(wrong: str) -> None:
    with pytest.raises(ManifestError) as found:
        version_of(f"engine: spark, allowedLateness: {wrong}")
    assert found.value.path == "metadata[0].transform.allowedLateness"
    assert found.value.hint


def test_it_is_said_once() -> None:
    with pytest.raises(ManifestError, match="says it already"):
        version_of("engine: spark, version: v+allowedLateness=PT9S, allowedLateness: 9s")


def test_other_engines_are_not_asked_for_it() -> None:
    assert version_of("engine: flink") is None
    with pytest.raises(TransformError, match="allowedLateness is an option of the engine odfchain-spark"):
        version_of("engine: flink, allowedLateness: 1 day")


def test_other_peoples_versions_are_left_alone() -> None:
    for version in ("1.2.3+build", "+allowedLateness", "v+allowedLateness=PT09S", "v+allowedLateness=PT1S "):
        assert split_version(version) == (version, 0)
