"""A column that is declared as UUID is annotated as such in every slice, for every reader (RFC-001)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.schema import parse_ddl
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from tests.kit.support import Result, derivative, manifest

IDS = [uuid.UUID(int=number << 64 | 7) for number in range(1, 5)]
TEXTS = {
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


def read(dataset: Dataset) -> list[object]:
    return [
        dataset.scan(["id"]).to_arrow().column("id")[i].as_py()
        for i in range(dataset.scan(["id"]).to_arrow().num_rows)
    ]


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("merge", ["{kind: Append}", "{kind: Ledger, primaryKey: [id]}"])
def test_every_slice(
    workspace: Workspace, tmp_path: Path, kind: str, merge: str, run_cli: Callable[..., Result]
) -> None:
    (dataset,) = workspace.add(manifest(merge, '["id UUID", "n BIGINT"]', kind=kind))
    name, text = TEXTS[kind]
    for number, key in enumerate(IDS[:2]):
        (tmp_path / name).write_text(text.format(str(key).upper(), number))
        assert not dataset.ingest([tmp_path / name]).up_to_date
    made = slices(dataset)
    assert [annotated(path) for path in made] == [{"id"}] * 2
    assert read(dataset) == [k.bytes for k in IDS[:2]]
    ddl = run_cli("-w", workspace.path, "inspect", "schema", "cities", "-o", "ddl").out
    assert "id UUID" in ddl
    assert dataset.verify().ok


def test_wrong_text_is_told(workspace: Workspace, tmp_path: Path, run_cli: Callable[..., Result]) -> None:
    workspace.add(manifest(schema='["id UUID"]'))
    (tmp_path / "in.csv").write_text("id\nnot-one\n")
    done = run_cli("-w", workspace.path, "ingest", "cities", tmp_path / "in.csv")
    assert done.code == 3
    assert "'not-one' is not a valid UUID" in done.err


def test_members_of_structs(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest(schema='["s STRUCT<id: UUID, n: INT>"]', kind="NdJson"))
    (tmp_path / "in.ndjson").write_text(f'{{"s":{{"id":"{IDS[0]}","n":1}}}}\n{{"s":null}}\n')
    dataset.ingest([tmp_path / "in.ndjson"])
    (path,) = slices(dataset)
    assert annotated(path) == {"s.id"}
    assert dataset.scan(["s"]).to_arrow().to_pylist() == [{"s": {"id": IDS[0].bytes, "n": 1}}, {"s": None}]
    assert dataset.verify().ok


def test_parquet_says_so_itself(workspace: Workspace, tmp_path: Path) -> None:
    bare = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: bare, kind: Root, metadata: []}"
    (dataset,) = workspace.add(bare)
    pq.write_table(pa.table({"id": pa.array([k.bytes for k in IDS], pa.uuid())}), tmp_path / "in.parquet")
    dataset.ingest([tmp_path / "in.parquet"])
    pq.write_table(pa.table({"id": pa.array([IDS[0].bytes], pa.binary(16))}), tmp_path / "in.parquet")
    dataset.ingest([tmp_path / "in.parquet"])
    assert [annotated(path) for path in slices(dataset)] == [{"id"}] * 2, "the schema in force decides"
    assert read(dataset) == [k.bytes for k in (*IDS, IDS[0])]
    assert dataset.verify().ok


def test_compaction_keeps_it(workspace: Workspace, tmp_path: Path, run_cli: Callable[..., Result]) -> None:
    (dataset,) = workspace.add(manifest(schema='["id UUID", "n BIGINT"]'))
    for number, key in enumerate(IDS):
        (tmp_path / "in.csv").write_text(f"id,n\n{key},{number}\n")
        dataset.ingest([tmp_path / "in.csv"])
    before = set(slices(dataset))
    done = run_cli("-y", "-w", workspace.path, "compact", "cities", "--hard", "--force")
    assert done.code == 0, done.err
    (merged,) = set(slices(dataset)) - before
    assert annotated(merged) == {"id"}
    again = workspace["cities"]
    assert read(again) == [k.bytes for k in IDS]
    assert again.verify().ok


def test_a_chain_that_declared_bytes_goes_on_with_bytes(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest(schema='["id UUID"]'))
    system = (
        "`offset` UINT64 NOT NULL, op UINT8 NOT NULL, system_time TIMESTAMP NOT NULL, event_time TIMESTAMP"
    )
    old = encode_raw_arrow(parse_ddl([system, "id BINARY(16)"]))
    commit(
        dataset._files,
        dataset.summary,
        [ev.SetDataSchema(raw_arrow_schema=old)],
        [],
        system_time=Timestamp.now(),
    )
    (tmp_path / "in.csv").write_text(f"id\n{IDS[0]}\n")
    dataset.ingest([tmp_path / "in.csv"])
    kinds = [type(block.block.event).__name__ for block in dataset._files.chain.walk()]
    assert kinds.count("SetDataSchema") == 1
    (path,) = slices(dataset)
    assert annotated(path) == set()
    assert dataset.verify().ok


def test_a_query_reads_the_bytes(
    workspace: Workspace, tmp_path: Path, run_cli: Callable[..., Result]
) -> None:
    (root,) = workspace.add(manifest(schema='["id UUID"]'))
    query = "SELECT event_time, id, hex(id) AS h FROM cities"
    (made,) = workspace.add(derivative(query))
    for key in IDS[:2]:
        (tmp_path / "in.csv").write_text(f"id\n{key}\n")
        root.ingest([tmp_path / "in.csv"])
        assert run_cli("-w", workspace.path, "pull", "derived").code == 0
    rows = made.scan(["id", "h"]).to_arrow().to_pylist()
    assert rows == [{"id": k.bytes, "h": k.hex.upper()} for k in IDS[:2]]
    assert made.verify(replay=True).ok
