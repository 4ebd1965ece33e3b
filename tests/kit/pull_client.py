"""The program that is tested, from outside: `init`, `pull` and `verify`, each in a process of its own (RFC-022).

ODFCHAIN_CONFORMANCE_CLIENT names another program (a command and its first arguments), and
ODFCHAIN_CONFORMANCE_DATASETS where it keeps datasets, as a pattern below the workspace.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kit.support import IMPORTABLE

COMMAND = os.environ.get("ODFCHAIN_CONFORMANCE_CLIENT")
OURS = COMMAND is None
PATTERN = os.environ.get("ODFCHAIN_CONFORMANCE_DATASETS", ".*/datasets/*")
TIMEOUT = 60.0


@dataclass(frozen=True)
class Ended:
    """How a run ended; `code` is negative where a signal ended it."""

    code: int
    err: str
    rss: int
    """The most memory that it had [bytes]."""
    seconds: float


class Running:
    """A run that goes on; `kill` is safe until `wait` has returned."""

    def __init__(self, client: Client, pid: int, err: Path) -> None:
        self.pid = pid
        self._client = client
        self._err = err
        self._pidfd = os.pidfd_open(pid)
        self._began = time.monotonic()

    def over(self, seconds: float = 0.0) -> bool:
        return bool(select.select([self._pidfd], [], [], seconds)[0])

    def kill(self) -> None:
        """End it and whatever it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> Ended:
        """Let it end by itself, within a minute."""
        in_time = self.over(TIMEOUT)
        if not in_time:
            self.kill()
        os.close(self._pidfd)
        code, rss = self._client.reap(self.pid)
        err = self._err.read_text(encoding="utf-8", errors="replace")
        self._err.unlink()
        assert in_time, f"did not end within {TIMEOUT:g} s: {err}"
        return Ended(code, err, rss << 10, time.monotonic() - self._began)


class Client:
    """A command line; one run at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._zygote: subprocess.Popen[str] | None = None
        if COMMAND is None:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.zygote"],
                env=IMPORTABLE,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip

    def start(self, *args: object) -> Running:
        number, name = tempfile.mkstemp(dir=self._folder)
        os.close(number)
        words = [str(arg) for arg in args]
        if self._zygote is None:
            assert COMMAND is not None
            with Path(name).open("w", encoding="utf-8") as err:
                child = subprocess.Popen(
                    [*shlex.split(COMMAND), *words], stderr=err, stdout=err, start_new_session=True
                )
            child.returncode = 0  # `reap` does that
            return Running(self, child.pid, Path(name))
        self._say(json.dumps([words, name]))
        running = Running(self, int(self._hear()), Path(name))
        self._say("go")
        return running

    def run(self, *args: object) -> Ended:
        return self.start(*args).wait()

    def reap(self, pid: int) -> tuple[int, int]:
        """Status and memory [KiB] of a process that has ended."""
        if self._zygote is None:
            _, status, usage = os.wait4(pid, 0)
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss
        self._say("reap")
        code, rss = json.loads(self._hear())
        return code, rss

    def _say(self, line: str) -> None:
        self._zygote.stdin.write(line + "\n")
        self._zygote.stdin.flush()

    def _hear(self) -> str:
        return self._zygote.stdout.readline()

    def close(self) -> None:
        if self._zygote is not None:
            self._zygote.communicate()


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Client]:
    """The client under test; `folder` is for what it says."""
    client = Client(folder)
    try:
        yield client
    finally:
        client.close()


def published(workspace: Path) -> list[Path]:
    """The folders of the datasets that users of a workspace can see."""
    return sorted(path for path in workspace.glob(PATTERN) if path.is_dir())
