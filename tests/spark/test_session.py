"""The session that every result depends on, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import odfchain as odf
from odfchain.errors import EngineError, StorageFullError, StoreError, was_interrupted
from odfchain.spark.input_frames import spark_path
from odfchain.spark.jobs import Cancellation, explain, first_line, run_job
from odfchain.spark.known_errors import known_error
from odfchain.spark.plans import jvm_of
from odfchain.spark.session import SAME_EVERYWHERE, SparkEngine, check_given
from odfchain.spark.session_client import scratch_base
from odfchain.text import find_marker, marker
from tests.kit.processes import ODFCHAIN, TIMEOUT, environment, make_workspace, still_running
from tests.kit.support import derivative, manifest


def test_a_users_options_of_java_do_not_change_what_is_recorded(tmp_path: Path) -> None:
    given = "-Xss8m -Duser.language=tr -Duser.timezone=Asia/Tokyo"
    names = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
    made = SparkEngine(tmp_path, conf=dict.fromkeys(names, given))._settings(tmp_path)
    for name in names:
        assert given in made[name]
        properties = dict(part.split("=") for part in made[name].split() if part.startswith("-Duser."))
        assert properties == {"-Duser.language": "en", "-Duser.country": "US", "-Duser.timezone": "UTC"}


def test_nothing_in_the_current_folder(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine.session.range(3).createOrReplaceTempView("v")
    assert engine.session.sql("SELECT count(*) FROM v").first() is not None
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_was_not_asked_for_is_not_started(tmp_path: Path) -> None:
    engine = SparkEngine(tmp_path)
    assert not engine.started
    engine.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("remote", ["no-scheme", "no-scheme/;token=s3cr3t;user_id=a"])
def test_a_remote_that_does_not_answer(tmp_path: Path, remote: str) -> None:
    engine = SparkEngine(tmp_path, remote=remote)
    with pytest.raises(EngineError, match="no Spark Connect session at no-scheme") as caught:
        _ = engine.session
    assert "\n" not in str(caught.value)
    assert "s3cr3t" not in str(caught.value), "which a user shows to others"


@pytest.mark.parametrize("name", ["plain", "with blank", "a,b", "quo'te", "ünï"])
def test_temporary_files_go_where_spark_can_use_them(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    assert (scratch_base(folder) == folder) == (name == "plain")


def test_paths_are_taken_literally(engine: SparkEngine, tmp_path: Path) -> None:
    names = ["plain", "a b", "a[1]", "a{x,y}", "a*", "a?b", "a\\b", "a%20b", "a#b", "a:b", "ü"]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        for part in ("one", "two"):
            (tmp_path / name / part).write_text(f"{number}\n{number}\n")
    paths = [spark_path(tmp_path / name / part) for name in names for part in ("one", "two")]
    rows = engine.session.read.schema("n int").csv(paths).collect()
    assert sorted(row.n for row in rows) == [number for number in range(len(names)) for _ in range(4)]


def test_markers_survive_other_text() -> None:
    text = f"org.apache.spark.SparkException: {marker('bad', column='a}b', row=3)}\n\tat x"
    assert find_marker(text) == {"kind": "bad", "column": "a}b", "row": 3}
    assert find_marker("nothing") is None
    assert find_marker("odfchain{broken}odfchain") is None


def test_a_failure_is_one_line() -> None:
    error = explain(RuntimeError("Job aborted\n[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n\tat x"))
    assert (type(error), str(error)) == (EngineError, "Spark failed: Division by zero. SQLSTATE: 22012")
    assert first_line(RuntimeError("")) == "RuntimeError"
    full = explain(RuntimeError("OSError: [Errno 28] No space left on device"))
    assert isinstance(full, StorageFullError), "of a worker"


def test_a_lost_executor_is_no_call_of_an_object() -> None:
    call = "An error occurred while calling o220.collectToPython."
    job = "Job aborted due to stage failure: Lost task"
    lost = f"{job} 0.0 (TID 3): ExecutorLostFailure (executor 1 exited by 'x') Reason: Command exited with code 137"
    error = explain(
        RuntimeError(f"{call}\n: org.apache.spark.SparkException: {lost}\nDriver stacktrace:\n\tat x")
    )
    assert str(error) == "an executor of Spark's was lost: Command exited with code 137"
    assert "spark.executor.memory" in str(error.hint)
    assert first_line(RuntimeError(f"{call}\n: java.lang.X: {job}\n\tat x")) == f"java.lang.X: {job}"
    assert first_line(RuntimeError(call)) == call


def test_an_error_from_the_cluster_keeps_its_meaning(engine: SparkEngine) -> None:
    text = marker("null-key", message="key is null")
    frame = engine.session.range(3).select(F.raise_error(F.lit(text)))
    with pytest.raises(Exception, match="odfchain") as caught:
        frame.collect()
    assert str(explain(caught.value, file="in.csv")) == "in.csv: key is null"


def test_a_java_that_is_gone_is_no_fault_of_ours() -> None:
    """Py4J lets the error of its socket pass; the same error of anybody else is not Spark's."""
    refusal = "raise ConnectionRefusedError(111, 'Connection refused')"
    for module, message in (
        ("py4j.clientserver", "the Java process that Spark runs in has ended"),
        ("odfchain.storage.http_client", None),
    ):
        with pytest.raises(ConnectionRefusedError) as caught:
            exec(refusal, {"__name__": module})  # noqa: S102 - ours; a frame of that module
        error = known_error(caught.value)
        assert (None if error is None else str(error)) == message
        assert isinstance(error, EngineError) is (message is not None)


def test_an_error_of_the_system_about_a_file_is_one_of_ours() -> None:
    found = known_error(FileNotFoundError(2, "No such file or directory", "x"))
    assert isinstance(found, StoreError)
    assert "x: No such file" in str(found)
    assert known_error(ValueError("ours")) is None


@pytest.fixture
def given(engine: SparkEngine) -> SparkSession:
    """A user's session, with settings that would change what is recorded."""
    session = engine.session.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.caseSensitive", "false")
    return session


@pytest.mark.parametrize("queries", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_files_and_queries_run_in_a_session_that_is_given(
    tmp_path: Path, given: SparkSession, monkeypatch: pytest.MonkeyPatch, queries: bool
) -> None:
    monkeypatch.setattr(SparkEngine, "_start", lambda _: pytest.fail("another Spark was started"))
    monkeypatch.setattr(SparkEngine, "begin", lambda _: pytest.fail("another Spark was started"))
    odf.init(tmp_path)
    (tmp_path / "in.csv").write_text("city,population\nA,1\nB,2\n")
    with odf.open(tmp_path, spark=given) as workspace:
        workspace.add(manifest())
        workspace["cities"].ingest(tmp_path / "in.csv", event_time="2025-01-01T00:00:00Z")
        result = workspace["cities"]
        if queries:
            workspace.add(derivative("SELECT op, event_time, upper(city) AS city, population FROM cities"))
            result = workspace["derived"]
            result.pull()
        rows = result.scan(["event_time", "city"]).to_arrow().to_pylist()
        assert [(row["event_time"].isoformat(), row["city"]) for row in rows] == [
            ("2025-01-01T00:00:00+00:00", "A"), ("2025-01-01T00:00:00+00:00", "B"),
        ]  # fmt: skip
        result.verify(replay=queries).raise_if_faulty()
    assert given.range(3).count() == 3, "it is not stopped"
    assert given.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert given.conf.get("spark.sql.ansi.enabled") == "false"


@pytest.fixture
def java(given: SparkSession) -> Iterator[Any]:
    """`java.util` of the session's driver, whose defaults are put back."""
    java = jvm_of(given).java.util
    locale, zone = java.Locale.getDefault(), java.TimeZone.getDefault()
    yield java
    java.Locale.setDefault(locale)
    java.TimeZone.setDefault(zone)


def test_a_driver_of_another_locale_is_refused(tmp_path: Path, given: SparkSession, java: Any) -> None:
    check_given(given)
    odf.init(tmp_path)
    java.Locale.setDefault(java.Locale("tr", "TR"))
    java.TimeZone.setDefault(java.TimeZone.getTimeZone("Asia/Tokyo"))
    with pytest.raises(
        odf.errors.UsageError, match="Java is tr_TR; the time zone of the driver's Java is Asia"
    ) as caught:
        odf.open(tmp_path, spark=given)
    assert caught.value.hint == f'start Spark with --conf "spark.driver.extraJavaOptions={SAME_EVERYWHERE}"'
    java.Locale.setDefault(java.Locale("en", "US"))
    java.TimeZone.setDefault(java.TimeZone.getTimeZone("Etc/UTC"))
    check_given(given)


@pytest.mark.parametrize(
    ("conf", "fine"),
    [
        ({}, False),
        ({"spark.executor.extraJavaOptions": SAME_EVERYWHERE.replace("UTC", "CET")}, False),
        ({"spark.executor.extraJavaOptions": f"-Xss4m {SAME_EVERYWHERE}"}, True),
        ({"spark.executor.defaultJavaOptions": SAME_EVERYWHERE}, True),
    ],
)
def test_executors_need_the_same(
    given: SparkSession, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], fine: bool
) -> None:
    """Java of executors is not seen by the driver: what they were started with is looked at."""
    names = ("spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions")
    monkeypatch.setattr("odfchain.spark.session.is_local", lambda _: False)
    found = {n: v for n, v in given.sparkContext.getConf().getAll() if n not in names} | conf
    monkeypatch.setattr(given.sparkContext, "getConf", lambda: found)
    if fine:
        check_given(given)
        return
    with pytest.raises(
        odf.errors.UsageError, match=r"spark\.executor\.extraJavaOptions has no -Duser"
    ) as caught:
        check_given(given)
    assert "driver" not in str(caught.value.hint)


PATIENCE = 60.0


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def waiting(session: SparkSession, begun: Path, go_on: Path) -> DataFrame:
    """One row, of a task that shows that it has begun and waits."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        wait_for(go_on)
        yield from batches

    return session.range(0, 1, 1, 1).mapInArrow(stage, "id bigint")


def test_an_interrupted_action_is_cancelled_and_the_session_stays_usable(
    engine: SparkEngine, tmp_path: Path
) -> None:
    session = engine.session
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    begun = tmp_path / "begun"

    def interrupt() -> None:
        wait_for(begun)
        os.kill(os.getpid(), signal.SIGINT)

    endless = waiting(session, begun, tmp_path / "never")
    started = time.monotonic()
    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        run_job(session, endless.collect)
    other.join()
    assert time.monotonic() - started < PATIENCE, "nobody waited for the action"
    for _ in range(3):  # every answer belongs to its question
        assert run_job(session, session.range(7).count) == 7
        assert session.range(5).count() == 5


def test_what_an_action_raises(engine: SparkEngine) -> None:
    def fails() -> None:
        raise LookupError("from the action")

    with pytest.raises(LookupError, match="from the action"):
        run_job(engine.session, fails)


def test_an_action_on_another_thread_stays_on_it(engine: SparkEngine) -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(run_job(engine.session, threading.get_ident)))
    thread.start()
    thread.join()
    assert seen == [thread.ident]


def test_an_error_while_unwinding_does_not_hide_the_interrupt() -> None:
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError("Answer from Java side is empty")
    except OSError as error:
        assert was_interrupted(error)
        with pytest.raises(KeyboardInterrupt):
            explain(error)
    assert isinstance(explain(OSError("Answer from Java side is empty")), EngineError)


def test_only_the_jobs_of_the_run_are_cancelled(engine: SparkEngine, tmp_path: Path) -> None:
    """Two runs in one session: one is given up, the other one does not notice."""
    session = engine.session
    go_on = tmp_path / "go-on"
    one, other = (waiting(session, tmp_path / name, go_on).collect for name in "ab")
    cancellation = Cancellation()
    with ThreadPoolExecutor(2) as pool:
        kept = pool.submit(run_job, session, one, cancellation=Cancellation())
        given_up = pool.submit(run_job, session, other, cancellation=cancellation)
        wait_for(tmp_path / "a")
        wait_for(tmp_path / "b")
        cancellation.cancel()
        with pytest.raises(EngineError, match="cancelled"):
            given_up.result(PATIENCE)
        go_on.touch()
        assert [row.id for row in kept.result(PATIENCE)] == [0]


def test_an_action_that_takes_too_long(engine: SparkEngine, tmp_path: Path) -> None:
    endless = waiting(engine.session, tmp_path / "begun", tmp_path / "never")
    with pytest.raises(EngineError, match=r"(?m)^took longer than 500 ms$") as caught:
        run_job(engine.session, endless.collect, deadline=0.5)
    assert "--timeout" in str(caught.value.hint)
    assert run_job(engine.session, engine.session.range(7).count, deadline=PATIENCE) == 7


def test_what_was_given_up_before_it_began_ends_at_once(engine: SparkEngine) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    cancellation.cancel()
    with pytest.raises(EngineError, match="the run was cancelled"):
        run_job(engine.session, lambda: time.sleep(1), cancellation=cancellation)


def test_a_java_that_was_begun_and_is_not_needed_has_ended(tmp_path: Path) -> None:
    engine = SparkEngine(tmp_path, master="local[1]", driver_memory="512m")
    engine.begin()
    engine.begin()
    engine.close()
    assert still_running(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} <= {".lock"}


def test_a_command_that_fails_leaves_no_java(tmp_path: Path) -> None:
    make_workspace(tmp_path)
    (tmp_path / "a.csv").write_text("city\nA\n")
    done = subprocess.run(
        [ODFCHAIN, "ingest", "cities", "a.csv"], cwd=tmp_path,
        env=environment(CI="true"), capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert (done.returncode, "does not fit the schema" in done.stderr) == (3, True), done.stderr
    assert still_running(tmp_path) == []
    assert {path.name for path in (tmp_path / ".odfchain" / "run").iterdir()} <= {".lock"}
