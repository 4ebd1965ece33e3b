"""A declared schema of Parquet: values keep what they mean, or the run stops with their row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError
from tests.kit.support import manifest, unchanged

NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
FIRST, TENTH = "123e4567-e89b-12d3-a456-426614174000", Decimal("1.2")


def dataset_of(workspace: Workspace, declared: str) -> Dataset:
    (dataset,) = workspace.add(manifest(schema=f'["n BIGINT", "v {declared}"]', kind="Parquet"))
    return dataset


def write(path: Path, values: list[Any]) -> Path:
    pq.write_table(pa.table({"n": range(len(values)), "v": values}), path)
    return path


@pytest.mark.parametrize(
    ("declared", "values", "bad"),
    [
        ("BIGINT", [1.0, None, 1.5], "'1.5'"),
        ("BIGINT", [1.0, float("nan")], "'nan'"),
        ("INT", [5, 2**40], "'1099511627776'"),
        ("DOUBLE", [2**53, 2**53 + 1], "'9007199254740993'"),
        ("FLOAT", [0.1, 1e300], r"'1e\+300'"),
        ("DATE", [NOON.replace(hour=0), NOON], "'2020-01-01 12:00:00'"),
        ("DECIMAL(5,1)", [Decimal("1.20"), Decimal("1.25")], "'1.25'"),
        ("ARRAY<BIGINT>", [[1.0], [2.5]], r"\[2.5\]"),
        ("INT", ["12", " 12"], "' 12'"),
        ("TIMESTAMP", ["2020-01-01", "10:00:00"], "'10:00:00'"),
    ],
)
def test_what_would_change_is_refused(
    workspace: Workspace, tmp_path: Path, declared: str, values: list[Any], bad: str
) -> None:
    dataset = dataset_of(workspace, declared)
    path = write(tmp_path / "in.parquet", values)
    with (
        unchanged(dataset.path),
        pytest.raises(
            BadInputError, match=rf"in\.parquet: row {len(values)}: column `v`: {bad} is not a valid"
        ),
    ):
        dataset.ingest([path])
    dataset.ingest([write(path, values[:-1])])
    assert dataset.verify().ok


@pytest.mark.parametrize(
    ("declared", "values", "kept"),
    [
        ("STRING", [5, None], ["5", None]),
        ("BIGINT", [5.0, None], [5, None]),
        ("DECIMAL(5,1)", [TENTH, None], [TENTH, None]),
        ("UUID", [FIRST, None], [bytes.fromhex(FIRST.replace("-", "")), None]),
        ("TIMESTAMP", ["2020-01-01T12:00:00Z", None], [NOON, None]),
        ("DOUBLE", [1, None], [1.0, None]),
    ],
)
def test_what_means_the_same_is_converted(
    workspace: Workspace, tmp_path: Path, declared: str, values: list[Any], kept: list[Any]
) -> None:
    dataset = dataset_of(workspace, declared)
    dataset.ingest([write(tmp_path / "in.parquet", values)])
    assert dataset.scan(["v"]).to_arrow()["v"].to_pylist() == kept


def test_types_without_a_conversion(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace, "INT")
    path = write(tmp_path / "in.parquet", [NOON.date()])
    with pytest.raises(BadInputError, match=r"column `v` is DATE, which cannot be read as INT"):
        dataset.ingest([path])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["v", "v"], "column 'v' occurs twice"),
        (["v", "__odfchain_row"], "column '__odfchain_row': names that begin with __odfchain_ are reserved"),
    ],
)
def test_columns_of_impossible_names(
    workspace: Workspace, tmp_path: Path, names: list[str], message: str
) -> None:
    (dataset,) = workspace.add(manifest(kind="Parquet").replace("        schema:", "        #"))
    path = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=names), path)
    with pytest.raises(BadInputError, match=f"in.parquet: {message}"):
        dataset.ingest([path])
