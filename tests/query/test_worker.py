"""SQL of untrusted people: what it may ask, what its process sees, and that nothing of it reaches the parent."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import (
    BusyError,
    DatasetNotFoundError,
    EngineError,
    OdfchainError,
    PointNotFoundError,
    QueryError,
    SliceNotFoundError,
)
from odfchain.limits import ASKED
from odfchain.odf.identity import Multihash
from odfchain.query import slots as slots_module
from odfchain.query import walled as module
from odfchain.query.embedded import Embedded
from odfchain.query.resolved_tables import Pins
from odfchain.query.row_streams import checked_rows
from odfchain.query.slots import Slots
from odfchain.query.sql_text import Query, numbered_values
from odfchain.query.walled import Worker
from odfchain.transform import sandbox
from odfchain.transform.closed_sql import check_text
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.processes import wait_until
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.support import Notes

SCHEMA = schema_with(pa.field("city", pa.string()), pa.field("pop", pa.float64()))
SHORT = dataclasses.replace(ASKED, seconds=1.5, memory=64 << 20)


@dataclasses.dataclass
class Scene:
    workspace: Workspace
    root: DatasetFiles
    rows: int = 0

    def add(self, *cities: str) -> None:
        columns = list(cities), [float(i) for i, _ in enumerate(cities)]
        rows = records(SCHEMA, self.rows, [0] * len(cities), [START] * len(cities), *columns)
        append(self.root, rows, MADE)
        self.rows += len(cities)

    def pins(self, **options: Any) -> Pins:
        return Pins(self.workspace._files, **options)

    @property
    def head(self) -> Multihash:
        return DatasetState.read(self.root.chain).head


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    workspace = Workspace.init(tmp_path_factory.mktemp("shared"))
    scene = Scene(workspace, add_root(workspace, "cities", SCHEMA))
    scene.add("a", "b", "c")
    scene.add("d", "e")
    return scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    workspace = Workspace.init(tmp_path / "own")
    scene = Scene(workspace, add_root(workspace, "cities", SCHEMA))
    scene.add("a", "b", "c")
    return scene


# --- the text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select 1" + "+1" * 20_000, "20,000 operators; at most 2,000"),
        ("select 1" + " union all select 1" * 3_000, "3,000 operators"),
        ("select 1" + "\nUnion\nAll select 1" * 3_000, "3,000 operators"),
        ("select " + "not " * 2_001 + "true", "2,001 operators"),
        ("select 1" + "::int" * 2_001, "2,001 operators"),
        ("select x" + "[1]" * 2_001, "2,001 operators"),
        ("select " + "~" * 2_001 + "1", "2,001 operators"),
        ("select " + "(" * 101 + "1" + ")" * 101, "100 brackets within brackets"),
        ("select " + "[" * 60_000, "100 brackets within brackets"),
        ("select '" + "x" * (64 << 10) + "'", "65,545 bytes; at most 65,536"),
        ("select 'ä'" + " " * (64 << 10), "65,547 bytes"),
        ("select 'a\0b'", "no text"),
        ("select '\udc80'", "no text"),
    ],
)
def test_text_that_hurts_the_planner_is_refused_before_any_process(
    shared: Scene, sql: str, said: str
) -> None:
    with pytest.raises(QueryError, match=said):
        Worker().answer(Query(sql, shared.pins()))


@pytest.mark.parametrize(
    "sql",
    [
        "select " + "(" * 100 + "1" + ")" * 100,
        "select " + "(1)," * 10_000 + "1",
        "select 1" + "+1" * 2_000,
        "select '" + "(+" * 3_000 + "', \"" + "(+" * 3_000 + '"',
        "select 1 -- " + "(+" * 3_000 + "\n/* " + "'(+" * 3_000 + "*/",
        "select 'it''s', '--', \"/*\"",
        "select origin, android, notes from inner",
        ")" * 1_000 + "(" * 100,
    ],
)
def test_what_stands_in_texts_names_and_comments_does_not_count(sql: str) -> None:
    check_text(sql)


@pytest.mark.parametrize("text", ["'", '"', "/*", "--", "(", "' '' ", "-", "x'", "/* */"])
def test_measuring_takes_no_time_whatever_the_text_is(text: str) -> None:
    began = time.process_time()
    with contextlib.suppress(QueryError):
        check_text(text * (ASKED.text_bytes // len(text)))
    assert time.process_time() - began < 1


# --- answers ------------------------------------------------------------------------------------------------

QUERIES = [
    "select * from cities order by 1",
    "select city, pop from state(cities) where pop > 0 order by city",
    "select count(*) as n, sum(pop) as s from cities",
    'select * from "cities@2"',
    "select 1 as a, 'x' as b, null as c, arrow_cast('y', 'Dictionary(Int32, Utf8)') as d",
    "select city from cities where false",
    "select [1, 2] as l, struct(1 as a, 'b' as b) as s, to_timestamp(0) as t, x'01' as b",
]


def asked(scene: Scene, sql: str, **options: Any) -> Any:
    """What the process would say, said here: for what a query of its own good will does."""
    worker = Worker(engine=Embedded(**({"partitions": 2} | options.pop("worker", {}))))
    pins, params = scene.pins(**options.pop("pins", {})), options.pop("params", None)
    how = {name: True for name in ("pieces", "describe") if options.pop(name, False)}
    request = worker.request(Query(sql, pins, params, **options), **how)
    (*pieces, last) = module.answer(json.loads(json.dumps(request)), worker.limits)
    return [*pieces, last] if how else last


@pytest.mark.parametrize("sql", QUERIES)
def test_the_answer_is_that_of_the_engine_in_this_process(shared: Scene, sql: str) -> None:
    own = Embedded().run(Query(sql, shared.pins()))
    header, body = asked(shared, sql, limit=None)
    schema, batches = checked_rows(body, ASKED)
    assert pa.Table.from_batches(batches, schema).equals(own.to_arrow())
    assert schema == own.schema
    assert header["inputs"] == [[p.name, str(p.id), str(p.block_hash)] for p in own.inputs]


def test_an_answer_comes_from_another_process(shared: Scene) -> None:
    """Names, points, values and what is pinned go over and come back."""
    sql = 'select c.city, $tag as tag, $n as n from "cities@2" c join cities d using (city) order by 1'
    params = {"tag": "x", "n": pa.scalar(2**63 + 5, pa.uint64())}
    result = Worker(sandbox="require").answer(Query(sql, shared.pins(), params=params, limit=2))
    own = Embedded().run(Query(sql, shared.pins(), params=params, limit=2))
    assert result.to_arrow().to_pylist() == own.to_arrow().to_pylist()
    assert result.schema == own.schema
    assert list(map(str, result.inputs)) == list(map(str, own.inputs))


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("select cty from cities", QueryError),
        ("select * from citis", DatasetNotFoundError),
        ('select * from "cities@99"', PointNotFoundError),
        ("select 1; select 2", QueryError),
        ("create table x (a int)", QueryError),
        ("select * from '/etc/passwd'", QueryError),
        ("copy cities to 'x.csv'", QueryError),
        ("select 1/0", QueryError),
    ],
)
def test_errors_are_those_of_the_engine_in_this_process(
    shared: Scene, sql: str, kind: type[OdfchainError]
) -> None:
    with pytest.raises(kind) as own:
        Embedded().run(Query(sql, shared.pins())).to_arrow()
    header, _ = asked(shared, sql, limit=None)
    found = module._parsed_header(json.dumps(header).encode())
    assert type(found) is type(own.value)
    assert (str(found), found.hint) == (str(own.value), own.value.hint)
    assert getattr(found, "excerpt", None) == getattr(own.value, "excerpt", None)


def test_functions_that_were_taken_away_cannot_be_named(shared: Scene) -> None:
    header, _ = asked(shared, "select now()", limit=None, worker={"without": frozenset({"now"})})
    assert "no function now" in header["error"]["message"]


def test_one_partition_gives_one_sum(shared: Scene) -> None:
    sql = "select sum(sqrt(value)) s from generate_series(1, 200000)"
    options: dict[str, Any] = {"partitions": 1, "batch_size": 1024}
    found = {asked(shared, sql, limit=None, worker=options)[1] for _ in range(3)}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("rows", "limit", "given"), [(10_000, None, 10_000), (10_001, 10_000, 10_000), (10_001, None, None)]
)
def test_more_rows_than_are_given_is_said(
    shared: Scene, rows: int, limit: int | None, given: int | None
) -> None:
    header, body = asked(shared, f"select value from generate_series(1, {rows})", limit=limit)
    if given is None:
        assert "more than 10,000 rows" in header["error"]["message"]
        assert not body
    else:
        assert sum(b.num_rows for b in checked_rows(body, ASKED)[1]) == given


def test_more_bytes_than_are_given_is_said(shared: Scene) -> None:
    header, body = asked(shared, "select repeat('x', 10000) from generate_series(1, 9000)", limit=None)
    assert "more than 16,777,216 bytes" in header["error"]["message"]
    assert not body


def test_a_slice_that_is_missing_is_named(scene: Scene) -> None:
    (slice_,) = (scene.root.folder / "data").rglob("f16*")
    slice_.unlink()
    header, _ = asked(scene, "select * from cities", limit=None)
    error = module._parsed_header(json.dumps(header).encode())
    assert isinstance(error, SliceNotFoundError)
    assert slice_.name in str(error)


# --- what is given ------------------------------------------------------------------------------------------


def test_blocks_that_are_given_stay_what_they_are(scene: Scene) -> None:
    given = {"x": (scene.root.id, scene.head)}
    scene.add("d", "e")
    result = Worker().answer(Query("select count(*) n from x", scene.pins(given=given)))
    assert result.to_arrow().to_pylist() == [{"n": 3}]
    assert [pin.block_hash for pin in result.inputs] == [given["x"][1]]
    header, _ = asked(scene, "select * from cities", limit=None, pins={"given": given})
    assert "not among the datasets" in header["error"]["message"]


def test_a_dataset_that_changes_meanwhile_is_read_at_one_block(scene: Scene) -> None:
    done = threading.Event()

    def grow() -> None:
        while not done.is_set():
            scene.add("x")

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        sql = 'select count(*) n, max("offset") o, (select count(*) from state(cities)) s from cities'
        result = Worker().answer(Query(sql, scene.pins()))
    finally:
        done.set()
        writer.join()
    (pin,) = result.inputs
    rows = (pin.state.last_offset or 0) + 1
    assert result.to_arrow().to_pylist() == [{"n": rows, "o": rows - 1, "s": rows}]
    assert rows <= scene.rows


# --- what a query does to its process -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "kind", "said"),
    [
        ("select count(*) from generate_series(1,10000000) a, generate_series(1,10000000) b",
         EngineError, "took longer than 1.5 s"),
        ("select repeat('x', 2000000000) from generate_series(1, 9)", QueryError, "too complex for this node"),
        ("select array_agg(value::text) from generate_series(1, 90000000)", EngineError, "more memory"),
    ],
)  # fmt: skip
def test_a_query_that_takes_too_much_ends_its_process_and_nothing_else(
    shared: Scene, sql: str, kind: type[OdfchainError], said: str
) -> None:
    limits = SHORT if kind is EngineError and "longer" in said else dataclasses.replace(SHORT, seconds=60)
    began = time.monotonic()
    with pytest.raises(kind, match=said):
        Worker(limits).answer(Query(sql, shared.pins()))
    assert time.monotonic() - began < 60
    assert not running(limits)


def running(limits: Any) -> list[str]:
    """Processes that were started with these limits."""
    own = json.dumps(dataclasses.asdict(limits)).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if own in path.read_bytes() and b"bwrap" not in path.read_bytes():
                found.append(path.parent.name)
    return found


PARENT = """
import dataclasses, sys
from pathlib import Path
from odfchain.limits import ASKED
from odfchain.query import walled
from odfchain.query.resolved_tables import Pins
from odfchain.query.row_streams import checked_rows
from odfchain.query.sql_text import Query
from odfchain.workspace.workspace_files import WorkspaceFiles
if sys.argv[2] == "plain":
    walled.Worker._sandboxed = lambda self: False
limits = dataclasses.replace(ASKED, seconds=float(sys.argv[3]))
sql = "select count(*) from generate_series(1,10000000) a, generate_series(1,10000000) b"
walled.Worker(limits).answer(Query(sql, Pins(WorkspaceFiles(Path(sys.argv[1])))))
"""


@pytest.mark.parametrize("how", ["sandboxed", "plain"])
def test_the_process_ends_with_its_parent(shared: Scene, how: str, tmp_path: Path) -> None:
    limits = dataclasses.replace(ASKED, seconds=98.125 if how == "plain" else 97.125)
    command = [sys.executable, "-c", PARENT, str(shared.workspace._files.root), how, str(limits.seconds)]
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(tmp_path)}) as parent:
        wait_until(lambda: running(limits))
        time.sleep(0.4)  # while it loads, or while it computes
        assert running(limits)
        parent.kill()
    wait_until(lambda: not running(limits))


# --- what the process sees ----------------------------------------------------------------------------------

PROBE = """
import json, os, socket, sys
out = os.fdopen(1, "wb", buffering=0)
out.write(b"ready\\n")
sys.stdin.buffer.readline()
port, *paths = json.loads(sys.argv[1])
def tried(what):
    try:
        return what()
    except OSError as error:
        return type(error).__name__
def read(path):
    return sorted(os.listdir(path)) if os.path.isdir(path) else open(path).read()
def write(path):
    with open(os.path.join(path, "new"), "w"):
        return "written"
found = {path: tried(lambda: read(path)) for path in paths}
found["write"] = tried(lambda: write(paths[0]))
found["network"] = tried(lambda: str(socket.create_connection(("127.0.0.1", port), 5)))
found["secret"] = os.environ.get("AWS_SECRET_ACCESS_KEY")
out.write(json.dumps({"error": {"kind": "QueryError", "message": json.dumps(found), "hint": None, "excerpt": []}}).encode())
"""


def loader(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: object) -> None:
    """Another program takes the place of what loads the engine."""
    monkeypatch.setattr(
        module, "command", lambda _: [sys.executable, "-P", "-c", program, json.dumps(arguments)]
    )


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: object) -> None:
    """Another program takes the place of what answers."""
    forks = "from odfchain.query.walled import fork_for_each\n"
    loader(monkeypatch, f"{forks}fork_for_each(lambda: exec({program!r}, {{}}))", *arguments)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("given", [False, True])
def test_the_process_sees_the_datasets_and_nothing_else(
    scene: Scene, given: bool, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    files = scene.workspace._files
    other = add_root(scene.workspace, "other", SCHEMA)
    folders = ["datasets", "keys", "config.yaml", "node.pem", "run"]
    (files.root / "node.pem").write_text("secret")
    own = (scene.root.folder, other.folder, *(files.root / name for name in folders))
    paths = [*map(str, own), "/etc/shadow", str(Path.home() / ".profile"), __file__]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(module, "_MESSAGE_CHARACTERS", 100_000)
    stand_in(monkeypatch, PROBE, port, *paths, "/etc/passwd")
    pins = scene.pins(given={"x": (scene.root.id, scene.head)} if given else None)
    with pytest.raises(QueryError) as told:
        Worker(sandbox="require").answer(Query("select 1", pins))
    found = json.loads(told.value.message)
    datasets = [scene.root.folder.name] if given else sorted([scene.root.folder.name, other.folder.name])
    assert found.pop("/etc/passwd").startswith("engine:")
    assert found == dict.fromkeys(paths, "FileNotFoundError") | {
        str(scene.root.folder): sorted(p.name for p in scene.root.folder.iterdir()),
        str(files.root / "datasets"): datasets,
        str(other.folder): "FileNotFoundError" if given else sorted(p.name for p in other.folder.iterdir()),
        "write": "OSError", "network": "ConnectionRefusedError", "secret": None,
    }  # fmt: skip


def test_without_a_sandbox_it_is_said_once_or_nothing_is_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    monkeypatch.setattr(module, "_SAID", set())
    with pytest.raises(EngineError, match="bubblewrap is not installed") as refused:
        Worker(sandbox="require").answer(Query("select 1 as a", scene.pins()))
    assert refused.value.hint == "apt-get install bubblewrap"
    progress = Notes()
    loader(monkeypatch, "import os; print(os.environ.get('AWS_SECRET_ACCESS_KEY'))")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for _ in range(2):
        with pytest.raises(EngineError, match="did not start"):
            Worker(progress=progress).answer(Query("select 1", scene.pins()))
    (note,) = progress.texts
    assert "plain process (apt-get install bubblewrap)" in note
    monkeypatch.undo()
    monkeypatch.setattr(Worker, "_sandboxed", lambda self: False)
    result = Worker().answer(Query("select count(*) n from cities", scene.pins()))
    assert result.to_arrow().to_pylist() == [{"n": 3}]


# --- a process that lies ------------------------------------------------------------------------------------

LIAR = """
import base64, json, os, signal, sys
out = os.fdopen(1, "wb", buffering=0)
out.write(b"ready\\n")
sys.stdin.buffer.readline()
what, = json.loads(sys.argv[1])
if what.isdigit():
    os.kill(os.getpid(), int(what))
out.write(base64.b64decode(what))
"""


def said(header: Any, body: bytes = b"") -> bytes:
    return json.dumps(header).encode() + b"\n" + body


def stream(*, rows: int = 1, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    batch = pa.record_batch({"a": pa.array(["x" * 100] * rows).dictionary_encode()})
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def bad_utf8() -> bytes:
    return stream().replace(b"x" * 100, b"\xff" * 100)


def rows_of(body: bytes, inputs: Any = ()) -> bytes:
    return said({"inputs": inputs, "bytes": len(body)}, body)


LIES = {
    "nothing": (b"", EngineError, "did not say what it should"),
    "no JSON": (b"\xff\n", EngineError, "did not say"),
    "another form": (said([1]), EngineError, "did not say"),
    "deep": (b"[" * 50_000, EngineError, "did not say"),
    "another size": (said({"inputs": [], "bytes": 5}, b"abc"), EngineError, "did not say"),
    "inputs that are none": (rows_of(stream(), [["a", "b", "c"]]), EngineError, "did not say"),
    "no Arrow": (rows_of(b"abc" * 100), EngineError, "unreadable answer"),
    "compressed": (rows_of(stream(compression="zstd")), EngineError, "it is compressed"),
    "bad text": (rows_of(bad_utf8()), EngineError, "unreadable answer"),
    "many rows": (rows_of(stream(rows=10_001)), EngineError, "more rows than it may"),
    "an error that acts": (
        said({"error": {"kind": "SystemExit", "message": "a\x1b[2J\n" * 5_000, "hint": "\u202e", "excerpt": []}}),
        EngineError,
        r"^a\\x1b\[2J\\na",
    ),
    "an error without words": (said({"error": {"kind": []}}), EngineError, "did not say"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_process_that_lies_is_not_believed(
    shared: Scene, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import base64

    data, kind, message = LIES[lie]
    stand_in(monkeypatch, LIAR, base64.b64encode(data).decode() if data else "")
    with pytest.raises(kind, match=message) as told:
        Worker().answer(Query("select 1", shared.pins()))
    assert len(str(told.value)) < 3_000
    assert "\x1b" not in told.value.message + (told.value.hint or "")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
@pytest.mark.parametrize("sandboxed", [True, False])
def test_a_crash_is_said_of_the_query(
    shared: Scene, number: int, sandboxed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, LIAR, str(int(number)))
    monkeypatch.setattr(Worker, "_sandboxed", lambda self: sandboxed)
    with pytest.raises(QueryError, match="the query is too complex for this node") as told:
        Worker().answer(Query("select 1", shared.pins()))
    assert told.value.exit_code == 3


def test_a_flood_is_cut_off(shared: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    flood = "import os, sys\nos.write(1, b'ready\\n')\nwhile True: os.write(1, b'x' * 65536)"
    stand_in(monkeypatch, flood)
    with pytest.raises(EngineError, match="did not say what it should"):
        Worker().answer(Query("select 1", shared.pins()))


def test_a_process_that_does_not_start_says_why(shared: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    loader(monkeypatch, "raise SystemExit('no library \\x1b[2J')")
    with pytest.raises(EngineError, match=r"did not start \(exit code 1\): no library \\x1b\[2J"):
        Worker().answer(Query("select 1", shared.pins()))
    loader(monkeypatch, "import time; time.sleep(99)")
    limits = dataclasses.replace(ASKED, starting_seconds=0.3)
    with pytest.raises(EngineError, match="did not start in time"):
        Worker(limits).answer(Query("select 1", shared.pins()))


# --- answers in pieces --------------------------------------------------------------------------------------


def test_an_answer_in_pieces_has_the_same_rows_however_many(shared: Scene) -> None:
    sql = "select value, repeat('x', 100) as text from generate_series(1, 200000)"
    pieces = asked(shared, sql, limit=None, pieces=True)
    assert [bool(header.get("more")) for header, _ in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all(len(body) < 2 * ASKED.piece_bytes for _, body in pieces)
    found = [batch for _, body in pieces for batch in checked_rows(body, ASKED, every=True)[1]]
    assert sum(batch.num_rows for batch in found) == 200_000
    worker = Worker()
    with worker.process(shared.pins()) as process:
        result = process.answer(worker.request(Query(sql, shared.pins()), pieces=True), shared.pins())
        assert result.to_arrow() == pa.Table.from_batches(found)


def test_rows_that_are_long_come_in_pieces_of_their_own(shared: Scene) -> None:
    pieces = asked(shared, "select repeat('x', 3000000) from generate_series(1, 9)", limit=None, pieces=True)
    assert [sum(b.num_rows for b in checked_rows(body, ASKED)[1]) for _, body in pieces] == [1] * 9
    *_, (header, _) = asked(shared, "select repeat('x', 17000000)", limit=None, pieces=True)
    assert "more than 16,777,216 bytes" in header["error"]["message"]


def test_a_process_that_is_killed_between_pieces_gives_an_error(shared: Scene) -> None:
    worker, sql = Worker(), "select repeat('x', 1000) from generate_series(1, 1000000)"
    with worker.process(shared.pins()) as process:
        rows = process.answer(worker.request(Query(sql, shared.pins()), pieces=True), shared.pins()).batches()
        next(rows)
        process.kill()
        with pytest.raises(QueryError, match="too complex"):
            list(rows)


def test_columns_and_values_of_a_query_are_described_before_it_is_asked(shared: Scene) -> None:
    sql = numbered_values("select city, pop * ? as p from cities where city = ? and 'a?' <> \"city\" limit ?")
    (_, columns), (_, values) = asked(shared, sql, limit=None, describe=True)
    assert checked_rows(columns, ASKED)[0].names == ["city", "p"]
    found = checked_rows(values, ASKED)[0]
    assert found == pa.schema([("1", pa.float64()), ("2", pa.string()), ("3", pa.int64())])


def test_a_dataset_that_is_not_for_the_reader_is_not_there(scene: Scene) -> None:
    other = add_root(scene.workspace, "secret.rows", SCHEMA)
    only = dataclasses.replace(scene.workspace._files, only=frozenset({scene.root.folder.name}))
    for name in ("secret.rows", str(other.id)):
        with pytest.raises(DatasetNotFoundError) as told:
            Worker().answer(Query(f'select * from "{name}"', Pins(only)))
        assert "did you mean" not in (told.value.hint or "")
    assert Worker().answer(Query("select * from cities", Pins(only))).to_arrow().num_rows == 3


def test_few_queries_run_few_wait_and_the_others_are_told(shared: Scene) -> None:
    slots, worker = Slots(Worker(), shared.pins().workspace, running=1, waiting=1), Worker()
    with contextlib.closing(slots):
        found = list[int]()

        def wait() -> None:
            with slots.process(shared.pins()) as other:
                query = worker.request(Query("select 1 as a", shared.pins()))
                found.append(other.answer(query, shared.pins()).to_arrow().num_rows)

        waiting = threading.Thread(target=wait)
        with slots.process(shared.pins()):
            waiting.start()
            wait_until(lambda: slots._queue)
            with pytest.raises(BusyError, match="too many queries"), slots.process(shared.pins()):
                pass
            assert not found
        waiting.join()
        assert found == [1]
        with slots.process(shared.pins()):
            gone = [False]
            timer = threading.Timer(0.1, lambda: (gone.__setitem__(0, True), slots.wake()))
            timer.start()
            with pytest.raises(BusyError), slots.process(shared.pins(), lambda: gone[0]):
                pass


# --- what queries of one loader have in common --------------------------------------------------------------

NEIGHBOUR = """
import json, os, signal, sys
out = os.fdopen(1, "wb", buffering=0)
out.write(b"ready\\n")
sql = json.loads(sys.stdin.buffer.readline())["sql"]
parent = os.getppid()
def tried(what):
    try:
        return what() or "done"
    except OSError as error:
        return type(error).__name__
def found():
    if sql == "look":
        return tried(lambda: open(f"/proc/{parent}/mem", "rb", 0).read(1))
    if sql in ("SIGKILL", "SIGSTOP"):
        return tried(lambda: os.kill(parent, getattr(signal, sql)))
    if sql == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    return parent
said = {"kind": "QueryError", "message": json.dumps(found()), "hint": None, "excerpt": []}
out.write(json.dumps({"error": said}).encode() + b"\\n")
"""


def test_a_query_cannot_look_into_its_loader_nor_end_what_comes_after_it(
    shared: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, NEIGHBOUR)
    monkeypatch.setattr(module, "_ENDING_SECONDS", 0.3)
    worker, pins = Worker(sandbox="require"), shared.pins()

    def told(sql: str) -> Any:
        with pytest.raises(QueryError) as error, slots.process(pins) as process:
            process.answer(worker.request(Query(sql, pins)), pins)
        return error.value.message.strip('"')

    with contextlib.closing(Slots(worker, pins.workspace)) as slots:
        first = told("who")
        assert told("look") == "PermissionError"
        assert told("who") == first
        ids = {id(slots._loaders[worker.shown(pins)].loader)}
        for harm in ("SIGKILL", "SIGSTOP", "crash"):
            told(harm)
            wait_until(lambda: told("who").isdigit())  # what was forked before may end with it
            ids.add(id(slots._loaders[worker.shown(pins)].loader))
        assert len(ids) > 1


def test_queries_of_one_loader_run_at_the_same_time_and_know_nothing_of_each_other(shared: Scene) -> None:
    worker, pins = Worker(), shared.pins()
    with contextlib.closing(Slots(worker, pins.workspace)) as slots:
        with slots.process(pins) as one, slots.process(pins) as other:
            for process, value in ((one, 1), (other, 2)):
                query = worker.request(Query(f"select {value} as a", pins))
                assert process.answer(query, pins).to_arrow().to_pylist() == [{"a": value}]
        assert len(slots._loaders) == 1


def test_readers_who_see_less_have_loaders_of_their_own(scene: Scene) -> None:
    others = [add_root(scene.workspace, f"d{number}", SCHEMA) for number in range(slots_module.LOADERS + 1)]
    files, worker = scene.workspace._files, Worker()
    with contextlib.closing(Slots(worker, files)) as slots:
        for other in others:
            pins = Pins(dataclasses.replace(files, only=frozenset([other.folder.name])))
            with slots.process(pins) as process, pytest.raises(DatasetNotFoundError):
                process.answer(worker.request(Query("select * from cities", pins)), pins)
        assert len(slots._loaders) == slots_module.LOADERS


def test_two_threads_may_wait_until_a_process_is_ready(shared: Scene) -> None:
    """A node loads its first process while a client of Flight SQL asks it already."""
    query = Query("select count(*) from cities", shared.pins())
    worker = Worker()
    with worker.process(query.pins) as process, ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(process.ready) for _ in range(2)]:
            each.result(30)
        assert process.answer(worker.request(query), query.pins).to_arrow().num_rows == 1


def test_two_threads_that_wait_for_an_end_see_one_code() -> None:
    life, of_loader = socket.socketpair()
    loader: Any = SimpleNamespace(spoil=lambda **_: None, ended=lambda: -signal.SIGKILL)
    fork = module.Fork(loader, life, io.BytesIO(), io.BytesIO())
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0)
    with life, ThreadPoolExecutor(2) as threads:
        codes = [threads.submit(fork.wait, 30) for _ in range(2)]
        assert fork.poll() is None
        with of_loader:
            of_loader.sendall(struct.pack("i", 7))
        assert [each.result(30) for each in codes] == [7, 7]
    assert fork.poll() == 7
