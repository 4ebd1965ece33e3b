"""Columns of every type in tables of other formats: types, rows, and bounds that no reader is misled by."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from pyiceberg import expressions as ex
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import SchemaError
from odfchain.profiles.export import cast_rows, check_slice
from odfchain.profiles.tables import TableFormat
from odfchain.slices.footers import file_stats
from tests.kit.exports import FIXTURE, TABLES, delta_log, field_of, iceberg, plain, rows_of
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.snapshot_columns import value_of

CASES: list[dict[str, Any]] = FIXTURE["types"]
ROWS = 3


def name_of(case: dict[str, Any]) -> str:
    return case.get("name") or "".join(c if c.isalnum() else "_" for c in case["type"])


def test_names_of_cases_are_names_of_columns() -> None:
    assert len({name_of(case) for case in CASES}) == len(CASES) > 30


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_types(case: dict[str, Any], kind: str) -> None:
    """Slices as they are, and rows that are written anew."""
    declared = pa.schema([field_of(case["type"], "c")])
    expected = {False: case[kind], True: case.get("rewritten", {}).get(kind, case[kind])}
    for rewritten, wanted in expected.items():
        if wanted is None:
            with pytest.raises(SchemaError, match=r"column 'c.*'") as caught:
                TableFormat(kind).columns(declared, rewritten=rewritten)
            helped = not rewritten and expected[True] is not None
            assert ("--rows state" in (caught.value.hint or "")) == helped
        else:
            found = TableFormat(kind).columns(declared, rewritten=rewritten)
            assert shown(kind, found) == {"c": wanted}


def shown(kind: str, columns: pa.Schema) -> dict[str, str]:
    if kind == "delta":
        fields = Schema.from_arrow(columns).fields
        return {field.name: in_words(json.loads(field.to_json())["type"]) for field in fields}
    made = Catalog._convert_schema_if_needed(columns)
    return {field.name: re.sub(r"-?\d+: ", "", str(field.field_type)) for field in made.fields}


def in_words(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{in_words(kind['elementType'])}>"
    members = ",".join(f"{member['name']}:{in_words(member['type'])}" for member in kind["fields"])
    return f"struct<{members}>"


def dataset_of(workspace: Workspace, cases: list[dict[str, Any]]) -> Dataset:
    """A dataset with a column for each case."""
    schema = schema_with(*(field_of(case["type"], name_of(case)) for case in cases))
    values = []
    for case in cases:
        kind = schema.field(name_of(case)).type
        given = [value_of(value, kind) for value in case["values"]]
        values.append((given + [None] * ROWS)[:ROWS])
    root = add_root(workspace, "types", schema)
    append(root, records(schema, 0, [0] * ROWS, [START] * ROWS, *values), MADE)
    return workspace["types"]


@pytest.mark.parametrize("rows", ["records", "state"])
@pytest.mark.parametrize("kind", TABLES)
def test_rows_and_bounds(kind: str, rows: str, workspace: Workspace, tmp_path: Path) -> None:
    state = rows == "state"
    # one text without bounds, and Delta has none of the file
    cases = [c for c in CASES if kind != "delta" or name_of(c) != "long"]
    cases = [c for c in cases if c[kind] or (state and kind in c.get("rewritten", {}))]
    dataset = dataset_of(workspace, cases)
    folder = tmp_path / "a table of ö"
    done = dataset.export(kind, folder, rows=rows)
    assert (done.versions, done.files, done.copies) == (1, 1, 0)
    expected = dataset.scan().to_arrow()
    if state:
        expected = expected.drop_columns(["offset", "op", "system_time"])
    wanted = TableFormat(kind).columns(expected.schema, rewritten=True)
    plainer = pa.schema([f.with_type(pa.binary(16)) if f.type == pa.uuid() else f for f in wanted])
    batches = [cast_rows(batch, plainer) for batch in expected.to_batches()]
    assert rows_of(kind, folder) == plain(pa.Table.from_batches(batches))
    assert bounds(kind, folder) == {
        name_of(case): found
        for case in cases
        if (found := case.get("bounds") or case.get(f"{kind}_bounds")) is not None
    }


def bounds(kind: str, folder: Path) -> dict[str, list[Any]]:
    """The bounds of a table's only file, but of the system columns."""
    found: dict[str, list[Any]] = {}
    if kind == "delta":
        (added,) = (line["add"] for line in delta_log(folder) if "add" in line)
        stats = json.loads(added["stats"])
        assert stats["numRecords"] == ROWS
        assert stats["minValues"].keys() == stats["maxValues"].keys() <= stats["nullCount"].keys()
        found = {name: [low, stats["maxValues"][name]] for name, low in stats["minValues"].items()}
    else:
        with iceberg(folder) as table:
            (file,) = (task.file for task in table.scan().plan_files())
            fields = {field.field_id: field for field in table.schema().fields}
        for number, low in file.lower_bounds.items():
            stored = fields[number].field_type
            read = [from_bytes(stored, raw) for raw in (low, file.upper_bounds[number])]
            found[fields[number].name] = [str(v) if "decimal" in str(stored) else v for v in read]
    system = ("offset", "op", "system_time", "event_time")
    return {name: pair for name, pair in found.items() if name not in system}


@pytest.mark.parametrize("case", FIXTURE["too_large"], ids=name_of)
def test_numbers_that_no_table_has(case: dict[str, Any], workspace: Workspace, tmp_path: Path) -> None:
    """In a footer or, where that says nothing, among the values; of a state, too. Nothing is written."""
    dataset = dataset_of(workspace, [case])
    for kind, rows in (("delta", "records"), ("iceberg", "records"), ("iceberg", "state")):
        with pytest.raises(SchemaError, match=f"column '{name_of(case)}'"):
            dataset.export(kind, tmp_path / "table", rows=rows)
        assert not any((tmp_path / "table").rglob("*.json"))


@pytest.mark.parametrize("case", FIXTURE["not_exact"], ids=name_of)
def test_no_value_is_rounded(case: dict[str, Any]) -> None:
    column = pa.array(case["nanoseconds"], pa.int64()).cast(field_of(case["type"], "c").type)
    batch = pa.record_batch([column], ["c"])
    columns = TableFormat.ICEBERG.columns(batch.schema, rewritten=True)
    with pytest.raises(SchemaError, match=r"column 'c'.*lose"):
        cast_rows(batch, columns)


@pytest.mark.parametrize(
    ("names", "kinds"),
    [(["a b"], ["delta"]), (["a,b"], ["delta"]), (["Ab", "aB"], TABLES), (["a.b", "ü"], [])],
)
def test_names(names: list[str], kinds: list[str]) -> None:
    columns = pa.schema([(name, pa.int8()) for name in names])
    for kind in TABLES:
        if kind in kinds:
            with pytest.raises(SchemaError, match=names[0]):
                TableFormat(kind).columns(columns)
        else:
            assert TableFormat(kind).columns(columns).names == names


def test_a_slice_with_other_types_than_declared(tmp_path: Path) -> None:
    """Smaller numbers are read as larger ones; anything else is refused with the column."""
    path = tmp_path / "slice"
    members = pa.struct([("x", pa.int8()), ("later", pa.string())])
    pq.write_table(pa.table({"n": pa.array([1], pa.int32()), "s": pa.array([None], members)}), path)
    stats = file_stats(path)
    wide = pa.schema([("n", pa.int64()), ("s", pa.struct([("x", pa.int16())])), ("new", pa.string())])
    check_slice(path, stats, wide, TableFormat.DELTA)
    for kind in (pa.int16(), pa.string(), pa.float64()):
        with pytest.raises(SchemaError, match="column 'n' is int32"):
            check_slice(path, stats, pa.schema([("n", kind)]), TableFormat.DELTA)


def test_no_row_is_skipped_that_is_there(workspace: Workspace, tmp_path: Path) -> None:
    """A group whose bounds a footer leaves out counts, too; each condition finds what all rows say."""
    schema = schema_with(pa.field("s", pa.string()), pa.field("f", pa.float64()), pa.field("i", pa.int64()))
    root = add_root(workspace, "skipped", schema)
    nan = float("nan")
    for start, texts, floats, whole in (
        (0, ["b", "z" * 5000], [nan, 1.0], [1, 5]), (2, ["m", None], [2.0, 3.0], [None, None]),
        (4, ["a", "c"], [nan, nan], [7, 9]),
    ):  # fmt: skip
        append(root, records(schema, start, [0, 0], [START] * 2, texts, floats, whole), MADE)
    dataset = workspace["skipped"]
    everything = dataset.scan().to_arrow()
    for kind in TABLES:
        dataset.export(kind, tmp_path / kind)
    table = DeltaTable(str(tmp_path / "delta")).to_pyarrow_dataset()
    with iceberg(tmp_path / "iceberg") as opened:
        found = opened
    for name, value in (("s", "b"), ("s", "y"), ("f", 1.5), ("i", 5), ("i", 8), ("offset", 3)):
        for sign, delta, other in (
            (">", pc.greater, ex.GreaterThan), ("<=", pc.less_equal, ex.LessThanOrEqual),
            ("=", pc.equal, ex.EqualTo), ("<>", pc.not_equal, ex.NotEqualTo),
        ):  # fmt: skip
            condition = delta(pc.field(name), pa.scalar(value))
            expected = sorted(everything.filter(condition)["offset"].to_pylist())
            assert sorted(table.to_table(filter=condition)["offset"].to_pylist()) == expected, (name, sign)
            if name == "f":
                continue  # to Iceberg, NaN is another thing
            # SQL: null is not unlike anything
            rows = found.scan(ex.And(other(name, value), ex.NotNull(name))).to_arrow()
            assert sorted(rows["offset"].to_pylist()) == expected, (name, sign)
    assert found.scan(ex.IsNull("i")).to_arrow()["offset"].to_pylist() == [2, 3]
    assert len(list(found.scan(ex.EqualTo("i", 8)).plan_files())) == 1, "and files are skipped"
