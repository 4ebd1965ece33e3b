"""What is begun before it is known to be needed is taken, or nothing of it is left."""

from __future__ import annotations

import subprocess
from pathlib import Path

from odfchain.spark.session import SparkEngine
from tests.kit.processes import ODFCHAIN, TIMEOUT, environment, make_workspace, still_running


def test_a_java_that_was_begun_and_is_not_needed_has_ended(tmp_path: Path) -> None:
    engine = SparkEngine(tmp_path, master="local[1]", driver_memory="512m")
    engine.begin()
    engine.begin()
    engine.close()
    assert still_running(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} <= {".lock"}


def test_a_command_that_fails_leaves_no_java(tmp_path: Path) -> None:
    make_workspace(tmp_path)
    (tmp_path / "a.csv").write_text("city,population\nA,1\n")
    done = subprocess.run(
        [ODFCHAIN, "ingest", "cities", "a.csv", "--source-name", "other"], cwd=tmp_path,
        env=environment(CI="true"), capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert (done.returncode, "no push source" in done.stderr) == (2, True), done.stderr
    assert still_running(tmp_path) == []
    assert {path.name for path in (tmp_path / ".odfchain" / "run").iterdir()} <= {".lock"}
