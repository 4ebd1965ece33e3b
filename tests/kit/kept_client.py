"""A process that uses the session that stays, told by lines what to do: `python -m tests.kit.kept_client`.

Arguments: run folder, idle time [s], settings of Spark as JSON. Each line on standard input is a command, each
answer one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.spark.jobs import run_job
from odfchain.spark.session import SparkEngine
from odfchain.spark.session_client import Lease

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE = 60


def described(engine: SparkEngine) -> dict[str, Any]:
    """Where the session is, and what it sees of others."""
    session = engine.session
    jvm: Any = session._jvm
    return {
        "jvm": jvm.java.lang.ProcessHandle.current().pid(),
        "stays": isinstance(engine._java, Lease),
        "scratch": session.sparkContext.getConf().get("spark.local.dir"),
        "views": [table.name for table in session.catalog.listTables()],
        "partitions": session.conf.get("spark.sql.shuffle.partitions"),
        "objects": jvm.java.util.HashSet(_bindings(session)).size(),
    }


def _bindings(session: Any) -> Any:
    from py4j.java_gateway import JavaObject

    client = session.sparkContext._gateway._gateway_client
    return JavaObject("GATEWAY_SERVER", client).getGateway().getBindings().keySet()


def worked(engine: SparkEngine) -> dict[str, Any]:
    """Rows through Python workers, an observation, a view and a setting of one's own."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], ["id"])

    session, seen = engine.session, Observation("seen")
    session.conf.set("spark.sql.shuffle.partitions", "3")
    frame = (
        session.range(0, 1_000, 1, 2).mapInArrow(doubled, "id bigint").observe(seen, F.sum("id").alias("s"))
    )
    rows = run_job(session, frame.collect)
    session.createDataFrame(rows).createOrReplaceTempView("mine")
    (row,) = run_job(session, session.sql("SELECT sum(id) AS s FROM mine").collect)
    return {"rows": len(rows), "sum": row["s"], "observed": seen.get["s"]}


def hung(engine: SparkEngine, begun: Path, go_on: Path) -> dict[str, Any]:
    """A job that waits until it may go on, or Ctrl-C."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        end = time.monotonic() + PATIENCE
        while not go_on.exists() and time.monotonic() < end:
            time.sleep(0.02)
        yield from batches

    frame = engine.session.range(0, 7, 1, 1).mapInArrow(stage, "id bigint")
    try:
        return {"rows": len(run_job(engine.session, frame.collect))}
    except KeyboardInterrupt:
        return {"interrupted": True}


def main() -> None:
    folder, idle, conf = sys.argv[1:]
    engine = SparkEngine(
        Path(folder), master="local[2]", driver_memory="512m", conf=json.loads(conf), idle=float(idle)
    )
    for line in sys.stdin:
        match line.split():
            case ["begin"]:
                engine.begin()
                answer = {"begun": True}
            case ["session"]:
                answer = described(engine)
            case ["work"]:
                answer = worked(engine)
            case ["hang", begun, go_on]:
                answer = hung(engine, Path(begun), Path(go_on))
            case ["fill", mebibytes]:
                jvm: Any = engine.session._jvm
                answer = {"filled": jvm.java.nio.ByteBuffer.allocate(int(mebibytes) << 20).capacity()}
            case ["close"]:
                engine.close()
                answer = {"closed": os.getpid()}
            case other:
                raise ValueError(other)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
