"""A node in a process of its own, which can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from odfchain.transfer.access_tokens import TokenFile
from tests.kit.support import ROOT

COMMAND = str(Path(sys.executable).with_name("odfchain"))


class Node:
    """`odfchain serve --write` in a folder, with more options."""

    def __init__(
        self, folder: Path, *more: str, env: dict[str, str] | None = None, command: Sequence[str] = (COMMAND,)
    ) -> None:
        words = [*command, "-w", str(folder), "serve", "--write", "--port", "0", "--print-address", *more]
        found = (env or os.environ) | {"PYTHONPATH": str(ROOT)}
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, env=found)
        self.url = self.process.stdout.readline().decode().strip()
        self.token = TokenFile(folder / ".odfchain")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def processor_seconds(self) -> float:
        """What it has used of the processor so far [s]."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
