"""`odfchain sql`: what is asked in which way, what is printed and written, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.cli.main import main
from odfchain.cli.query import parameter
from odfchain.errors import QueryError, UsageError
from odfchain.query.row_formats import python_values
from tests.kit.opened_files import opened_files
from tests.kit.processes import HEEDS_INTERRUPTS, ODFCHAIN, begun_with, environment
from tests.kit.queried_workspace import BIG, TYPES, add_numbers, add_types, new_workspace
from tests.kit.support import FIXTURES, Run, feed

CROSS = "select count(*) from rows a, rows b, rows c, rows d where a.v + b.v + c.v + d.v < 0"
"""Runs for longer than anybody waits."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Datasets with columns of all types, with 12 slices, and with names of all kinds."""
    workspace = new_workspace(tmp_path_factory.mktemp("asked"))
    add_types(workspace)
    add_numbers(workspace, "rows", [100] * 12)
    for name in ("a/b", "org.x.y", "plain", "Cased"):
        add_numbers(workspace, name, [2, 1])
    return workspace


@pytest.fixture
def sql(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, run: Run) -> Run:
    """`odfchain sql -c QUERY OPTIONS` in this process."""
    monkeypatch.chdir(workspace.path.parent)

    return lambda query, *args: run("sql", *([] if query is None else ["-c", query]), *args)


def process(workspace: Workspace, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        begun_with(HEEDS_INTERRUPTS, ODFCHAIN, *args), cwd=workspace.path.parent, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def begun(asked: subprocess.Popen[bytes]) -> bytes:
    """The first line of an answer."""
    if not (line := asked.stdout.readline()):
        pytest.fail(f"it ended with {asked.wait()}: {asked.stderr.read()!r}")
    return line


# --- where the query comes from --------------------------------------------------------------------


def test_where_a_query_comes_from(sql: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "select count(*) n from rows;"
    (tmp_path / "q.sql").write_text(f"\ufeff-- how many\n{query}\n", encoding="utf-8")
    asked = [sql(query), sql(None, "--script", tmp_path / "q.sql")]
    for mark in ([], ["-"]):
        feed(monkeypatch, query.encode())
        asked.append(sql(None, *mark))
    assert {(r.code, r.out) for r in asked} == {(0, "   n\n1200\n")}


@pytest.mark.parametrize(
    ("args", "piped", "said"),
    [
        ([], b"", "no query given"),
        ([], b" \n ", "give a query with -c"),
        (["-c", "select 1", "-"], b"", "given in two ways"),
        (["-c", "select 1", "--script", "x"], b"", "given in two ways"),
        (["--script", "nothing.sql"], b"", "nothing.sql: no such file"),
        (["-c", "select 1", "--output", "."], b"", "is a folder"),
        (["-c", "-- nothing\n;"], b"", "no query given"),
        (["-c", "select 1; select 2", "--output", "x.csv"], b"", "are for one query"),
        (["-c", "select 1; select 2", "--proof", "x.json"], b"", "are for one query"),
        (["-c", "select 1; select 2", "-o", "parquet"], b"", "parquet holds the answer to one query"),
        (["-c", ".nothing"], b"", "unknown command .nothing"),
        (["-c", "select 1", "--output", "no/x.csv"], b"", "no: no such folder"),
        (["-c", "select 1", "--param", "x"], b"", "no name and value"),
        (["-c", "select 1", "--param", "x=1", "--param", "x=2"], b"", "given twice"),
        (["-c", "select 1", "--memory", "much"], b"", "is not a size"),
        (["-c", "select 1", "--timeout", "2"], b"", "is not a length of time"),
        (["-c", "select 1", "--as-at", "yesterday"], b"", "is not a time"),
    ],
)
def test_what_is_not_understood(
    sql: Run, monkeypatch: pytest.MonkeyPatch, args: list[str], piped: bytes, said: str
) -> None:
    feed(monkeypatch, piped)
    result = sql(None, *args)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_what_is_no_text_is_refused(sql: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"select '\xff'")
    result = sql(None)
    assert result.code == 3
    assert "standard input: the query is not UTF-8 (byte 8)" in result.err


SCRIPT = """\
-- first; not the last
select 1 a, ';' "b;";
/* two; */ select 2 a;
show tables;
DESCRIBE org.x.y@2;
"""


def test_a_script_is_answered_in_order(sql: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "s.sql").write_text(SCRIPT)
    feed(monkeypatch, SCRIPT.encode())
    asked = [sql(SCRIPT), sql(None, "--script", tmp_path / "s.sql"), sql(None)]
    assert {(r.code, r.out) for r in asked} == {(0, asked[0].out)}
    first, second, tables, columns = asked[0].out.split("\n\n")
    assert (first, second) == ("a  b;\n1  ;", "a\n2")
    assert re.search(r"^org\.x\.y +Root +5 +3$", tables, re.MULTILINE), tables
    assert re.search(r"^v +BIGINT$", columns, re.MULTILINE), columns
    assert sql("select 1 a; select 2 b", "-o", "csv").out == "a\n1\n\nb\n2\n"
    assert sql("select 1 a; select 2 b", "-o", "ndjson").out == '{"a": 1}\n{"b": 2}\n'
    assert (
        sql("select 1 a; select 2 b", "-o", "json").out
        == '[\n  {\n    "a": 1\n  }\n]\n[\n  {\n    "b": 2\n  }\n]\n'
    )


def test_an_error_says_which_query_of_a_script(sql: Run) -> None:
    result = sql(
        ".mode csv\nselect 1 a;\nselect 2 a;\n-- no such column\nselect nothing\nfrom rows; select 4 a"
    )
    assert (result.code, result.out) == (3, "a\n1\n\na\n2\n")
    assert "error: query 3 (select nothing): " in result.err


def test_commands_of_the_shell_are_answered_without_one(sql: Run, tmp_path: Path) -> None:
    assert sql(".tables").out == sql("show tables").out == sql("  Show  Tables ; ").out
    assert sql(".help").out.startswith("A query ends with a semicolon")
    (tmp_path / "q.sql").write_text("select 2 a")
    script = f".output {tmp_path}/a.csv\nselect 1 a;\n.read {tmp_path}/q.sql\n.quit\nselect 3 a"
    assert sql(script).out == "a\n2\n"
    assert (tmp_path / "a.csv").read_text() == "a\n1\n"
    (tmp_path / "q.sql").write_text(f".read {tmp_path}/q.sql")
    assert "a file that is read reads no other" in sql(f".read {tmp_path}/q.sql").err
    assert "error: .mode xml: unknown format 'xml'" in sql("select 1;\n.mode xml").err


# --- what is printed -------------------------------------------------------------------------------


def test_what_was_read_is_said_beside_the_rows(sql: Run, workspace: Workspace) -> None:
    head = str(workspace["rows"].head)
    result = sql('select v from rows r where v in (select v from "rows@2") limit 3', "-o", "csv")
    assert len(result.out.splitlines()) == 4
    assert result.err.startswith("rows @ 2 (")
    assert f"rows @ 13 ({head[:8]}…{head[-4:]}), 3 rows, " in result.err
    assert result.err.endswith(" s\n")
    assert sql("select 1").err.startswith("1 row, ")


@pytest.mark.parametrize("output", ["-ojson", "-ondjson", "-ocsv", "-otable", "--wide"])
def test_values_are_printed_as_by_tail(sql: Run, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`tail` shows operations as signs in whole tables; a query has a number there."""
    asked = sql("select * from types order by 1", output).out
    capsys.readouterr()
    assert main(["tail", "types", output]) == 0
    shown = capsys.readouterr().out
    assert asked == (shown.replace("+A", " 0") if output == "--wide" else shown)


def test_case_27_numbers_are_exact_in_every_format(sql: Run, tmp_path: Path) -> None:
    query = 'select big, exact, wide, nested, raw from types order by "offset"'
    big, exact, wide = (TYPES[name][1][0] for name in ("big", "exact", "wide"))
    for output in ("json", "ndjson"):
        text = sql(query, "-o", output).out
        first = json.loads(text)[0] if output == "json" else json.loads(text.splitlines()[0])
        assert (first["big"], first["nested"]["a"]) == (BIG, BIG)
        assert (Decimal(first["exact"]), Decimal(first["wide"])) == (exact, wide)
        assert first["raw"] == "00ff"
    row = next(csv.DictReader(io.StringIO(sql(query, "-o", "csv").out)))
    assert (int(row["big"]), Decimal(row["wide"]), json.loads(row["nested"])["a"]) == (BIG, wide, BIG)
    for output in ("arrow", "parquet"):
        assert sql(query, "-o", output, "--output", tmp_path / "out").code == 0
        table = pq.read_table(tmp_path / "out") if output == "parquet" else read_ipc(tmp_path / "out")
        assert table.column("big").type == pa.uint64()
        assert [table.column(name)[0].as_py() for name in ("big", "exact", "wide")] == [big, exact, wide]


def read_ipc(path: Path) -> pa.Table:
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        return reader.read_all()


@pytest.mark.parametrize("output", ["arrow", "parquet"])
def test_arrow_and_parquet_have_the_declared_types(sql: Run, tmp_path: Path, output: str) -> None:
    path = tmp_path / f"all.{output}"
    assert sql("select * from types", "--output", path).code == 0
    table = pq.read_table(path) if output == "parquet" else read_ipc(path)
    assert {f.name: f.type for f in table.schema if f.name in TYPES} == {n: k for n, (k, _) in TYPES.items()}
    assert table.select(list(TYPES)).to_pydict() == {n: list(v) for n, (_, v) in TYPES.items()}
    if output == "parquet":
        assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("output", ["arrow", "parquet"])
def test_terminals_get_no_bytes(sql: Run, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    result = sql("select 1", "-o", output)
    assert (result.code, result.out) == (2, "")
    assert "write it to a file" in result.err


def test_csv_tells_nothing_from_a_text_of_no_characters(sql: Run) -> None:
    query = "select * from (values ('', 1), (null, null), ('a\"b', 2), ('a,b', 3), (E'a\\nb', 4)) t(x, y)"
    assert sql(query, "-o", "csv").out == 'x,y\n"",1\n,\n"a""b",2\n"a,b",3\n"a\nb",4\n'


def test_times_of_any_year_and_nanoseconds_are_printed() -> None:
    def shown(values: list[int], kind: pa.DataType) -> list[Any]:
        return python_values(pa.array(values, pa.int64()).cast(kind))

    assert shown([1, 1_000, 10**18], pa.timestamp("ns")) == [
        "1970-01-01T00:00:00.000000001", "1970-01-01T00:00:00.000001", "2001-09-09T01:46:40",
    ]  # fmt: skip
    assert shown([10**14], pa.timestamp("ms", "Europe/Zurich")) == ["5138-11-16T09:46:40Z"]
    assert shown([1, 5 * 10**8], pa.time64("ns")) == ["00:00:00.000000001", "00:00:00.500000"]
    assert shown([1_500], pa.duration("ms")) == [1.5]
    assert python_values(pa.array([(14, 3, -1_500_000_000), (0, 0, 0)], pa.month_day_nano_interval())) == [
        "P14M3DT-1.5S", "PT0S",
    ]  # fmt: skip
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    assert python_values(maps) == [[{"key": "a", "value": 1}], None]
    fixed = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2))
    assert python_values(fixed[1:]) == [None, [3, None]]
    deep = [[{"a": [1.5, None]}, None], None, [], [{"a": None}]]
    nested = pa.array([[], *deep], pa.list_(pa.struct([("a", pa.list_(pa.float64()))])))
    assert python_values(nested[1:]) == deep
    assert python_values(pa.array(["x", None, "x"]).dictionary_encode()) == ["x", None, "x"]
    assert python_values(pa.array([[float("nan"), 1.0]]), nan=False) == [[None, 1.0]]


def test_json_has_no_word_for_what_is_no_number(sql: Run) -> None:
    query = "select cast('NaN' as double) x, cast('inf' as double) y, [cast('NaN' as double)] z"
    assert sql(query, "-o", "json").rows == [{"x": None, "y": None, "z": [None]}]
    assert sql(query, "-o", "csv").out == "x,y,z\nnan,inf,[null]\n"


def test_two_columns_of_one_name(sql: Run) -> None:
    query = 'select l.v, r.v from rows l join rows r using ("offset") limit 1'
    assert sql(query, "-o", "csv").out.startswith("v,v\n")
    result = sql(query, "-o", "json")
    assert (result.code, result.out) == (3, "")
    assert "two columns of the result are called `v`" in result.err


def test_a_result_of_no_rows(sql: Run) -> None:
    query = "select v from rows where v < 0"
    outputs = {o: sql(query, "-o", o).out for o in ("table", "json", "ndjson", "csv")}
    assert outputs == {"table": "v\n", "json": "[]\n", "ndjson": "", "csv": "v\n"}
    assert sql(query).err.startswith("rows @ 13 (")


def test_a_table_ends_and_says_what_is_left(sql: Run) -> None:
    result = sql("select v from rows")
    assert len(result.out.splitlines()) == 1_001
    assert "1,200 rows (200 of them not shown), " in result.err
    assert len(sql("select v from rows", "--limit", "1100").out.splitlines()) == 1_101
    assert len(sql("select v from rows", "-o", "csv").out.splitlines()) == 1_201
    assert sql("select v from rows", "--limit", "0").out == "v\n"


def test_nothing_of_a_value_acts(sql: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "select chr(27) || '[2J' x"
    assert "\x1b" not in sql(query).out
    assert json.loads(sql(query, "-o", "ndjson").out) == {"x": "\x1b[2J"}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for output in ("csv", "json", "ndjson"):
        assert "\x1b" not in sql(query, "-o", output).out


# --- what is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", "1"),
        ("a=x=y", "x=y"),
        ("a:STRING=", ""),
        ("a:BIGINT=-5", -5),
        (f"a:UINT64={BIG}", BIG),
        ("a:DECIMAL(10,2)=1.50", Decimal("1.50")),
        ("a:BOOLEAN=true", True),
        ("a:BINARY=00ff", b"\x00\xff"),
        ("a:UUID=00112233-4455-6677-8899-aabbccddeeff", bytes.fromhex("00112233445566778899aabbccddeeff")),
    ],
)
def test_parameters_have_the_types_of_manifests(text: str, value: object) -> None:
    name, found = parameter(text)
    assert (name, found if isinstance(found, str) else found.as_py()) == ("a", value)


@pytest.mark.parametrize(
    "text",
    ["", "a", "=1", "1a=2", "a:=1", "a:NONE=1", "a:INT=x", "a:INT=1.5", "a:TINYINT=300", "a:DECIMAL(3,1)=1.25",
     "a:TIMESTAMP=2024-01-01T00:00:00.0001Z", "a:TIMESTAMP=soon", "a:BINARY=0", "a:ARRAY<INT>=1", "a:INT, b INT=1"],
)  # fmt: skip
def test_parameters_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parameter(text)


def test_parameters_reach_the_query(sql: Run) -> None:
    query = "select $a a, $b b, arrow_typeof($c) c"
    args = ("--param", f"a:UINT64={BIG}", "--param", "b='; drop", "--param", "c:TIMESTAMP=2024-02")
    (row,) = sql(query, *args, "-o", "json").rows
    assert row == {"a": BIG, "b": "'; drop", "c": row["c"]}
    assert row["c"].startswith("Timestamp(")
    assert sql("select $z").code == 3


def test_a_plan_is_shown_without_an_answer(sql: Run) -> None:
    result = sql("select v from rows where v > 3 limit 2", "--explain", "--limit", "5")
    assert (result.code, result.err) == (0, "")
    assert "Exec" in result.out
    assert sql("select nothing from rows", "--explain").code == 3


def test_wrong_sql_shows_the_place(sql: Run) -> None:
    result = sql("select v,\n  vv from rows")
    assert (result.code, result.out) == (3, "")
    assert "line 2" in result.err
    assert "^" in result.err
    assert "did you mean" in result.err


def test_case_16_names(sql: Run, workspace: Workspace) -> None:
    query = "select count(*) n from {}"
    for name in ('"a/b"', f'"{workspace["plain"].id}"', "plain", "PLAIN", "state('a/b', null, 'v')"):
        assert sql(query.format(name), "-o", "csv").out == "n\n3\n", name
    missing = sql(query.format('"PLAIN"'))
    assert (missing.code, missing.out) == (4, "")
    assert 'write "plain"' in missing.err
    folded = sql(query.format("Cased"))
    assert folded.code == 4
    assert 'write "Cased"' in folded.err


def test_case_17_a_name_with_dots_is_quoted(sql: Run) -> None:
    for query in ("select * from org.x.y", "select * from state(org.x.y)"):
        result = sql(query)
        assert (result.code, result.out) == (3, "")
        assert "quotes" in result.err
        assert "org.x.y" in result.err
    assert sql('select count(*) n from "org.x.y"', "-o", "csv").out == "n\n3\n"


def test_case_21_points_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: Run) -> None:
    workspace = new_workspace(tmp_path / "points")
    root = add_numbers(workspace, "x", [2, 1])
    head = workspace["x"].head
    workspace["x"].reset(2, force=True)
    monkeypatch.chdir(tmp_path / "points")
    assert root.chain.contains(head)
    for point, code, said in (
        ("2000-01-01", 4, "begins at"),
        ("2999-01-01T00:00:00Z", 3, "lies in the future"),
        ("f1620" + 64 * "0", 4, "no block"),
        (head, 4, "no longer in the chain"),
        ("99", 4, "no block 99"),
        ("soon", 3, "a point is a branch, a block's number or hash, or a time"),
    ):
        result = sql(f'select * from "x@{point}"')
        assert (result.code, result.out) == (code, ""), point
        assert said in result.err
    assert sql('select count(*) n from "x@2"', "-o", "csv").out == "n\n2\n"
    assert sql("select * from x", "--as-at", "2000").code == 4
    assert sql("select * from x", "--as-at", "2999").code == 3


HOSTILE = json.loads((FIXTURES / "query" / "hostile_statements.json").read_text())


def test_case_25_what_is_no_query_is_refused_and_opens_no_file(
    sql: Run, workspace: Workspace, tmp_path: Path
) -> None:
    """The kernel says which files of a folder are opened, whatever language opens them."""
    assert len(HOSTILE) >= 53
    folder = tmp_path / "bait"
    folder.mkdir()
    (folder / "bait.csv").write_text("a\n1\n")
    (folder / "bait.json").write_text('{"a": 1}\n')
    (folder / "bait").write_text("a")
    pq.write_table(pa.table({"a": [1]}), folder / "bait.parquet")
    with opened_files(folder) as control:
        (folder / "bait.csv").read_text()
    assert control == ["bait.csv"]
    before = sorted(path.name for path in folder.iterdir())
    with opened_files(folder) as opened:
        for case in HOSTILE:
            query = case["sql"].format(bait=folder / "bait", folder=folder)
            with pytest.raises(QueryError):
                workspace.sql(query)
            result = sql(query)
            # the command answers a script up to the first error, and these two without an engine
            if query in ("show tables", "describe rows", "select 1; select 2"):
                assert result.code == 0, query
                continue
            shown = sql("select 1").out if query.startswith("select 1;") else ""
            assert (result.code, result.out) == (2 if "no query given" in result.err else 3, shown), query
            assert re.search("^error: ", result.err, re.MULTILINE), query
    assert opened == []
    assert sorted(path.name for path in folder.iterdir()) == before


# --- files -----------------------------------------------------------------------------------------


def test_a_file_is_whole_or_as_it_was(sql: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert sql("select v from rows order by v limit 2", "--output", path).out == ""
    assert path.read_text() == "v\n0\n1\n"
    failing = "select v, 1 / (600 - v) from rows"
    for output in ("csv", "ndjson", "json", "arrow", "parquet"):
        assert sql(failing, "-o", output, "--output", path).code == 3
    assert path.read_text() == "v\n0\n1\n"
    assert [each.name for each in tmp_path.iterdir()] == ["out.csv"]
    link = tmp_path / "link"
    link.symlink_to(path)
    assert sql("select 1 a", "-o", "csv", "--output", link).code == 0
    assert (link.is_symlink(), path.read_text()) == (True, "a\n1\n")
    assert sql("select 1 a", "-o", "csv", "--output", "/dev/null").code == 0


def test_a_table_in_a_file_has_all_rows(sql: Run, tmp_path: Path) -> None:
    assert sql("select v from rows", "--output", tmp_path / "out.txt").code == 0
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 1_201


@pytest.mark.parametrize(
    "output",
    ["arrow", pytest.param("csv", marks=pytest.mark.soak), pytest.param("ndjson", marks=pytest.mark.soak)],
)
def test_memory_does_not_grow_with_the_rows(workspace: Workspace, tmp_path: Path, output: str) -> None:
    """300,000 rows of 200 bytes would be 60 MB."""
    code = (
        "import resource, sys; from odfchain.cli.main import run\n"
        "sys.argv[0] = 'odfchain'\n"
        "try: run()\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )

    def most(rows: int) -> int:
        query = f"select repeat('x', 200) || value x from generate_series(1, {rows})"
        args = ["-q", "sql", "-c", query, "-o", output, "--output", str(tmp_path / "out")]
        done = subprocess.run(
            [sys.executable, "-c", code, *args], cwd=workspace.path.parent, env=environment(),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(done.stderr) // 1024

    assert most(300_000) - most(1_000) < 30


# --- how it ends -----------------------------------------------------------------------------------


def test_case_28_time_is_used_up(workspace: Workspace) -> None:
    asked = process(workspace, "sql", "-c", CROSS, "--timeout", "2s")
    _, said = asked.communicate(timeout=60)
    assert asked.returncode == 7
    assert "error: the query took longer than 2 s" in said.decode()
    assert "--engine spark" in said.decode()


def test_case_28_memory_is_used_up(sql: Run) -> None:
    # a join holds one side in memory; what can be spilled is
    query = "select count(*) from generate_series(1, 3000000) a(x) join generate_series(1, 3000000) b(x) using (x)"
    result = sql(query, "--memory", "1m")
    assert (result.code, result.out) == (7, "")
    assert "--memory" in result.err
    assert "--engine spark" in result.err


@pytest.mark.soak
def test_ctrl_c_ends_the_query(workspace: Workspace) -> None:
    with process(workspace, "sql", "-c", CROSS, "-o", "csv") as asked:
        assert begun(asked) == b"count(*)\n"  # it is being computed
        asked.send_signal(signal.SIGINT)
        assert asked.wait(timeout=20) == 130
        assert "interrupted" in asked.stderr.read().decode()


WITHOUT_END = (
    "select a.value, b.value from generate_series(1, 1000000) a(value), generate_series(1, 100000) b(value)"
)
"""As rows it takes hours."""


@pytest.mark.parametrize(
    ("query", "header"), [(WITHOUT_END, b"value,value\n"), (CROSS, b"count(*)\n")], ids=["rows", "no row yet"]
)
def test_case_29_a_reader_that_leaves_ends_the_query(workspace: Workspace, query: str, header: bytes) -> None:
    with process(workspace, "sql", "-c", query, "-o", "csv") as asked:
        assert begun(asked) == header
        if query == WITHOUT_END:
            asked.stdout.readline()
        asked.stdout.close()
        assert (asked.wait(timeout=60), asked.stderr.read()) == (0, b"")


def test_no_java_and_no_pandas_is_loaded(workspace: Workspace) -> None:
    code = (
        "import sys; from odfchain.cli.main import main; from odfchain.startup import put_off_pandas\n"
        "put_off_pandas(); code = main(['sql', '-c', 'select count(*) from rows', '-o', 'csv'])\n"
        "print(code, sorted({'pandas', 'pyspark', 'py4j', 'sqlglot', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=workspace.path.parent, env=environment(), capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout == "count(*)\n1200\n0 []\n"


def test_intervals_that_python_has_no_arrays_of_are_refused(sql: Run) -> None:
    for query in (
        "select arrow_cast('1 month', 'Interval(YearMonth)') as x",
        "select [arrow_cast('1 day', 'Interval(DayTime)')] as x",
    ):
        done = sql(query, "-o", "json")
        assert (done.code, done.out) == (3, "")
        assert "column 'x' is of type" in done.err
        assert "CAST(column AS VARCHAR)" in done.err
    assert sql("select interval '1 day' as month_interval", "-o", "csv").out == "month_interval\nP1D\n"
    assert sql("select {month_interval: 1} as x", "-o", "ndjson").code == 0


def test_a_query_without_its_option_is_answered_with_it(run: Run) -> None:
    found = run("sql", "select 1")
    assert (found.code, "`odfchain sql -c 'select 1'`" in found.err) == (2, True)
