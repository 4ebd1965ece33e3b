"""A cluster whose executors see no folder of the driver, with the datasets in a store (RFC-048)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit import shared_store
from tests.kit.processes import environment, java_in_bubblewrap, odfchain, spark_home
from tests.kit.shared_store import PREFIX, objects, recorded
from tests.kit.small_s3 import RESET, SmallS3
from tests.kit.support import configure, derivative, manifest

pytestmark = pytest.mark.soak

MERGES = {
    "append": "{kind: Append}",
    "ledger": "{kind: Ledger, primaryKey: [id]}",
    "snapshot": "{kind: Snapshot, primaryKey: [id]}",
}
SCHEMA = '["id BIGINT", "city STRING", "population BIGINT"]'
# later than the blocks that are made before, which would be followed otherwise
TIMES = ("--event-time", "2026-01-01T00:00:00Z", "--system-time", "2050-02-01T00:00:00Z", "--allow-retract")
ROWS = 120_000
"""Beyond what is read by one task."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallS3]:
    shared_store.environment(monkeypatch, tmp_path / "home")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with SmallS3() as store:
        yield store


class Cluster:
    """`local-cluster[2,1,1024]`: each executor has file systems of its own, in which nothing of the driver is.

    Its temporary folder is empty and its own; of the driver's folder it has only the part in which Spark's
    worker has made it a folder to run in.
    """

    def __init__(self, folder: Path, store: SmallS3) -> None:
        self.folder, self.inputs = folder / "driver", folder / "inputs"
        self.inputs.mkdir()
        self.folder.mkdir()
        self.home = spark_home(folder / "spark")
        self.store = store
        run = self.folder / ".odfchain" / "run"
        seen = ("--ro-bind", self.home, self.home, "--bind", run, run)
        java = java_in_bubblewrap(folder, "--tmpfs", "/tmp", "--tmpfs", folder, *seen)
        assert odfchain(self.folder, "init", "--store", store.url(PREFIX)).code == 0
        conf = {"spark.executor.memory": "512m", "spark.executorEnv.JAVA_HOME": str(java)}
        self.spark = {"master": "local-cluster[2,1,1024]", "conf": conf}

    def limit(self, max_bytes: int) -> None:
        configure(self.folder / ".odfchain", spark=self.spark, slice={"maxBytes": max_bytes})

    def run(self, *args: object) -> str:
        """What a command prints that must end well."""
        done = odfchain(self.folder, *args, env=environment(SPARK_HOME=str(self.home)))
        assert done.code == 0, done.err
        return done.out

    def add(self, text: str) -> None:
        """A dataset of a manifest."""
        (self.folder / "manifest.yaml").write_text(text)
        assert odfchain(self.folder, "add", "manifest.yaml").code == 0


@pytest.fixture
def cluster(tmp_path: Path, store: SmallS3) -> Cluster:
    return Cluster(tmp_path, store)


def release(path: Path, first: int, factor: int) -> Path:
    lines = "".join(f"{n},City {n},{n * factor}\n" for n in range(first, first + ROWS))
    path.write_text(f"id,city,population\n{lines}")
    return path


@pytest.mark.parametrize("max_bytes", [0, 2 << 20], ids=["one slice", "several"])
def test_blocks_are_those_of_a_folder(cluster: Cluster, tmp_path: Path, max_bytes: int) -> None:
    """Of appends, ledgers and snapshots, two releases each: the same hashes as in one process on a folder."""
    files = [release(cluster.inputs / f"{n}.csv", n * ROWS // 2, n + 1) for n in range(2)]
    (here := tmp_path / "here").mkdir()
    assert odfchain(here, "init").code == 0
    cluster.limit(max_bytes)
    configure(here / ".odfchain", slice={"maxBytes": max_bytes})
    for name, merge in MERGES.items():
        cluster.add(manifest(merge, SCHEMA, name=name))
        assert odfchain(here, "add", cluster.folder / "manifest.yaml").code == 0
        for file in files:
            done = odfchain(here, "ingest", name, file, *TIMES)
            assert done.code == 0, done.err
            cluster.run("ingest", name, file, *TIMES)
        assert recorded(cluster.folder, name) == recorded(here, name)
        assert (len(recorded(here, name)) > 2) == bool(max_bytes)
    brought = [path.name for path in (cluster.folder / ".odfchain").glob("datasets/*/data/*")]
    assert brought == [], "the driver has seen facts only"
    assert objects(cluster.store, "staging/") == {}
    assert odfchain(cluster.folder, "verify", *MERGES).code == 0


def executors(home: Path) -> list[int]:
    """Java processes of executors whose Spark is in a folder."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True)
    return [
        int(line.split(None, 1)[0])
        for line in listed.stdout.splitlines()
        if "CoarseGrainedExecutorBackend" in line and str(home) in line
    ]


def kill_executors(cluster: Cluster) -> list[int]:
    """Those that are killed at the first slice that comes."""
    killed: list[int] = []

    def kill(method: str, path: str) -> int | None:
        if killed or method != "PUT" or "/data/" not in path:
            return None
        killed.extend(executors(cluster.home))
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return RESET

    cluster.store.before = kill
    return killed


@pytest.mark.parametrize("max_bytes", [0, 2 << 20], ids=["one slice", "several"])
def test_executors_are_killed_while_they_write_to_the_store(cluster: Cluster, max_bytes: int) -> None:
    """At the first slice that comes: others do it again, and there is one commit with the same rows."""
    cluster.limit(max_bytes)
    cluster.add(manifest("{kind: Append}", SCHEMA))
    killed = kill_executors(cluster)
    cluster.run("ingest", "cities", release(cluster.inputs / "0.csv", 0, 1), *TIMES)
    assert killed
    (report,) = odfchain(cluster.folder, "verify", "cities", "-o", "json").rows
    assert (report["verdict"], report["counts"]["records"]) == ("clean", ROWS), report
    assert (report["counts"]["slices"] > 1) == bool(max_bytes)
    assert objects(cluster.store, "staging/") == {}


DERIVED = {
    "stateless": "SELECT event_time, id, city, population * 2 AS population FROM cities WHERE id % 3 > 0",
    "retracting": "SELECT max(event_time) AS event_time, id % 70000 AS id, sum(population) AS population "
    "FROM cities GROUP BY 2",
}


def test_steps_are_those_of_a_folder(cluster: Cluster) -> None:
    """Of a query of rows, which becomes several steps, and of one that remembers more than a plan carries.

    They are replayed by the same executors, and by Spark in one process on the driver's folders.
    """
    cluster.limit(2 << 20)
    for text in (
        manifest("{kind: Append}", SCHEMA),
        *(derivative(sql, name=n) for n, sql in DERIVED.items()),
    ):
        cluster.add(text)
    for n in range(2):
        cluster.run("ingest", "cities", release(cluster.inputs / f"{n}.csv", n * ROWS, n + 1), *TIMES)
        cluster.run("pull", *DERIVED)
    asked = "select count(*) n from cities where id < 9"
    assert json.loads(cluster.run("sql", "--engine", "spark", "-o", "json", "-c", asked)) == [{"n": 9}]
    assert objects(cluster.store, "staging/") == {}
    there = objects(cluster.store).keys()
    for local in (False, True):
        if local:
            (cluster.folder / ".odfchain" / "config.yaml").unlink()
        found = json.loads(cluster.run("verify", "--replay", "-o", "json", *DERIVED))
        reports = {report["dataset"]["alias"]: report for report in found}
        for name in DERIVED:
            assert reports[name]["verdict"] == "clean", reports[name]
            assert reports[name]["notes"] == []
            assert reports[name]["counts"]["replayed"] >= 2
        assert reports["stateless"]["counts"]["replayed"] > 2, "a step as several"
        assert objects(cluster.store).keys() == there


def test_executors_are_killed_while_they_write_a_step(cluster: Cluster) -> None:
    """At the slice of the derivative: others do it again, there is one commit, and a replay gives the same."""
    cluster.limit(0)
    for text in (manifest("{kind: Append}", SCHEMA), derivative(DERIVED["retracting"], name="derived")):
        cluster.add(text)
    done = odfchain(cluster.folder, "ingest", "cities", release(cluster.inputs / "0.csv", 0, 1), *TIMES)
    assert done.code == 0, done.err
    killed = kill_executors(cluster)
    cluster.run("pull", "derived")
    assert killed
    assert objects(cluster.store, "staging/") == {}
    (cluster.folder / ".odfchain" / "config.yaml").unlink()
    (report,) = odfchain(cluster.folder, "verify", "--replay", "derived", "-o", "json").rows
    assert (report["verdict"], report["notes"], report["counts"]["replayed"]) == ("clean", [], 1), report
