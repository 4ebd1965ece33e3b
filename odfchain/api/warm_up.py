"""Making the class archive that lets Spark start faster, by doing once what commands do.

Source: RFC-011.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError
from odfchain.progress import SILENT, Progress

if TYPE_CHECKING:
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
    from odfchain.spark.class_archive import archive_path, new_archive
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
    """A little of what is done every day: what it loads is what will be there at once."""
    progress.phase("Doing a day's work")
    workspace.add(_MANIFESTS)
    compiled, interpreted, derived = (workspace[name] for name in ("visits", "places", "visits.daily"))
    for day in _DAYS:
        path = folder / f"{day}.csv"
        path.write_text(f"event_time,place,visitors\n2020-01-0{day} 10:00:00,Lviv,{day}\n", encoding="utf-8")
        compiled.ingest(path)
        interpreted.ingest(path)
        derived.pull()
    engine.session.sql("SELECT count(*) FROM range(10)").toPandas()
