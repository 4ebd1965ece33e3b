"""A class archive: what the JVM loads for Spark, laid out so that it is mapped, not read and checked anew.

Starting Spark means loading tens of thousands of classes, which is much of the time of a short command. The
JVM can write down what it loaded (class data sharing, JEP 350) and map that file the next time; a session
that stays does it when it ends and there is none yet, `odfchain engine warm-up` whenever it is run. The file
is only a cache: a JVM that finds other classes or another Java than it was made with leaves it alone.
Source: RFC-011.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from odfchain.store import fsio

PATH_VARIABLE = "ODFCHAIN_CLASS_ARCHIVE"
"""The environment variable that names another file."""

_KEY_CHARACTERS = 16


def pyspark_folder() -> Path:
    """Where PySpark is installed; it is not loaded for that."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None  # noqa: S101, PT018 - a dependency
    return Path(spec.origin).parent


def archive_path(java: Path) -> Path:
    """Where the archive for this Java and this Spark is, or would be."""
    if given := os.environ.get(PATH_VARIABLE):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "odfchain" / f"spark-classes-{_key(java)}.jsa"


def _key(java: Path) -> str:
    parts = (version("pyspark"), str(pyspark_folder()), str(java.resolve()))
    return hashlib.sha3_256("\0".join(parts).encode()).hexdigest()[:_KEY_CHARACTERS]


def archive_options(java: Path) -> list[str]:
    """Options of the JVM that use the archive; none where there is no archive that can be trusted.

    What is in the file becomes code: it has to be the user's own (or root's), and nobody else's to write.
    """
    path = archive_path(java)
    try:
        found = path.lstat()
    except OSError:
        return []
    own = found.st_uid in (os.getuid(), 0)
    if not own or not stat.S_ISREG(found.st_mode) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return []
    return [f"-XX:SharedArchiveFile={path}"]


@contextlib.contextmanager
def new_archive(target: Path) -> Iterator[Path]:
    """Gives the path that a JVM is to write; what is there at the end is the archive, complete or absent."""
    fsio.make_folder(target.parent, mode=0o700)
    recorded = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        yield recorded
        if recorded.is_file():
            recorded.chmod(0o600)
            with fsio.storage_errors(target):
                recorded.replace(target)  # a cache: what a crash of the machine leaves of it, the JVM refuses
    finally:
        with contextlib.suppress(OSError):
            os.unlink(recorded)  # noqa: PTH108


def recording_options(path: Path) -> list[str]:
    """Options of a JVM that writes `path` when it ends."""
    return [f"-XX:ArchiveClassesAtExit={path}"]
