"""Datasets that the reference node can append to, and chains that call our engine by its former name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from odfchain.api.settings import edit, setting
from odfchain.odf import schema as ds
from odfchain.odf.events import SetTransform
from odfchain.odf.manifests import read_snapshots
from odfchain.transform.engines import engine_version
from odfchain.workspace.dataset_state import SystemColumns
from tests.kit.support import derivative, manifest

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace

SCHEMA = '["event_time TIMESTAMP", "city STRING", "population BIGINT"]'
SNAPSHOT = derivative(
    "SELECT event_time, city, sum(population) AS total FROM cities GROUP BY event_time, city"
)
REFERENCE = (ds.DataTypeInt64(), ds.DataTypeInt32())
SPECIFICATION = (ds.DataTypeUInt64(), ds.DataTypeUInt8())


def days(folder: Path, *numbers: int) -> Path:
    path = folder / f"{numbers[0]}.csv"
    rows = "".join(f"2020-01-{n:02}T00:00:00Z,C{n},{n}\n" for n in numbers)
    path.write_text("event_time,city,population\n" + rows)
    return path


def types(dataset: Dataset) -> set[tuple[Any, Any]]:
    """Types of offsets and operations: as declared, and in every slice."""
    schema = dataset.summary.schema
    assert schema is not None
    arrow = {"int64": ds.DataTypeInt64(), "int32": ds.DataTypeInt32(), "uint64": ds.DataTypeUInt64(), "uint8": ds.DataTypeUInt8()}  # fmt: skip
    found = {(schema.fields[0].type, schema.fields[1].type)}
    for path in (dataset.path / "data").iterdir():
        columns = pq.read_schema(path)
        found.add((arrow[str(columns.field(0).type)], arrow[str(columns.field(1).type)]))
    return found


@pytest.mark.parametrize("by", ["setting", "dataset"])
def test_types_of_the_reference_node(workspace: Workspace, tmp_path: Path, by: str) -> None:
    given = None
    if by == "setting":
        edit(workspace.path, setting("datasets.systemColumns"), lambda _: "reference")
    else:
        given = SystemColumns.REFERENCE
    cities = workspace.create(read_snapshots(manifest(schema=SCHEMA))[0], system_columns=given)
    cities.ingest([days(tmp_path, 1, 2, 3)])
    queries = {"stateless": derivative(name="stateless"), "running": SNAPSHOT.replace("derived", "running")}
    made = [workspace.create(read_snapshots(text)[0], system_columns=given) for text in queries.values()]
    for dataset in made:
        dataset.pull()
    edit(workspace.path, setting("datasets.systemColumns"), lambda _: "specification")
    cities.ingest([days(tmp_path, 4, 5, 6)])
    for dataset in made:
        dataset.pull()
    assert types(cities) == {REFERENCE}
    for dataset in made:
        assert types(dataset) == {REFERENCE}, "a chain is continued as it declares itself"
    for report in workspace.verify([cities, *made], replay=True):
        assert report.ok, report.faults
    (other,) = workspace.add(derivative(name="other"))
    other.pull()
    assert types(other) == {SPECIFICATION}


def test_a_chain_of_the_former_name_is_continued_and_replayed(workspace: Workspace, tmp_path: Path) -> None:
    (cities,) = workspace.add(manifest(schema=SCHEMA))
    cities.ingest([days(tmp_path, 1, 2, 3)])
    text = derivative(
        "SELECT window(event_time, '2 days').start AS event_time, count(*) AS n FROM cities GROUP BY window(event_time, '2 days')"
    )
    snapshot = read_snapshots(text)[0]
    (event,) = snapshot.metadata
    assert isinstance(event, SetTransform)
    for version in (engine_version(), None):
        old = dataclasses.replace(
            event, transform=dataclasses.replace(event.transform, engine="spark", version=version)
        )
        name = dataclasses.replace(
            snapshot, name=type(snapshot.name).parse(f"old{version is None}"), metadata=(old,)
        )
        workspace._files.create(name)
        workspace[str(name.name)].pull()
    (new,) = workspace.add(text)
    new.pull()
    cities.ingest([days(tmp_path, 4, 5, 6, 7)])
    olds = [workspace["oldFalse"], workspace["oldTrue"]]
    for dataset in (*olds, new):
        assert dataset.pull().blocks == 1
    results = [dataset.tail(100).drop_columns(["system_time"]) for dataset in (*olds, new)]
    assert results[0].num_rows > 1
    assert results[0] == results[1] == results[2], "one engine, whatever its name"
    for report in workspace.verify([*olds, new], replay=True):
        assert report.ok, report.faults
