"""A client of Spark Connect: judges queries of the fixtures, and says what became of each.

python -m tests.kit.connect_client sc://HOST:PORT FOLDER CORPUS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from odfchain.errors import OdfchainError
from odfchain.odf.sources import TransformSql
from odfchain.spark.query import Queries, session_for_queries
from odfchain.spark.session import PlanEngine, SparkEngine, give_judge
from tests.kit import query_corpus


def outcomes(remote: str, folder: Path, corpus: str) -> list[tuple[str, str, str]]:
    """(query, kind of the error or nothing, its message) for each of a corpus."""
    if corpus == "shared":
        asked = query_corpus.shared()
    else:
        asked = [sql for _, sql in query_corpus.queries(corpus, folder / "canary")]
    engine, judging = SparkEngine(folder, remote=remote), PlanEngine(folder, master="local[1]")
    found = []
    try:
        give_judge(engine.session, lambda: judging.session)
        with session_for_queries(engine.session) as session:
            empty = session.createDataFrame([], query_corpus.SCHEMA)
            inputs = dict.fromkeys(query_corpus.TABLES, empty)
            for sql in asked:
                transform = TransformSql(engine="spark", query=sql)
                try:
                    Queries(session, transform).run_over_connect(inputs).count()
                except OdfchainError as error:
                    found.append((sql, type(error).__name__, str(error)))
                else:
                    found.append((sql, "", ""))
    finally:
        judging.close()
        engine.close()
    return found


if __name__ == "__main__":
    print(json.dumps(outcomes(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
