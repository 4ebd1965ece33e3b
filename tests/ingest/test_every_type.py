"""Every type that a schema can declare is recorded, and then true everywhere, or refused when it is added.

The table is `fixtures/types/types.json`. All columns of one form go through every way at once; `make soak`
sends each type alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.branch.cell_text import array_of, tree_of
from odfchain.codec.arrow import to_arrow_type
from odfchain.codec.tree import from_tree
from odfchain.model import data_schema as ds
from odfchain.model.ddl import _NAMES, _SIMPLE, _UNSIGNED
from odfchain.spark.session import SparkEngine
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
    assert dataset.ingest([input_file(folder / "same", cases, [0, 1, None])]).up_to_date
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
    query = f"SELECT event_time, id, {columns} FROM types"  # noqa: S608 - our own names
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
            with pytest.raises(odf.ManifestError) as refused:
                workspace.add(snapshot([case], read=case.get("read")))
            assert case["refused"] in str(refused.value), name_of(case)
            assert refused.value.path.startswith("metadata[0].")
        assert list(workspace) == []


def test_the_table_has_every_spelling() -> None:
    names = {case["type"] for case in TYPES if case["form"] == "ddl"}
    assert names >= {*_SIMPLE, *_NAMES.values(), *(f"{name} UNSIGNED" for name in _UNSIGNED)}
    assert names >= {f"{kind}({p})" for kind in ("TIMESTAMP", "TIME") for p in range(10)}
    kinds = {case["type"] if isinstance(case["type"], str) else case["type"]["kind"] for case in TYPES}
    assert kinds >= {kind.KIND for kind in ds.DataType.__args__}  # type: ignore[attr-defined]
