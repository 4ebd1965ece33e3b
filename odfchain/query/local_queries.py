"""Queries of the user, answered by a process for which limits hold; rows come as they are computed.

A text can end the planner's process, and one function can take all memory, without looking at any clock. So
that is not this process. The one that answers stays for the next query, of whichever workspace; it is killed
when time is up, on Ctrl-C, and where rows are not read to their end (RFC-033).
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import EngineError, OdfchainError, QueryError, StoreError
from odfchain.limits import OWN
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.query.child import ENVIRONMENT, ChildProcess, command
from odfchain.query.embedded import Embedded, checked_text, in_memory, not_installed, out_of_memory
from odfchain.query.local_process import IDLE_SECONDS, ROWS
from odfchain.query.resolved_tables import Pins
from odfchain.query.results import QueryResult, SlicesRead
from odfchain.query.worker import row_of
from odfchain.storage import fsio
from odfchain.text import one_line, printable

if TYPE_CHECKING:
    import pyarrow as pa


_PROGRAM = "odfchain.api.query_process"
_LINE_BYTES = 64 << 20
_PIPE_BYTES = 1 << 20
_MESSAGE_CHARACTERS = 10_000
_NO_MEMORY = ("memory allocation of", "Cannot allocate memory", "out of memory", "std::bad_alloc")


@dataclass(frozen=True, slots=True)
class Local:
    """Runs queries as `engine` does, in a process of their own."""

    engine: Embedded

    def run(
        self,
        sql: str,
        pins: Pins,
        *,
        params: Mapping[str, Any] | None = None,
        limit: int | None = None,
        skip: int = 0,
        seconds: float | None = None,
    ) -> QueryResult:
        """The rows of one query; nothing is computed before they are asked for.

        `params` are the values of `$name`, `limit` the most rows that are given after `skip` others, and
        `seconds` how long it may take in all, without what the reader of the rows takes.
        """
        told, process = self._asked(sql, pins, params, seconds, limit=limit, skip=skip)
        import pyarrow as pa

        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["schema"])))
        read = {n: (DatasetId.parse(i), Multihash.parse(b)) for n, i, b in told["inputs"]}
        pinned = Pins(pins.workspace, given=read)
        inputs = pinned.used(read)
        pins.named = pinned.named

        turn = process.turn

        def batches() -> Iterator[pa.RecordBatch]:
            rows = process.rows()
            weakref.finalize(rows, process.give_up, turn, reading=True)  # also where nobody reads them
            return rows

        result = QueryResult(schema, inputs, batches, slices=SlicesRead(*told["slices"]))
        weakref.finalize(result, process.give_up, turn, reading=False)
        return result

    def explain(self, sql: str, pins: Pins, *, params: Mapping[str, Any] | None = None) -> str:
        """How the query would be run, as text; errors as `run`."""
        told, process = self._asked(sql, pins, params, None, explain=True)
        process.free()
        return str(told["text"])

    def _asked(
        self, sql: str, pins: Pins, params: Mapping[str, Any] | None, seconds: float | None, **more: Any
    ) -> tuple[dict[str, Any], LocalProcess]:
        checked_text(sql)
        process = _taken()
        try:
            request = self._request(sql, pins, params, process.spill(self.engine.spill)) | more
            return process.plan(json.dumps(request).encode() + b"\n", seconds), process
        except OdfchainError:
            process.free()
            raise
        except BaseException:
            process.close()
            raise

    def _request(
        self, sql: str, pins: Pins, params: Mapping[str, Any] | None, spill: Path | None
    ) -> dict[str, Any]:
        engine, given = self.engine, pins.given
        file, state_bytes = engine.checked.kept_in
        return {
            "sql": sql, "params": row_of(params, OWN) if params else None,
            "limit": None, "skip": 0, "explain": False, "workspace": str(pins.workspace.root),
            "as_at": pins.as_at and str(pins.as_at),
            "given": None if given is None else [[name, *map(str, pin)] for name, pin in given.items()],
            "spill": spill and str(spill), "memory": engine.memory, "partitions": engine.partitions,
            "batch_size": engine.batch_size, "without": sorted(engine.without),
            "checked": file and str(file), "state_bytes": state_bytes, "environment": dict(os.environ),
        }  # fmt: skip


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
            links = tempfile.TemporaryDirectory(prefix="odfchain-queries-", dir=in_memory())
            path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
            return subprocess.Popen(
                command(_PROGRAM, files.enter_context(links)),
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
                start_new_session=True,  # Ctrl-C is for who asks
                **pipes,
            )

        super().__init__(begin, starting_seconds=OWN.starting_seconds)
        with contextlib.suppress(AttributeError, OSError):  # Linux alone has it, and it may be too much
            fcntl.fcntl(self._child.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

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
        import pyarrow as pa

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
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise _error(told["error"])
        return told

    @contextlib.contextmanager
    def _noticed(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except TimeoutError:
            self.close()
            raise EngineError(
                f"the query took longer than {self._seconds:g} s",
                hint="give it more with --timeout, or use --engine spark",
            ) from None
        except (pa.ArrowInvalid, OSError):
            # the process is alive, so the stream itself is wrong
            if self._code() is None:
                raise
            raise self._broken() from None

    def _broken(self) -> OdfchainError:
        code, said = self._code(), self._complaints_text()
        self.close()
        # the kernel kills a process that exceeds the memory of the machine
        if code == -signal.SIGKILL or any(text in said for text in _NO_MEMORY):
            return out_of_memory()
        if code is not None and code < 0:
            return QueryError(
                "the query is too complex for the engine",
                hint="make it shorter, with fewer parts within parts, or use --engine spark",
            )
        last = said.splitlines()[-1:] or ["it said nothing"]
        return EngineError(f"the process that answers queries ended: {one_line(last[0])}")


# The one that waits for a query, if there is one.
_idle: deque[LocalProcess] = deque()


def begin() -> None:
    """A process is there, or about to be, for the query that comes."""
    if not _idle and find_spec("datafusion") is not None:
        _idle.append(LocalProcess())


def _taken() -> LocalProcess:
    if find_spec("datafusion") is None:
        raise not_installed()
    with contextlib.suppress(IndexError):
        while True:
            # a process that was started ahead
            process = _idle.popleft()
            if process.fits():
                return process
            process.close()
    return LocalProcess()


def _close_idle() -> None:
    with contextlib.suppress(IndexError):
        while True:
            _idle.popleft().close()


atexit.register(_close_idle)
os.register_at_fork(after_in_child=_idle.clear)


def _error(told: dict[str, Any]) -> OdfchainError:
    texts = (text and printable(str(text), _MESSAGE_CHARACTERS) for text in (told["message"], told["hint"]))
    message, hint = texts
    if told["kind"] == "QueryError":
        return QueryError(message, hint=hint, excerpt=tuple(map(printable, told["excerpt"])))
    # the nearest class whose constructor takes a message and a hint only
    kinds = getattr(sys.modules[OdfchainError.__module__], told["kind"], EngineError).__mro__
    kind: type[OdfchainError] = next(k for k in kinds if k.__init__ is OdfchainError.__init__)  # type: ignore[misc]
    return kind(message, hint=hint)
