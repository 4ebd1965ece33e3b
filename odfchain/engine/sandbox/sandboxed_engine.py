"""The Spark engine in a sandboxed process, for queries that others wrote.

The process sees the folders that it is given and nothing of the user's, and has no network but loopback
inside. What it is asked for, and where it writes, comes over a Unix socket in a folder that both see.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.fbs import schema_path
from odfchain.engine.sandbox.bubblewrap import require_sandbox, start
from odfchain.errors import EngineError
from odfchain.spark.class_archive import PATH_VARIABLE, archive_path
from odfchain.spark.java import find_java

if TYPE_CHECKING:
    from odfchain.engine.remote.client import RemoteEngine
    from odfchain.progress import Progress

_SERVE = """\
import resource, sys
bytes = int(sys.argv[1]) << 20
if bytes:
    resource.setrlimit(resource.RLIMIT_DATA, (bytes, bytes))
from odfchain.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
"""The limit holds for Python, and is inherited by Java: what is asked of the system beyond it is refused."""


@contextlib.contextmanager
def sandboxed_engine(
    read: Sequence[Path],
    write: Path,
    scratch: Path,
    *,
    progress: Progress,
    deadline: float | None = None,
    memory_mib: int = 0,
) -> Iterator[RemoteEngine]:
    """An engine that can read the folders `read` and write in `write`; it ends with the block.

    Spark's own temporary files go to `scratch`, which lies in `write`. Each of its two processes may use
    `memory_mib` [MiB]; 0 is no limit.
    """
    from odfchain.engine.remote.client import RemoteEngine

    require_sandbox()
    progress.phase("Starting Spark in a sandbox")
    # the path of a socket must be short, so it lies in a folder of its own
    with tempfile.TemporaryDirectory(prefix="odfchain-") as shared, _log(Path(shared)) as log:
        socket = Path(shared) / "engine.sock"
        archive = archive_path(find_java())
        command = [
            sys.executable, "-c", _SERVE, str(memory_mib),
            "-q", "engine", "serve", "--socket", str(socket), "--print-address",
            *(["--heap-mib", str(memory_mib // 2)] if memory_mib else []),
        ]  # fmt: skip
        shown = [*read, *_package_files(), *_existing(archive)]
        process = start(
            command, read=shown, write=[write, Path(shared)],
            environment={"TMPDIR": str(scratch), PATH_VARIABLE: str(archive)},
            cwd=shared, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            yield RemoteEngine(_address(process, Path(shared)), deadline=deadline)
        finally:
            _end(process)


def _package_files() -> list[Path]:
    """What the program reads beside its own code: in a checkout the schemas lie elsewhere."""
    return [schema_path("odf.fbs").parent]


def _existing(path: Path) -> list[Path]:
    return [path] if path.is_file() else []


@contextlib.contextmanager
def _log(folder: Path) -> Iterator[int]:
    with (folder / "stderr").open("wb") as stream:
        yield stream.fileno()


def _address(process: subprocess.Popen[str], folder: Path) -> str:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    line = process.stdout.readline().strip()
    if line:
        return line
    process.wait()
    written = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [text for text in written if "error: " in text] or written or ["it said nothing"]
    raise EngineError(
        f"the engine did not start (exit code {process.returncode}): {errors[0]}",
        hint="transform.isolation: never runs queries in this process, behind the gate alone",
    )


def _end(process: subprocess.Popen[str]) -> None:
    """The engine and everything it started are gone: the last of them closes the output."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.read()
        process.stdout.close()
