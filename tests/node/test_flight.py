"""Flight SQL of a node, by the drivers that people have: ADBC here, JDBC in the soak (cases 48, 49)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from odfchain.api.workspace import Workspace
from odfchain.node import flight as module
from odfchain.node.flight import FlightServer
from odfchain.node.flight_messages import fits, message, packed, unpacked
from odfchain.node.parts import NodeParts
from odfchain.workspace.options import NodeOptions
from tests.kit.node_cases import case
from tests.kit.processes import ODFCHAIN, environment, wait_until
from tests.kit.queried_workspace import add_numbers, add_types, new_workspace
from tests.kit.support import ROOT, fixture

ANONYMOUS = {"username": "anonymous", "password": ""}
CASE = case(48)


@dataclasses.dataclass
class Scene:
    workspace: Workspace
    server: FlightServer
    problems: list[str]

    def connect(self, token: str | None = None, **more: str) -> Any:
        """As kamu's client does."""
        with_token = {"adbc.flight.sql.authorization_header": f"Bearer {token}"}
        return adbc.connect(
            self.server.address, db_kwargs=(with_token if token else ANONYMOUS) | more, autocommit=True
        )

    def client(self) -> tuple[fl.FlightClient, fl.FlightCallOptions]:
        found = fl.connect(self.server.address.replace("grpc", "grpc+tcp"))
        return found, fl.FlightCallOptions(headers=[found.authenticate_basic_token("anonymous", "")])


@contextlib.contextmanager
def served(workspace: Workspace, **options: Any) -> Iterator[Scene]:
    problems: list[str] = []
    parts = NodeParts(workspace, NodeOptions(on_problem=problems.append, **options))
    with FlightServer(parts) as server:
        yield Scene(workspace, server, problems)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = new_workspace(tmp_path_factory.mktemp("flight"))
    add_numbers(made, "numbers", [1_000, 500])
    add_numbers(made, "secret", [10])
    return made


@pytest.fixture(scope="module")
def scene(workspace: Workspace) -> Iterator[Scene]:
    with served(workspace) as found:
        yield found
        assert found.problems == []


@pytest.fixture
def restricted(workspace: Workspace) -> Iterator[Scene]:
    with served(workspace, restrict_reading=True) as found:
        yield found
        for token in workspace.tokens.list():
            workspace.tokens.revoke(token.name)


def tables(connection: Any) -> list[str]:
    found = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
    return [
        table["table_name"]
        for catalog in found
        for schema in catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"]
    ]


def asked(connection: Any, sql: str, values: Any = None) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


def test_case_48_adbc_connects_lists_selects_and_cancels(scene: Scene) -> None:
    with scene.connect() as connection:
        assert connection.adbc_get_info()["vendor_name"] == "odfchain"
        assert tables(connection) == CASE["tables"]
        assert connection.adbc_get_table_schema("numbers").field("v").type == pa.int64()
        rows = asked(connection, CASE["statement"], CASE["values"])
        assert rows == [tuple(row) for row in CASE["rows"]]
        with connection.cursor() as cursor:
            timer = threading.Timer(1.0, cursor.adbc_cancel)
            timer.start()
            with pytest.raises(adbc_driver_manager.Error, match=r"(?i)cancel"):  # noqa: PT012
                cursor.execute(CASE["cancelled"])
                cursor.fetchall()
        wait_until(lambda: scene.server._slots._free == 2)
        assert asked(connection, 'select count(*) from odf.public."numbers"') == [(1_500,)]


def test_every_type_comes_as_it_is(tmp_path: Path) -> None:
    workspace = new_workspace(tmp_path)
    add_types(workspace)
    with served(workspace) as scene, scene.connect() as connection, connection.cursor() as cursor:
        cursor.execute('select * from types order by "offset"')
        own_rows = workspace.sql('select * from types order by "offset"').to_arrow()
        assert cursor.fetch_arrow_table().to_pylist() == own_rows.to_pylist()
        cursor.execute("select * from types where false")
        assert cursor.fetch_arrow_table().schema == own_rows.schema


def test_tokens_decide_what_is_there_and_end_with_their_revocation(restricted: Scene) -> None:
    """Case 40 of query.md, too: with a token, with a wrong one."""
    made = restricted.workspace.tokens.create("reader", ["query:numbers", "read:secret"])
    with restricted.connect() as anonymous:
        assert tables(anonymous) == []
        with pytest.raises(adbc_driver_manager.Error, match="need a token here"):
            asked(anonymous, "select * from numbers")
    with (
        pytest.raises(adbc_driver_manager.Error, match=r"(?i)unauthenticated"),
        restricted.connect("ka_no") as no,
    ):
        tables(no)
    with restricted.connect(made.text) as connection:
        assert tables(connection) == ["numbers"]
        assert asked(connection, "select count(*) from numbers") == [(1_500,)]
        with pytest.raises(adbc_driver_manager.Error, match="no dataset is called 'secret'"):
            asked(connection, "select * from secret")
        restricted.workspace.tokens.revoke("reader")
        with pytest.raises(adbc_driver_manager.Error, match=r"(?i)unauthenticated"):
            asked(connection, "select count(*) from numbers")


def statement(sql: str) -> fl.FlightDescriptor:
    return fl.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql))


def test_tickets_are_random_of_one_session_used_once_and_expire(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, options = scene.client()
    other, others = scene.client()

    def ticket() -> fl.Ticket:
        return client.get_flight_info(statement("select 1 as a"), options).endpoints[0].ticket

    first = ticket()
    assert first != ticket()
    assert b"select" not in first.ticket
    for refused, with_options in ((other, others), (client, options), (client, options)):
        if refused is client and first is not None:
            assert client.do_get(first, options).read_all().to_pylist() == [{"a": 1}]
        with pytest.raises(pa.ArrowKeyError, match="the ticket is not of this session"):
            refused.do_get(first, with_options).read_all()
        first = ticket() if refused is client else first
    monkeypatch.setattr(module, "_TICKET_SECONDS", -1.0)
    with pytest.raises(pa.ArrowKeyError, match="too old"):
        client.do_get(ticket(), options).read_all()
    with pytest.raises(fl.FlightUnauthenticatedError):
        client.do_get(ticket())


def test_sessions_are_closed_and_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    client, options = scene.client()
    prepare = ("CreatePreparedStatement", packed("ActionCreatePreparedStatementRequest", query="select 1"))
    monkeypatch.setattr(module, "_HELD", 1)
    (made,) = client.do_action(prepare, options)
    with pytest.raises(pa.ArrowException, match="at most 1 statements"):
        list(client.do_action(prepare, options))
    handle = unpacked(made.body.to_pybytes())[1].prepared_statement_handle
    update = packed("CommandStatementUpdate")
    with pytest.raises(pa.ArrowNotImplementedError, match="nothing is changed"):
        client.get_flight_info(fl.FlightDescriptor.for_command(update), options)
    assert list(client.do_action(("CloseSession", b""), options))
    for call in (lambda: list(client.do_action(prepare, options)), lambda: client.get_flight_info(
        fl.FlightDescriptor.for_command(packed("CommandPreparedStatementQuery", prepared_statement_handle=handle)),
        options,
    )):  # fmt: skip
        with pytest.raises(fl.FlightUnauthenticatedError, match="log in again"):
            call()
    monkeypatch.setattr(module, "_SESSIONS", 2)
    sessions = [scene.client() for _ in range(4)]
    assert len(scene.server._sessions) <= max(2, len(sessions))
    with pytest.raises(fl.FlightUnauthenticatedError):
        sessions[0][0].get_flight_info(statement("select 1"), sessions[0][1])


@pytest.mark.parametrize("way", ["CancelFlightInfo", "CancelQuery", "killed", "left"])
def test_a_query_ends_when_it_is_cancelled_killed_or_nobody_reads_it(scene: Scene, way: str) -> None:
    client, options = scene.client()
    info = client.get_flight_info(
        statement("select value, repeat('x', 200) t from generate_series(1, 90000000)"), options
    )
    reader = client.do_get(info.endpoints[0].ticket, options)
    reader.read_chunk()
    sessions = list(scene.server._sessions.values())
    process = [each for session in sessions for each in session.running.values()][-1]
    if way == "left":
        reader.cancel()
    elif way == "killed":
        process.loader._process.kill()
    else:
        request = message("CancelFlightInfoRequest")
        request.info.ParseFromString(info.serialize())
        body = request.SerializeToString()
        if way == "CancelQuery":
            body = packed("ActionCancelQueryRequest", info=info.serialize())
        assert list(client.do_action((way, body), options))
    said = {"killed": "too complex"}.get(way, "(?i)cancel")
    with pytest.raises((fl.FlightCancelledError, pa.ArrowInvalid), match=said):
        list(reader)
    wait_until(lambda: not process.is_running and scene.server._slots._free == 2)


def test_a_client_that_takes_nothing_is_cut_off(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STALL_SECONDS", 0.5)
    client, options = scene.client()
    rows = "select value, repeat('x', 200) t from generate_series(1, 90000000)"
    ticket = client.get_flight_info(statement(rows), options).endpoints[0].ticket
    reader = client.do_get(ticket, options)
    reader.read_chunk()
    wait_until(lambda: scene.server._slots._free == 2)
    with pytest.raises(fl.FlightCancelledError):
        list(reader)


def test_hostile_sql_is_refused_and_harms_nothing(scene: Scene, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("a canary")
    corpus = [each["sql"].replace("{bait}", str(canary)) for each in fixture("query/hostile_statements.json")]
    with scene.connect() as connection:
        for sql in [*corpus[::5], "select 1" + "+1" * 20_000]:
            with pytest.raises(adbc_driver_manager.Error) as told:
                asked(connection, sql)
            for private in ("a canary", "Traceback", str(scene.workspace.path)):
                assert private not in str(told.value)
        assert asked(connection, "select count(*) from secret") == [(10,)]
    assert [path.name for path in tmp_path.iterdir()] == ["canary"]


def test_what_is_no_message_and_what_is_too_large_is_refused(scene: Scene) -> None:
    client, options = scene.client()
    for command in (b"\xff" * 100, b"", packed("Ticket", ticket=b"x")):
        with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
            client.get_flight_info(fl.FlightDescriptor.for_command(command), options)
    with pytest.raises(pa.ArrowException, match=r"(?i)larger than max"):
        client.get_flight_info(statement("x" * (2 << 20)), options)
    with pytest.raises(fl.FlightUnauthenticatedError):
        fl.connect(scene.server.address.replace("grpc", "grpc+tcp")).authenticate_basic_token("me", "x")


def test_too_many_queries_are_told_to_come_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 49 in small."""
    with served(workspace) as scene:
        scene.server._slots._room = 1
        outcomes = crowd(scene, 8, "select value, repeat('x', 99) from generate_series(1, 300000)", 300_000)
        assert set(outcomes) == set(case(49)["outcomes"])


def crowd(scene: Scene, clients: int, sql: str, rows: int) -> list[str]:
    """How each of so many clients ends that ask the same at the same time."""
    outcomes: list[str] = []
    together = threading.Barrier(clients)

    def one() -> None:
        client, options = scene.client()
        ticket = client.get_flight_info(statement(sql), options).endpoints[0].ticket
        together.wait()
        try:
            count = sum(chunk.data.num_rows for chunk in client.do_get(ticket, options))
            outcomes.append("served" if count == rows else f"{count} rows")
        except fl.FlightUnavailableError as error:
            outcomes.append("busy" if "try again" in str(error) else str(error))
        client.close()

    threads = [threading.Thread(target=one) for _ in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return outcomes


def test_patterns_take_no_time() -> None:
    assert fits("a%_", "abc")
    assert not fits("a_", "abc")
    assert fits("[*]?", "[*]?")
    began = time.process_time()
    assert not fits("%a" * 190 + "b", "a" * 200)
    assert not fits("%" * 100_000, "a")
    assert time.process_time() - began < 1


def test_the_command_serves_the_workspace_to_programs_of_this_machine(workspace: Workspace) -> None:
    """Case 40 of query.md: what `kamu.connect("grpc://…")` does."""
    command = [str(ODFCHAIN), "-w", str(workspace.path.parent), "sql", "server", "--port", "0"]
    with subprocess.Popen(
        command, env=environment(PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        with adbc.connect(process.stdout.readline().strip(), db_kwargs=ANONYMOUS, autocommit=True) as found:
            assert asked(found, "select count(*) from numbers") == [(1_500,)]
        process.terminate()
    assert process.returncode == 0


@pytest.mark.soak
def test_case_48_jdbc_connects_lists_selects_and_cancels(scene: Scene, tmp_path: Path) -> None:
    """The driver of Apache Arrow, which BI tools use, from Maven."""
    artifact = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
    fetch = ["mvn", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={tmp_path}"]
    subprocess.run(fetch, check=True, cwd=tmp_path)
    (jar,) = tmp_path.glob("*.jar")
    subprocess.run(["javac", "-d", str(tmp_path), str(ROOT / "tests/kit/FlightJdbc.java")], check=True)
    where = scene.server.address.removeprefix("grpc://")
    url = f"jdbc:arrow-flight-sql://{where}/?useEncryption=false&user=anonymous&password="
    command = [
        "java",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "-cp",
        f"{jar}:{tmp_path}",
        "FlightJdbc",
        url,
    ]
    command += [CASE["statement"], CASE["cancelled"], *map(str, CASE["values"])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert found["tables"] == f"[{', '.join(CASE['tables'])}]"
    assert found["columns"] == "[offset, op, system_time, event_time, v]"
    assert found["rows"] == str([row[0] for row in CASE["rows"]])
    assert found["after"] == "1500"
    assert "Cancelling" in found["cancelled"]


@pytest.mark.soak
def test_case_49_many_clients_are_served_or_told_and_memory_is_bounded(scene: Scene) -> None:
    expected, peaks = case(49), list[int]()
    before, done = resident(), threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            peaks.append(resident() - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        outcomes = crowd(scene, expected["clients"], expected["statement"], expected["rows"])
    finally:
        done.set()
        watching.join()
    print(f"\n{Counter(outcomes)}, {max(peaks) / 1e6:.0f} MB more, clients included")
    assert set(outcomes) <= set(expected["outcomes"])
    assert outcomes.count("served") >= 18
    assert max(peaks) < expected["server_megabytes"] * 1_000_000


def resident() -> int:
    """Memory of this process, in which the server is [bytes]."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
