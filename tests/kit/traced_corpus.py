"""The program that is watched: a session, a first query, then the whole corpus between two marks.

Arguments: the folder of the request (with `in.parquet` to be made), the run folder, the canary's path.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from odfchain.errors import QueryError
from odfchain.odf.sources import TransformSql
from odfchain.spark.query import Queries
from odfchain.spark.session import SparkEngine
from tests.kit.query_corpus import SCHEMA, TABLES, own, shared

FIRST, LAST = "mark-first", "mark-last"
GOOD = "SELECT sensor, sum(level) AS level FROM input GROUP BY sensor ORDER BY sensor"


def mark(folder: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / name).read_bytes()


def main(request: Path, run_folder: Path, canary: Path) -> None:
    """Ends with an exception when a query that must be refused is not, or a good one fails."""
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = {"spark.sql.shuffle.partitions": "1", "spark.driver.extraJavaOptions": options}
    engine = SparkEngine(run_folder, master="local[1]", driver_memory="512m", conf=conf)
    session = engine.session
    path = str(request / "in.parquet")
    session.createDataFrame([], SCHEMA).write.parquet(path)
    inputs = dict.fromkeys(TABLES, session.read.parquet(path))

    def run(sql: str) -> None:
        transform = TransformSql(engine="spark", query=sql)
        assert Queries(session, transform, print).run(inputs).collect() == []

    # watched, a query takes three times as long: a third of our own, of every category some
    queries = shared() + [sql for _, sql in own(canary)][::3]
    run(GOOD)
    mark(request, FIRST)
    run(GOOD)
    for sql in shared():
        transform = TransformSql(engine="spark", query=sql)
        with contextlib.suppress(QueryError):  # names of columns are checked by the run
            Queries(session, transform).check(TABLES)
    for sql in queries:
        try:
            run(sql)
        except QueryError:
            continue
        raise AssertionError(sql)
    mark(request, LAST)
    engine.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
