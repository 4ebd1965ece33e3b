"""What the page for operators says: its settings are taken, its program runs on executors of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from odfchain.spark.java import find_java
from odfchain.spark.session import SQL_SETTINGS
from odfchain.workspace.config import OF_WORKSPACE
from tests.kit.processes import TIMEOUT, environment, need_whole_java, odfchain, spark_home
from tests.kit.support import ROOT, code_of

PAGE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The one block of the page in a language."""
    (found,) = code_of("docs/operate.md", language)
    return found


def test_its_settings_are_taken() -> None:
    config = OF_WORKSPACE.parse(block("yaml").encode(), "config.yaml").spark
    assert (config.master, config.driver_memory, len(config.conf)) == ("yarn", "4g", 3)
    named = {*config.conf, *re.findall(r"--conf \"?(spark\.[\w.]+)=", PAGE)}
    assert len(named) > 8
    assert not named & set(SQL_SETTINGS), "these are always what odfchain needs"


def test_the_manual_lists_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert "operate.md" in pages
    assert pages == set(re.findall(r"\(docs/([\w-]+\.md)\)", readme))


@pytest.mark.soak
def test_the_program_is_submitted(tmp_path: Path) -> None:
    need_whole_java()
    home = spark_home(tmp_path / "spark")
    (tmp_path / "publish.py").write_text(block("python"))
    (tmp_path / "cities.csv").write_text("id,city\n1,Bern\n2,Basle\n")
    (tmp_path / "cities-2.csv").write_text("id,city\n1,Bern\n2,Basel\n3,Chur\n")
    env = environment(
        MASTER="local-cluster[2,1,1024]", SPARK_HOME=str(home),
        JAVA_HOME=str(find_java().parent.parent), PYSPARK_PYTHON=sys.executable,
    )  # fmt: skip
    done = subprocess.run(
        ["bash", "-euc", block("sh")], cwd=tmp_path, env=env | {"PATH": f"{env['PATH']}{os.pathsep}{home / 'bin'}"},
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "verified on local-cluster[2,1,1024]\n" in done.stdout
    assert ": nothing new>" in done.stdout, "the frame has nothing that the file had not"
    assert len(list((home / "work").glob("app-*/*"))) == 2, "each executor has a folder of its own"
    refused = subprocess.run(
        [home / "bin" / "spark-submit", "--master", env["MASTER"], "publish.py", tmp_path, "cities", "cities-2.csv"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert refused.returncode != 0
    # spark-submit passes on all that Python writes as its own output
    assert "spark.executor.extraJavaOptions has no -Duser.language=en" in refused.stdout
    rows = odfchain(tmp_path, "tail", "cities", "-o", "json").rows
    assert [(row["op"], row["city"]) for row in rows[2:]] == [(2, "Basle"), (3, "Basel"), (0, "Chur")]
