"""A Spark Connect server in a process of its own, on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from odfchain.spark.java import find_java
from tests.kit.processes import TIMEOUT, environment, wait_until


@contextmanager
def connect_server(folder: Path, **variables: str) -> Iterator[str]:
    """The URL of a server that writes below `folder`, as long as the block lasts."""
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
    java = {"JAVA_HOME": str(find_java().parent.parent)}
    env = environment(SPARK_HOME=str(home), PYSPARK_PYTHON=sys.executable, **java | variables)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [home / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
             "--master", "local[2]", *[part for item in conf.items() for part in ("--conf", "=".join(item))]],
            env=env, stdout=log, stderr=log, cwd=folder,
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
