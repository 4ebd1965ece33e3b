"""Datasets that the reference node can append to, and chains that call our engine by its former name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.settings import edit, setting
from odfchain.api.workspace import Workspace
from odfchain.odf import schema as ds
from odfchain.odf.events import SetTransform
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.names import DatasetAlias
from odfchain.transform.engines import engine_version
from odfchain.workspace.dataset_state import SystemColumns
from tests.kit.run_length import scaled
from tests.kit.support import check_replay, derivative, ingest_rows, manifest

SCHEMA = '["event_time TIMESTAMP", "city STRING", "population BIGINT"]'
SNAPSHOT = derivative(
    "SELECT event_time, city, sum(population) AS total FROM cities GROUP BY event_time, city"
)
REFERENCE = (ds.DataTypeInt64(), ds.DataTypeInt32())
SPECIFICATION = (ds.DataTypeUInt64(), ds.DataTypeUInt8())


def add_days(cities: Dataset, *numbers: int) -> None:
    rows = (f"2020-01-{n:02}T00:00:00Z,C{n},{n}" for n in numbers)
    ingest_rows(cities, "event_time,city,population", rows)


def types(dataset: Dataset) -> set[tuple[Any, Any]]:
    """Types of offsets and operations: as declared, and in every slice."""
    schema = dataset.summary.schema
    arrow = {"int64": ds.DataTypeInt64(), "int32": ds.DataTypeInt32(), "uint64": ds.DataTypeUInt64(), "uint8": ds.DataTypeUInt8()}  # fmt: skip
    found = {(schema.fields[0].type, schema.fields[1].type)}
    for path in (dataset.path / "data").iterdir():
        columns = pq.read_schema(path)
        found.add((arrow[str(columns.field(0).type)], arrow[str(columns.field(1).type)]))
    return found


@pytest.mark.parametrize("by", ["setting", "dataset"])
def test_types_of_the_reference_node(workspace: Workspace, by: str) -> None:
    given = None
    if by == "setting":
        edit(workspace.path, setting("datasets.systemColumns"), lambda _: "reference")
    else:
        given = SystemColumns.REFERENCE
    cities = workspace.create(read_snapshots(manifest(schema=SCHEMA))[0], system_columns=given)
    add_days(cities, 1, 2, 3)
    queries = {"stateless": derivative(name="stateless"), "running": SNAPSHOT.replace("derived", "running")}
    made = [workspace.create(read_snapshots(text)[0], system_columns=given) for text in queries.values()]
    for dataset in made:
        dataset.pull()
    edit(workspace.path, setting("datasets.systemColumns"), lambda _: "specification")
    add_days(cities, 4, 5, 6)
    for dataset in made:
        dataset.pull()
    assert types(cities) == {REFERENCE}
    for dataset in made:
        assert types(dataset) == {REFERENCE}, "a chain is continued as it declares itself"
    for dataset in made:
        check_replay(dataset)
    cities.verify().raise_if_faulty()
    (other,) = workspace.add(derivative(name="other"))
    other.pull()
    assert types(other) == {SPECIFICATION}


def test_a_chain_of_the_former_name_is_continued_and_replayed(workspace: Workspace) -> None:
    (cities,) = workspace.add(manifest(schema=SCHEMA))
    add_days(cities, 1, 2, 3)
    days = "window(event_time, '2 days')"
    text = derivative(f"SELECT {days}.start AS event_time, count(*) AS n FROM cities GROUP BY {days}")
    snapshot = read_snapshots(text)[0]
    (event,) = snapshot.metadata
    assert isinstance(event, SetTransform)
    versions = (None, engine_version())[: scaled(1, 2, 2)]
    for version in versions:
        transform = dataclasses.replace(event.transform, engine="spark", version=version)
        old = dataclasses.replace(event, transform=transform)
        name = DatasetAlias.parse(f"old{version is None}")
        workspace._files.create(dataclasses.replace(snapshot, name=name, metadata=(old,)))
        workspace[str(name)].pull()
    (new,) = workspace.add(text)
    new.pull()
    add_days(cities, 4, 5, 6, 7)
    olds = [workspace[f"old{version is None}"] for version in versions]
    for dataset in (*olds, new):
        assert dataset.pull().blocks == 1
    results = [dataset.tail(100).drop_columns(["system_time"]) for dataset in (*olds, new)]
    assert results[0].num_rows > 1
    assert all(result == results[-1] for result in results), "one engine, whatever its name"
    for dataset in olds:
        check_replay(dataset)
