"""Running one container: what it prints to a file, its last words for the message, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from odfchain.errors import FetchError
from odfchain.ingest.fetch.fetcher import FetchContext
from odfchain.net.template import redact
from odfchain.store.fsio import storage_errors
from odfchain.text import one_line

_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 4 << 10
_TAIL_LINES = 5
_LEAST_SECONDS = 0.1
_REMOVE_SECONDS = 60.0


def run_container(
    command: list[str], path: Path, secrets: frozenset[str], context: FetchContext, what: str
) -> int:
    """Run the container to its end; returns how many bytes it has printed to the new file `path`.

    `command` runs it under the name after `--name`. When anything fails, the container is ended and removed.
    `secrets` are not shown in messages.

    Raises:
        FetchError: it cannot be started, fails, takes longer than the deadline or prints more than the limit.
    """
    context.progress.phase(f"running {what}")
    with _output(path) as output, _running(command, what) as process:
        tail = _Tail(cast("BinaryIO", process.stderr))
        size = _pump(process, tail, output, path, context, what)
        code = process.wait()
        if code != 0:
            how = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
            said = redact(tail.said(), secrets)
            raise FetchError(f"{what}: {how}" + (f": {said}" if said else ""))
    return size


@contextlib.contextmanager
def _output(path: Path) -> Iterator[BinaryIO]:
    with storage_errors(path):
        stream = path.open("xb")
    with stream:
        yield stream
        with storage_errors(path):
            stream.close()


@contextlib.contextmanager
def _running(command: list[str], what: str) -> Iterator[subprocess.Popen[bytes]]:
    """A started container, which is ended and removed when the block inside fails."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for us: we remove the container
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FetchError(f"{what}: {command[0]} cannot be started: {reason}") from error
    with process:
        try:
            yield process
        except BaseException:
            if process.returncode is None:  # first the program, so that it starts nothing any more
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.returncode < 0:  # the container may run under another process
                _remove(command[0], command[command.index("--name") + 1])
            raise


def _remove(runtime: str, name: str) -> None:
    """End and remove a container, if there is one; used for clean-up after another error."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [runtime, "rm", "--force", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_REMOVE_SECONDS,
            start_new_session=True,
            check=False,
        )


class _Tail:
    """The last words of a program."""

    def __init__(self, stream: BinaryIO) -> None:
        self._data = b""
        self.stream = stream
        os.set_blocking(stream.fileno(), False)

    def listen(self) -> bool:
        """Take some of what it wrote; False when there is no more for now or for good."""
        try:
            data = os.read(self.stream.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._data = (self._data + data)[-_TAIL_BYTES:]
        return bool(data)

    def said(self) -> str:
        """The last lines, as one."""
        lines = [
            line.strip() for line in re.split("[\r\n]", self._data.decode("utf-8", "replace")) if line.strip()
        ]
        return one_line(" | ".join(lines[-_TAIL_LINES:]), _TAIL_BYTES)


def _pump(
    process: subprocess.Popen[bytes],
    tail: _Tail,
    output: BinaryIO,
    path: Path,
    context: FetchContext,
    what: str,
) -> int:
    deadline = time.monotonic() + context.limits.deadline
    stdout = cast("BinaryIO", process.stdout)
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(tail.stream, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise FetchError(
                    f"{what}: has not ended after {context.limits.deadline:g} s (the deadline of a fetch)"
                )
            for key, _ in selector.select(left):
                if key.fileobj is tail.stream:
                    if not tail.listen():
                        selector.unregister(key.fileobj)
                elif data := os.read(key.fd, _CHUNK_BYTES):
                    size += len(data)
                    if size > context.limits.max_bytes:
                        raise FetchError(
                            f"{what}: prints more than {context.limits.max_bytes:,} bytes (limit max_bytes)"
                        )
                    _write(output, data, path)
                    context.progress.advance(len(data))
                else:
                    selector.unregister(key.fileobj)
    try:
        process.wait(max(deadline - time.monotonic(), _LEAST_SECONDS))
    except subprocess.TimeoutExpired:
        raise FetchError(f"{what}: has not ended after {context.limits.deadline:g} s") from None
    return size


def _write(output: BinaryIO, data: bytes, path: Path) -> None:
    with storage_errors(path):
        output.write(data)
