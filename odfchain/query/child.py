"""A process that answers queries for this one: its pipes, what it says, and its end."""

from __future__ import annotations

import contextlib
import io
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from odfchain.errors import EngineError
from odfchain.text import one_line

READY = b"ready\n"
SAID_BYTES = 64 << 10
"""Size limit of the process's error output [bytes]; the rows go through a pipe."""
ENVIRONMENT = {
    # allocators reserve gigabytes of addresses ahead, and addresses are what is counted
    "MALLOC_ARENA_MAX": "2", "MIMALLOC_ARENA_RESERVE": "65536", "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1", "RUST_BACKTRACE": "0", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
_ENDING_SECONDS = 5.0
_AT_ONCE = 1 << 20


class Pipe(io.RawIOBase):
    """The process's output; reading uses up the seconds that are `left`, where there is a limit."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._poll = select.poll()
        self._poll.register(number, select.POLLIN)
        self.left: float | None = None

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """The next bytes, none at the end.

        Raises:
            TimeoutError: none come in time.
        """
        began = time.monotonic()
        if not self._poll.poll(None if self.left is None else max(0.0, self.left) * 1_000):
            raise TimeoutError
        if self.left is not None:
            self.left -= time.monotonic() - began
        return os.readv(self._number, [buffer])


class ChildProcess:
    """A process that has loaded the engine, or is about to; what it writes is that of a stranger."""

    def __init__(
        self, start: Callable[[contextlib.ExitStack, dict[str, Any]], Any], *, starting_seconds: float
    ) -> None:
        """`start` makes the process with these pipes; what it enters into the stack is left at the end."""
        self._ready = False
        self._owner = os.getpid()
        self._starting_seconds = starting_seconds
        with contextlib.ExitStack() as files:
            self._complaints = files.enter_context(tempfile.TemporaryFile())
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._complaints}
            self._child = start(files, pipes)
            files.callback(self._end)
            self._pipe = Pipe(self._child.stdout.fileno())
            self._said = io.BufferedReader(self._pipe, _AT_ONCE)
            self._files = files.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The process is gone, and all that it had."""
        if os.getpid() == self._owner:  # a fork of this one has no business with it
            self._files.close()

    def ready(self) -> None:
        """The engine is loaded.

        Raises:
            EngineError: it cannot be.
        """
        if self._ready:
            return
        try:
            line = self._read(len(READY), self._starting_seconds)
        except TimeoutError:
            line = b""
        if line != READY:
            code = self._code()
            how = "in time" if code is None else f"(exit code {code}): {self._complaint()}"
            raise EngineError(f"the process that answers queries did not start {how}")
        self._ready = True

    def _read(self, most: int, seconds: float) -> bytes:
        self._pipe.left = seconds
        # blocks until `most` bytes, the end, or TimeoutError
        return self._said.read(most)

    def _code(self) -> int | None:
        # it exits a moment after its last output
        with contextlib.suppress(subprocess.TimeoutExpired):
            code: int = self._child.wait(0.5)
            return code
        return None

    def _was_killed(self) -> bool:
        code = self._code() or 0
        # behind a sandbox a signal arrives as an exit code above 128
        return code < 0 or code > 128

    def _complaints_text(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read(SAID_BYTES).decode("utf-8", "replace").strip()

    def _complaint(self) -> str:
        lines = self._complaints_text().splitlines()
        return one_line(lines[-1]) if lines else "it said nothing"

    def _end(self) -> None:
        self._child.kill()
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()  # what waits for a question ends as well
        self._child.wait()
        # of what is behind a sandbox the last to end closes the output
        with contextlib.suppress(TimeoutError):
            while self._read(_AT_ONCE, _ENDING_SECONDS):
                pass
        self._child.stdout.close()


def command(module: str, *arguments: str) -> Sequence[str]:
    """The command line of the process."""
    return [sys.executable, "-P", "-m", module, *arguments]
