"""Processes that answer queries, and those of the user: nothing is planned or parsed in who asks (RFC-033).

A text can end the planner's process, and one function can take all memory, without looking at any clock.

`Local` is for the user. Rows come as they are computed, and the process stays for the next query, of any
workspace; it is killed when time is up, on Ctrl-C, and where rows are not read to their end. Queries of
others are answered behind walls (`odfchain.query.walled`).
"""

from __future__ import annotations

import atexit
import base64
import contextlib
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

from odfchain.errors import EngineError, OdfchainError, QueryError, QueryLimitError, StoreError
from odfchain.lazy import pa
from odfchain.limits import OWN, AskedLimits
from odfchain.odf.block_codec import decoder
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.query.embedded import Embedded
from odfchain.query.resolved_tables import CheckedSlices, Pin, Pins
from odfchain.query.results import QueryResult, SlicesRead
from odfchain.query.row_streams import stream_of
from odfchain.query.sql_text import Query, checked_text
from odfchain.startup import put_off_pandas
from odfchain.storage import fsio
from odfchain.text import one_line, printable
from odfchain.transform.closed_sql import in_memory, out_of_memory
from odfchain.workspace.workspace_files import Connect, WorkspaceFiles

READY = b"ready\n"
ROWS = b"rows\n"
FREE = b"free\n"
SAID_BYTES = 64 << 10
"""Size limit of the process's error output [bytes]; the rows go through a pipe."""
IDLE_SECONDS = 30.0
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
_ERRORS = sys.modules[OdfchainError.__module__]
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
        self._ready, self._loading = False, threading.Lock()
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
        """The engine is loaded; threads may wait for it together."""
        with self._loading:
            if self._ready:
                return
            line = b""
            with contextlib.suppress(TimeoutError):
                line = self._read(len(READY), self._starting_seconds)
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
            return int(self._child.wait(0.5))
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


def error_of(
    reported: dict[str, Any], most: int, kind_of: Callable[[str], type[OdfchainError]]
) -> OdfchainError:
    """The error that a process reports, its texts printable and of at most so many characters."""
    message, hint, *excerpt = (
        text and printable(str(text), most)
        for text in (reported["message"], reported["hint"], *reported["excerpt"][:2])
    )
    if reported["kind"] == "QueryError":
        return QueryError(message, hint=hint, excerpt=tuple(excerpt))
    return kind_of(reported["kind"])(message, hint=hint)


Read = dict[str, tuple[DatasetId, Multihash]]
"""By the names of a query: the dataset and the block."""


def read_blocks(rows: Iterable[tuple[str, str, str]]) -> Read:
    """The inputs in a line of JSON; errors of any kind where it has another form."""
    return {name: (DatasetId.parse(id_), Multihash.parse(block)) for name, id_, block in rows}


def inputs_of(pins: Pins, read: Read) -> tuple[Pin, ...]:
    """The inputs that a process says it has read: that is what the names of the query mean."""
    pinned = Pins(pins.workspace, given=read)
    inputs = pinned.used(read)
    pins.named = pinned.named
    return inputs


def written_blocks(pins: Iterable[Pin]) -> list[list[str]]:
    """Inputs as `read_blocks` reads them."""
    return [[pin.name, str(pin.id), str(pin.block_hash)] for pin in pins]


# --- queries of the user -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Local:
    """Runs queries as `engine` does, in a process of their own."""

    engine: Embedded

    def run(self, query: Query) -> QueryResult:
        """The rows of one query; nothing is computed before they are asked for."""
        reported, process = self._asked(query, query.seconds, explain=False)

        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(reported["schema"])))
        inputs = inputs_of(query.pins, read_blocks(reported["inputs"]))
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
            if os.getpid() == self._owner:
                self._write(FREE)
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
            raise error_of(reported["error"], _OWN_MESSAGE_CHARACTERS, _kind_of)
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
# says what is read, or what went wrong. Rows are an Arrow IPC stream when they are asked for, as they are
# computed, with a line at their end. It ends with its parent, or when it was idle.


def load() -> None:
    """All that every query needs is loaded."""
    put_off_pandas()
    for name in ("datafusion", "pyarrow.dataset", "odfchain.slices.state"):
        import_module(name)
    decoder().compile_all()


def ready() -> BinaryIO:
    """Where answers are written; all that every query needs is loaded then, and `READY` is written."""
    answers = os.fdopen(os.dup(1), "wb", 1 << 20)
    os.dup2(2, 1)  # what libraries print is no answer
    load()
    answers.write(READY)
    answers.flush()
    return answers


def say(answers: BinaryIO, what: dict[str, Any], body: bytes = b"") -> None:
    """Answer with a line of JSON, and what follows it."""
    answers.write(json.dumps(what).encode() + b"\n")
    answers.write(body)
    answers.flush()


def asked_engine(request: dict[str, Any], **more: Any) -> Embedded:
    """The engine that a request asks for, with `more` of its options."""
    without = frozenset(request["without"])
    return Embedded(
        partitions=request["partitions"], batch_size=request["batch_size"], without=without, **more
    )


def _pins(request: dict[str, Any], files: WorkspaceFiles) -> Pins:
    as_at, given = request["as_at"], request["given"]
    if given is None:
        return Pins(files, as_at=as_at and Timestamp.parse(as_at))
    return Pins(files, given=read_blocks(given))


def _params(request: dict[str, Any]) -> dict[str, Any]:
    if request["params"] is None:
        return {}
    row = pa.ipc.open_stream(base64.b64decode(request["params"])).read_all()
    return {name: row.column(name)[0] for name in row.schema.names}


def asked_query(request: dict[str, Any], files: WorkspaceFiles) -> Query:
    """The query of a request."""
    return Query(request["sql"], _pins(request, files), _params(request), request["limit"], request["skip"])


def report_of(error: BaseException, *, hint: str | None = None) -> dict[str, Any]:
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
    answers, taken = ready(), _addresses()
    result: QueryResult | None = None
    while True:
        try:
            # a result whose rows are to be read is waited for as long as the parent lives
            line = asked.get(timeout=IDLE_SECONDS if result is None else None)
        except Empty:
            os._exit(0)
        if line == FREE:
            result = None
            continue
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
            header = {"error": report_of(error)}
        say(answers, header)


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
    engine = asked_engine(
        request, spill=None if spill is None else Path(spill), memory=request["memory"], links=links,
        checked=CheckedSlices(checked and Path(checked), state_bytes=request["state_bytes"]),
    )  # fmt: skip
    query = asked_query(request, WorkspaceFiles.find(Path(request["workspace"]).parent, connect))
    if request["explain"]:
        return {"text": engine.explain(query)}, None
    result = engine.run(query)
    schema = base64.b64encode(result.schema.serialize()).decode()
    slices = [result.slices.read, result.slices.there]
    return {"inputs": written_blocks(query.pins.named), "slices": slices, "schema": schema}, result


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
            end = {"error": report_of(error)}
    say(answers, end)
