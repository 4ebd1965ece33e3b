"""Ingestion where driver and executors share no memory: a local cluster, and Spark Connect."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from odfchain.spark.java import find_java
from tests.kit.processes import (
    ODFCHAIN,
    TIMEOUT,
    environment,
    make_workspace,
    need_whole_java,
    odfchain,
    spark_home,
    wait_until,
)
from tests.kit.support import manifest, unchanged

SNAPSHOT = manifest("{kind: Snapshot, primaryKey: [city]}")
ONE = "city,population\nA,1\nB,2\nC,3\n"
TWO = "city,population\nA,1\nB,5\nD,4\n"


def ingest_two(folder: Path) -> None:
    """Two snapshots, and a look at what was recorded."""
    (folder / "one.csv").write_text(ONE)
    (folder / "two.csv").write_text(TWO)
    result = odfchain(folder, "ingest", "cities", "one.csv", "two.csv", "-o", "csv")
    assert result.code == 0, result.err
    assert [line.split(",", 1)[1] for line in result.out.splitlines()[1:]] == [
        "3,3,0,0,0,0-2",
        "3,1,1,1,1,3-6",
    ]
    assert len(result.err.splitlines()) == 1, f"nothing but the outcome: {result.err}"
    rows = odfchain(folder, "tail", "cities", "-n", "4", "-o", "json").rows
    assert [(r["op"], r["city"], r["population"]) for r in rows] == [
        (2, "B", 2),
        (3, "B", 5),
        (1, "C", 3),
        (0, "D", 4),
    ]
    assert odfchain(folder, "verify", "cities").out.startswith("ok ")


@pytest.mark.soak
def test_executors_in_processes_of_their_own(tmp_path: Path) -> None:
    need_whole_java()
    config = '{master: "local-cluster[2,1,1024]", conf: {spark.executor.memory: 512m}}'
    make_workspace(tmp_path, SNAPSHOT, config)
    ingest_two(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        ".odfchain", "manifest.yaml", "one.csv", "two.csv"
    }  # fmt: skip


def writer_of_a_slice(staging: Path) -> int | None:
    """The worker that has an unfinished slice open, stopped; None as long as there is none.

    Only workers of executors are looked at: the driver opens slices as well, when it commits them.
    """
    for path in staging.glob("*/slice-*.parquet"):
        for pid in workers():
            with suppress(OSError):  # processes and files come and go
                if any(link.readlink() == path for link in Path(f"/proc/{pid}/fd").iterdir()):
                    os.kill(pid, signal.SIGSTOP)
                    return pid
    return None


def workers() -> list[int]:
    """Python workers of executors, whosever they are."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"pyspark.daemon" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def parents() -> dict[int, int]:
    """The parent of every process."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    return {int(pid): int(parent) for pid, parent in map(str.split, listed.stdout.splitlines())}


def executor_of(worker: int) -> int:
    """The executor that a Python worker belongs to."""
    above, pid = parents(), worker
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = above[pid]
    return pid


def kill_all_of(root: int) -> None:
    """A process and all below it end without a word, as with a machine."""
    above = parents()
    family = {root}
    while more := {pid for pid, parent in above.items() if parent in family} - family:
        family |= more
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


ROWS = 1_000_000
"""So many that a slice is not written between two looks at the processes."""

LARGE = ("ingest", "cities", "large.csv", "--event-time", "2026-01-01T00:00:00Z")


def begin_ingest(folder: Path, failures: int, max_bytes: int) -> tuple[Path, subprocess.Popen[str]]:
    """The folder of a dataset, and a command that brings a large file into it with two executors."""
    conf = f"{{spark.executor.memory: 512m, spark.task.maxFailures: '{failures}'}}"
    config = f'{{master: "local-cluster[2,1,1024]", conf: {conf}}}\n  slice: {{maxBytes: {max_bytes}}}'
    dataset = make_workspace(folder, manifest(), config)
    lines = "".join(f"City {n},{n}\n" for n in range(ROWS))
    (folder / "large.csv").write_text(f"city,population\n{lines}")
    running = subprocess.Popen(
        [ODFCHAIN, *LARGE], cwd=folder, env=environment(SPARK_HOME=str(spark_home(folder / "spark"))),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return dataset, running


def check_committed(folder: Path, dataset: Path) -> int:
    """All rows are there once, and no file but theirs; returns the number of slices."""
    (report,) = odfchain(folder, "verify", "cities", "-o", "json").rows
    found = report["counts"]
    assert (report["verdict"], found["records"]) == ("clean", ROWS), report
    assert len(list((dataset / "data").iterdir())) == found["slices"]
    assert not list((dataset / "staging").glob("*/slice-*"))
    return int(found["slices"])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("failures", "max_bytes"), [(4, 0), (1, 0), (4, 8 << 20)], ids=["again", "given up", "one of several"]
)
def test_an_executor_is_killed_while_it_writes_a_slice(tmp_path: Path, failures: int, max_bytes: int) -> None:
    """Its task runs again elsewhere, and there is one commit; or, where Spark gives up, an error and none."""
    need_whole_java()
    dataset, running = begin_ingest(tmp_path, failures, max_bytes)
    head = (dataset / "refs" / "head").read_bytes()
    kill_all_of(executor_of(wait_until(lambda: writer_of_a_slice(dataset / "staging"), running)))
    assert (dataset / "refs" / "head").read_bytes() == head, "what was killed was not committed"
    _, said = running.communicate(timeout=TIMEOUT)
    if failures == 1:
        assert running.returncode == 7, said
        assert said.startswith("error: an executor of Spark's was lost: "), said
        assert "hint: run the command again" in said
        assert (dataset / "refs" / "head").read_bytes() == head
        assert not list((dataset / "data").iterdir())
        assert not list((dataset / "staging").glob("*/slice-*"))
        return
    assert running.returncode == 0, said
    assert (check_committed(tmp_path, dataset) > 1) == bool(max_bytes)


@pytest.mark.soak
def test_the_driver_is_killed_while_a_slice_is_written(tmp_path: Path) -> None:
    """Nothing of it is visible, its executors end, and the next command does it all."""
    need_whole_java()
    dataset, running = begin_ingest(tmp_path, 4, 0)
    head = (dataset / "refs" / "head").read_bytes()
    writer = wait_until(lambda: writer_of_a_slice(dataset / "staging"), running)
    executor = executor_of(writer)
    running.kill()
    running.communicate(timeout=TIMEOUT)
    os.kill(writer, signal.SIGCONT)
    wait_until(lambda: executor not in parents())
    assert (dataset / "refs" / "head").read_bytes() == head
    assert not list((dataset / "data").iterdir())
    again = odfchain(tmp_path, *LARGE)
    assert again.code == 0, again.err
    assert check_committed(tmp_path, dataset) == 1


@pytest.fixture
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server on loopback."""
    folder = tmp_path_factory.mktemp("connect")
    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
    }
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [home / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
             "--master", "local[2]", *[part for item in conf.items() for part in ("--conf", "=".join(item))]],
            env=environment(SPARK_HOME=str(home), JAVA_HOME=str(find_java().parent.parent),
                            PYSPARK_PYTHON=str(Path(os.sys.executable))),
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, server)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=TIMEOUT)


@pytest.mark.soak
def test_spark_connect(tmp_path: Path, connect_server: str) -> None:
    dataset = make_workspace(tmp_path, SNAPSHOT, f"{{remote: '{connect_server}'}}")
    ingest_two(tmp_path)
    (tmp_path / "bad.csv").write_text(TWO + "E,x\n")
    with unchanged(dataset):
        bad = odfchain(tmp_path, "ingest", "cities", "bad.csv")
    assert bad.code == 3
    assert bad.err == f"error: {tmp_path}/bad.csv: row 4: column `population`: 'x' is not a valid BIGINT\n"
