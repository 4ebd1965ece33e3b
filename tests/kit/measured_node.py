"""A node in a process of its own, whose memory is its own: the one that `make bench` has."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.kit.support import ROOT

SIDES = ROOT / "bench" / "smart_sides.py"


@contextlib.contextmanager
def served(root: Path) -> Iterator[tuple[str, int]]:
    """The URL and the process of a node for the workspace in a folder."""
    command = [sys.executable, str(SIDES), "serve", str(root), str(root / "requests")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


def peak_mib(pid: int) -> int:
    """The most that a process had resident [MiB]."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s*([0-9]+)", status)
    return int(found[1]) >> 10
