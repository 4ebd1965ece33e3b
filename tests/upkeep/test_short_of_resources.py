"""A machine without memory, or without threads and processes: what was asked fails with one line, and all stays sound."""

from __future__ import annotations

import functools
import os
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import StorageFullError
from odfchain.slices import reader
from odfchain.spark.known_errors import known_error
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.killed_calls import STRACE
from tests.kit.recorded_dataset import add_slice
from tests.kit.run_length import scaled
from tests.kit.support import IMPORTABLE
from tests.kit.upkeep_scenes import everything, head_of, new_workspace, root
from tests.kit.verified import verify_dataset

Record = Callable[[str, object], None]
MAIN = "import sys; from odfchain.cli.main import main; sys.exit(main())"
FULL = StorageFullError.exit_code
LIMITS = (24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1_024, 2_048, 4_096)
"""MiB of address space that a process may have."""
CHANGING = ("reset cities 3 --force", "compact cities --hard", "push cities COPY", "verify cities")
CALLS = "clone,clone3,fork,vfork"
COMMANDS = (
    "verify cities",
    "tail cities",
    "push cities COPY",
    "ingest cities rows.csv --input-format csv",
    "sql -c SELECT_1",
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("short") / "template"
    root(new_workspace(folder), slices=4)
    (folder / "rows.csv").write_text("event_time,city\n2020-01-01T00:00:00Z,x\n")
    return folder


def sound(folder: Path, before: int) -> None:
    """Whole and verified, and nothing that was there is gone; one more commit works."""
    cities = WorkspaceFiles.find(folder).dataset("cities")
    for after in (False, True):
        assert everything(cities)
        faults = verify_dataset(cities).faults
        assert not faults or (len(faults) == 1 and "the signature is of a newer head" in faults[0].message), (
            faults
        )
        if not after:
            add_slice(cities, ["after"])
    assert cities.chain.get(head_of(cities)).sequence_number >= before


def run(command: str, tmp_path: Path, template: Path, *before: str, **options: Any) -> tuple[Path, Any]:
    """A command in a process and a copy of its own: the copy, and how it ended."""
    folder = shutil.copytree(template, tmp_path / "workspace", dirs_exist_ok=True)
    words = [word.replace("_", " ").replace("COPY", (tmp_path / "copy").as_uri()) for word in command.split()]
    done = subprocess.run(
        [*before, sys.executable, "-c", MAIN, "-y", *words], cwd=folder, capture_output=True, text=True,
        # a library that counts its threads interrupts the process where it gets none
        env=IMPORTABLE | {"OPENBLAS_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(tmp_path)},
        timeout=60, check=False, **options,
    )  # fmt: skip
    assert "internal error" not in done.stderr, done.stderr
    assert "faulty" not in done.stdout
    return folder, done


@pytest.mark.parametrize("command", CHANGING if scaled(0, 1, 1) else CHANGING[:1])
def test_an_address_space_that_is_limited(
    template: Path, tmp_path: Path, command: str, record_property: Record
) -> None:
    """What fails says that there is no memory, if it gets that far; its datasets are whole."""
    codes = Counter[int]()
    for mib in LIMITS[:: scaled(9, 1, 1)]:
        set_limit = functools.partial(resource.setrlimit, resource.RLIMIT_AS, (mib << 20,) * 2)
        folder, done = run(command, tmp_path / str(mib), template, preexec_fn=set_limit)
        codes[done.returncode] += 1
        # a library, or Python before it is ours, may end the process
        assert done.returncode in (0, 1, FULL, 127, -6, -11), done.stderr
        if done.returncode == FULL:
            assert re.search("not enough memory|no more threads", done.stderr), done.stderr
        sound(folder, 3)
    record_property("limits", sum(codes.values()))
    record_property("failed", sum(codes.values()) - codes[0])
    assert 0 < codes[0] < sum(codes.values()), codes


@pytest.mark.skipif(not STRACE, reason="strace makes system calls fail; it is not installed")
@pytest.mark.parametrize("command", COMMANDS if scaled(0, 1, 1) else COMMANDS[1:3])
def test_no_thread_and_no_process_can_be_started(
    template: Path, tmp_path: Path, command: str, record_property: Record
) -> None:
    log = tmp_path / "log"
    failing = (STRACE, "-f", "-o", str(log), "-e", f"trace={CALLS}", "-e", f"inject={CALLS}:error=EAGAIN")
    folder, done = run(command, tmp_path, template, *failing)
    fired = log.read_text().count("INJECTED")
    assert fired
    assert done.returncode == FULL, done.stderr
    assert "error: no more threads or processes can be started\nhint: " in done.stderr
    sound(folder, 5)
    record_property("faults", fired)


def test_what_a_machine_lacks_says_nothing_of_a_slice(
    template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it a fault of ours: no damage is reported where there is no memory, thread or file handle to look."""
    lacking = [
        OSError(12, os.strerror(12)),
        OSError(24, "many"),
        RuntimeError("can't start new thread"),
        MemoryError(),
    ]
    for error in lacking:
        assert isinstance(known_error(error), StorageFullError)
    assert known_error(RuntimeError("else")) is None
    with Workspace.open(template) as workspace:
        for error in (OSError("Failed to launch worker thread"), *lacking[:2]):
            fired: list[Exception] = []

            def fails(*_: Any, error: Exception = error, fired: list[Exception] = fired, **__: Any) -> None:
                fired.append(error)
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(reader.pq, "ParquetFile", fails)
                report = workspace["cities"].verify()
            assert fired
            assert report.faults == []
            assert report.verdict == "incomplete"
        assert workspace["cities"].verify().verdict == "clean"
