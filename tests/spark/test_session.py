"""The session that every result depends on, and what it leaves behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from odfchain.errors import EngineError
from odfchain.spark.input_frames import spark_path
from odfchain.spark.jobs import explain, first_line
from odfchain.spark.session import SparkEngine
from odfchain.spark.session_client import scratch_base
from odfchain.text import find_marker, marker


def test_settings_that_results_depend_on(engine: SparkEngine) -> None:
    conf = engine.session.conf
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.sql.ansi.enabled") == "true"
    assert conf.get("spark.sql.caseSensitive") == "true"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_names_are_case_sensitive_and_the_java_time_zone_is_utc(engine: SparkEngine) -> None:
    row = engine.session.sql("SELECT 1 AS a, 2 AS A, CAST('2020-07-01 12:00' AS TIMESTAMP) AS t").first()
    assert row is not None
    assert (row["a"], row["A"]) == (1, 2)
    jvm = engine.session.sparkContext._jvm
    assert jvm is not None
    assert jvm.java.util.TimeZone.getDefault().getID() == "UTC"


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


def test_the_session_is_started_once(engine: SparkEngine) -> None:
    assert engine.session is engine.session
    assert engine.started


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


@pytest.mark.parametrize(
    "name", ["plain", "a b", "a[1]", "a{x,y}", "a*", "a?b", "a\\b", "a%20b", "a#b", "a:b", "ü"]
)
def test_paths_are_taken_literally(engine: SparkEngine, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for part in ("one", "two"):
        (folder / part).write_text("1\n2\n")
    paths = [spark_path(folder / part) for part in ("one", "two")]
    assert engine.session.read.schema("n int").csv(paths).count() == 4


# --- failures --------------------------------------------------------------------------------------


def test_markers_survive_other_text() -> None:
    text = f"org.apache.spark.SparkException: {marker('bad', column='a}b', row=3)}\n\tat x"
    assert find_marker(text) == {"kind": "bad", "column": "a}b", "row": 3}
    assert find_marker("nothing") is None
    assert find_marker("odfchain{broken}odfchain") is None


def test_a_failure_is_one_line() -> None:
    error = explain(RuntimeError("Job aborted\n[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n\tat x"))
    assert isinstance(error, EngineError)
    assert str(error) == "Spark failed: Division by zero. SQLSTATE: 22012"
    assert first_line(RuntimeError("")) == "RuntimeError"


def test_a_lost_executor_is_no_call_of_an_object() -> None:
    call, job = (
        "An error occurred while calling o220.collectToPython.",
        "Job aborted due to stage failure: Lost task",
    )
    lost = f"{job} 0.0 (TID 3): ExecutorLostFailure (executor 1 exited by 'x') Reason: Command exited with code 137"
    error = explain(
        RuntimeError(f"{call}\n: org.apache.spark.SparkException: {lost}\nDriver stacktrace:\n\tat x")
    )
    assert str(error) == "an executor of Spark's was lost: Command exited with code 137"
    assert error.hint is not None
    assert "spark.executor.memory" in error.hint
    assert first_line(RuntimeError(f"{call}\n: java.lang.X: {job}\n\tat x")) == f"java.lang.X: {job}"
    assert first_line(RuntimeError(call)) == call


def test_a_full_disk_on_a_worker_is_recognised() -> None:
    from odfchain.errors import StorageFullError

    assert isinstance(explain(RuntimeError("OSError: [Errno 28] No space left on device")), StorageFullError)


def test_an_error_from_the_cluster_keeps_its_meaning(engine: SparkEngine) -> None:
    from pyspark.sql import functions as F

    text = marker("null-key", message="key is null")
    frame = engine.session.range(3).select(F.raise_error(F.lit(text)))
    with pytest.raises(Exception, match="odfchain") as caught:
        frame.collect()
    assert str(explain(caught.value, file="in.csv")) == "in.csv: key is null"


def test_a_java_that_is_gone_is_no_fault_of_ours() -> None:
    """Py4J lets the error of its socket pass; the same error of anybody else is not Spark's."""
    from odfchain.spark.known_errors import known_error

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
