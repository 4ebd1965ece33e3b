"""The engine protocol by gRPC: both sides, each against the other and against peers that break the rules."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.cli.context import Globals
from odfchain.cli.engine import engine_command
from odfchain.errors import CodecError, EngineError, QueryError, UnsupportedVersionError, UsageError
from odfchain.odf import engine_messages as messages
from odfchain.odf.block_codec import decoder
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.names import DatasetAlias
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.transform import engine_protocol as wire
from odfchain.transform.engine_protocol import (
    EXECUTE_RAW_QUERY,
    EXECUTE_TRANSFORM,
    EngineServer,
    RemoteEngine,
    unwrap,
    wrap,
)
from tests.kit.root_rows import START, records, schema_with
from tests.kit.simulator import PATIENCE, CancellableEngine, SimulatedEngine
from tests.kit.support import ROOT, Notes, seeded_id

NOW = Timestamp.parse("2024-05-01T00:00:00Z")
NOON = Timestamp.parse("2024-04-30T12:00:00Z")
SQL = TransformSql(engine="simulator", queries=(SqlQueryStep(query="select * from input"),))
SIMULATOR = ROOT / "tests" / "kit" / "simulator.py"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with an input of five records and a place for outputs."""
    (tmp_path / "out").mkdir()
    table = records(schema_with(pa.field("city", pa.string())), 0, [0] * 5, [START] * 5, list("ABCDE"))
    pq.write_table(table, tmp_path / "in.parquet")
    return tmp_path


def step(files: Path, **changes: Any) -> messages.TransformRequest:
    """A request for the records 1 to 4, which become 10 to 13."""
    path = str(files / "in.parquet")
    source = messages.TransformRequestInput(
        dataset_id=seeded_id("in"), dataset_alias=DatasetAlias.parse("in"), query_alias="input",
        vocab=DatasetVocabulary(), offset_interval=OffsetInterval(start=1, end=4), data_paths=(path,),
        schema_file=path, explicit_watermarks=(messages.Watermark(system_time=NOW, event_time=NOON),),
    )  # fmt: skip
    request = messages.TransformRequest(
        dataset_id=seeded_id("out"), dataset_alias=DatasetAlias.parse("out"), system_time=NOW,
        vocab=DatasetVocabulary(), transform=SQL, query_inputs=(source,), next_offset=10,
        new_checkpoint_path=str(files / "out" / "checkpoint"), new_data_path=str(files / "out" / "data"),
    )  # fmt: skip
    return replace(request, **changes)


def answers(address: str, call: wire.Call, message: bytes) -> list[Any]:
    with grpc.insecure_channel(address) as channel:
        return [call.unpack_response(answer) for answer in channel.unary_stream(call.path)(message)]


def outputs(files: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (files / "out").iterdir()}


def execute(
    address: str, request: messages.TransformRequest, progress: Progress = SILENT, **options: Any
) -> Any:
    return RemoteEngine(address, **options).execute(request, schema=None, progress=progress)


class Ticks(Notes):
    def __init__(self, on_step: Callable[[], None]) -> None:
        super().__init__()
        self.steps = 0
        self._on_step = on_step

    def advance(self, steps: int = 1) -> None:
        self.steps += steps
        self._on_step()


def serving(simulated: Any, **options: Any) -> EngineServer:
    return EngineServer(simulated, **({"port": 0, "progress_interval": 0.01} | options))


@pytest.fixture(params=["tcp", "tcp6", "unix"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {"tcp": {}, "tcp6": {"host": "::1"}, "unix": {"socket": tmp_path / "engine.sock"}}[request.param]


def test_both_calls_bring_what_the_engine_brings(files: Path, place: dict[str, Any]) -> None:
    with serving(SimulatedEngine(), **place) as server:
        first = execute(server.address, step(files))
        assert first.offset_interval == OffsetInterval(start=10, end=13)
        assert first.watermark == NOON
        got = pq.read_table(files / "out" / "data")
        assert got["offset"].to_pylist() == [10, 11, 12, 13]
        assert got["city"].to_pylist() == list("BCDE")
        assert got["system_time"].to_pylist()[0].isoformat() == "2024-05-01T00:00:00+00:00"
        twice, result = (str(files / "in.parquet"),) * 2, str(files / "out" / "raw")
        raw = messages.RawQueryRequest(input_data_paths=twice, transform=SQL, output_data_path=result)
        assert RemoteEngine(server.address).query(raw, progress=SILENT) == 10
        assert sorted(outputs(files)) == ["checkpoint", "data", "raw"]

        (files / "out" / "checkpoint").rename(files / "before")
        later = step(files, next_offset=14, prev_checkpoint_path=str(files / "before"))
        second = execute(server.address, later)
        assert second.offset_interval == OffsetInterval(start=14, end=17)
        assert outputs(files)["checkpoint"].startswith(b'{"count": 8')


def test_a_step_without_records_brings_a_schema_only(files: Path) -> None:
    request = step(files)
    quiet = replace(request.query_inputs[0], offset_interval=None, data_paths=(), explicit_watermarks=())
    with serving(SimulatedEngine()) as server:
        done = execute(server.address, replace(request, query_inputs=(quiet,)))
    assert (done.offset_interval, done.watermark) == (None, None)
    assert pq.read_table(request.new_data_path).num_rows == 0


@pytest.mark.parametrize("blank", ["", None])
def test_blank_column_names_mean_the_default_ones(files: Path, blank: Any) -> None:
    columns = ("offset_column", "operation_type_column", "system_time_column", "event_time_column")
    nameless = DatasetVocabulary(**dict.fromkeys(columns, blank))
    request = step(files, vocab=nameless)
    request = replace(request, query_inputs=(replace(request.query_inputs[0], vocab=nameless),))
    simulated = SimulatedEngine()
    with serving(simulated) as server:
        message = wire._pack(EXECUTE_TRANSFORM.request_table, request)
        *_, answer = answers(server.address, EXECUTE_TRANSFORM, message)
    assert answer.KIND == "Success"
    assert simulated.requests[0].vocab == DatasetVocabulary()
    assert simulated.requests[0].query_inputs[0].vocab == DatasetVocabulary()
    assert pq.read_schema(request.new_data_path).names[:3] == ["offset", "op", "system_time"]
    sent = decoder().decode("TransformRequest", unwrap(EXECUTE_TRANSFORM.pack_request(request)))
    assert sent.vocab == sent.query_inputs[0].vocab == DatasetVocabulary(), "older engines take no blanks"


def test_relative_paths_are_the_callers(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    simulated = SimulatedEngine()
    with serving(simulated) as server:
        execute(server.address, step(Path()))
    assert sorted(outputs(files)) == ["checkpoint", "data"]
    assert simulated.requests[0].query_inputs[0].data_paths == (str(files / "in.parquet"),)


def test_progress_is_streamed_while_the_engine_runs(files: Path) -> None:
    gate = threading.Event()
    ticks = Ticks(lambda: gate.set() if ticks.steps == 5 else None)
    with serving(SimulatedEngine(gate=gate)) as server:
        done = execute(server.address, step(files), ticks)
    assert done.offset_interval is not None
    assert ticks.steps >= 5


def test_an_invalid_query(files: Path) -> None:
    failure = QueryError("step 1:\n  no such column \x1b[31mcty", hint="did you mean city?")
    with serving(SimulatedEngine(failure=failure)) as server, pytest.raises(QueryError) as caught:
        execute(server.address, step(files))
    assert str(caught.value) == "step 1: no such column \\x1b[31mcty (did you mean city?)"
    assert outputs(files) == {}


def test_a_refused_query_is_told_from_an_invalid_one(files: Path) -> None:
    random, unknown = "step 1: `rand()` is random", "step 1: no column `b`"
    for failure in (QueryError(random, refused=True), QueryError(unknown)):
        with serving(SimulatedEngine(failure=failure)) as server, pytest.raises(QueryError) as caught:
            execute(server.address, step(files))
        assert caught.value.refused is failure.refused
        assert str(caught.value) == str(failure)


@pytest.mark.parametrize(
    ("place", "excerpt"),
    [((2, 3), ("  cty from input", "  ^")), ((9, 1), ()), (None, ())],
)  # fmt: skip
def test_the_fault_is_shown_in_the_users_own_query(
    files: Path, place: tuple[int, int] | None, excerpt: tuple[str, ...]
) -> None:
    sql = "select\n  cty from input"
    request = replace(step(files), transform=TransformSql(engine="simulator", query=sql))
    failure = QueryError.at("query", sql, place, "there is no column cty")
    with serving(SimulatedEngine(failure=failure)) as server, pytest.raises(QueryError) as caught:
        execute(server.address, request)
    assert (str(caught.value), caught.value.excerpt) == (str(failure), failure.excerpt)
    assert [line.strip() for line in caught.value.excerpt] == [line.strip() for line in excerpt]


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (EngineError("Spark died", hint="its log is x"), "Spark died (its log is x)"),
        (RuntimeError("a\nb"), "RuntimeError: a b"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyError(), "KeyError"),
        (RuntimeError("lone \udc80"), "RuntimeError: lone ?"),
    ],
)  # fmt: skip
def test_an_internal_error_carries_its_backtrace_out_of_sight(
    files: Path, failure: BaseException, said: str
) -> None:
    with serving(SimulatedEngine(failure=failure)) as server, pytest.raises(EngineError) as caught:
        execute(server.address, step(files))
    assert str(caught.value) == f"the engine at {server.address} failed: {said}"
    assert "simulator.py" in caught.value.__notes__[0]
    assert outputs(files) == {}


def test_very_long_texts_are_cut(files: Path) -> None:
    failure = RuntimeError("x" * 10_000_000)
    with serving(SimulatedEngine(failure=failure)) as server, pytest.raises(EngineError) as caught:
        execute(server.address, step(files))
    assert len(str(caught.value)) < 3_000
    assert len(caught.value.__notes__[0]) <= 1 << 16


def test_a_repeated_request_brings_the_same_bytes(files: Path) -> None:
    with serving(SimulatedEngine()) as server:
        execute(server.address, step(files))
        before = outputs(files)
        (files / "out" / "checkpoint").write_bytes(b"of an earlier try")
        execute(server.address, step(files))
    assert outputs(files) == before


def test_an_output_that_cannot_be_published_leaves_none(files: Path) -> None:
    (files / "out" / "data").mkdir()
    with serving(SimulatedEngine()) as server, pytest.raises(EngineError):
        execute(server.address, step(files))
    assert [p.name for p in (files / "out").iterdir() if p.is_file()] == []


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Also in a shell's background jobs, and for the processes that inherit it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_control_c_cancels_the_run(files: Path) -> None:
    simulated = SimulatedEngine(gate=threading.Event())

    def interrupt() -> None:
        assert simulated.started.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    with serving(simulated, progress_interval=PATIENCE) as server:
        other.start()
        with pytest.raises(KeyboardInterrupt):
            execute(server.address, step(files))
        assert simulated.ended.wait(PATIENCE)
    other.join()
    assert [str(e) for e in simulated.raised] == ["the call was cancelled"]
    assert outputs(files) == {}


class GaveUpError(Exception):
    """The caller has better things to do."""


def give_up_when(condition: Callable[[], bool]) -> Ticks:
    """Fails in the caller at the first sign of progress for which the condition holds."""

    def look() -> None:
        if condition():
            raise GaveUpError

    return Ticks(look)


def test_an_engine_that_can_be_told_to_stop_is_told(files: Path) -> None:
    simulated = CancellableEngine()
    with serving(simulated) as server:
        with pytest.raises(GaveUpError):
            execute(server.address, step(files), give_up_when(simulated.started.is_set))
        assert simulated.ended.wait(PATIENCE)
    assert simulated.cancelled == simulated.requests
    assert [str(e) for e in simulated.raised] == ["told to stop"]
    assert outputs(files) == {}


def test_a_deadline(files: Path) -> None:
    with serving(SimulatedEngine(gate=threading.Event())) as server, pytest.raises(EngineError) as caught:
        execute(server.address, step(files), deadline=0.2)
    assert str(caught.value) == f"the engine at {server.address} did not finish within 0.2 s"
    assert outputs(files) == {}


def test_what_an_engine_writes_after_the_caller_is_gone_is_never_seen(files: Path) -> None:
    gate = threading.Event()
    simulated = SimulatedEngine(gate=gate, stubborn=True)
    with serving(simulated) as server:
        with pytest.raises(GaveUpError):
            execute(server.address, step(files), give_up_when(simulated.started.is_set))
        (files / "out" / "data").write_bytes(b"of a later try")
        server.stop(grace=0)  # returns when the server knows
        gate.set()
        assert simulated.ended.wait(PATIENCE)
    assert simulated.raised == [], "it wrote its files"
    assert outputs(files) == {"data": b"of a later try"}


def test_a_call_that_waits_for_a_worker_can_be_given_up(files: Path) -> None:
    gate = threading.Event()
    simulated = SimulatedEngine(gate=gate)
    with serving(simulated, workers=1) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(execute, server.address, step(files))
        assert simulated.started.wait(PATIENCE)
        other = step(files, new_data_path=str(files / "out" / "other"))
        with pytest.raises(GaveUpError):
            execute(server.address, other, give_up_when(lambda: True))
        gate.set()
        assert first.result().offset_interval is not None
    assert sorted(outputs(files)) == ["checkpoint", "data"]


def test_calls_from_several_threads(files: Path) -> None:
    for number in range(8):
        (files / f"out{number}").mkdir()

    def one(number: int) -> bytes:
        folder = files / f"out{number}"
        paths = {"new_data_path": str(folder / "data"), "new_checkpoint_path": str(folder / "checkpoint")}
        execute(server.address, step(files, **paths))
        return (folder / "data").read_bytes()

    with serving(SimulatedEngine(), workers=2) as server, ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(one, range(8)))) == 1


def test_more_calls_than_can_wait_are_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_WAITING_CALLS", 0)
    gate = threading.Event()
    simulated = SimulatedEngine(gate=gate)
    with serving(simulated, workers=1) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(execute, server.address, step(files))
        assert simulated.started.wait(PATIENCE)
        with pytest.raises(EngineError, match="broke off the call: RESOURCE_EXHAUSTED"):
            execute(server.address, step(files))
        gate.set()
        first.result()


def test_a_server_that_stops_ends_its_runs(files: Path) -> None:
    simulated = SimulatedEngine(gate=threading.Event())
    with ThreadPoolExecutor(1) as pool:
        with serving(simulated) as server:
            call = pool.submit(execute, server.address, step(files))
            assert simulated.started.wait(PATIENCE)
        assert simulated.ended.is_set()
        with pytest.raises(EngineError, match="went away in the middle of a call"):
            call.result()
    assert outputs(files) == {}


@contextmanager
def process(*args: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, SIMULATOR, *map(str, args)], **pipes) as running:
        try:
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


def test_an_engine_that_is_killed_and_started_again(files: Path) -> None:
    expected = SimulatedEngine().execute(step(files), schema=None, progress=SILENT)
    correct = outputs(files)
    for name in correct:
        (files / "out" / name).unlink()
    path = files / "engine.sock"
    with process("--socket", path, "--block") as (running, address), pytest.raises(EngineError) as caught:
        execute(address, step(files), Ticks(running.kill))
    assert str(caught.value).startswith(f"the engine at unix:{path} went away in the middle of a call: ")
    assert caught.value.hint is not None
    assert path.is_socket(), "it had no time to remove it"
    assert outputs(files) == {}
    with process("--socket", path) as (_, address):
        assert execute(address, step(files)) == expected
    assert outputs(files) == correct


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_a_server_cleanly(files: Path, number: int, code: int) -> None:
    path = files / "engine.sock"
    with process("--socket", path, "--block") as (running, address):
        ticks = Ticks(lambda: running.send_signal(number) if ticks.steps == 1 else None)
        with pytest.raises(EngineError):
            execute(address, step(files), ticks)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == code
    assert said == f"the engine listens on unix:{path}; Ctrl-C ends it\n"
    assert not path.exists()
    assert outputs(files) == {}


def test_a_port_that_is_taken() -> None:
    with serving(SimulatedEngine()) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{port}: "):
            EngineServer(SimulatedEngine(), port=port)


def test_a_socket_is_its_owners_alone(files: Path) -> None:
    path = files / "engine.sock"
    with serving(SimulatedEngine(), socket=path):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        with pytest.raises(EngineError, match=r"an engine listens on .* already"):
            EngineServer(SimulatedEngine(), socket=path)
    assert not path.exists()


def test_sockets_that_cannot_be(files: Path) -> None:
    with pytest.raises(EngineError, match="may have 107 bytes"):
        EngineServer(SimulatedEngine(), socket=files / ("x" * 108))
    with pytest.raises(EngineError, match="already exists and is not a socket"):
        EngineServer(SimulatedEngine(), socket=files / "in.parquet")
    with pytest.raises(EngineError, match="cannot listen on"):
        EngineServer(SimulatedEngine(), socket=files / "none" / "engine.sock")


def test_an_engine_that_is_not_there(files: Path) -> None:
    with pytest.raises(EngineError) as caught:
        execute(f"unix:{files}/engine.sock", step(files), connect_timeout=0.05)
    assert str(caught.value) == f"no engine answers at unix:{files}/engine.sock (waited 0.05 s)"
    assert "odfchain engine serve" in str(caught.value.hint)


def test_an_engine_that_is_not_up_yet(files: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            call = pool.submit(execute, f"127.0.0.1:{port}", step(files))
            listener.accept()[0].close()  # the caller has tried
        with serving(SimulatedEngine(), port=port):
            assert call.result().offset_interval is not None


@pytest.mark.parametrize(
    "address", ["", "localhost", "unix:", ":2884", "http://localhost:1", "::1:5", "a b:1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is not the address of an engine"):
        RemoteEngine(address)


def test_proxies_are_not_for_engines(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(SimulatedEngine()) as server:
        assert execute(server.address, step(files)).offset_interval is not None


def test_a_socket_has_no_port() -> None:
    options = ["serve", "--socket", "x", "--port", "1"]
    with pytest.raises(UsageError, match="--socket listens on no port"):
        engine_command.main(options, standalone_mode=False, obj=Globals())


def test_loading_both_sides_does_not_load_the_library() -> None:
    program = (
        "import sys, odfchain.transform.engine_protocol, odfchain.cli.engine;"
        "sys.exit(str({'grpc', 'pyspark', 'pyarrow'} & set(sys.modules) or '') or 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@contextmanager
def answering(*responses: bytes, call: wire.Call = EXECUTE_TRANSFORM) -> Iterator[str]:
    """The address of a server that answers every call with the same messages."""
    handler = grpc.unary_stream_rpc_method_handler(lambda message, context: iter(responses))
    of_service = grpc.method_handlers_generic_handler(wire.SERVICE, {call.method: handler})
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=(of_service,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


PROGRESS = EXECUTE_TRANSFORM.pack_response("Progress")


def success(start: int | None = None, end: int = 13) -> bytes:
    interval = None if start is None else OffsetInterval(start=start, end=end)
    return EXECUTE_TRANSFORM.pack_response("Success", new_offset_interval=interval, new_watermark=None)


def unknown_variant() -> bytes:
    """A success whose tag is that of a kind of response that does not exist."""
    for index in range(len(success())):
        changed = bytearray(success())
        changed[index] = 77
        try:
            EXECUTE_TRANSFORM.unpack_response(bytes(changed))
        except UnsupportedVersionError:
            return bytes(changed)
        except CodecError:
            continue
    raise AssertionError


@pytest.mark.parametrize(
    ("responses", "said"),
    [
        ([], "it ended the call without a result"),
        ([PROGRESS, PROGRESS], "it ended the call without a result"),
        ([b"\xff\xfe\xfd"], "its response cannot be read: not a protobuf message"),
        ([b""], "its response cannot be read: a buffer of 0 bytes"),
        ([wrap(b"\xff" * 64)], "its response cannot be read: "),
        ([PROGRESS, unknown_variant()], "TransformResponse variant 77 is not known"),
        ([success(9)], "its records have the offsets 9 to 13, 10 was to be the first"),
        ([success(10, 9)], "its records have the offsets 10 to 9"),
        ([success(10)], "it succeeded, but wrote no data file at "),
    ],
)
def test_answers_that_break_the_contract(files: Path, responses: list[bytes], said: str) -> None:
    with answering(*responses) as address, pytest.raises(EngineError) as caught:
        execute(address, step(files))
    assert f"the engine at {address} breaks the engine contract: " in str(caught.value)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_first_result_counts(files: Path) -> None:
    (files / "out" / "data").write_bytes(b"")
    late = EXECUTE_TRANSFORM.pack_response("InvalidQuery", message="too late")
    with answering(PROGRESS, success(10, 12), success(10, 13), late) as address:
        assert execute(address, step(files)).offset_interval == OffsetInterval(start=10, end=12)


@pytest.mark.parametrize("name", ["data", "checkpoint"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_outputs_must_be_plain_files(files: Path, name: str, kind: str) -> None:
    (files / "out" / "data").write_bytes(b"")
    path = files / "out" / name
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(files / "in.parquet")
    else:
        {"folder": os.mkdir, "pipe": os.mkfifo}[kind](path)
    said = f"{name} file .* is not a plain file"
    with answering(success(10)) as address, pytest.raises(EngineError, match=said):
        execute(address, step(files))


def test_a_server_that_is_no_engine(files: Path) -> None:
    with answering(call=EXECUTE_RAW_QUERY) as address, pytest.raises(EngineError, match="is not an engine"):
        execute(address, step(files))


def test_a_response_that_is_too_large(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_OPTIONS", (("grpc.max_receive_message_length", 1_000),))
    said = r"RESOURCE_EXHAUSTED.*larger than max"
    with answering(b"x" * 1_001) as address, pytest.raises(EngineError, match=said):
        execute(address, step(files))


def test_a_request_that_is_too_large(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MESSAGE_BYTES", 500)
    with pytest.raises(CodecError, match="bytes are more than a message may have, 500"):
        EXECUTE_TRANSFORM.pack_request(step(files))


@pytest.mark.parametrize(
    "message", [b"", b"\xff\xff", wrap(b"\x00" * 40), wrap(b"\xff" * 40), b"\x0a\x05abc"]
)
def test_requests_that_cannot_be_read(files: Path, message: bytes) -> None:
    simulated = SimulatedEngine()
    with serving(simulated) as server:
        for call in (EXECUTE_TRANSFORM, EXECUTE_RAW_QUERY):
            (answer,) = answers(server.address, call, message)
            assert answer.KIND == "InternalError"
            assert answer.backtrace
        assert simulated.requests == []
        assert execute(server.address, step(files)).offset_interval is not None


@pytest.mark.parametrize("path", ["data", "../data", "", "/tmp/\0"])
def test_paths_that_both_sides_cannot_mean_are_refused(files: Path, path: str) -> None:
    with serving(SimulatedEngine()) as server:
        message = EXECUTE_TRANSFORM.pack_request(step(files, new_data_path=path))
        (answer,) = answers(server.address, EXECUTE_TRANSFORM, message)
    assert answer.message == f"new_data_path is {path!r}: the paths in a request must be absolute"


@given(st.binary(max_size=300))
def test_the_message_is_the_one_field_that_the_contract_declares(data: bytes) -> None:
    assert wrap(data) == _declared()(flatbuffer=data).SerializeToString()
    assert unwrap(wrap(data)) == data


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_an_error(message: bytes) -> None:
    with contextlib.suppress(CodecError):
        assert unwrap(message) == _declared().FromString(message).flatbuffer


@functools.cache
def _declared() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="engine", syntax="proto3")
    declared = file.message_type.add(name="Message").field
    declared.add(name="flatbuffer", number=1, type=12, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("engine.Message"))


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a", b"\x0a\x05abcd", b"\x80" * 11, b"\x02\x00", b"\x0f", b"\x0d\x00", b"\x09\x00",
        b"\x0a" + b"\xff" * 9 + b"\x01",
    ],
)  # fmt: skip
def test_malformed_messages(message: bytes) -> None:
    with pytest.raises(CodecError, match="protobuf message"):
        unwrap(message)


def test_of_several_values_the_last_counts_and_others_are_skipped() -> None:
    assert unwrap(b"\x10\x07" + wrap(b"one") + b"\x1a\x01x" + wrap(b"two") + b"\x08\x01") == b"two"
