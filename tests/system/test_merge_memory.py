"""What the driver holds does not follow the number of recorded keys, whatever the size of the input."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.processes import ODFCHAIN, environment, make_workspace, need_whole_java, spark_home
from tests.kit.support import configure, manifest

KEYS = 4_000_000
CONF = {
    "spark.executor.memory": "1g",
    # Spark's own estimate would have all keys pass through the driver
    "spark.sql.autoBroadcastJoinThreshold": "128m",
}
MOST_PYTHON, MOST_HEAP = 256, 160
"""MiB; all keys at once take 230 and 250 more."""


def write(path: Path, ids: np.ndarray) -> None:
    table = pa.table({"id": ids, "amount": ids % 1_000})
    pq.write_table(table, path, row_group_size=1 << 20)


def peaks(folder: Path, home: Path, path: Path, added: int) -> tuple[int, int]:
    """Ingest a file; (the driver's Python at its peak, its heap after a collection at most) [MiB]."""
    log = folder / "gc.log"
    program = (
        "import json, re, sys\n"
        "from odfchain.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "status = open('/proc/self/status').read()\n"
        "print(re.search('VmHWM: *\\t* *([0-9]+)', status)[1], file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    python = ODFCHAIN.parent / "python"
    command = [python, "-c", program, "-q", "ingest", "cities", path.name, "-o", "json", "--event-time",
               "2026-01-01T00:00:00Z"]  # fmt: skip
    options = f"-Xlog:gc:file={log} -XX:+UseG1GC -XX:InitiatingHeapOccupancyPercent=20"
    env = environment(SPARK_HOME=str(home), JDK_JAVA_OPTIONS="")
    conf = CONF | {"spark.driver.extraJavaOptions": options}
    spark = {"master": "local-cluster[1,2,1024]", "driverMemory": "512m", "conf": conf}
    configure(folder / ".odfchain", spark=spark)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["+A"] == added
    heap = max(int(number) for number in re.findall(r"->([0-9]+)M\(", log.read_text()))
    return int(done.stderr.splitlines()[-1]) >> 10, heap


@pytest.mark.soak
def test_merges_into_many_keys_hold_few_of_them(tmp_path: Path) -> None:
    need_whole_java()
    make_workspace(
        tmp_path,
        manifest("{kind: Ledger, primaryKey: [id]}", '["id BIGINT", "amount BIGINT"]', kind="Parquet"),
    )
    home = spark_home(tmp_path / "spark")
    few = np.concatenate([np.arange(500), np.arange(KEYS, KEYS + 500)])
    many = np.arange(KEYS // 2, KEYS + 1_000)
    for ids, added in ((np.arange(KEYS), KEYS), (few, 500), (many, 500)):
        write(tmp_path / "in.parquet", ids)
        python, heap = peaks(tmp_path, home, tmp_path / "in.parquet", added)
        assert python <= MOST_PYTHON
        assert heap <= MOST_HEAP
