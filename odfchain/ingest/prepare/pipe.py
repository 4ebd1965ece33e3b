"""Piping: consecutive `Pipe` steps as one pipeline of programs.

No shell is involved. The programs run at the same time and are connected by the operating system's pipes;
each has a reader of its own for what it writes to standard error, and a process group of its own, so that
nothing survives the step. They see few environment variables: a manifest names them, and the rest of the
environment is not its business. Source: specification "PrepStep::Pipe".
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from odfchain.errors import PrepareError
from odfchain.ingest.prepare.sink import (
    CHUNK_BYTES,
    BoundedOutput,
    PrepareLimits,
    bounded_output,
    file_size,
    open_source,
)
from odfchain.progress import Progress
from odfchain.text import one_line, printable

TAIL_BYTES = 4 << 10
"""How much of a program's last words is kept [bytes]."""

_TAIL_LINES = 5
_LAST_READS = 64  # a child that it left behind may write for ever
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
_WATCH_SECONDS = 0.1  # how soon a program that failed silently is noticed
_END_SECONDS = 0.01
_BROKEN_PIPE = (-signal.SIGPIPE, 128 + signal.SIGPIPE)  # the second is how a shell reports the first


class _Stage:
    """A running program of the pipeline."""

    def __init__(self, process: subprocess.Popen[bytes], command: Sequence[str]) -> None:
        self.process = process
        self.command = command
        self.stdout = cast("BinaryIO", process.stdout)
        self.stderr = cast("BinaryIO", process.stderr)
        self.tail = b""
        self.code: int | None = None
        os.set_blocking(self.stderr.fileno(), False)

    def listen(self) -> bool:
        """Take some of what it wrote to standard error; False when there is no more for now or for good."""
        try:
            data = os.read(self.stderr.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return False
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        return bool(data)

    def ended(self) -> bool:
        """Whether it has ended. It is not reaped, so that the id of its group stays its own."""
        if self.code is None:
            status = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is not None:
                self.code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        return self.code is not None

    def kill(self) -> None:
        """End it and whatever it started; harmless after its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Reap it and close our ends of its pipes."""
        self.process.wait()
        self.stdout.close()
        self.stderr.close()

    def verdict(self) -> str:
        """How it ended, and its last words."""
        for _ in range(_LAST_READS):
            if not self.listen():
                break
        code = self.code or 0
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {_signal_name(-code)}"
        lines = [
            line.strip() for line in re.split("[\r\n]", self.tail.decode("utf-8", "replace")) if line.strip()
        ]
        said = " | ".join(map(printable, lines[-_TAIL_LINES:]))
        return f"`{_shown(self.command)}` {how}" + (f": {said}" if said else "")


def run_pipeline(
    commands: Sequence[Sequence[str]],
    source: Path,
    target: Path,
    *,
    name: str,
    limits: PrepareLimits,
    progress: Progress,
) -> None:
    """Write what `source` becomes after all commands to the new file `target`, or nothing at all.

    Every command must end well; only one that is cut off by a broken pipe is forgiven, because the next
    had read enough. The commands run in the folder of `target`. No process survives.

    Raises:
        PrepareError: a command cannot be started or fails, or the output is too large.
    """
    with open_source(source, name) as stream:
        progress.phase(f"piping {name} through {commands[0][0]}", file_size(stream))
        with (
            bounded_output(target, name, limits) as output,
            _running(commands, stream, target.parent, name) as stages,
        ):
            _pump(stages, stream, output, progress)
            failed = [
                stage for i, stage in enumerate(stages) if _has_failed(stage, last=i == len(stages) - 1)
            ]
            if failed:
                raise PrepareError(f"{name}: " + "; ".join(stage.verdict() for stage in failed))


def _has_failed(stage: _Stage, *, last: bool) -> bool:
    if not stage.ended() or stage.code == 0:
        return False
    return last or stage.code not in _BROKEN_PIPE


@contextlib.contextmanager
def _running(
    commands: Sequence[Sequence[str]], stream: BinaryIO, folder: Path, name: str
) -> Iterator[list[_Stage]]:
    stages: list[_Stage] = []
    try:
        stdin: BinaryIO = stream
        for command in commands:
            stages.append(_Stage(_start(command, stdin, folder, name), command))
            if stdin is not stream:
                stdin.close()  # else the program before would never see that this one has gone
            stdin = stages[-1].stdout
        yield stages
    finally:
        for stage in stages:
            stage.kill()
        for stage in stages:
            stage.close()


def _start(command: Sequence[str], stdin: BinaryIO, folder: Path, name: str) -> subprocess.Popen[bytes]:
    environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    try:
        return subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise PrepareError(
            f"{name}: the program of `{_shown(command)}` was not found",
            hint="a Pipe step is a list of a program and its arguments, without a shell; is it installed?",
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PrepareError(f"{name}: `{_shown(command)}` cannot be started: {reason}") from error


def _pump(stages: list[_Stage], stream: BinaryIO, output: BoundedOutput, progress: Progress) -> None:
    """Move the output and listen to everyone, until all have ended or one has failed."""
    position, flowing = 0, True
    with selectors.DefaultSelector() as selector:
        selector.register(stages[-1].stdout, selectors.EVENT_READ)
        for stage in stages:
            selector.register(stage.stderr, selectors.EVENT_READ, stage)
        while flowing or not all(stage.ended() for stage in stages):
            for key, _ in selector.select(_WATCH_SECONDS if flowing else _END_SECONDS):
                if isinstance(key.data, _Stage):
                    if not key.data.listen():
                        selector.unregister(key.fileobj)
                elif data := os.read(key.fd, CHUNK_BYTES):
                    output.write(data)
                else:
                    flowing = False
                    selector.unregister(key.fileobj)
            # the first program shares our file and so its position
            before, position = position, stream.tell()
            progress.advance(position - before)
            if any(_has_failed(stage, last=stage is stages[-1]) for stage in stages):
                return


def _shown(command: Sequence[str]) -> str:
    return one_line(shlex.join(command))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
