"""The user's own queries run where limits hold, stream, and leave nothing behind, whichever way they are asked."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.api.queries import explained
from odfchain.api.scan import exported
from odfchain.cli.main import main
from odfchain.cli.query import Shell
from odfchain.query import processes
from odfchain.query.on_spark import OnSpark
from odfchain.query.resolved_tables import CheckedSlices, Pins
from odfchain.query.sql_text import Query
from tests.kit.processes import ODFCHAIN, environment, wait_until
from tests.kit.queried_workspace import add_numbers, new_workspace

CROSS = "select count(*) from rows a, rows b, rows c, rows d where a.v + b.v + c.v + d.v < 0"
WITHOUT_END = "select a.value from generate_series(1, 1000000) a(value), generate_series(1, 100000) b(value)"
UNIONS = "select 1" + " union all select 1" * 4_999
HURTFUL = {
    "unions": (UNIONS, "4,999 operators"),
    "sums": ("select 1" + "+1" * 20_000, "20,000 operators"),
    "brackets": ("select " + "(" * 5_000 + "1" + ")" * 5_000, "brackets within brackets"),
    "subqueries": ("select * from (" * 500 + "select 1" + ")" * 500, "brackets within brackets"),
    "cases": ("select " + "case when true then " * 5_000 + "1" + " end" * 5_000, "operators"),
    "negations": ("select " + "not " * 5_000 + "true", "5,000 operators"),
    "literal": ("select '" + "x" * (1 << 20) + "'", "1,048,585 bytes"),
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> odf.Workspace:
    workspace = new_workspace(tmp_path_factory.mktemp("local"))
    add_numbers(workspace, "rows", [100] * 12)
    return workspace


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where processes of a test have their links; each test begins without a process."""
    processes._close_idle()
    (tmp_path / "links").mkdir()
    monkeypatch.setattr(processes, "in_memory", lambda: tmp_path / "links")
    yield tmp_path / "links"
    processes._close_idle()


def children(of: int | None = None) -> set[int]:
    """Processes that answer queries for a process, or this one."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == (of or os.getpid()) and b"odfchain.api.queries" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found


def left(workspace: odf.Workspace, links: Path) -> list[Path]:
    """What queries have on disks."""
    queries = workspace.path / "run" / "queries"
    return [*links.glob("*/*"), *(path for path in queries.glob("*") if path.name != ".lock")]


# --- the text -------------------------------------------------------------------------------------------


WAYS: dict[str, Callable[[odf.Workspace, str], Any]] = {
    "sql": lambda ws, sql: ws.sql(sql),
    "explain": lambda ws, sql: explained(ws, sql, {}),
    "prove": lambda ws, sql: ws.prove(sql),
    "spark": lambda ws, sql: OnSpark(None).run(Query(sql, Pins(ws._files))),  # type: ignore[arg-type]
    "spark-explain": lambda ws, sql: OnSpark(None).explain(Query(sql, Pins(ws._files))),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HURTFUL)
def test_text_that_hurts_a_planner_is_refused_before_one_has_it(
    name: str, way: str, workspace: odf.Workspace
) -> None:
    sql, said = HURTFUL[name]
    with pytest.raises(
        odf.errors.QueryError, match=said if way != "prove" else f"{said}|at most 65,536 are signed"
    ):
        WAYS[way](workspace, sql)
    assert not children()


def test_the_command_and_the_shell_refuse_it_too(
    workspace: odf.Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace.path.parent)
    for args in ([], ["--engine", "datafusion"], ["--proof", "p.json"]):
        assert main(["sql", "-c", UNIONS, *args]) == 3
    Shell(workspace, {}, "csv")._guarded(Shell(workspace, {}, "csv")._answer, UNIONS)
    assert "4,999 operators" in capsys.readouterr().err


def test_a_long_list_of_values_is_a_query_like_others(workspace: odf.Workspace) -> None:
    values = ", ".join(map(str, range(20_000)))
    assert workspace.sql(f"select count(*) n from rows where v in ({values})").to_arrow().num_rows == 1


# --- limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sql", "prove"])
@pytest.mark.parametrize(
    "query", ["select length(lpad('x', 2000000000)) n", "select array_length(range(1, 9000000000)) n"]
)
def test_one_value_takes_no_more_than_it_may(query: str, way: str, workspace: odf.Workspace) -> None:
    with pytest.raises(odf.errors.EngineError, match="more memory than it is given") as caught:
        (workspace.sql if way == "sql" else workspace.prove)(query, memory=64 << 20, seconds=60.0).to_arrow()  # type: ignore[union-attr]
    assert "--memory" in (caught.value.hint or "")
    assert workspace.sql("select 1 a").to_arrow().to_pylist() == [{"a": 1}]


TIMED: dict[str, Callable[[odf.Workspace, str], Any]] = {
    "sql": lambda ws, sql: ws.sql(sql, seconds=0.5).to_arrow(),
    "batches": lambda ws, sql: ws.sql(sql, seconds=0.5).batches().read_all(),
    "prove": lambda ws, sql: ws.prove(sql, seconds=0.5),
}


@pytest.mark.parametrize("way", TIMED)
def test_time_is_up_whatever_the_engine_does(way: str, workspace: odf.Workspace, links: Path) -> None:
    query = "select sum(length(lpad('x', 1000000))) n from range(1, 9000000000000)"
    with pytest.raises(odf.errors.EngineError, match=r"took longer than 0\.5 s") as caught:
        TIMED[way](workspace, query)
    assert "--timeout" in (caught.value.hint or "")
    assert not children()
    assert left(workspace, links) == []


def test_what_ends_the_process_is_said_and_the_next_query_is_answered(workspace: odf.Workspace) -> None:
    for sent, kind, said in (
        (signal.SIGSEGV, odf.errors.QueryError, "too complex for the engine"),
        (signal.SIGKILL, odf.errors.EngineError, "more memory"),
    ):
        rows = workspace.sql(WITHOUT_END).batches()
        rows.read_next_batch()
        (process,) = children()
        os.kill(process, sent)
        with pytest.raises(kind, match=said):
            rows.read_all()
        assert not children()
    assert workspace.sql("select count(*) n from rows").to_arrow().to_pylist() == [{"n": 1_200}]


# --- rows as they come ----------------------------------------------------------------------------------


def test_rows_come_as_they_are_computed_and_one_process_answers_all(
    workspace: odf.Workspace, links: Path
) -> None:
    seen = set()
    for _ in range(3):
        assert workspace.sql("select v from rows order by v").to_arrow().num_rows == 1_200
        seen |= children()
    for query in ("select nothing", "select 1/0", "select * from absent"):
        with pytest.raises(odf.OdfchainError):
            workspace.sql(query).to_arrow()
    assert workspace.sql("select * from rows").inputs[0].sequence_number > 0  # and nobody reads the rows
    rows = exported(workspace, "rows")[0].to_arrow()
    assert rows["offset"].to_pylist() == sorted(rows["offset"].to_pylist())
    assert seen == children()
    assert len(seen) == 1
    assert left(workspace, links) == []
    for rest in ("read", "begun", "new"):
        result = workspace.sql(WITHOUT_END)
        batches = None if rest == "new" else result.batches()
        if batches is not None and rest == "read":
            assert batches.read_next_batch().num_rows
        del result, batches
    assert len(children()) <= 1
    workspace.sql("select 1").to_arrow()
    assert left(workspace, links) == []


def test_several_results_are_read_side_by_side(workspace: odf.Workspace) -> None:
    one, other = (workspace.sql("select v from rows order by v", limit=n).batches() for n in (500, 700))
    rest = workspace.sql("select 1 a")
    assert one.read_next_batch().num_rows + one.read_all().num_rows == 500
    assert other.read_all().num_rows == 700
    assert rest.to_arrow().num_rows == 1
    assert len(children()) == 1


def test_the_process_has_the_environment_of_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of each query, for it stays longer: here, whose workspaces are trusted."""
    other = odf.init(tmp_path / "other")
    other.sql("select 1").to_arrow()
    before = children()
    monkeypatch.setattr("odfchain.api.queries.checked_slices", lambda _: CheckedSlices())
    (other.path / "run").chmod(0o777)
    with pytest.raises(odf.errors.WorkspaceError, match="written by everybody"):
        other.sql("select 1").to_arrow()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert main(["config", "--global", "safe.workspace", str(tmp_path / "other")]) == 0
    assert other.sql("select 1").to_arrow().num_rows == 1
    assert children() == before


def test_a_fork_leaves_the_process_to_its_owner(workspace: odf.Workspace) -> None:
    result = workspace.sql("select count(*) n from rows")
    if (pid := os.fork()) == 0:
        del result
        processes._close_idle()
        weakref.finalize._exitfunc()  # type: ignore[attr-defined]  # where a fork ends by itself
        os._exit(0)
    os.waitpid(pid, 0)
    assert result.to_arrow().to_pylist() == [{"n": 1_200}]


def test_rows_whose_files_were_removed_are_an_error_and_not_none(
    workspace: odf.Workspace, links: Path
) -> None:
    result = workspace.sql("select count(*) n from rows")
    for folder in links.glob("*/*"):
        shutil.rmtree(folder)
    with pytest.raises(odf.errors.EngineError, match="removed while it ran"):
        result.to_arrow()


# --- its end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_behind(sent: signal.Signals, workspace: odf.Workspace) -> None:
    with subprocess.Popen(
        [ODFCHAIN, "sql", "-c", CROSS], cwd=workspace.path.parent, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as asked:  # fmt: skip
        (process,) = wait_until(lambda: children(asked.pid))
        where = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[-2].decode()
        wait_until(lambda: any(Path(where).glob("*/000000.parquet")))  # it has what it reads
        asked.send_signal(sent)
        code = asked.wait(timeout=60)
        assert ("interrupted" in asked.stderr.read()) is (sent == signal.SIGINT)
    assert code == (130 if sent == signal.SIGINT else -sent)
    wait_until(lambda: not Path(f"/proc/{process}").exists())
    assert not Path(where).exists()
    if sent == signal.SIGINT:
        assert left(workspace, Path(where)) == []


def test_nothing_stays_behind_of_a_process_that_still_loads(tmp_path: Path) -> None:
    where = tmp_path / "where"
    where.mkdir()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", processes._PROGRAM, str(where)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(),
    ) as process:  # fmt: skip
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert not where.exists()


def test_ctrl_c_in_a_shell_ends_the_query_and_not_the_shell(
    workspace: odf.Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(workspace, {}, "csv")
    real = processes.LocalProcess.plan

    def plan(self: Any, *args: Any) -> Any:
        told = real(self, *args)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        return told

    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(processes.LocalProcess, "plan", plan)
    try:
        assert not shell._guarded(shell._answer, CROSS)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "interrupted" in capsys.readouterr().err
    assert not children()
    monkeypatch.setattr(processes.LocalProcess, "plan", real)
    monkeypatch.setattr("odfchain.cli.query.show_answer", lambda rows, *_, **__: rows.result.to_arrow())
    assert shell._guarded(shell._answer, "select 1")


def test_the_engine_is_not_loaded_here() -> None:
    code = "import odfchain, tempfile, sys; ws = odfchain.init(tempfile.mkdtemp()); ws.sql('select 1').to_arrow(); print('datafusion' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
