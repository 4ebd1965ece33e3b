"""Every type that a schema can declare is recorded, and then true everywhere, or refused when it is added.

The table is `fixtures/types/types.json`. All columns of one form go through every way at once; `make soak`
sends each type alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.branches.row_diff import array_of, tree_of
from odfchain.ingest.schema_fit import normalized
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import to_arrow_type
from odfchain.odf.enums import TimeUnit
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.schema import _NAMES, _SIMPLE, _UNSIGNED, type_name
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import from_tree
from odfchain.spark.session import SparkEngine
from odfchain.transform.spark_engine import settled_schema
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.logical_hash import hash_table
from tests.kit.root_rows import MADE, START, add_root, records, schema_with, slice_of
from tests.kit.support import FIXTURES, Result, derivative

TYPES: list[dict[str, Any]] = json.loads((FIXTURES / "types" / "types.json").read_text("utf-8"))["types"]
RECORDED = [case for case in TYPES if "refused" not in case]
REFUSED = [case for case in TYPES if "refused" in case]
DATE = {"kind": "Timestamp", "unit": "Millisecond", "timezone": "UTC"}
SYSTEM = [["offset", "UInt64"], ["op", "UInt8"], ["system_time", DATE], ["event_time", DATE]]


def name_of(case: dict[str, Any]) -> str:
    kind = case["type"]
    return f"{case['form']} {kind if isinstance(kind, str) else json.dumps(kind)}"


def optional(kind: Any) -> Any:
    return {"kind": "Option", "inner": kind}


def snapshot(cases: Sequence[dict[str, Any]], *, name: str = "types", read: str | None = None) -> str:
    """A dataset with a key and a column for each case, which are of one form."""
    columns = [(f"c{i}", case["type"]) for i, case in enumerate(cases)]
    form, metadata = cases[0]["form"], list[Any]()
    step: dict[str, Any] = {"kind": read or ("Parquet" if form == "odf" else "NdJson")}
    if form == "ddl":
        step["schema"] = ["id INT NOT NULL", *(f"{column} {kind}" for column, kind in columns)]
    elif form == "read":
        step["schema"] = {"fields": [{"name": column, "type": optional(kind)} for column, kind in columns]}
    else:
        data = [["id", "Int32"], *([column, optional(kind)] for column, kind in columns)]
        fields = [{"name": column, "type": kind} for column, kind in [*SYSTEM, *data]]
        metadata.append({"kind": "SetDataSchema", "schema": {"fields": fields}})
    merge = {"kind": "Snapshot", "primaryKey": ["id"]}
    metadata.append({"kind": "AddPushSource", "sourceName": "s", "read": step, "merge": merge})
    content = {"name": name, "kind": "Root", "metadata": metadata}
    return json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": content})


def input_file(path: Path, cases: Sequence[dict[str, Any]], rows: Sequence[int | None]) -> Path:
    """One row for each number: the values of that number of every case, or nulls."""
    values = [[None if row is None else case["given"][row] for row in rows] for case in cases]
    if cases[0]["form"] == "ddl":
        path = path.with_suffix(".ndjson")
        lines = [{"id": i, **{f"c{c}": v[i] for c, v in enumerate(values)}} for i in range(len(rows))]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        return path
    kinds = [to_arrow_type(from_tree(ds.DataType, case["type"])) for case in cases]  # type: ignore[arg-type]
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            *(pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)),
        ]
    )
    columns = [pa.array(range(len(rows)), pa.int32()), *map(array_of, values, kinds)]
    path = path.with_suffix(".parquet")
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, version="2.6")
    return path


def trees(rows: pa.Table, cases: Sequence[dict[str, Any]]) -> dict[int, list[Any]]:
    """The values of each key, as texts have them."""
    found = {}
    for i, key in enumerate(rows["id"].to_pylist()):
        found[key] = [tree_of(rows[f"c{c}"][i]) for c in range(len(cases))]
    return found


def expected(cases: Sequence[dict[str, Any]], rows: Sequence[int | None]) -> dict[int, list[Any]]:
    return {
        key: [None if row is None else case["recorded"][row] for case in cases]
        for key, row in enumerate(rows)
    }


def walk(
    cases: Sequence[dict[str, Any]],
    workspace: odf.Workspace,
    engine: SparkEngine,
    run: Callable[..., Result],
    folder: Path,
) -> None:
    def holds(dataset: odf.Dataset, *rows: int | None) -> None:
        report = dataset.verify()
        assert (report.faults, report.notes) == ([], [])
        state = dataset.state().to_arrow() if dataset.kind.value == "Root" else dataset.scan().to_arrow()
        kinds = [str(state.schema.field(f"c{i}").type) for i in range(len(cases))]
        assert kinds == [case["arrow"] for case in cases]
        assert trees(state, cases) == expected(cases, rows)

    (dataset,) = workspace.add(snapshot(cases))
    dataset.ingest([input_file(folder / "one", cases, [0, 1, None])])
    holds(dataset, 0, 1, None)
    dataset.ingest([input_file(folder / "two", cases, [0, 0, None])])  # the first and the last are known
    ops = dataset.scan(["id", "op"]).to_arrow().to_pylist()[3:]
    assert ops == [{"id": 1, "op": 2}, {"id": 1, "op": 3}]
    holds(dataset, 0, 0, None)
    # corrected on a branch, merged into the head
    branch = dataset.create_branch("fixes")
    given = [dict(case, given=case["recorded"], form="ddl") for case in cases]
    branch.correct([input_file(folder / "fixes", given, [1, 0, 1])])
    dataset.merge("fixes")
    holds(dataset, 1, 0, 1)
    # a derivative, which reads all of it by Spark
    columns = ", ".join(f"c{i}" for i in range(len(cases)))
    query = f"SELECT event_time, id, {columns} FROM types"
    (made,) = workspace.add(derivative(query, inputs="[{datasetRef: types}]"))
    made.pull()
    report = made.verify(replay=True)
    assert report.faults == []
    assert made.scan().to_arrow().num_rows == dataset.scan().to_arrow().num_rows
    # to a peer and back, and to other programs
    dataset.push((folder / "peer").as_uri())
    with odf.init(folder / "elsewhere") as elsewhere:
        copy = elsewhere.pull((folder / "peer").as_uri(), name="copy")
        assert copy is not None
        holds(elsewhere["copy"], 1, 0, 1)
    for output in ("csv", "ndjson", "parquet"):
        done = run("-w", workspace.path, "export", "types", "--state", "--output", folder / f"x.{output}")
        assert done.code == 0, done.err
    assert trees(pq.read_table(folder / "x.parquet"), cases) == expected(cases, [1, 0, 1])


FORMS = ("ddl", "odf")


@pytest.mark.parametrize("form", FORMS)
def test_all_columns_at_once(
    form: str, workspace: odf.Workspace, engine: SparkEngine, run_cli: Callable[..., Result], tmp_path: Path
) -> None:
    cases = {case["arrow"]: case for case in RECORDED if case["form"] == form}
    if form == "ddl":  # as texts; what the other form has, and is read from text elsewhere, is left out
        others = {case["arrow"] for case in RECORDED if case["form"] == "odf"}
        also = {
            case["arrow"]: case for case in RECORDED if case["type"] in ("TIME(0)", "TIMESTAMP(0)", "UUID")
        }
        cases = {kind: case for kind, case in cases.items() if kind not in others} | also
    walk(list(cases.values()), workspace, engine, run_cli, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("case", RECORDED, ids=name_of)
def test_each_type_alone(
    case: dict[str, Any],
    workspace: odf.Workspace,
    engine: SparkEngine,
    run_cli: Callable[..., Result],
    tmp_path: Path,
) -> None:
    walk([case], workspace, engine, run_cli, tmp_path)


def test_what_cannot_be_recorded_is_refused_when_it_is_added(tmp_path: Path) -> None:
    with odf.init(tmp_path) as workspace:
        for case in REFUSED:
            with pytest.raises(odf.errors.ManifestError) as refused:
                workspace.add(snapshot([case], read=case.get("read")))
            assert case["refused"] in str(refused.value), name_of(case)
            assert refused.value.path.startswith("metadata[0].")
        assert list(workspace) == []


def test_so_is_a_derivative_whose_result_cannot(workspace: odf.Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(snapshot(RECORDED[:1]))
    dataset.ingest([input_file(tmp_path / "one", RECORDED[:1], [0])])
    query = "SELECT event_time, array(struct(id, c0)) AS m FROM types"
    with pytest.raises(odf.OdfchainError, match="no logical hash is defined for type struct in a list"):
        workspace.add(derivative(query, inputs="[{datasetRef: types}]"))
    assert "derived" not in workspace


def test_the_table_has_every_spelling() -> None:
    names = {case["type"] for case in TYPES if case["form"] == "ddl"}
    assert names >= {*_SIMPLE, *_NAMES.values(), *(f"{name} UNSIGNED" for name in _UNSIGNED)}
    assert names >= {f"{kind}({p})" for kind in ("TIMESTAMP", "TIME") for p in range(10)}
    kinds = {case["type"] if isinstance(case["type"], str) else case["type"]["kind"] for case in TYPES}
    assert kinds >= {kind.KIND for kind in ds.DataType.__args__}  # type: ignore[attr-defined]


def test_what_inputs_have_is_recorded_as_parquet_keeps_it() -> None:
    """At any depth; what a dataset declares stays, where it is stored alike."""
    paris = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="Europe/Paris")
    seconds = ds.DataTypeTime(unit=TimeUnit.SECOND)
    given = ds.DataTypeStruct(
        fields=(
            ds.DataField(name="l", type=ds.DataTypeList(item_type=ds.optional(paris), fixed_length=2)),
            ds.DataField(name="t", type=ds.optional(seconds)),
            ds.DataField(name="u", type=ds.DataTypeBinary(fixed_length=16), extra=ds.UUID),
        )
    )
    schema = ds.DataSchema(fields=(ds.DataField(name="x", type=ds.optional(given)),))
    (found,) = normalized(schema, ev.DatasetVocabulary()).fields
    assert type_name(found.type) == "STRUCT<l ARRAY<TIMESTAMP(3)> NOT NULL, t TIME(3), u UUID NOT NULL>"
    kinds = [part.timezone for part in ds.types_within(found.type) if isinstance(part, ds.DataTypeTimestamp)]
    assert kinds == ["UTC"]
    assert normalized(schema, ev.DatasetVocabulary(), schema).fields == schema.fields
    declared = ds.DataSchema(fields=(*[ds.DataField(name=n, type=ds.MS_UTC) for n in "abcd"], *schema.fields))
    now = ds.DataSchema(fields=(*declared.fields[:4], found))
    assert settled_schema(now, declared) == declared


# --- datasets that exist -------------------------------------------------------------------------------

MS, DAY = pa.timestamp("ms", "UTC"), 86_400_000
OLDER: dict[str, tuple[pa.DataType, list[Any]]] = {
    "t": (pa.time32("s"), [3_723, None]),
    "s": (pa.timestamp("s", "UTC"), [1_700_000_000, None]),
    "n": (pa.timestamp("s"), [1_700_000_000, None]),
    "z": (pa.timestamp("ms", "Europe/Paris"), [1_700_000_000_001, None]),
    "d": (pa.date64(), [DAY, None]),
    "l": (pa.list_(pa.timestamp("ms", "Europe/Paris")), [[1, None], None]),
    "f": (pa.list_(pa.int32(), 2), [[1, 2], None]),
}
"""Types that Parquet gives back as others, with the numbers of two values."""


def older(workspace: odf.Workspace, name: str, *, wrong: bool = False) -> odf.Dataset:
    """A dataset whose slice was hashed in the declared types, as versions before this rule did."""
    schema = schema_with(*(pa.field(column, kind) for column, (kind, _) in OLDER.items()))
    root = add_root(workspace, name, schema)
    rows = records(schema, 0, [0, 0], [START, START], *(values for _, values in OLDER.values()))
    said = rows.set_column(4, schema.field("t"), pa.array([3_724, None], pa.time32("s"))) if wrong else rows
    with root.staging() as folder:
        path = folder / "made"
        pq.write_table(rows, path, store_schema=False)
        new = dataclasses.replace(slice_of(path, 0), logical_hash=hash_table(said))
        event = ev.AddData(new_data=new, new_watermark=Timestamp.parse("2024-01-01T00:00:00Z"))
        staged = StagedFile(path, new.physical_hash)
        commit(root, DatasetState.read(root.chain), [event], [staged], system_time=MADE)
    return workspace[name]


def test_what_was_hashed_in_the_declared_types_is_true(tmp_path: Path) -> None:
    with odf.init(tmp_path / "one") as workspace:
        dataset = older(workspace, "older")
        report = dataset.verify()
        assert report.faults == []
        (note,) = (note for note in report.notes if "logical hash" in note)
        assert "the logical hash is that of the declared types, where Parquet keeps others" in note
        (fault,) = older(workspace, "wrong", wrong=True).verify().faults
        assert "LogicalHashMismatch" in str(fault)
        kinds = {f.name: str(f.type) for f in dataset.scan().to_arrow().schema}
        assert (kinds["t"], kinds["s"], kinds["d"]) == ("time32[ms]", "timestamp[ms, tz=UTC]", "date32[day]")
        assert (kinds["n"], kinds["f"]) == ("timestamp[ms]", "list<item: int32>")
        dataset.push((tmp_path / "peer").as_uri())
        with odf.init(tmp_path / "two") as elsewhere:
            elsewhere.pull((tmp_path / "peer").as_uri(), name="copy")
            assert elsewhere["copy"].verify().faults == []


def test_they_are_continued_and_derived_from(workspace: odf.Workspace, tmp_path: Path) -> None:
    dataset = older(workspace, "older")
    columns = ["t TIME(0)", "s TIMESTAMP(0)", "d DATE", "l ARRAY<TIMESTAMP>", "f ARRAY<INT>"]
    metadata = {
        "kind": "AddPushSource", "sourceName": "s", "merge": {"kind": "Append"},
        "read": {"kind": "NdJson", "schema": columns},
    }  # fmt: skip
    content = {"name": "older", "kind": "Root", "metadata": [metadata]}
    manifest = json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": content})
    workspace.update(*read_snapshots(manifest))
    new = {"t": "01:02:04", "s": "2024-01-01T00:00:00Z", "d": "2024-01-01", "l": [], "f": [3, 4]}
    (tmp_path / "new.ndjson").write_text(json.dumps(new) + "\n", "utf-8")
    dataset.ingest([tmp_path / "new.ndjson"])
    assert dataset.verify().faults == []
    rows = dataset.scan(["t", "s", "f"]).to_arrow()
    assert [tree_of(value) for value in rows["t"]] == ["01:02:03", None, "01:02:04"]
    assert rows["f"].to_pylist() == [[1, 2], None, [3, 4]]
    inputs = "[{datasetRef: older}]"
    (made,) = workspace.add(derivative("SELECT event_time, t, s, d, l, f FROM older", inputs=inputs))
    made.pull()
    report = made.verify(replay=True)
    assert (report.faults, [note for note in report.notes if "logical hash" in note]) == ([], [])
    assert made.schema is not None
    kinds = {
        part.timezone
        for f in made.schema.fields
        for part in ds.types_within(f.type)
        if isinstance(part, ds.DataTypeTimestamp)
    }
    assert kinds == {"UTC"}
    assert [tree_of(value) for value in made.scan(["t"]).to_arrow()["t"]] == ["01:02:03", None, "01:02:04"]
