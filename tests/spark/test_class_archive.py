"""The archive of what the JVM loads: who may have written it, and that it is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from odfchain.spark.gateway import PATH_VARIABLE, archive_options, archive_path, start_gateway
from odfchain.spark.java import find_java
from tests.kit.processes import odfchain, wait_until


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
