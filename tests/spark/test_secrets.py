"""What `spark.conf` holds may be secret: other users of the machine see nothing of it, and it is in force."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from odfchain.spark.java import find_java
from odfchain.text import SECRET
from tests.kit.processes import TIMEOUT, environment
from tests.kit.support import ROOT

HUSH = "s3cr3t-k3y"
CONF = {
    "spark.hadoop.fs.s3a.secret.key": f'{HUSH}1 = \\u0041 "é𝄞" #!:\n\t.',
    "fs.s3a.secret.key": f"{HUSH}2",
    "spark.driver.extraJavaOptions": f'-Dstore.password={HUSH}3 "-Dother=a \\" b"',
    "spark.driver.memory": "512m",
}
PROGRAM = """
import json, sys
from pathlib import Path
from odfchain.spark.session import SparkEngine
engine = SparkEngine(Path(sys.argv[1]), master="local[1]", conf=json.loads(Path(sys.argv[2]).read_text()))
session = engine.session
jvm = session._jvm
print(json.dumps({
    "hadoop": jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(
        session.sparkContext._jsc.sc().getConf()).get("fs.s3a.secret.key"),
    "defaults": session.conf.get("spark.app.from.defaults"),
    "plain": session.conf.get("fs.s3a.secret.key"),
    "java": [jvm.System.getProperty(name) for name in ("store.password", "other")],
    "early": jvm.System.getProperty("spark.hadoop.fs.s3a.secret.key"),
    "memory": jvm.Runtime.getRuntime().maxMemory() >> 20,
    "words": jvm.System.getProperty("sun.java.command"),
}), flush=True)
sys.stdin.read()
engine.close()
"""


def seen_by_others() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def recording_java(folder: Path, record: Path) -> Path:
    """A folder for `JAVA_HOME` whose Java writes down what it is given."""
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {record}\nexec {find_java()} "$@"\n')
    java.chmod(0o755)
    return java.parent.parent


def holding(folder: Path) -> list[tuple[str, str]]:
    held = [p for p in folder.rglob("*") if p.is_file() and HUSH.encode() in p.read_bytes()]
    return [(path.name, stat.filemode(path.stat().st_mode)) for path in held]


def test_secrets_are_in_force_and_on_no_command_line(tmp_path: Path) -> None:
    record, run, temporary = tmp_path / "given", tmp_path / "run", tmp_path / "tmp"
    run.mkdir()
    temporary.mkdir()
    settings = tmp_path / "conf.json"
    settings.write_text(json.dumps(CONF))
    (tmp_path / "spark-defaults.conf").write_text("spark.app.from.defaults yes\n")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, run, settings], cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environment(
            PYTHONPATH=str(ROOT), TMPDIR=str(temporary), SPARK_CONF_DIR=str(tmp_path),
            JAVA_HOME=str(recording_java(tmp_path, record)),
        ),
    ) as process:  # fmt: skip
        found = json.loads(process.stdout.readline())
        shown, left = seen_by_others(), [*holding(run), *holding(temporary)]
        log = next(run.glob("spark-*.log"))
        mode = stat.S_IMODE(log.stat().st_mode)
        process.stdin.close()
        assert process.wait(TIMEOUT) == 0
    assert found["hadoop"] == CONF["spark.hadoop.fs.s3a.secret.key"]
    assert found["plain"] == CONF["fs.s3a.secret.key"]
    assert found["defaults"] == "yes"
    assert found["java"] == [f"{HUSH}3", 'a " b']
    assert found["early"].startswith(HUSH), "before PySpark is connected, too"
    assert found["memory"] <= 512
    given = record.read_text()
    assert HUSH not in given + shown + found["words"]
    assert "spark.properties" in given, "what the launcher is given was seen"
    assert "java.arguments" in given, "and the JVM"
    assert (left, mode) == ([], 0o600)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("spark.hadoop.fs.azure.account.key.acc.dfs.core.windows.net", True),
        ("spark.ssl.keyPassword", True),
        ("-Djavax.net.ssl.trustStorePassword=x", True),
        ("http://user:word@proxy:80/", True),
        ("abfss://container@account/path", False),
        ("spark.sql.shuffle.partitions", False),
        ("spark.hadoop.fs.s3a.endpoint", False),
    ],
)
def test_what_is_taken_for_a_secret(text: str, secret: bool) -> None:
    assert bool(SECRET.search(text)) == secret
