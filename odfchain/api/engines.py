"""Making the class archive that lets Spark start faster, by doing once what commands do.

Source: RFC-011.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError
from odfchain.progress import SILENT, Progress
from odfchain.transform.engine_service import EngineServer, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.spark.session import SparkEngine


_MANIFESTS = """\
kind: DatasetSnapshot
version: 1
content:
  name: visits
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: [event_time TIMESTAMP, place STRING, visitors BIGINT]}
      preprocess:
        kind: Sql
        engine: odfchain-spark
        query: SELECT *, upper(place) AS name FROM input WHERE visitors > 0
      merge: {kind: Ledger, primaryKey: [event_time, place]}
---
kind: DatasetSnapshot
version: 1
content:
  name: places
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: [event_time TIMESTAMP, place STRING, visitors BIGINT]}
      merge: {kind: Snapshot, primaryKey: [place]}
---
kind: DatasetSnapshot
version: 1
content:
  name: visits.daily
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: visits, alias: visits}]
      transform:
        kind: Sql
        engine: odfchain-spark
        query: |
          SELECT window(event_time, '1 day').start AS event_time, place, sum(visitors) AS visitors
          FROM visits GROUP BY window(event_time, '1 day'), place
"""
_DAYS = (1, 2)


def make_class_archive(progress: Progress = SILENT) -> Path:
    """The class archive for this Java and this Spark is made anew, complete or not at all; returns its file.

    Raises:
        JavaNotFoundError: no Java 17 or newer on this machine.
        EngineError: Spark does not start, or this Java cannot make archives.
        StoreError: the archive cannot be written.
    """
    from odfchain.spark.gateway import archive_path, new_archive
    from odfchain.spark.java import find_java

    target = archive_path(find_java())
    with new_archive(target) as recorded, tempfile.TemporaryDirectory(prefix="odfchain-") as folder:
        _record(Path(folder), recorded, progress)
        if not recorded.is_file():
            raise EngineError(
                "this Java wrote no class archive",
                hint="it needs its own archive of base classes: `java -Xshare:dump` makes that",
            )
    return target


def _record(folder: Path, recorded: Path, progress: Progress) -> None:
    from odfchain.spark.session import SparkEngine

    progress.phase("Starting Spark")
    workspace = Workspace.init(folder)
    engine = SparkEngine(workspace._files.run_folder, record_classes=recorded)
    workspace._engines.spark = engine
    with workspace:
        _work(workspace, folder, engine, progress)
        progress.phase("Writing the class archive")


def _work(workspace: Workspace, folder: Path, engine: SparkEngine, progress: Progress) -> None:
    progress.phase("Doing a day's work")
    # the archive has the classes that are loaded from here on: those of everyday commands
    workspace.add(_MANIFESTS)
    compiled, interpreted, derived = (workspace[name] for name in ("visits", "places", "visits.daily"))
    for day in _DAYS:
        path = folder / f"{day}.csv"
        path.write_text(f"event_time,place,visitors\n2020-01-0{day} 10:00:00,Lviv,{day}\n", encoding="utf-8")
        compiled.ingest(path)
        interpreted.ingest(path)
        derived.pull()
    engine.session.sql("SELECT count(*) FROM range(10)").toPandas()


# Executing transformations for other processes (gRPC); the library for that is loaded on use.


@contextlib.contextmanager
def engine_service(
    workspace: Workspace | None, *, host: str, port: int, socket: Path | None, heap_mib: int
) -> Iterator[EngineServer]:
    """A server that executes at once what it is asked for: on the workspace's session, or on one of its own.

    `heap_mib` is Java's heap where there is no workspace. The session ends with the block.

    Raises:
        JavaNotFoundError, EngineError: Spark does not start, or the address cannot be listened on.
    """
    with _session(workspace, heap_mib) as session:
        session()  # "listening" means that a request is executed at once
        from odfchain.transform.spark_engine import SparkTransformEngine

        with serve(SparkTransformEngine(session), host=host, port=port, socket=socket) as server:
            yield server


@contextlib.contextmanager
def _session(workspace: Workspace | None, heap_mib: int) -> Iterator[Callable[[], SparkSession]]:
    if workspace is not None:
        with workspace:
            yield workspace.session
        return
    from odfchain.spark.session import SparkEngine

    with tempfile.TemporaryDirectory(prefix="odfchain-engine-") as folder:
        spark = SparkEngine(Path(folder), driver_memory=f"{heap_mib}m")
        try:
            yield lambda: spark.session
        finally:
            spark.close()


# The Spark session that stays between commands: what it is doing, and ending it (RFC-030).
