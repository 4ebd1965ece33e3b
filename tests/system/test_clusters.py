"""Ingestion where driver and executors share no memory: a local cluster. Spark Connect is beside this."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.processes import (
    ODFCHAIN,
    TIMEOUT,
    environment,
    make_workspace,
    need_whole_java,
    odfchain,
    parents,
    spark_home,
    wait_until,
)
from tests.kit.support import manifest
from tests.kit.two_snapshots import CITIES, ingest_two


@pytest.mark.soak
def test_executors_in_processes_of_their_own(tmp_path: Path) -> None:
    need_whole_java()
    config = '{master: "local-cluster[2,1,1024]", conf: {spark.executor.memory: 512m}}'
    make_workspace(tmp_path, CITIES, config)
    ingest_two(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {".odfchain", "manifest.yaml", "one.csv", "two.csv"}


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
