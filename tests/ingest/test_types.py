"""Values of every type, as they are recorded and read: precisions, annotations, conversions (RFC-001)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.branches.row_diff import array_of, tree_of
from odfchain.errors import BadInputError
from odfchain.ingest.schema_fit import normalized
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow, to_arrow_type
from odfchain.odf.enums import TimeUnit
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.schema import _NAMES, _SIMPLE, _UNSIGNED, parse_ddl, type_name
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import from_tree
from odfchain.spark.session import SparkEngine
from odfchain.transform.spark_engine import settled_schema
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.logical_hash import hash_table
from tests.kit.polled_sources import rows
from tests.kit.pushed_files import BARE, push, put, put_for
from tests.kit.root_rows import MADE, START, add_root, records, schema_with, slice_of
from tests.kit.support import FIXTURES, Run, derivative, manifest, unchanged

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
    fields = [pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)]
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), *fields])
    columns = [pa.array(range(len(rows)), pa.int32()), *map(array_of, values, kinds)]
    path = path.with_suffix(".parquet")
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, version="2.6")
    return path


def trees(rows: pa.Table, cases: Sequence[dict[str, Any]]) -> dict[int, list[Any]]:
    """The values of each key, as texts have them."""
    return {
        key: [tree_of(rows[f"c{c}"][i]) for c in range(len(cases))]
        for i, key in enumerate(rows["id"].to_pylist())
    }


def expected(cases: Sequence[dict[str, Any]], rows: Sequence[int | None]) -> dict[int, list[Any]]:
    return {
        key: [None if row is None else case["recorded"][row] for case in cases]
        for key, row in enumerate(rows)
    }


def walk(
    cases: Sequence[dict[str, Any]],
    workspace: odf.Workspace,
    engine: SparkEngine,
    run: Run,
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
        done = run("-w", workspace.path, "export", "types", "--rows", "state", "--to", folder / f"x.{output}")
        assert done.code == 0, done.err
    assert trees(pq.read_table(folder / "x.parquet"), cases) == expected(cases, [1, 0, 1])


FORMS = ("ddl", "odf")


@pytest.mark.parametrize("form", FORMS)
def test_all_columns_at_once(
    form: str, workspace: odf.Workspace, engine: SparkEngine, run_cli: Run, tmp_path: Path
) -> None:
    cases = {case["arrow"]: case for case in RECORDED if case["form"] == form}
    if form == "ddl":  # as texts; what the other form has, and is read from text elsewhere, is left out
        others = {case["arrow"] for case in RECORDED if case["form"] == "odf"}
        also = [case for case in RECORDED if case["type"] in ("TIME(0)", "TIMESTAMP(0)", "UUID")]
        cases = {kind: case for kind, case in cases.items() if kind not in others}
        cases |= {case["arrow"]: case for case in also}
    walk(list(cases.values()), workspace, engine, run_cli, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("case", RECORDED, ids=name_of)
def test_each_type_alone(
    case: dict[str, Any],
    workspace: odf.Workspace,
    engine: SparkEngine,
    run_cli: Run,
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


def test_they_are_continued_and_derived_from(workspace: odf.Workspace) -> None:
    dataset = older(workspace, "older")
    columns = ["t TIME(0)", "s TIMESTAMP(0)", "d DATE", "l ARRAY<TIMESTAMP>", "f ARRAY<INT>"]
    workspace.update(*read_snapshots(manifest(schema=json.dumps(columns), name="older", kind="NdJson")))
    new = {"t": "01:02:04", "s": "2024-01-01T00:00:00Z", "d": "2024-01-01", "l": [], "f": [3, 4]}
    push(dataset, json.dumps(new) + "\n", "new.ndjson")
    assert dataset.verify().faults == []
    found = dataset.scan(["t", "s", "f"]).to_arrow()
    assert [tree_of(value) for value in found["t"]] == ["01:02:03", None, "01:02:04"]
    assert found["f"].to_pylist() == [[1, 2], None, [3, 4]]
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


# --- Times keep the precision that is declared; what has to be cut is counted and said (RFC-001) ---


FINE = dt.datetime(2020, 1, 1, 10, 0, 0, 123456, tzinfo=dt.UTC)
COARSE, WHOLE = FINE.replace(microsecond=123000), FINE.replace(microsecond=0)
CUT = "times are finer than the column keeps; what is finer was cut off"
SYSTEM_DDL = (
    "`offset` UINT64 NOT NULL, op UINT8 NOT NULL, system_time TIMESTAMP NOT NULL, event_time TIMESTAMP"
)

Ingest = Callable[[Dataset, str | Path], str]


@pytest.fixture
def ingest(run_cli: Run) -> Ingest:
    """What the command says of a file, or of a CSV file with this text."""

    def run(dataset: Dataset, given: str | Path) -> str:
        path = put_for(dataset, given) if isinstance(given, str) else given
        done = run_cli("-w", dataset._workspace.path, "ingest", dataset.alias, path)
        assert done.code in (0, 3), done.err
        return done.err

    return run


def read(dataset: Dataset, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in rows(dataset, *columns)]


def kinds_of(dataset: Dataset, *columns: str) -> list[str]:
    return [str(kind) for kind in dataset.scan(list(columns)).to_arrow().schema.types]


def declared_before(dataset: Dataset, columns: str) -> None:
    """The chain has a schema already, with other types than its source declares."""
    old = encode_raw_arrow(parse_ddl([SYSTEM_DDL, columns]))
    event = ev.SetDataSchema(raw_arrow_schema=old)
    commit(dataset._files, dataset.summary, [event], [], system_time=Timestamp.now())


TEXTS = {
    "Csv": ("in.csv", "city,fine,coarse\nA,{0},{0}\nB,,2020-01-01T10:00:00Z\n"),
    "NdJson": ("in.ndjson", '{{"city":"A","fine":"{0}","coarse":"{0}"}}\n{{"city":"B","coarse":"2020-01-01T10:00:00Z"}}\n'),
}  # fmt: skip


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("merge", ["{kind: Append}", "{kind: Snapshot, primaryKey: [city]}"])
def test_text(workspace: Workspace, tmp_path: Path, ingest: Ingest, kind: str, merge: str) -> None:
    name, text = TEXTS[kind]
    schema = '["city STRING", "fine TIMESTAMP(6)", "coarse TIMESTAMP"]'
    (dataset,) = workspace.add(manifest(merge, schema, kind=kind))
    said = ingest(dataset, path := put(tmp_path, text.format("2020-01-01T10:00:00.123456Z"), name))
    assert f"{name}: `coarse`: 1 {CUT}" in said
    assert "`fine`" not in said
    assert read(dataset, "fine", "coarse") == [(FINE, COARSE), (None, WHOLE)]
    assert kinds_of(dataset, "fine", "coarse", "event_time") == [
        "timestamp[us, tz=UTC]", "timestamp[ms, tz=UTC]", "timestamp[ms, tz=UTC]",
    ]  # fmt: skip
    if "Snapshot" in merge:
        assert dataset.ingest([path]).up_to_date, "what was cut is compared as it was recorded"
    said = ingest(dataset, put(tmp_path, text.format("2020-01-01T10:00:01.1234567Z"), name))
    assert f"{name}: `fine`: 1 {CUT}" in said
    assert dataset.verify().ok


def test_times_inside_of_json_are_counted(workspace: Workspace, tmp_path: Path, ingest: Ingest) -> None:
    columns = [
        "s STRUCT<t: TIMESTAMP, n: INT, m: ARRAY<TIME(6)>>", "l ARRAY<TIMESTAMP>", "k ARRAY<TIMESTAMP(6)>",
    ]  # fmt: skip
    (dataset,) = workspace.add(manifest(schema=json.dumps(columns), kind="NdJson"))
    fine, time = "2020-01-01T10:00:00.123456Z", "10:00:00.1234567"
    text = (
        f'{{"s":{{"t":"{fine}","n":1,"m":["{time}"]}},"l":["{fine}","2020-01-01T10:00:00Z","{fine}"],"k":["{fine}"]}}\n'
        f'{{"s":null,"l":["{fine}"]}}\n{{"s":{{"m":null}}}}\n'
    )
    said = ingest(dataset, put(tmp_path, text, "in.ndjson"))
    assert f"`s`: 2 {CUT}" in said
    assert f"`l`: 3 {CUT}" in said
    assert "`k`" not in said
    assert read(dataset, "l", "k") == [([COARSE, WHOLE, COARSE], [FINE]), ([COARSE], None), (None, None)]
    assert dataset.verify().ok


def test_event_time_is_a_system_column(workspace: Workspace, ingest: Ingest) -> None:
    schema = '["event_time TIMESTAMP(6)", "city STRING"]'
    (dataset,) = workspace.add(manifest("{kind: Ledger, primaryKey: [event_time]}", schema))
    text = "event_time,city\n2020-01-01T10:00:00.123456Z,A\n1969-12-31T23:59:59.9999Z,B\n"
    assert f"in.csv: `event_time`: 2 {CUT}" in ingest(dataset, text)
    assert kinds_of(dataset, "event_time") == ["timestamp[ms, tz=UTC]"]
    assert read(dataset, "event_time")[1] == (COARSE,)
    assert push(dataset, text).up_to_date


def parquet(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet(workspace: Workspace, tmp_path: Path, ingest: Ingest) -> None:
    (dataset,) = workspace.add(BARE)
    nano = pa.array([1_577_872_800_123_456_000, None], pa.timestamp("ns", "UTC"))
    us, ms = (
        pa.array([FINE, None], pa.timestamp("us", "UTC")),
        pa.array([COARSE, None], pa.timestamp("ms", "UTC")),
    )
    said = ingest(dataset, path := parquet(tmp_path / "in.parquet", us=us, ms=ms, ns=nano))
    assert "in.parquet: nanoseconds are read as microseconds, without loss: `ns`" in said
    assert read(dataset, "us", "ms", "ns") == [(FINE, COARSE, FINE), (None, None, None)]
    assert [kind[10:12] for kind in kinds_of(dataset, "us", "ms", "ns")] == ["us", "ms", "us"]
    finer = pa.array([0, 1], pa.timestamp("ns", "UTC"))
    with unchanged(dataset.path):
        said = ingest(dataset, parquet(path, us=us, ms=ms, ns=finer))
    assert "in.parquet: row 2: column `ns`: a time is finer than a microsecond" in said
    # the schema in force decides
    assert f"in.parquet: `ms`: 1 {CUT}" in ingest(dataset, parquet(path, us=ms, ms=us, ns=ms))
    assert read(dataset, "us", "ms")[2] == (COARSE, COARSE)
    assert dataset.verify().ok


def test_a_chain_that_declared_milliseconds_keeps_them(workspace: Workspace, ingest: Ingest) -> None:
    (dataset,) = workspace.add(manifest(schema='["city STRING", "t TIMESTAMP(6)"]'))
    declared_before(dataset, "city STRING, t TIMESTAMP")
    assert f"`t`: 1 {CUT}" in ingest(dataset, "city,t\nA,2020-01-01T10:00:00.123456Z\n")
    assert read(dataset, "t") == [(COARSE,)]
    assert dataset.verify().ok


@pytest.mark.parametrize(
    ("declared", "kept", "later"),
    [("TIMESTAMP(6)", FINE, FINE + dt.timedelta(microseconds=1)), ("TIMESTAMP", COARSE, COARSE)],
)
def test_derivatives(
    workspace: Workspace, run_cli: Run, declared: str, kept: dt.datetime, later: dt.datetime
) -> None:
    (dataset,) = workspace.add(manifest(schema=f'["city STRING", "t {declared}"]'))
    query = "SELECT event_time, t, t AS u, t + INTERVAL 1 MICROSECOND AS v FROM cities"
    (made,) = workspace.add(derivative(query))
    push(dataset, "city,t\nA,2020-01-01T10:00:00.123456Z\n")
    done = run_cli("-w", workspace.path, "pull", "derived")
    assert done.code == 0, done.err
    assert read(made, "t", "u", "v") == [(kept, kept, later)]
    assert (f"`v`: 1 {CUT}" in done.err) == (kept == COARSE)
    assert made.verify(replay=True).ok


@pytest.mark.parametrize(
    ("form", "declared", "text", "kept", "cut"),
    [
        ("yyyy-MM-dd HH.mm.ss.SSSSSS", "TIMESTAMP", "2020-01-01 10.00.00.123456", COARSE, True),
        ("yyyy-MM-dd HH.mm.ss.SSSSSS", "TIMESTAMP", "2020-01-01 10.00.00.123000", COARSE, False),
        ("yyyy-MM-dd HH.mm.ss.SSSSSS", "TIMESTAMP(6)", "2020-01-01 10.00.00.123456", FINE, False),
        ("%d.%m.%Y %H-%M-%S.%9f", "TIMESTAMP(6)", "01.01.2020 10-00-00.123456789", FINE, True),
        ("%d.%m.%Y %H-%M-%S.%9f", "TIMESTAMP", "01.01.2020 10-00-00.123000001", COARSE, True),
        ("dd.MM.yyyy HH:mm:ss.SSS", "TIMESTAMP", "01.01.2020 10:00:00.123", COARSE, False),
    ],
)
def test_every_format_counts_what_is_cut(
    workspace: Workspace, ingest: Ingest, form: str, declared: str, text: str, kept: dt.datetime, cut: bool
) -> None:
    options = f"header: true\n        timestampFormat: '{form}'"
    (dataset,) = workspace.add(manifest(schema=f'["t {declared}"]').replace("header: true", options))
    assert (f"`t`: 1 {CUT}" in ingest(dataset, f"t\n{text}\n")) == cut
    assert read(dataset, "t") == [(kept,)]


@pytest.mark.parametrize(
    ("declared", "good", "text"),
    [
        ("TIMESTAMP(6)", "2020-01-01", "0000-01-01T00:00:00Z"),
        ("TIMESTAMP", "2020-01-01", "9999-12-31T23:59:59-01:00"),
        ("DATE", "2020-01-01", "0000-12-31"),
        ("UUID", "123e4567-e89b-12d3-a456-426614174000", "not-one"),
    ],
)
def test_a_text_that_is_no_value_of_its_column_is_told_by_its_row(
    workspace: Workspace, ingest: Ingest, declared: str, good: str, text: str
) -> None:
    """Times are those of the years 1 to 9999."""
    (dataset,) = workspace.add(manifest(schema=f'["t {declared}"]'))
    with unchanged(dataset.path):
        said = ingest(dataset, f"t\n{good}\n{text}\n")
    assert f"in.csv: row 2: column `t`: '{text}' is not a valid {declared}" in said


# --- A column that is declared as UUID is annotated as such in every slice, for every reader (RFC-001) ---


IDS = [uuid.UUID(int=number << 64 | 7) for number in range(1, 5)]
IDS_AS_TEXT = {
    "Csv": ("in.csv", "id,n\n{},{}\n"),
    "NdJson": ("in.ndjson", '{{"id":"{}","n":{}}}\n'),
}


def annotated(path: Path) -> set[str]:
    """The leaf columns of a Parquet file that are UUIDs."""
    schema = pq.ParquetFile(path).schema
    columns = [schema.column(index) for index in range(len(schema.names))]
    return {c.path for c in columns if c.logical_type.type == "UUID" and c.length == 16}


def slices(dataset: Dataset) -> list[Path]:
    return sorted((dataset.path / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def bytes_of(*ids: uuid.UUID) -> list[tuple[object, ...]]:
    return [(each.bytes,) for each in ids]


@pytest.mark.parametrize("kind", IDS_AS_TEXT)
@pytest.mark.parametrize("merge", ["{kind: Append}", "{kind: Ledger, primaryKey: [id]}"])
def test_every_slice(workspace: Workspace, kind: str, merge: str, run_cli: Run) -> None:
    (dataset,) = workspace.add(manifest(merge, '["id UUID", "n BIGINT"]', kind=kind))
    name, text = IDS_AS_TEXT[kind]
    for number, key in enumerate(IDS[:2]):
        assert not push(dataset, text.format(str(key).upper(), number), name).up_to_date
    assert [annotated(path) for path in slices(dataset)] == [{"id"}] * 2
    assert read(dataset, "id") == bytes_of(*IDS[:2])
    assert "id UUID" in run_cli("-w", workspace.path, "inspect", "schema", "cities", "-o", "ddl").out
    assert dataset.verify().ok


def test_members_of_structs(workspace: Workspace) -> None:
    (dataset,) = workspace.add(manifest(schema='["s STRUCT<id: UUID, n: INT>"]', kind="NdJson"))
    push(dataset, f'{{"s":{{"id":"{IDS[0]}","n":1}}}}\n{{"s":null}}\n', "in.ndjson")
    (path,) = slices(dataset)
    assert annotated(path) == {"s.id"}
    assert read(dataset, "s") == [({"id": IDS[0].bytes, "n": 1},), (None,)]
    assert dataset.verify().ok


def test_parquet_says_so_itself(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(BARE)
    path = tmp_path / "in.parquet"
    dataset.ingest([parquet(path, id=pa.array([k.bytes for k in IDS], pa.uuid()))])
    dataset.ingest([parquet(path, id=pa.array([IDS[0].bytes], pa.binary(16)))])
    assert [annotated(path) for path in slices(dataset)] == [{"id"}] * 2, "the schema in force decides"
    assert read(dataset, "id") == bytes_of(*IDS, IDS[0])
    assert dataset.verify().ok


def test_compaction_keeps_it(workspace: Workspace, run_cli: Run) -> None:
    (dataset,) = workspace.add(manifest(schema='["id UUID", "n BIGINT"]'))
    for number, key in enumerate(IDS):
        push(dataset, f"id,n\n{key},{number}\n")
    before = set(slices(dataset))
    done = run_cli("-y", "-w", workspace.path, "compact", "cities", "--hard", "--force")
    assert done.code == 0, done.err
    (merged,) = set(slices(dataset)) - before
    assert annotated(merged) == {"id"}
    again = workspace["cities"]
    assert read(again, "id") == bytes_of(*IDS)
    assert again.verify().ok


def test_a_chain_that_declared_bytes_goes_on_with_bytes(workspace: Workspace) -> None:
    (dataset,) = workspace.add(manifest(schema='["id UUID"]'))
    declared_before(dataset, "id BINARY(16)")
    push(dataset, f"id\n{IDS[0]}\n")
    kinds = [type(block.block.event).__name__ for block in dataset._files.chain.walk()]
    assert kinds.count("SetDataSchema") == 1
    (path,) = slices(dataset)
    assert annotated(path) == set()
    assert dataset.verify().ok


def test_a_query_reads_the_bytes(workspace: Workspace, run_cli: Run) -> None:
    (root,) = workspace.add(manifest(schema='["id UUID"]'))
    (made,) = workspace.add(derivative("SELECT event_time, id, hex(id) AS h FROM cities"))
    for key in IDS[:2]:
        push(root, f"id\n{key}\n")
        assert run_cli("-w", workspace.path, "pull", "derived").code == 0
    assert read(made, "id", "h") == [(k.bytes, k.hex.upper()) for k in IDS[:2]]
    assert made.verify(replay=True).ok


# --- A declared schema of Parquet: values keep what they mean, or the run stops with their row -----


NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
FIRST, TENTH = "123e4567-e89b-12d3-a456-426614174000", Decimal("1.2")


def dataset_of(workspace: Workspace, *declared: str) -> Dataset:
    columns = ", ".join(f'"v{number} {kind}"' for number, kind in enumerate(declared))
    (dataset,) = workspace.add(manifest(schema=f"[{columns}]", kind="Parquet"))
    return dataset


def write(path: Path, *columns: list[Any]) -> Path:
    pq.write_table(pa.table({f"v{number}": values for number, values in enumerate(columns)}), path)
    return path


CHANGED: list[tuple[str, list[Any], str]] = [
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
]
"""Type, values of which the last would be another one, and how that is shown."""


def test_what_would_change_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace, *(declared for declared, _, _ in CHANGED))
    good = [(values[:-1] + [None] * 2)[:3] for _, values, _ in CHANGED]
    path = tmp_path / "in.parquet"
    for number, (_, values, bad) in enumerate(CHANGED):
        columns = [rows[: len(values)] for rows in good]
        write(path, *columns[:number], values, *columns[number + 1 :])
        said = rf"in\.parquet: row {len(values)}: column `v{number}`: {bad} is not a valid"
        with unchanged(dataset.path), pytest.raises(BadInputError, match=said):
            dataset.ingest([path])
    dataset.ingest([write(path, *good)])
    assert dataset.verify().ok


KEPT: list[tuple[str, Any, Any]] = [
    ("STRING", 5, "5"),
    ("BIGINT", 5.0, 5),
    ("DECIMAL(5,1)", TENTH, TENTH),
    ("UUID", FIRST, bytes.fromhex(FIRST.replace("-", ""))),
    ("TIMESTAMP", "2020-01-01T12:00:00Z", NOON),
    ("DOUBLE", 1, 1.0),
]


def test_what_means_the_same_is_converted(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace, *(declared for declared, _, _ in KEPT))
    dataset.ingest([write(tmp_path / "in.parquet", *([value, None] for _, value, _ in KEPT))])
    columns = [f"v{number}" for number in range(len(KEPT))]
    assert rows(dataset, *columns) == [[kept for *_, kept in KEPT], [None] * len(KEPT)]


def test_types_without_a_conversion(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace, "INT")
    path = write(tmp_path / "in.parquet", [NOON.date()])
    with pytest.raises(BadInputError, match=r"column `v0` is DATE, which cannot be read as INT"):
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
