"""SQL of people who are not trusted, answered by a process that sees the datasets and nothing else.

    worker = Worker()                           # or Worker(sandbox="require", partitions=1, without=…)
    result = worker.answer("select …", Pins(workspace), params={"c": "CH"}, limit=100)
    result.to_arrow(), result.inputs            # complete and checked; nothing runs any more

Hostile text crashes the planner and takes all memory, so nothing is planned or parsed here: the text is
measured, a process is started, and what it writes is read as that of a stranger, within limits. It answers
one query and is ended, with its parent at the latest. It sees `datasets/` read-only, or the folders of the
datasets that are given (`Pins(given=…)`), no keys or settings, and no network (RFC-020, RFC-033).
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from odfchain.errors import (
    BadInputError,
    BrokenChainError,
    BusyError,
    CodecError,
    DatasetNotFoundError,
    EngineError,
    InvalidIdError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    OversizedInputError,
    PointNotFoundError,
    QueryError,
    SchemaError,
    SliceNotFoundError,
    StoreError,
    UnsupportedVersionError,
)
from odfchain.limits import ASKED, AskedLimits
from odfchain.odf.flatbuffers import FlatBuffer, TableView, schema_path
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.progress import SILENT, Progress
from odfchain.query.child import ENVIRONMENT, ChildProcess
from odfchain.query.child import command as run_module
from odfchain.query.embedded import check_text
from odfchain.query.resolved_tables import Pins
from odfchain.query.results import QueryResult
from odfchain.text import one_line, printable
from odfchain.transform.sandbox import environment_kept, require_sandbox, start

if TYPE_CHECKING:
    import pyarrow as pa


_HEADER_BYTES = 1 << 20
_MESSAGE_CHARACTERS = 2_000
_TOO_COMPLEX = "the query is too complex for this node"
# Error classes that may be reported, apart from those of the query and the engine.
_KINDS = {
    kind.__name__: kind
    for kind in (
        BadInputError, BrokenChainError, CodecError, DatasetNotFoundError, InvalidIdError,
        ObjectCorruptedError, ObjectNotFoundError, OversizedInputError, PointNotFoundError, SchemaError,
        SliceNotFoundError, StoreError, UnsupportedVersionError,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Worker:
    """How such queries are run: each by a process of its own."""

    limits: AskedLimits = ASKED
    sandbox: Literal["prefer", "require"] = "prefer"
    """Without a sandbox: the same process, with a note; or an error."""
    partitions: int | None = 2
    """Tasks side by side; 1 makes sums and orders the same each time."""
    batch_size: int = 8192
    """Rows that are worked on at a time."""
    without: frozenset[str] = frozenset()
    """Functions that cannot be named."""
    progress: Progress = SILENT
    """Reports a missing sandbox."""

    def answer(
        self,
        sql: str,
        pins: Pins,
        *,
        params: Mapping[str, Any] | None = None,
        limit: int | None = None,
        skip: int = 0,
    ) -> QueryResult:
        """The rows of one query, all of them here; no more than `limit` after `skip` others, as in SQL."""
        request = self._request(sql, pins, params, limit, skip)
        with self.start(pins) as process:
            return process.answer(request, pins)

    def start(self, pins: Pins) -> WorkerProcess:
        """A process that will answer one query over the datasets of these pins; to be closed."""
        if pins.given is None:
            shown = [pins.workspace.root / "datasets"]
        else:
            shown = [pins.workspace.dataset(each).folder for each, _ in pins.given.values()]
        # it ends with the thread that starts it
        return WorkerProcess(self.limits, shown, sandboxed=self._sandboxed())

    def _request(
        self, sql: str, pins: Pins, params: Mapping[str, Any] | None, limit: int | None, skip: int = 0
    ) -> bytes:
        check_text(sql, self.limits)
        given = pins.given
        request = {
            "sql": sql, "params": row_of(params, self.limits) if params else None,
            "limit": limit, "skip": skip, "workspace": str(pins.workspace.root),
            "as_at": pins.as_at and str(pins.as_at),
            "given": None if given is None else [[name, *map(str, pin)] for name, pin in given.items()],
            "partitions": self.partitions, "batch_size": self.batch_size, "without": sorted(self.without),
        }  # fmt: skip
        return json.dumps(request).encode() + b"\n"

    def _sandboxed(self) -> bool:
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
            if sandboxed:
                read = [*shown, schema_path("odf.fbs").parent]
                return start(command(limits), read=read, write=(), environment=environment, **pipes)
            folder = files.enter_context(tempfile.TemporaryDirectory(prefix="odfchain-query-"))
            own = environment_kept() | environment | {"TMPDIR": folder, "HOME": folder}
            return subprocess.Popen(command(limits), env=own, cwd=folder, start_new_session=True, **pipes)

        super().__init__(begin, starting_seconds=limits.starting_seconds)

    def answer(self, request: bytes, pins: Pins) -> QueryResult:
        """The answer to what `Worker` asks; errors as there."""
        self.ready()
        most = _HEADER_BYTES + 2 * self._limits.answer_bytes
        try:
            self._child.stdin.write(request)
            self._child.stdin.flush()
            said = self._read(most + 1, self._limits.seconds)
        except TimeoutError:
            raise EngineError(
                f"the query took longer than {self._limits.seconds:g} s", hint="ask for less at a time"
            ) from None
        except BrokenPipeError:
            said = b""
        header, _, body = said.partition(b"\n")
        told = _told(header)
        if isinstance(told, OdfchainError):
            raise told
        if told is None or told[0] != len(body):
            raise self._broken()
        schema, batches = _checked_rows(body, self._limits)
        return QueryResult(schema, Pins(pins.workspace, given=told[1]).used(told[1]), lambda: iter(batches))

    def _broken(self) -> OdfchainError:
        if self._was_killed():
            return QueryError(_TOO_COMPLEX, hint="make it shorter, or ask for less at a time")
        how = f"ended: {self._complaint()}" if self._code() else "did not say what it should"
        return EngineError(f"the process that answers queries {how}")


class Workers:
    """Queries of many people: some are answered at a time, some wait, and the next is refused.

    Each gets a process that had loaded the engine before it came; `pins` are of the workspace that all see.
    """

    def __init__(self, worker: Worker, pins: Pins, *, at_a_time: int = 2, waiting: int = 16) -> None:
        self._worker, self._pins = worker, pins
        self._places = threading.BoundedSemaphore(at_a_time + waiting)
        self._starter = ThreadPoolExecutor(1)  # a process ends with the thread that started it
        self._spares: SimpleQueue[Future[WorkerProcess]] = SimpleQueue()
        for _ in range(at_a_time):
            self._prepare()

    def answer(
        self, sql: str, pins: Pins, *, params: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> QueryResult:
        """As `Worker.answer`, when it is this query's turn.

        Raises:
            BusyError: as many wait as may.
        """
        request = self._worker._request(sql, pins, params, limit)  # noqa: SLF001 - its other half
        if not self._places.acquire(blocking=False):
            raise BusyError("this node answers as many queries as it can", hint="ask again in a moment")
        try:
            spare = self._spares.get()
            try:
                with spare.result() as process:
                    return process.answer(request, pins)
            finally:
                self._prepare()
        finally:
            self._places.release()

    def close(self) -> None:
        """End the process; to be called when no query follows."""
        while not self._spares.empty():
            spare = self._spares.get()
            if spare.exception() is None:
                spare.result().close()
        self._starter.shutdown()

    def _prepare(self) -> None:
        self._spares.put(self._starter.submit(self._worker.start, self._pins))


def command(limits: AskedLimits) -> Sequence[str]:
    """The command line of the process."""
    return run_module("odfchain.query.worker_process", json.dumps(dataclasses.asdict(limits)))


_Read = dict[str, tuple[DatasetId, Multihash]]


def _told(header: bytes) -> tuple[int, _Read] | OdfchainError | None:
    # the process has run an untrusted query: any header may come
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidIdError):
        told = json.loads(header)
        if "error" in told:
            return _error(told["error"])
        read = {name: (DatasetId.parse(id_), Multihash.parse(block)) for name, id_, block in told["inputs"]}
        return int(told["bytes"]), read
    return None


def _error(told: dict[str, Any]) -> OdfchainError:
    message, hint, *excerpt = (
        text and printable(str(text), _MESSAGE_CHARACTERS)
        for text in (told["message"], told["hint"], *told["excerpt"][:2])
    )
    if told["kind"] == "QueryError":
        return QueryError(message, hint=hint, excerpt=tuple(excerpt))
    return _KINDS.get(told["kind"], EngineError)(message, hint=hint)


def row_of(params: Mapping[str, Any], limits: AskedLimits) -> str:
    """Values by name as a row of Arrow, so that their types stay what they are."""
    import pyarrow as pa

    try:
        scalars = [value if isinstance(value, pa.Scalar) else pa.scalar(value) for value in params.values()]
        arrays = [pa.array([scalar], scalar.type) for scalar in scalars]
        row = pa.RecordBatch.from_arrays(arrays, [str(name) for name in params])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, row.schema) as stream:
            stream.write_batch(row)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise QueryError(f"invalid parameter value: {one_line(str(error))}") from None
    if sink.tell() > limits.text_bytes:
        raise QueryError(f"the parameters have more than {limits.text_bytes:,} bytes")
    return base64.b64encode(sink.getvalue()).decode()


def _checked_rows(body: bytes, limits: AskedLimits) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    import pyarrow as pa

    try:
        # a compressed buffer can grow far beyond the bytes that were read
        for message in pa.ipc.MessageReader.open_stream(body):
            _check_uncompressed(message)
        with pa.ipc.open_stream(body) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
            if sum(batch.num_rows for batch in batches) > limits.rows:
                raise EngineError("the process that answers queries sent more rows than it may")
            return stream.schema, batches
    except (pa.ArrowException, CodecError, OSError, ValueError) as error:
        raise EngineError(f"the query process sent an unreadable answer: {one_line(str(error))}") from None


def _check_uncompressed(message: pa.Message) -> None:
    buffer = FlatBuffer(bytes(message.metadata))
    header = _member(buffer, buffer.table(buffer.root_position(), 0), 2)
    if header is not None and message.type == "dictionary":
        header = _member(buffer, header, 1)
    # `BodyCompression` of RecordBatch (Arrow format, `Message.fbs`)
    if header is not None and message.type != "schema" and header.field(3, 4):
        raise ValueError("it is compressed")


def _member(buffer: FlatBuffer, table: TableView, slot: int) -> TableView | None:
    position = table.field(slot, 4)
    return buffer.table(buffer.follow(position), 1) if position else None
