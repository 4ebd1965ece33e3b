"""Queries of others: each is answered by a process of its own, behind walls, which ends with the answer.

    worker = Worker()                           # or Worker(sandbox="require", engine=…)
    result = worker.answer(Query("select …", Pins(workspace), params={"c": "CH"}, limit=100))
    result.to_arrow(), result.inputs            # complete and checked; nothing runs any more

A `Loader` is a process in a sandbox (RFC-020) that has loaded the engine and reads no query. It forks for
each: the fork has its own memory and bounds, sees `datasets/` read-only, or the folders of the datasets that
are given (`Pins(given=…)`), no keys or settings, and no network. What it writes is untrusted, and read within
limits. Source: RFC-033.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn

from odfchain import errors
from odfchain.errors import EngineError, InvalidIdError, OdfchainError, QueryError, QueryLimitError
from odfchain.lazy import pa
from odfchain.limits import ASKED, AskedLimits
from odfchain.odf.flatbuffers import schema_path
from odfchain.progress import SILENT, Progress
from odfchain.query import processes
from odfchain.query.embedded import Embedded
from odfchain.query.resolved_tables import CheckedSlices, Pin, Pins
from odfchain.query.results import QueryResult
from odfchain.query.row_streams import checked_rows, parts_of, stream_of
from odfchain.query.sql_text import Query
from odfchain.storage import fsio
from odfchain.transform.closed_sql import check_text
from odfchain.workspace.workspace_files import WorkspaceFiles

# Addresses that are taken before the first row: libraries, threads, plans; half of it is used.
_PROGRAM_BYTES = 1 << 30
# How long rows wait for others before they are sent [s].
_PIECE_SECONDS = 1.0
# Folders that are shown to a process one by one [count]; its command line has room for some thousands.
_MOST_SHOWN = 500
_HEADER_BYTES = 1 << 20
_MESSAGE_CHARACTERS = 2_000
_TOO_COMPLEX = "the query is too complex for this node"
# Queries for which one process forks [count]: what one of them might leave behind does not stay.
_MOST_FORKS = 1_000
# How long the end of a fork is waited for before its loader is ended, too [s].
_ENDING_SECONDS = 5.0
# How long a process takes whose files are closed already [s].
_SOON = 0.5
_PR_SET_DUMPABLE = 4
_STATUS = struct.Struct("i")
# File descriptors that a fork may have got from its loader [count].
_MOST_FILES = 256
# Error classes that may be reported, apart from those of the query and the engine.
_KINDS: dict[str, type[OdfchainError]] = {
    name: getattr(errors, name)
    for name in (
        "BadInputError", "ChainError", "CodecError", "DatasetNotFoundError", "InvalidIdError",
        "ObjectCorruptedError", "ObjectNotFoundError", "OversizedInputError",
        "PointNotFoundError", "QueryLimitError", "SchemaError", "SliceNotFoundError", "StoreError",
        "UnsupportedVersionError",
    )
}  # fmt: skip
_Piece = tuple[pa.Schema, list[pa.RecordBatch], bool, processes.Read]
"""Rows, whether others follow, and what is read for them."""


@dataclass(frozen=True, slots=True)
class Worker:
    """How such queries are run: each by a process of its own."""

    limits: AskedLimits = ASKED
    sandbox: Literal["prefer", "require"] = "prefer"
    """Without a sandbox: the same process, with a note; or an error."""
    engine: Embedded = field(default_factory=lambda: Embedded(partitions=2))
    """Its tasks, batches and functions count; 1 partition makes sums and orders the same each time."""
    progress: Progress = SILENT
    """Reports a missing sandbox."""
    anew: bool = False
    """True if every slice is hashed for the query, whatever is known of it."""

    def answer(self, query: Query) -> QueryResult:
        """The rows of one query, all of them here."""
        request = self.request(query)
        with self.process(query.pins) as process:
            result = process.answer(request, query.pins)
            result.to_arrow()
            return result

    def request(self, query: Query, **how: bool) -> dict[str, Any]:
        """What a process is asked; the text was measured. `pieces=True`: rows as they come, however many."""
        check_text(query.sql, self.limits)
        return processes.request_of(self.engine, query, self.limits, anew=self.anew, known={}, **how)

    @contextlib.contextmanager
    def process(self, pins: Pins) -> Iterator[WorkerProcess]:
        """A process that sees what the query may read, and ends with the block."""
        with (
            contextlib.closing(self.loader(self.shown(pins))) as loader,
            contextlib.closing(WorkerProcess(loader)) as process,
        ):
            yield process

    def shown(self, pins: Pins) -> tuple[Path, ...]:
        """The folders that a process for such a query sees."""
        datasets, only = pins.workspace.root / "datasets", pins.workspace.only
        if pins.given is not None:
            return tuple(pins.workspace.dataset(each).folder for each, _ in pins.given.values())
        if only is not None and len(only) <= _MOST_SHOWN:
            return tuple(folder for name in sorted(only) if (folder := datasets / name).is_dir())
        return (datasets,)

    def loader(self, shown: Sequence[Path]) -> Loader:
        """What forks processes that see these folders; it ends with the thread that calls this."""
        return Loader(self.limits, shown, sandboxed=self._sandboxed())

    def _sandboxed(self) -> bool:
        from odfchain.transform.sandbox import require_sandbox

        if "had" not in _SAID:
            try:
                require_sandbox(otherwise="")
            except EngineError as error:
                if self.sandbox == "require":
                    raise
                if error.message not in _SAID:
                    _SAID.add(error.message)
                    self.progress.note(f"{error}; they run in a plain process ({error.hint})")
                return False
            _SAID.add("had")
        return True


# Notes on sandboxes that this process has printed.
_SAID: set[str] = set()


class Loader:
    """A walled process that has loaded the engine, or is about to; it reads no query, and forks for each."""

    def __init__(self, limits: AskedLimits, shown: Sequence[Path], *, sandboxed: bool) -> None:
        self.limits, self._forks, self._spoiled = limits, 0, False
        # Processes of it that are in use [count]; who shares it keeps count.
        self.users = 0
        threads = {"TOKIO_WORKER_THREADS": str(limits.threads), "RAYON_NUM_THREADS": str(limits.threads)}
        environment = processes.ENVIRONMENT | threads
        with contextlib.ExitStack() as files:
            self._complaints = files.enter_context(tempfile.TemporaryFile())
            self._asks, theirs = socket.socketpair()
            files.callback(self._asks.close)
            streams = {"stdin": theirs, "stdout": self._complaints, "stderr": self._complaints}
            with theirs:
                if sandboxed:
                    from odfchain.transform.sandbox import start

                    read = [*shown, schema_path("odf.fbs").parent]
                    self._process = start(
                        command(limits), read=read, write=(), environment=environment, **streams
                    )
                else:
                    self._process = self._plain(files, environment, streams)
            files.callback(self._end)
            self._files = files.pop_all()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._asks.settimeout(_ENDING_SECONDS)
        with contextlib.suppress(OSError):  # behind a sandbox the last to end closes its side
            self._asks.recv(1)

    def _plain(self, files: contextlib.ExitStack, environment: dict[str, str], streams: Any) -> Any:
        from odfchain.transform.sandbox import environment_kept

        folder = tempfile.mkdtemp(prefix="odfchain-query-")
        files.callback(fsio.remove_at_end(self, Path(folder)))
        own = environment_kept() | environment | {"TMPDIR": folder, "HOME": folder}
        return subprocess.Popen(command(self.limits), env=own, cwd=folder, start_new_session=True, **streams)

    @property
    def fits(self) -> bool:
        """True while it may fork for another query."""
        return self._process.poll() is None and not self._spoiled and self._forks < _MOST_FORKS

    def close(self) -> None:
        """It is gone, and all that it forked."""
        self._files.close()

    def fork(self, files: contextlib.ExitStack, complaints: Any) -> Fork:
        """A process for one query, with that error output; its end is known until `files` are closed."""
        self._forks += 1
        (asked, asks), (answers, answered), (life, kept) = os.pipe(), os.pipe(), socket.socketpair()
        given = [asked, answered, complaints.fileno(), kept.fileno()]
        with contextlib.suppress(OSError):  # it has ended, which shows when its answer is read
            socket.send_fds(self._asks, [b"q"], given)
        kept.close()
        os.close(asked)
        os.close(answered)
        files.callback(life.close)
        return Fork(self, life, os.fdopen(asks, "wb"), os.fdopen(answers, "rb", 0))

    def ended(self) -> int:
        """Its exit code, which it is about to have."""
        self.spoil()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return int(self._process.wait(_SOON))
        return -signal.SIGKILL

    def spoil(self, *, at_once: bool = False) -> None:
        """Fork no more; `at_once`: end now."""
        self._spoiled = True
        if at_once:
            self._process.kill()

    def complaint(self) -> bytes:
        """What it wrote to its error output."""
        self._complaints.seek(0)
        return self._complaints.read(processes.SAID_BYTES)


class Fork:
    """A process that a loader forked, with what `Popen` has; its loader waits for it, and kills it."""

    def __init__(self, loader: Loader, life: socket.socket, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self.loader, self._life, self.stdin, self.stdout = loader, life, stdin, stdout
        self._code: int | None = None
        self._killed = False

    def kill(self) -> None:
        """It is sent SIGKILL; without effect where it has ended."""
        self._killed = True
        with contextlib.suppress(OSError):
            self._life.shutdown(socket.SHUT_WR)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, for each thread that waits; a loader that does not say it is ended."""
        if self._code is None:
            said, waiting = b"", select.poll()
            waiting.register(self._life, select.POLLIN)
            if waiting.poll(1_000 * (_ENDING_SECONDS if timeout is None else timeout)):
                said = self._life.recv(_STATUS.size, socket.MSG_PEEK)  # what is said stays for others
            elif timeout is not None:
                raise subprocess.TimeoutExpired("", timeout)
            else:
                self.loader.spoil(at_once=True)
            self._code = code = _STATUS.unpack(said)[0] if said else self.loader.ended()
            if code < 0 and not self._killed:
                self.loader.spoil()
        return self._code


class WorkerProcess(processes.ChildProcess):
    """A process that answers one query."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self._limits = loader, loader.limits
        # what the answer was made of
        self.inputs: tuple[Pin, ...] = ()
        # what is known of slices whose datasets a text names
        self.known: Callable[[str], dict[str, list[int]]] = lambda _: {}
        super().__init__(
            lambda files, pipes: loader.fork(files, pipes["stderr"]),
            starting_seconds=self._limits.starting_seconds,
        )

    def answer(self, request: dict[str, Any], pins: Pins) -> QueryResult:
        """The answer to what `Worker` asks, as it comes; errors as there, also while rows are read."""
        known = {} if request["anew"] else self.known(request["sql"])
        schema, first, goes_on, read = self._asked(request | {"known": known})
        if goes_on and not request["pieces"]:
            raise self._broken()

        def rows() -> Iterator[pa.RecordBatch]:
            yield from first
            more = goes_on
            while more:
                kind, found, more, _ = self._piece(pieces=True)
                if kind != schema:
                    raise self._broken()
                yield from found

        self.inputs = processes.inputs_of(pins, read)
        return QueryResult(schema, self.inputs, rows)

    def describe(self, request: dict[str, Any]) -> tuple[pa.Schema, pa.Schema]:
        """The columns of the answer, and the values that the query needs; errors as `answer`."""
        columns, _, more, _ = self._asked(request | {"describe": True})
        if not more:
            raise self._broken()
        return columns, self._piece(pieces=False)[0]

    @property
    def is_running(self) -> bool:
        """False once it has ended by itself."""
        return self._child.poll() is None

    def kill(self) -> None:
        """End it from another thread: whoever reads its answer gets an error."""
        self._child.kill()

    def _asked(self, request: dict[str, Any]) -> _Piece:
        self.ready()
        self._until = time.monotonic() + self._limits.stream_seconds
        with contextlib.suppress(BrokenPipeError):  # why it ended shows when it is read
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        return self._piece(pieces=request["pieces"])

    def _piece(self, *, pieces: bool) -> _Piece:
        left, seconds = self._until - time.monotonic(), self._limits.seconds
        if left <= 0:
            raise EngineError(f"the answer took longer than {self._limits.stream_seconds:g} s")
        try:
            self._pipe.left = min(seconds, left)
            reported = _parsed_header(self._said.readline(_HEADER_BYTES))
            if isinstance(reported, OdfchainError):
                raise reported
            size, read, more = reported or (-1, {}, False)
            if not 0 <= size <= 2 * self._limits.answer_bytes or len(body := self._said.read(size)) < size:
                raise self._broken()
        except TimeoutError:
            message = f"the query took longer than {seconds:g} s"
            raise QueryLimitError(message, hint="ask for less at a time") from None
        return *checked_rows(body, self._limits, every=pieces), more, read

    def _complaints_text(self) -> str:
        return super()._complaints_text() or self.loader.complaint().decode("utf-8", "replace").strip()

    def _broken(self) -> OdfchainError:
        code = self._code() or 0
        # killed; behind a sandbox a signal arrives as an exit code above 128
        if code < 0 or code > 128:
            return QueryError(_TOO_COMPLEX, hint="make it shorter, or ask for less at a time")
        how = f"ended: {self._complaint()}" if code else "did not say what it should"
        return EngineError(f"the process that answers queries {how}")


def command(limits: AskedLimits) -> Sequence[str]:
    """The command line of a loader."""
    limited = json.dumps(dataclasses.asdict(limits))
    return [sys.executable, "-P", "-m", "odfchain.query.walled", limited]


def _parsed_header(header: bytes) -> tuple[int, processes.Read, bool] | OdfchainError | None:
    # the process has run an untrusted query: any header may come
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidIdError):
        reported = json.loads(header)
        if "error" in reported:
            return processes.error_of(
                reported["error"], _MESSAGE_CHARACTERS, lambda kind: _KINDS.get(kind, EngineError)
            )
        more = reported.get("more") is True
        return int(reported["bytes"]), processes.read_blocks(reported["inputs"]), more
    return None


# --- the program of a loader, and of its forks --------------------------------------------------------
#
# Standard input is a socket. Each byte brings the files of a fork: where it is asked, where it answers, its
# error output, and a socket that says that nobody waits for it any more, and is told its exit code. A fork
# writes `READY`, reads one line of JSON, answers and ends.


def main() -> None:
    """Fork for each query; this process and its forks end with the parent at the latest."""
    limits = AskedLimits(**json.loads(sys.argv[1]))
    processes.load()
    fork_for_each(lambda: _answer_one(limits))


def fork_for_each(work: Callable[[], None]) -> NoReturn:
    """Run `work` in a fork for each query that the parent announces on standard input, until it ends."""
    with contextlib.suppress(AttributeError, OSError):  # forks cannot look into one another on Linux
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()  # pages that the collector leaves alone are shared by all forks
    asks, running = socket.socket(fileno=0), dict[int, socket.socket]()
    while True:
        watched: list[Any] = [asks, woken, *running.values()]
        readable, _, _ = select.select(watched, (), ())
        if woken in readable:
            os.read(woken, 1 << 10)
            _reap(running)
        for pid, life in running.items():
            if life in readable:
                os.kill(pid, signal.SIGKILL)
        if asks in readable:
            asked, given, _, _ = socket.recv_fds(asks, 1, 4)
            if not asked:
                os.killpg(0, signal.SIGKILL)
            if not (pid := os.fork()):
                _be_fork(given, work)
            running[pid] = socket.socket(fileno=given.pop())
            for each in given:
                os.close(each)


def _reap(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as life, contextlib.suppress(OSError):  # nobody waits for it
                life.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))


def _be_fork(given: Sequence[int], work: Callable[[], None]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, each in enumerate(given[:3]):
        os.dup2(each, number)
    os.closerange(3, _MOST_FILES)
    code = 1
    try:
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - the last line of its error output
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(code)  # what is left in memory is not put away


def _answer_one(limits: AskedLimits) -> None:
    _bound_by_kernel({
        resource.RLIMIT_AS: limits.memory * 3 // 2 + _PROGRAM_BYTES,
        resource.RLIMIT_FSIZE: processes.SAID_BYTES,
        resource.RLIMIT_CORE: 0,
    })  # fmt: skip
    # threads and functions of the engine are there when a query comes
    Embedded(partitions=limits.threads).run(Query("select 1", Pins(WorkspaceFiles(Path("/"))))).to_arrow()
    answers = processes.ready()
    request = json.loads(sys.stdin.buffer.readline())
    seconds = limits.stream_seconds if request["pieces"] else limits.seconds
    _bound_by_kernel({resource.RLIMIT_CPU: int(seconds + limits.starting_seconds) * limits.threads + 1})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for header, body in answer(request, limits):
        processes.say(answers, header | {"bytes": len(body)}, body)


def _bound_by_kernel(bounds: Mapping[int, int]) -> None:
    # these hold also when the parent has died and cannot kill this process
    for which, most in bounds.items():
        with contextlib.suppress(ValueError, OSError):  # there is a lower one, or none can be had
            resource.setrlimit(which, (most, most))


def answer(request: dict[str, Any], limits: AskedLimits) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The inputs and the rows, in pieces where that is asked for, or the error."""
    try:
        yield from _rows(request, limits)
    except BaseException as error:  # noqa: BLE001 - every end is reported, and this is the last of the process
        # the engine's hints are for who sits before the machine
        yield {"error": processes.report_of(error, hint="ask for fewer rows or columns")}, b""


def _end_with_parent() -> None:
    # nothing follows the query on standard input, so its end is the parent's
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


def _rows(request: dict[str, Any], limits: AskedLimits) -> Iterator[tuple[dict[str, Any], bytes]]:
    pa.set_cpu_count(limits.threads)
    checked = CheckedSlices(known=request["known"])
    engine, only = processes.asked_engine(request, memory=limits.memory, checked=checked), request["only"]
    files = WorkspaceFiles(Path(request["workspace"]), only=None if only is None else frozenset(only))
    query = processes.asked_query(request, files)
    if request["describe"]:
        columns, values = engine.describe(query)
        yield {"inputs": [], "more": True}, stream_of(columns, [])
        yield {"inputs": []}, stream_of(values, [])
        return
    result, pieces = engine.run(query), request["pieces"]
    inputs, began = processes.written_blocks(result.inputs), time.monotonic()
    rows, size, held = 0, 0, list[pa.RecordBatch]()
    for batch in result.batches():
        rows += batch.num_rows
        if not pieces and rows > limits.rows:
            raise _too_large(f"{limits.rows:,} rows", "add LIMIT, or ask for a part by a condition")
        for part in parts_of(batch, limits.piece_bytes):
            is_full = size + part.nbytes > limits.piece_bytes or time.monotonic() > began + _PIECE_SECONDS
            if pieces and held and is_full:
                yield {"inputs": inputs, "more": True}, stream_of(result.schema, held)
                size, held, began = 0, [], time.monotonic()
            size += part.nbytes
            if size > limits.answer_bytes:
                raise _too_large(f"{limits.answer_bytes:,} bytes", "ask for fewer rows or columns")
            held.append(part)
    yield {"inputs": inputs}, stream_of(result.schema, held)


def _too_large(most: str, hint: str) -> QueryError:
    return QueryError(f"the answer has more than {most}, which is what this node gives at a time", hint=hint)


if __name__ == "__main__":
    main()
