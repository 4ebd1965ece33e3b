"""Times keep the precision that is declared; what has to be cut is counted and said (RFC-001)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.odf.arrow_schema import encode_raw_arrow
from tests.kit.support import Result, derivative, manifest, unchanged

FINE = dt.datetime(2020, 1, 1, 10, 0, 0, 123456, tzinfo=dt.UTC)
COARSE = FINE.replace(microsecond=123000)
CUT = "times are finer than the column keeps; what is finer was cut off"

Ingest = Callable[[Dataset, Path], Result]


@pytest.fixture
def ingest(run_cli: Callable[..., Result]) -> Ingest:
    def run(dataset: Dataset, path: Path) -> Result:
        done = run_cli("-w", dataset.path.parent.parent.parent, "ingest", dataset.alias, path)
        assert done.code in (0, 3), done.err
        return done

    return run


def read(dataset: Dataset, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in dataset.scan(list(columns)).to_arrow().to_pylist()]


def unit_of(dataset: Dataset, column: str) -> str:
    return str(dataset.scan([column]).to_arrow().schema.field(column).type)


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
    path = tmp_path / name
    path.write_text(text.format("2020-01-01T10:00:00.123456Z"))
    done = ingest(dataset, path)
    assert f"{name}: `coarse`: 1 {CUT}" in done.err
    assert "`fine`" not in done.err
    assert read(dataset, "fine", "coarse") == [(FINE, COARSE), (None, FINE.replace(microsecond=0))]
    assert [unit_of(dataset, column) for column in ("fine", "coarse", "event_time")] == [
        "timestamp[us, tz=UTC]", "timestamp[ms, tz=UTC]", "timestamp[ms, tz=UTC]",
    ]  # fmt: skip
    if "Snapshot" in merge:
        assert dataset.ingest([path]).up_to_date, "what was cut is compared as it was recorded"
    path.write_text(text.format("2020-01-01T10:00:01.1234567Z"))
    assert f"{name}: `fine`: 1 {CUT}" in ingest(dataset, path).err
    assert dataset.verify().ok


def test_times_inside_of_json_are_counted(workspace: Workspace, tmp_path: Path, ingest: Ingest) -> None:
    types = {
        "s": "STRUCT<t: TIMESTAMP, n: INT, m: ARRAY<TIME(6)>>",
        "l": "ARRAY<TIMESTAMP>",
        "k": "ARRAY<TIMESTAMP(6)>",
    }
    schema = str([f"{name} {kind}" for name, kind in types.items()]).replace("'", '"')
    (dataset,) = workspace.add(manifest("{kind: Append}", schema, kind="NdJson"))
    path = tmp_path / "in.ndjson"
    fine, time = "2020-01-01T10:00:00.123456Z", "10:00:00.1234567"
    path.write_text(
        f'{{"s":{{"t":"{fine}","n":1,"m":["{time}"]}},"l":["{fine}","2020-01-01T10:00:00Z","{fine}"],"k":["{fine}"]}}\n'
        f'{{"s":null,"l":["{fine}"]}}\n{{"s":{{"m":null}}}}\n'
    )
    said = ingest(dataset, path).err
    assert f"`s`: 2 {CUT}" in said
    assert f"`l`: 3 {CUT}" in said
    assert "`k`" not in said
    assert read(dataset, "l", "k") == [
        ([COARSE, COARSE.replace(microsecond=0), COARSE], [FINE]),
        ([COARSE], None),
        (None, None),
    ]
    assert dataset.verify().ok


def test_event_time_is_a_system_column(workspace: Workspace, tmp_path: Path, ingest: Ingest) -> None:
    schema = '["event_time TIMESTAMP(6)", "city STRING"]'
    (dataset,) = workspace.add(manifest("{kind: Ledger, primaryKey: [event_time]}", schema))
    path = tmp_path / "in.csv"
    path.write_text("event_time,city\n2020-01-01T10:00:00.123456Z,A\n1969-12-31T23:59:59.9999Z,B\n")
    assert f"in.csv: `event_time`: 2 {CUT}" in ingest(dataset, path).err
    assert unit_of(dataset, "event_time") == "timestamp[ms, tz=UTC]"
    assert read(dataset, "event_time")[1] == (COARSE,)
    assert dataset.ingest([path]).up_to_date


def parquet(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet(workspace: Workspace, tmp_path: Path, ingest: Ingest) -> None:
    bare = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: bare, kind: Root, metadata: []}"
    (dataset,) = workspace.add(bare)
    at = [FINE, None]
    nano = pa.array([1_577_872_800_123_456_000, None], pa.timestamp("ns", "UTC"))
    given = {
        "us": pa.array(at, pa.timestamp("us", "UTC")),
        "ms": pa.array([COARSE, None], pa.timestamp("ms", "UTC")),
    }
    path = parquet(tmp_path / "in.parquet", **given, ns=nano)
    assert "in.parquet: nanoseconds are read as microseconds, without loss: `ns`" in ingest(dataset, path).err
    assert read(dataset, "us", "ms", "ns") == [(FINE, COARSE, FINE), (None, None, None)]
    assert [unit_of(dataset, c)[10:12] for c in ("us", "ms", "ns")] == ["us", "ms", "us"]
    finer = pa.array([0, 1], pa.timestamp("ns", "UTC"))
    with unchanged(dataset.path):
        done = ingest(dataset, parquet(path, **given, ns=finer))
    assert "in.parquet: row 2: column `ns`: a time is finer than a microsecond" in done.err
    # the schema in force decides
    parquet(path, us=given["ms"], ms=given["us"], ns=given["ms"])
    assert f"in.parquet: `ms`: 1 {CUT}" in ingest(dataset, path).err
    assert read(dataset, "us", "ms")[2] == (COARSE, COARSE)
    assert dataset.verify().ok


def test_a_chain_that_declared_milliseconds_keeps_them(
    workspace: Workspace, tmp_path: Path, ingest: Ingest
) -> None:
    from odfchain.odf import events as ev
    from odfchain.odf.schema import parse_ddl
    from odfchain.odf.times import Timestamp
    from odfchain.workspace.commit import commit

    (dataset,) = workspace.add(manifest("{kind: Append}", '["city STRING", "t TIMESTAMP(6)"]'))
    system = (
        "`offset` UINT64 NOT NULL, op UINT8 NOT NULL, system_time TIMESTAMP NOT NULL, event_time TIMESTAMP"
    )
    old = encode_raw_arrow(parse_ddl([system, "city STRING, t TIMESTAMP"]))
    commit(
        dataset._files,
        dataset.summary,
        [ev.SetDataSchema(raw_arrow_schema=old)],
        [],
        system_time=Timestamp.now(),
    )
    path = tmp_path / "in.csv"
    path.write_text("city,t\nA,2020-01-01T10:00:00.123456Z\n")
    assert f"`t`: 1 {CUT}" in ingest(dataset, path).err
    assert read(dataset, "t") == [(COARSE,)]
    assert dataset.verify().ok


def test_derivatives(
    workspace: Workspace, tmp_path: Path, ingest: Ingest, run_cli: Callable[..., Result]
) -> None:
    (fine,) = workspace.add(manifest("{kind: Append}", '["city STRING", "t TIMESTAMP(6)"]', name="fine"))
    (coarse,) = workspace.add(manifest("{kind: Append}", '["city STRING", "t TIMESTAMP"]', name="coarse"))
    query = "SELECT event_time, t, t AS u, t + INTERVAL 1 MICROSECOND AS v FROM {0}"
    for name, dataset in (("fine", fine), ("coarse", coarse)):
        text = derivative(query.format(name), name=f"of-{name}", inputs=f"[{{datasetRef: {name}}}]")
        (made,) = workspace.add(text)
        path = tmp_path / "in.csv"
        path.write_text("city,t\nA,2020-01-01T10:00:00.123456Z\n")
        ingest(dataset, path)
        done = run_cli("-w", made.path.parent.parent.parent, "pull", f"of-{name}")
        assert done.code == 0, done.err
        kept = FINE if name == "fine" else COARSE
        later = kept + dt.timedelta(microseconds=1 if name == "fine" else 0)
        assert read(made, "t", "u", "v") == [(kept, kept, later)]
        assert (f"`v`: 1 {CUT}" in done.err) == (name == "coarse")
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
    workspace: Workspace,
    tmp_path: Path,
    ingest: Ingest,
    form: str,
    declared: str,
    text: str,
    kept: dt.datetime,
    cut: bool,
) -> None:
    source = manifest(schema=f'["t {declared}"]').replace(
        "header: true", f"header: true\n        timestampFormat: '{form}'"
    )
    (dataset,) = workspace.add(source)
    path = tmp_path / "in.csv"
    path.write_text(f"t\n{text}\n")
    done = ingest(dataset, path)
    assert (f"`t`: 1 {CUT}" in done.err) == cut
    assert read(dataset, "t") == [(kept,)]


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("TIMESTAMP(6)", "0000-01-01T00:00:00Z"),
        ("TIMESTAMP", "9999-12-31T23:59:59-01:00"),
        ("DATE", "0000-12-31"),
    ],
)
def test_a_time_out_of_the_years_1_to_9999_is_told_by_its_row(
    workspace: Workspace, tmp_path: Path, ingest: Ingest, declared: str, text: str
) -> None:
    (dataset,) = workspace.add(manifest(schema=f'["t {declared}"]'))
    path = tmp_path / "in.csv"
    path.write_text(f"t\n2020-01-01\n{text}\n")
    with unchanged(dataset.path):
        done = ingest(dataset, path)
    assert f"in.csv: row 2: column `t`: '{text}' is not a valid {declared}" in done.err
