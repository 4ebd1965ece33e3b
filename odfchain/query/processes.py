"""Queries answered by processes for which limits hold: those of the user, and of untrusted clients.

A text can end the planner's process, and one function can take all memory, without looking at any clock. So
nothing is planned or parsed here: the text is measured, and a process answers (RFC-033).

    worker = Worker()                           # or Worker(sandbox="require", engine=…)
    result = worker.answer(Query("select …", Pins(workspace), params={"c": "CH"}, limit=100))
    result.to_arrow(), result.inputs            # complete and checked; nothing runs any more

`Worker` is for text of others. Its process sees `datasets/` read-only, or the folders of the datasets that
are given (`Pins(given=…)`), no keys or settings, and no network (RFC-020); what it writes is untrusted, and
read within limits. It answers one query and is ended, with its parent at the latest.

`Local` is for the user. Rows come as they are computed, and the process stays for the next query, of any
workspace; it is killed when time is up, on Ctrl-C, and where rows are not read to their end.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import dataclasses
import fcntl
import io
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, Literal

from odfchain.errors import (
    EngineError,
    InvalidIdError,
    OdfchainError,
    QueryError,
    QueryLimitError,
    StoreError,
)
from odfchain.lazy import pa
from odfchain.limits import ASKED, OWN, AskedLimits
from odfchain.odf.flatbuffers import schema_path
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.query.embedded import Embedded
from odfchain.query.resolved_tables import CheckedSlices, Pin, Pins
from odfchain.query.results import QueryResult, SlicesRead
from odfchain.query.row_streams import checked_rows, parts_of, stream_of
from odfchain.query.sql_text import Query, checked_text
from odfchain.startup import put_off_pandas
from odfchain.storage import fsio
from odfchain.text import one_line, printable
from odfchain.transform.closed_sql import check_text, in_memory, out_of_memory
from odfchain.workspace.workspace_files import Connect, WorkspaceFiles

READY = b"ready\n"
ROWS = b"rows\n"
SAID_BYTES = 64 << 10
"""Size limit of the process's error output [bytes]; the rows go through a pipe."""
IDLE_SECONDS = 30.0
# Addresses that are taken before the first row: libraries, threads, plans; half of it is used.
_PROGRAM_BYTES = 1 << 30
# Addresses beyond what rows may take: plans, and what is read before it is counted [bytes]…
_MORE = 256 << 20
# …and the same for each thread that computes [bytes].
_MORE_PER_CORE = 64 << 20
ENVIRONMENT = {
    # allocators reserve gigabytes of addresses ahead, and addresses are what is counted
    "MALLOC_ARENA_MAX": "2", "MIMALLOC_ARENA_RESERVE": "65536", "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1", "RUST_BACKTRACE": "0", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
_ENDING_SECONDS = 5.0
_AT_ONCE = 1 << 20
# How long rows wait for others before they are sent [s].
_PIECE_SECONDS = 1.0
# Folders that are shown to a process one by one [count]; its command line has room for some thousands.
_MOST_SHOWN = 500
_HEADER_BYTES = 1 << 20
_MESSAGE_CHARACTERS = 2_000
_TOO_COMPLEX = "the query is too complex for this node"
_ERRORS = sys.modules[OdfchainError.__module__]
# Error classes that may be reported, apart from those of the query and the engine.
_KINDS: dict[str, type[OdfchainError]] = {
    name: getattr(_ERRORS, name)
    for name in (
        "BadInputError", "ChainError", "CodecError", "DatasetNotFoundError", "InvalidIdError",
        "ObjectCorruptedError", "ObjectNotFoundError", "OversizedInputError",
        "PointNotFoundError", "QueryLimitError", "SchemaError", "SliceNotFoundError", "StoreError",
        "UnsupportedVersionError",
    )
}  # fmt: skip
_PROGRAM = "odfchain.api.queries"
_LINE_BYTES = 64 << 20
_PIPE_BYTES = 1 << 20
_OWN_MESSAGE_CHARACTERS = 10_000
_NO_MEMORY = ("memory allocation of", "Cannot allocate memory", "out of memory", "std::bad_alloc")


# --- a process ---------------------------------------------------------------------------------------


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
        """The next bytes, none at the end."""
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
            with contextlib.suppress(AttributeError, OSError):  # Linux alone has it, and it may be too much
                fcntl.fcntl(self._child.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._pipe = Pipe(self._child.stdout.fileno())
            self._said = io.BufferedReader(self._pipe, _AT_ONCE)
            self._files = files.pop_all()

    def close(self) -> None:
        """The process is gone, and all that it had."""
        if os.getpid() == self._owner:  # a fork of this one has no business with it
            self._files.close()

    def ready(self) -> None:
        """The engine is loaded."""
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


def request_of(engine: Embedded, query: Query, limits: AskedLimits, **more: Any) -> dict[str, Any]:
    """What a process is asked."""
    pins, given, only = query.pins, query.pins.given, query.pins.workspace.only
    request = {
        "sql": query.sql, "params": _row_of(query.params, limits) if query.params else None,
        "limit": query.limit, "skip": query.skip,
        "workspace": str(pins.workspace.root), "as_at": pins.as_at and str(pins.as_at),
        "given": None if given is None else [[name, *map(str, pin)] for name, pin in given.items()],
        "partitions": engine.partitions, "batch_size": engine.batch_size, "without": sorted(engine.without),
        "only": None if only is None else sorted(only), "pieces": False, "describe": False,
    }  # fmt: skip
    return request | more


def _row_of(params: Mapping[str, Any], limits: AskedLimits) -> str:
    """Values by name as a row of Arrow, so that their types stay what they are."""
    try:
        scalars = [value if isinstance(value, pa.Scalar) else pa.scalar(value) for value in params.values()]
        arrays = [pa.array([scalar], scalar.type) for scalar in scalars]
        row = pa.RecordBatch.from_arrays(arrays, [str(name) for name in params])
        data = stream_of(row.schema, [row])
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise QueryError(f"invalid parameter value: {one_line(str(error))}") from None
    if len(data) > limits.text_bytes:
        raise QueryError(f"the parameters have more than {limits.text_bytes:,} bytes")
    return base64.b64encode(data).decode()


def _error(
    reported: dict[str, Any], most: int, kind_of: Callable[[str], type[OdfchainError]]
) -> OdfchainError:
    message, hint, *excerpt = (
        text and printable(str(text), most)
        for text in (reported["message"], reported["hint"], *reported["excerpt"][:2])
    )
    if reported["kind"] == "QueryError":
        return QueryError(message, hint=hint, excerpt=tuple(excerpt))
    return kind_of(reported["kind"])(message, hint=hint)


# --- queries of others -------------------------------------------------------------------------------


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

    def answer(self, query: Query) -> QueryResult:
        """The rows of one query, all of them here."""
        request = self.request(query)
        with contextlib.closing(self.process(query.pins)) as process:
            result = process.answer(request, query.pins)
            result.to_arrow()
            return result

    def request(self, query: Query, **how: bool) -> dict[str, Any]:
        """What a process is asked; the text was measured. `pieces=True`: rows as they come, however many."""
        check_text(query.sql, self.limits)
        return request_of(self.engine, query, self.limits, **how)

    def process(self, pins: Pins) -> WorkerProcess:
        """A process that sees what the query may read; it ends with the thread that calls this."""
        datasets, only = pins.workspace.root / "datasets", pins.workspace.only
        if pins.given is not None:
            shown = [pins.workspace.dataset(each).folder for each, _ in pins.given.values()]
        elif only is not None and len(only) <= _MOST_SHOWN:
            shown = [folder for name in sorted(only) if (folder := datasets / name).is_dir()]
        else:
            shown = [datasets]
        return WorkerProcess(self.limits, shown, sandboxed=self._sandboxed())

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


class WorkerProcess(ChildProcess):
    """A process that has loaded the engine, or is about to; it answers once."""

    def __init__(self, limits: AskedLimits, shown: Sequence[Path], *, sandboxed: bool) -> None:
        self._limits = limits
        threads = {"TOKIO_WORKER_THREADS": str(limits.threads), "RAYON_NUM_THREADS": str(limits.threads)}
        environment = ENVIRONMENT | threads

        def begin(files: contextlib.ExitStack, pipes: dict[str, Any]) -> Any:
            from odfchain.transform.sandbox import environment_kept, start

            if sandboxed:
                read = [*shown, schema_path("odf.fbs").parent]
                return start(command(limits), read=read, write=(), environment=environment, **pipes)
            folder = tempfile.mkdtemp(prefix="odfchain-query-")
            files.callback(fsio.remove_at_end(self, Path(folder)))
            own = environment_kept() | environment | {"TMPDIR": folder, "HOME": folder}
            return subprocess.Popen(command(limits), env=own, cwd=folder, start_new_session=True, **pipes)

        super().__init__(begin, starting_seconds=limits.starting_seconds)

    def answer(self, request: dict[str, Any], pins: Pins) -> QueryResult:
        """The answer to what `Worker` asks, as it comes; errors as there, also while rows are read."""
        schema, first, goes_on, read = self._asked(request)
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

        return QueryResult(schema, _inputs(pins, read), rows)

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

    def _broken(self) -> OdfchainError:
        code = self._code() or 0
        # killed; behind a sandbox a signal arrives as an exit code above 128
        if code < 0 or code > 128:
            return QueryError(_TOO_COMPLEX, hint="make it shorter, or ask for less at a time")
        how = f"ended: {self._complaint()}" if code else "did not say what it should"
        return EngineError(f"the process that answers queries {how}")


def command(limits: AskedLimits) -> Sequence[str]:
    """The command line of the process."""
    limited = json.dumps(dataclasses.asdict(limits))
    return [sys.executable, "-P", "-m", "odfchain.query.processes", limited]


_Read = dict[str, tuple[DatasetId, Multihash]]
_Piece = tuple[pa.Schema, list[pa.RecordBatch], bool, _Read]
"""Rows, whether others follow, and what is read for them."""


def _read_blocks(rows: Iterable[tuple[str, str, str]]) -> _Read:
    return {name: (DatasetId.parse(id_), Multihash.parse(block)) for name, id_, block in rows}


def _inputs(pins: Pins, read: _Read) -> tuple[Pin, ...]:
    # what the process has read is what the names of the query mean
    pinned = Pins(pins.workspace, given=read)
    inputs = pinned.used(read)
    pins.named = pinned.named
    return inputs


def _written_blocks(pins: Iterable[Pin]) -> list[list[str]]:
    return [[pin.name, str(pin.id), str(pin.block_hash)] for pin in pins]


def _parsed_header(header: bytes) -> tuple[int, _Read, bool] | OdfchainError | None:
    # the process has run an untrusted query: any header may come
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidIdError):
        reported = json.loads(header)
        if "error" in reported:
            return _error(reported["error"], _MESSAGE_CHARACTERS, lambda kind: _KINDS.get(kind, EngineError))
        more = reported.get("more") is True
        return int(reported["bytes"]), _read_blocks(reported["inputs"]), more
    return None


# --- queries of the user -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Local:
    """Runs queries as `engine` does, in a process of their own."""

    engine: Embedded

    def run(self, query: Query) -> QueryResult:
        """The rows of one query; nothing is computed before they are asked for."""
        reported, process = self._asked(query, query.seconds, explain=False)

        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(reported["schema"])))
        inputs = _inputs(query.pins, _read_blocks(reported["inputs"]))
        turn = process.turn

        def batches() -> Iterator[pa.RecordBatch]:
            rows = process.rows()
            weakref.finalize(rows, process.give_up, turn, reading=True)  # also where they are not read
            return rows

        result = QueryResult(schema, inputs, batches, slices=SlicesRead(*reported["slices"]))
        weakref.finalize(result, process.give_up, turn, reading=False)
        return result

    def explain(self, query: Query) -> str:
        """How the query would be run, as text; errors as `run`."""
        reported, process = self._asked(query, None, explain=True)
        process.free()
        return str(reported["text"])

    def _asked(
        self, query: Query, seconds: float | None, *, explain: bool
    ) -> tuple[dict[str, Any], LocalProcess]:
        checked_text(query.sql)
        process = _taken()
        try:
            spill, checked = process.spill(self.engine.spill), self.engine.checked
            request = request_of(
                self.engine, query, OWN,
                explain=explain, spill=spill and str(spill), memory=self.engine.memory,
                checked=checked.file and str(checked.file), state_bytes=checked.state_bytes,
                environment=dict(os.environ),
            )  # fmt: skip
            return process.plan(json.dumps(request).encode() + b"\n", seconds), process
        except OdfchainError:
            process.free()
            raise
        except BaseException:
            process.close()
            raise


class LocalProcess(ChildProcess):
    """A process that answers one query after the other."""

    def __init__(self) -> None:
        self._idle_since = time.monotonic()
        self._reading = False
        self._seconds = 0.0
        self._query = contextlib.ExitStack()
        # Which query it is at; what was left of an earlier one concerns it no more.
        self.turn = 0

        def begin(files: contextlib.ExitStack, pipes: dict[str, Any]) -> Any:
            files.callback(self._query.close)
            links = tempfile.mkdtemp(prefix="odfchain-queries-", dir=in_memory())
            files.callback(fsio.remove_at_end(self, Path(links)))
            path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
            return subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, links],
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
                start_new_session=True,  # Ctrl-C is for who asks
                **pipes,
            )

        super().__init__(begin, starting_seconds=OWN.starting_seconds)

    def fits(self) -> bool:
        """True if it still waits for a query."""
        return time.monotonic() - self._idle_since < IDLE_SECONDS / 2 and self._child.poll() is None

    def spill(self, folder: Path | None) -> Path | None:
        """A place for what memory does not hold, which is gone after the query; None where there is none."""
        if folder is None:
            return None
        with contextlib.suppress(StoreError):  # nothing can be written there: memory is the end
            base = folder / "queries"
            fsio.make_folder(base)
            return self._query.enter_context(fsio.private_folder(base))
        return None

    def plan(self, request: bytes, seconds: float | None) -> dict[str, Any]:
        """Plan the query: the tables that it reads and the columns that it gives, or how it would be run."""
        self.ready()
        self._pipe.left, self._seconds = seconds, seconds or 0.0
        self._write(request)
        return self._line()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the query that was planned, as they are computed."""
        self._reading = True
        return self._rows()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        try:
            self._write(ROWS)
            with self._noticed():
                stream = pa.ipc.open_stream(pa.PythonFile(self._said, "r"))
            while True:
                with self._noticed():
                    batch = next(stream, None)
                if batch is None:
                    break
                yield batch
            self._line()
        except OdfchainError:
            self.free()
            raise
        except BaseException:
            self.close()
            raise
        self.free()

    def give_up(self, turn: int, *, reading: bool) -> None:
        """Discard the result of a query (`reading`: the rows of it)."""
        if turn == self.turn and reading == self._reading:
            if reading:
                self.close()
            else:
                self.free()

    def free(self) -> None:
        """The query is done; the process waits for the next one, if it can."""
        self._query.close()
        self._reading = False
        self.turn += 1
        if _idle or not self._ready or self._child.poll() is not None:
            self.close()
        else:
            self._idle_since = time.monotonic()
            _idle.append(self)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # why it ended shows when it is read
            self._child.stdin.write(data)
            self._child.stdin.flush()

    def _line(self) -> dict[str, Any]:
        with self._noticed():
            line = self._said.readline(_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise self._broken()
        reported: dict[str, Any] = json.loads(line)
        if "error" in reported:
            raise _error(reported["error"], _OWN_MESSAGE_CHARACTERS, _kind_of)
        return reported

    @contextlib.contextmanager
    def _noticed(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            self.close()
            hint = "give it more with --timeout, or use --engine spark"
            raise QueryLimitError(f"the query took longer than {self._seconds:g} s", hint=hint) from None
        except (pa.ArrowInvalid, OSError):
            # the process is alive, so the stream itself is wrong
            if self._code() is None:
                raise
            raise self._broken() from None

    def _broken(self) -> OdfchainError:
        code, said, last = self._code(), self._complaints_text(), self._complaint()
        self.close()
        # the kernel kills a process that exceeds the memory of the machine
        if code == -signal.SIGKILL or any(text in said for text in _NO_MEMORY):
            return out_of_memory()
        if code is not None and code < 0:
            hint = "make it shorter, with fewer parts within parts, or use --engine spark"
            return QueryError("the query is too complex for the engine", hint=hint)
        return EngineError(f"the process that answers queries ended: {last}")


# The one that waits for a query, if there is one.
_idle: deque[LocalProcess] = deque()


def begin() -> None:
    """A process is there, or about to be, for the query that comes."""
    if not _idle:
        _idle.append(LocalProcess())


def _taken() -> LocalProcess:
    with contextlib.suppress(IndexError):
        while True:
            # a process that was started ahead
            process = _idle.popleft()
            if process.fits():
                return process
            process.close()
    return LocalProcess()


def _close_idle() -> None:
    while _idle:
        _idle.popleft().close()


atexit.register(_close_idle)
os.register_at_fork(after_in_child=_idle.clear)


def _kind_of(name: str) -> type[OdfchainError]:
    # the nearest class whose constructor takes a message and a hint only
    kinds = getattr(_ERRORS, name, EngineError).__mro__
    kind: type[OdfchainError] = next(k for k in kinds if k.__init__ is OdfchainError.__init__)  # type: ignore[misc]
    return kind


# --- the program of such a process -------------------------------------------------------------------
#
# Once the engine is loaded it writes `READY`, then for each line of JSON that asks one line of JSON that
# says what is read, or what went wrong. Rows are an Arrow IPC stream: those of a client follow at once,
# bounded, and the process ends; those of the user when they are asked for, as they are computed, with a line
# at their end. It ends with its parent, or when it was idle.


def main() -> None:
    """Answer the one query of a client; this process ends with its parent at the latest."""
    limits = AskedLimits(**json.loads(sys.argv[1]))
    _bound_by_kernel({
        resource.RLIMIT_AS: limits.memory * 3 // 2 + _PROGRAM_BYTES,
        resource.RLIMIT_FSIZE: SAID_BYTES,
        resource.RLIMIT_CORE: 0,
    })  # fmt: skip
    answers = _ready()
    request = json.loads(sys.stdin.buffer.readline())
    seconds = limits.stream_seconds if request["pieces"] else limits.seconds
    _bound_by_kernel({resource.RLIMIT_CPU: int(seconds + limits.starting_seconds) * limits.threads + 1})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for header, body in answer(request, limits):
        _say(answers, header | {"bytes": len(body)}, body)
    os._exit(0)  # what is left in memory is not put away


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
        yield {"error": _reported(error, hint="ask for fewer rows or columns")}, b""


def _ready() -> BinaryIO:
    """Where answers are written; all that every query needs is loaded then."""
    answers = os.fdopen(os.dup(1), "wb", 1 << 20)
    os.dup2(2, 1)  # what libraries print is no answer
    put_off_pandas()
    for name in ("datafusion", "pyarrow.dataset", "odfchain.slices.state"):
        import_module(name)
    answers.write(READY)
    answers.flush()
    return answers


def _say(answers: BinaryIO, what: dict[str, Any], body: bytes = b"") -> None:
    answers.write(json.dumps(what).encode() + b"\n")
    answers.write(body)
    answers.flush()


def _end_with_parent() -> None:
    # nothing follows the query on standard input, so its end is the parent's
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


def _rows(request: dict[str, Any], limits: AskedLimits) -> Iterator[tuple[dict[str, Any], bytes]]:
    pa.set_cpu_count(limits.threads)
    engine, only = _engine(request, memory=limits.memory), request["only"]
    files = WorkspaceFiles(Path(request["workspace"]), only=None if only is None else frozenset(only))
    query = _query(request, files)
    if request["describe"]:
        columns, values = engine.describe(query)
        yield {"inputs": [], "more": True}, stream_of(columns, [])
        yield {"inputs": []}, stream_of(values, [])
        return
    result, pieces = engine.run(query), request["pieces"]
    inputs, began = _written_blocks(result.inputs), time.monotonic()
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


def _engine(request: dict[str, Any], **more: Any) -> Embedded:
    without = frozenset(request["without"])
    return Embedded(
        partitions=request["partitions"], batch_size=request["batch_size"], without=without, **more
    )


def _pins(request: dict[str, Any], files: WorkspaceFiles) -> Pins:
    as_at, given = request["as_at"], request["given"]
    if given is None:
        return Pins(files, as_at=as_at and Timestamp.parse(as_at))
    return Pins(files, given=_read_blocks(given))


def _params(request: dict[str, Any]) -> dict[str, Any]:
    if request["params"] is None:
        return {}
    row = pa.ipc.open_stream(base64.b64decode(request["params"])).read_all()
    return {name: row.column(name)[0] for name in row.schema.names}


def _query(request: dict[str, Any], files: WorkspaceFiles) -> Query:
    return Query(request["sql"], _pins(request, files), _params(request), request["limit"], request["skip"])


def _reported(error: BaseException, *, hint: str | None = None) -> dict[str, Any]:
    """An error as it is written; `hint` takes the place of the engine's own."""
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        error = out_of_memory()
    if not isinstance(error, OdfchainError):
        error = EngineError(f"the engine failed: {type(error).__name__}: {one_line(str(error))}")
    if not isinstance(error, EngineError) or "pip install" in (error.hint or ""):
        hint = None
    excerpt = error.excerpt if isinstance(error, QueryError) else ()
    said = {"message": str(error), "hint": hint or error.hint, "excerpt": list(excerpt)}
    return {"kind": type(error).__name__, **said}


def serve(connect: Connect) -> None:
    """Answer what standard input asks until it ends; `connect` reaches the stores of workspaces."""
    links = Path(sys.argv[1])
    asked: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked, links), daemon=True).start()  # the parent may end now
    answers, taken = _ready(), _addresses()
    result: QueryResult | None = None
    while True:
        try:
            line = asked.get(timeout=IDLE_SECONDS)
        except Empty:
            os._exit(0)
        if line == ROWS:
            assert result is not None  # noqa: S101 - rows are asked for after a plan
            _write_rows(result, answers)
            result = None
            continue
        request = json.loads(line)
        os.environ.clear()  # where stores are, and who asks, may be another now
        os.environ.update(request["environment"])
        _bound(taken, request["memory"])
        result = None
        for folder in links.iterdir():  # of a query whose rows were not asked for
            shutil.rmtree(folder, ignore_errors=True)
        try:
            header, result = _planned(request, links, connect)
        except BaseException as error:  # noqa: BLE001 - every end is reported
            header = {"error": _reported(error)}
        _say(answers, header)


def _listen(asked: SimpleQueue[bytes], links: Path) -> None:
    for line in sys.stdin.buffer:
        asked.put(line)
    # end of input: the parent is gone, so a running query ends as well; it may add files meanwhile
    for _ in range(10):
        shutil.rmtree(links, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _addresses() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    # systems without /proc
    return 1 << 30


def _bound(taken: int, memory: int) -> None:
    most = taken + memory * 3 // 2 + _MORE + _MORE_PER_CORE * (os.cpu_count() or 1)
    with contextlib.suppress(ValueError, OSError):  # none can be had
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        # only the soft limit: the next query may have another one
        resource.setrlimit(
            resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _planned(
    request: dict[str, Any], links: Path, connect: Connect
) -> tuple[dict[str, Any], QueryResult | None]:
    checked, spill = request["checked"], request["spill"]
    engine = _engine(
        request, spill=None if spill is None else Path(spill), memory=request["memory"], links=links,
        checked=CheckedSlices(checked and Path(checked), state_bytes=request["state_bytes"]),
    )  # fmt: skip
    query = _query(request, WorkspaceFiles.find(Path(request["workspace"]).parent, connect))
    if request["explain"]:
        return {"text": engine.explain(query)}, None
    result = engine.run(query)
    schema = base64.b64encode(result.schema.serialize()).decode()
    slices = [result.slices.read, result.slices.there]
    return {"inputs": _written_blocks(query.pins.named), "slices": slices, "schema": schema}, result


def _write_rows(result: QueryResult, answers: BinaryIO) -> None:
    end: dict[str, Any] = {}
    with pa.ipc.new_stream(answers, result.schema) as stream:
        try:
            for batch in result.batches():
                stream.write_batch(batch)
                answers.flush()
        except BrokenPipeError:
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - every end is reported
            end = {"error": _reported(error)}
    _say(answers, end)


if __name__ == "__main__":
    main()
