"""Arrow Flight SQL: the datasets of a node as tables, for JDBC, ADBC and all that is built on them.

The server is made of gRPC itself: PyArrow's takes messages of any size from everybody, and does not hear that
a client has gone. SQL runs where all SQL of others does (`odfchain.query.slots`); its rows are checked piece
by piece, and sent on. A session is anonymous or of a token, which is looked at in every call. Handles and
tickets are random and of one session. Source: RFC-061.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Self

from odfchain import errors
from odfchain.lazy import pa
from odfchain.limits import ASKED, HOST
from odfchain.node import flight_messages as wire
from odfchain.node.parts import NodeParts
from odfchain.query.embedded import Embedded
from odfchain.query.resolved_tables import Pins
from odfchain.query.row_streams import checked_rows
from odfchain.query.slots import Slots
from odfchain.query.sql_text import Query, numbered_values
from odfchain.query.walled import Worker, WorkerProcess
from odfchain.text import one_line
from odfchain.transfer.access_tokens import Reader, Right, digest_of, holder
from odfchain.transfer.server_app import Published
from odfchain.transform.closed_sql import check_text
from odfchain.transform.engine_protocol import load_grpc
from odfchain.versions import __version__
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import columns_of
from odfchain.workspace.workspace_files import WorkspaceFiles

SERVICE = "arrow.flight.protocol.FlightService"
CATALOG, SCHEMA = "odf", "public"
# Sessions, statements or tickets of each [count], and their texts; a session without a call, and an unused
# ticket [s].
_SESSIONS, _HELD, _HELD_CHARACTERS, _SESSION_SECONDS, _TICKET_SECONDS = 1_000, 64, 256 << 10, 1_800.0, 300.0
# A message of a client, which is SQL or values [bytes], and how long it may take one of ours [s].
_MESSAGE_BYTES, _STALL_SECONDS = 1 << 20, 30.0
# Calls that are answered or wait for a thread [count]; those that wait for a process hold one each.
_CALLS, _THREADS = 128, 64
_OPTIONS = {
    "max_receive_message_length": _MESSAGE_BYTES, "max_send_message_length": 4 * ASKED.answer_bytes,
    "max_concurrent_streams": 100, "max_allowed_incoming_connections": 400,
    "max_connection_idle_ms": 1_800_000, "keepalive_time_ms": 30_000,  # for who is gone without a word
    "so_reuseport": 0,  # a port that is taken is an error
}  # fmt: skip
_BATCH_ROWS = 65_536
_FAULTS_OF_CLIENTS = (
    errors.QueryError, errors.DatasetNotFoundError, errors.PointNotFoundError, errors.SchemaError,
    errors.InvalidIdError,
)  # fmt: skip
_Answer = Callable[[Any, Any], Iterator[bytes]]


class _Refused(Exception):  # noqa: N818 - what a call ends with is no fault
    """A call that ends with a code of gRPC."""


_NO_TICKET = _Refused("NOT_FOUND", "the ticket is not of this session, or was used, or is too old: ask again")


@dataclass(frozen=True, slots=True)
class _Asked:
    sql: str
    names: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    until: float = 0.0


@dataclass(slots=True)
class _Session:
    reader: Reader
    used: float = field(default_factory=time.monotonic)
    statements: dict[bytes, _Asked] = field(default_factory=dict)
    tickets: dict[bytes, _Asked] = field(default_factory=dict)
    running: dict[bytes, WorkerProcess] = field(default_factory=dict)

    def ticket(self, asked: _Asked) -> bytes:
        while _is_full(self.tickets):  # the oldest one is given up
            self.tickets.pop(next(iter(self.tickets), b""), None)
        handle = secrets.token_bytes(24)
        self.tickets[handle] = replace(asked, until=time.monotonic() + _TICKET_SECONDS)
        return wire.packed("TicketStatementQuery", statement_handle=handle)

    def cancel(self, handle: bytes) -> None:
        if process := self.running.pop(handle, None):
            process.kill()
        elif self.tickets.pop(handle, None) is None:
            raise _NO_TICKET


class FlightServer:
    """A node's server for Flight SQL, listening at `address`; a context manager stops it at the end."""

    def __init__(
        self, parts: NodeParts, host: str = HOST, port: int = 0, *, slots: Slots | None = None
    ) -> None:
        """Port 0 is any free one. `slots` are processes that are shared with others."""
        self._parts, self._own = parts, slots is None
        self._slots = slots or Slots(Worker(), parts.files)
        self._worker = Worker(engine=Embedded(partitions=2, batch_size=_BATCH_ROWS))
        self._published, self._looking = Published(parts.files), threading.Lock()
        self._sessions, self._lock = dict[bytes, _Session](), threading.Lock()
        grpc = load_grpc()
        self._codes, self._pool = grpc.StatusCode, ThreadPoolExecutor(_THREADS, "odfchain-flight")
        options = [(f"grpc.{name}", value) for name, value in _OPTIONS.items()]
        self._server = grpc.server(self._pool, maximum_concurrent_rpcs=_CALLS, options=options)
        one, many, both = (
            getattr(grpc, f"{kind}_rpc_method_handler")
            for kind in ("unary_unary", "unary_stream", "stream_stream")
        )
        handlers = {
            "Handshake": both(self._guarded(self._handshake)), "DoPut": both(self._guarded(self._put)),
            "GetFlightInfo": one(self._single(self._info)), "GetSchema": one(self._single(self._schema)),
            "DoGet": many(self._guarded(self._get)), "DoAction": many(self._guarded(self._act)),
        }  # fmt: skip
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        name = f"[{host}]" if ":" in host else host
        try:
            self.address = f"grpc://{name}:{self._server.add_insecure_port(f'{name}:{port}')}"
        except RuntimeError:
            self.stop()
            hint = "port 0 takes any free one"
            raise errors.EngineError(f"cannot listen on {name}:{port} for Flight SQL", hint=hint) from None
        self._server.start()

    def wait(self) -> None:
        """Return when the server has been stopped; Ctrl-C gets through."""
        self._server.wait_for_termination()

    def stop(self) -> None:
        """End all calls, and what is answered for them."""
        self._server.stop(None).wait()
        self._pool.shutdown()
        if self._own:
            self._slots.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- calls ------------------------------------------------------------------------------------

    def _guarded(self, answer: _Answer) -> _Answer:
        def call(request: Any, context: Any) -> Iterator[bytes]:
            try:
                yield from answer(request, context)
            except Exception as error:  # noqa: BLE001 - no traceback goes to a client, or to gRPC's log
                code, text = self._fault(error)
                context.abort(self._codes[code], text)

        return call

    def _single(self, answer: _Answer) -> Callable[[Any, Any], bytes]:
        return lambda request, context: next(self._guarded(answer)(request, context))

    def _fault(self, error: Exception) -> tuple[str, str]:
        from google.protobuf.message import DecodeError

        if isinstance(error, _Refused):
            return error.args[0], error.args[1]
        if isinstance(error, DecodeError | UnicodeDecodeError):
            return "INVALID_ARGUMENT", "the message is not one of Flight SQL"
        of_client = isinstance(error, _FAULTS_OF_CLIENTS)
        if not of_client and not isinstance(error, errors.EngineError):
            self._parts.problem(f"Flight SQL: {type(error).__name__}: {one_line(str(error))}")
            return "INTERNAL", "the node could not answer; its operator sees why"
        is_busy = isinstance(error, errors.BusyError)
        hint = getattr(error, "hint", None)
        text = one_line(self._parts.public(f"{error} ({hint})" if hint else str(error)), 1_000)
        return "INVALID_ARGUMENT" if of_client else "UNAVAILABLE" if is_busy else "RESOURCE_EXHAUSTED", text

    # --- sessions ---------------------------------------------------------------------------------

    def _handshake(self, _: Any, context: Any) -> Iterator[bytes]:
        shown = _authorization(context)
        if shown[:6].lower() == "basic ":
            # clients leave out what fills the last group
            if base64.b64decode(shown[6:] + "==") != b"anonymous:":
                raise _Refused("UNAUTHENTICATED", "log in as anonymous without a password, or with a token")
            shown = f"Bearer anon_{secrets.token_urlsafe(32)}"
            with self._lock:
                self._begin(digest_of(shown[7:]), self._parts.reader)
        else:
            self._session(context)
        context.send_initial_metadata((("authorization", shown),))
        yield b""

    def _session(self, context: Any) -> _Session:
        shown, reader, now = _authorization(context), self._parts.reader, time.monotonic()
        bearer = shown[7:].strip() if shown[:7].lower() == "bearer " else ""
        if not (is_anonymous := bearer.startswith("anon_")):
            if (token := holder(shown, reader.tokens.list())) is None:
                raise _Refused("UNAUTHENTICATED", "no token that is in force; anonymous needs no password")
            reader = replace(reader, token=token)
        with self._lock:
            session = self._sessions.pop(key := digest_of(bearer), None)
            if session is None or session.used < now - _SESSION_SECONDS:
                if is_anonymous:
                    raise _Refused("UNAUTHENTICATED", "the session is over: log in again")
                return self._begin(key, reader)
            session.used, session.reader = now, reader
            self._sessions[key] = session  # the one that was used last is last
            return session

    def _begin(self, key: bytes, reader: Reader) -> _Session:
        if len(self._sessions) >= _SESSIONS:
            idle = (old for old, each in self._sessions.items() if not each.running)
            self._sessions.pop(next(idle, b""), None)
        return self._sessions.setdefault(key, _Session(reader))

    def _datasets(self, reader: Reader) -> list[DatasetFiles]:
        with self._looking:
            found = self._published.datasets()
        token = reader.token
        if not reader.restricted:
            return found
        return [each for each in found if token is not None and token.may(Right.QUERY, each.alias)]

    def _pins(self, reader: Reader) -> Pins:
        files: WorkspaceFiles = self._parts.files
        if reader.restricted:  # what may not be asked is not there
            files = replace(files, only=frozenset(each.folder.name for each in self._datasets(reader)))
            if not files.only:
                raise _Refused("PERMISSION_DENIED", "queries need a token here that allows them (query:)")
        return Pins(files)

    # --- queries ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _process(self, pins: Pins, context: Any) -> Iterator[WorkerProcess]:
        context.add_callback(self._slots.wake)
        with self._slots.process(pins, lambda: not context.is_active()) as process:
            if not context.add_callback(process.kill):
                raise _Refused("CANCELLED", "the client has gone")
            yield process

    def _described(self, sql: str, session: _Session, context: Any) -> tuple[pa.Schema, pa.Schema]:
        pins = self._pins(session.reader)
        request = self._worker.request(Query(sql, pins), describe=True)
        with self._process(pins, context) as process:
            return process.describe(request)

    def _rows(self, handle: bytes, session: _Session, context: Any) -> Iterator[bytes]:
        asked = session.tickets.pop(handle, None)
        if asked is None or asked.until < time.monotonic():
            raise _NO_TICKET
        pins = self._pins(session.reader)
        request = self._worker.request(Query(asked.sql, pins, asked.values), pieces=True)
        with self._process(pins, context) as process:
            session.running[handle] = process
            try:
                result = process.answer(request, pins)
                yield from wire.flight_data(result.schema)
                for batch in result.batches():
                    if not session.reader.is_current():
                        raise _Refused("UNAUTHENTICATED", "the token was revoked")
                    # a client that takes nothing holds one of few processes
                    timer = threading.Timer(_STALL_SECONDS, context.cancel)
                    timer.start()
                    try:
                        yield from wire.flight_data(result.schema, batch)
                    finally:
                        timer.cancel()
            except errors.OdfchainError:
                if handle not in session.running:
                    raise _Refused("CANCELLED", "the query was cancelled") from None
                raise
            finally:
                session.running.pop(handle, None)

    @staticmethod
    def _asked(name: str, command: Any, session: _Session) -> _Asked:
        if name == "CommandStatementQuery":
            return _Asked(_numbered(command.query))
        if name != "CommandPreparedStatementQuery":
            raise _Refused("UNIMPLEMENTED", f"{one_line(name, 80)} is not answered: nothing is changed here")
        if (found := session.statements.get(command.prepared_statement_handle)) is None:
            raise _Refused("NOT_FOUND", "the statement is not of this session, or was closed")
        return found

    def _info(self, data: bytes, context: Any) -> Iterator[bytes]:
        session, descriptor = self._session(context), wire.parsed("FlightDescriptor", data)
        name, command = wire.unpacked(descriptor.cmd)
        schema, ticket = wire.columns_of(name, command), descriptor.cmd
        if schema is None:
            ticket = session.ticket(self._asked(name, command, session))
        yield wire.written(
            "FlightInfo", schema=b"" if schema is None else bytes(schema.serialize()),
            flight_descriptor=descriptor, total_records=-1, total_bytes=-1,
            endpoint=[wire.message("FlightEndpoint", ticket=wire.message("Ticket", ticket=ticket))],
        )  # fmt: skip

    def _schema(self, data: bytes, context: Any) -> Iterator[bytes]:
        session, (name, command) = (
            self._session(context),
            wire.unpacked(wire.parsed("FlightDescriptor", data).cmd),
        )
        if (schema := wire.columns_of(name, command)) is None:
            schema, _ = self._described(self._asked(name, command, session).sql, session, context)
        yield wire.written("SchemaResult", schema=bytes(schema.serialize()))

    def _get(self, data: bytes, context: Any) -> Iterator[bytes]:
        session, (name, command) = self._session(context), wire.unpacked(wire.parsed("Ticket", data).ticket)
        if name == "TicketStatementQuery":
            yield from self._rows(command.statement_handle, session, context)
        elif (schema := wire.columns_of(name, command)) is None:
            raise _NO_TICKET
        else:
            rows = self._listed(name, command, schema, session.reader)
            yield from (*wire.flight_data(schema), *wire.flight_data(schema, rows))

    def _put(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        session, sent, size = self._session(context), list[Any](), 0
        for data in requests:
            if (size := size + len(data)) > _MESSAGE_BYTES:
                raise _Refused("INVALID_ARGUMENT", f"values have at most {_MESSAGE_BYTES:,} bytes")
            sent.append(wire.parsed("FlightData", data))
        name, command = wire.unpacked(sent[0].flight_descriptor.cmd if sent else b"")
        statement = self._asked(name, command, session)
        try:
            schema, batches = checked_rows(wire.put_rows(sent), ASKED)
        except errors.EngineError:
            raise _Refused("INVALID_ARGUMENT", "the values are no rows of Arrow") from None
        rows, names = pa.Table.from_batches(batches, schema), statement.names
        if len(rows) != 1 or len(schema) != len(names):
            raise _Refused("INVALID_ARGUMENT", f"the statement takes one row of {len(names)} values")
        by_name = set(schema.names) == set(names)
        values = {name: rows[name if by_name else at][0] for at, name in enumerate(names)}
        session.statements[command.prepared_statement_handle] = replace(statement, values=values)
        yield from ()

    # --- actions ----------------------------------------------------------------------------------

    def _act(self, data: bytes, context: Any) -> Iterator[bytes]:
        session, action = self._session(context), wire.parsed("Action", data)
        is_sql = action.type in ("CreatePreparedStatement", "ClosePreparedStatement", "CancelQuery")
        command: Any = wire.unpacked(action.body)[1] if is_sql else None
        match action.type:
            case "CreatePreparedStatement":
                result = self._prepared(_numbered(command.query), session, context)
            case "ClosePreparedStatement":
                session.statements.pop(command.prepared_statement_handle, None)
                return
            case "CancelFlightInfo":
                session.cancel(_handle(wire.parsed("CancelFlightInfoRequest", action.body).info))
                result = wire.written("CancelFlightInfoResult", status=1)
            case "CancelQuery":
                session.cancel(_handle(wire.parsed("FlightInfo", command.info)))
                result = wire.packed("ActionCancelQueryResult", result=1)
            case "CloseSession":
                with self._lock:
                    self._sessions = {k: each for k, each in self._sessions.items() if each is not session}
                for handle in list(session.running):
                    session.cancel(handle)
                result = wire.written("CloseSessionResult", status=1)
            case other:
                raise _Refused("UNIMPLEMENTED", f"the action {one_line(other, 80)} is not known here")
        yield wire.written("Result", body=result)

    def _prepared(self, sql: str, session: _Session, context: Any) -> bytes:
        if _is_full(session.statements):
            raise _Refused("RESOURCE_EXHAUSTED", f"a session has at most {_HELD} statements: close some")
        columns, values = self._described(sql, session, context)
        handle = secrets.token_bytes(24)
        session.statements[handle] = _Asked(sql, tuple(values.names))
        return wire.packed(
            "ActionCreatePreparedStatementResult", prepared_statement_handle=handle,
            dataset_schema=bytes(columns.serialize()),
            parameter_schema=bytes(values.serialize()) if len(values) else b"",
        )  # fmt: skip

    # --- lists ------------------------------------------------------------------------------------

    def _listed(self, name: str, command: Any, schema: pa.Schema, reader: Reader) -> pa.RecordBatch:
        def fit(part: str, text: str) -> bool:
            there = part in command.DESCRIPTOR.fields_by_name and command.HasField(part)
            return not there or wire.fits(getattr(command, part), text)

        rows: list[tuple[Any, ...]] = []
        is_here = fit("catalog", CATALOG) and fit("db_schema_filter_pattern", SCHEMA)
        match name:
            case "CommandGetSqlInfo":
                facts = {1: __version__, 2: pa.cpp_version} | {
                    int(k): v for k, v in wire.said("facts").items()
                }
                wanted = set(command.info) or facts
                return wire.info_rows({code: fact for code, fact in facts.items() if code in wanted}, schema)
            case "CommandGetCatalogs":
                rows = [(CATALOG,)]
            case "CommandGetTableTypes":
                rows = [("TABLE",)]
            case "CommandGetDbSchemas" if is_here:
                rows = [(CATALOG, SCHEMA)]
            case "CommandGetTables" if is_here and "TABLE" in (command.table_types or ["TABLE"]):
                for each in self._datasets(reader):
                    if fit("table_name_filter_pattern", alias := str(each.alias)):
                        about = [self._columns(each)] if command.include_schema else []
                        rows.append((CATALOG, SCHEMA, alias, "TABLE", *about))
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(values, each.type) for values, each in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _columns(self, dataset: DatasetFiles) -> bytes:
        columns = pa.schema([])
        with contextlib.suppress(errors.OdfchainError):  # a query of it says what is wrong
            opened = DatasetFiles.open(dataset.folder)  # what it caches is this call's alone
            columns = columns_of(DatasetState.read(opened.chain), None)
        return bytes(columns.serialize())


def _is_full(held: dict[bytes, _Asked]) -> bool:
    return len(held) >= _HELD or sum(len(each.sql) for each in list(held.values())) > _HELD_CHARACTERS


def _numbered(sql: str) -> str:
    check_text(sql)  # before anything keeps it
    return numbered_values(sql)


def _authorization(context: Any) -> str:
    return str(dict(context.invocation_metadata()).get("authorization", ""))


def _handle(info: Any) -> bytes:
    name, command = wire.unpacked(info.endpoint[0].ticket.ticket if info.endpoint else b"")
    return bytes(command.statement_handle) if name == "TicketStatementQuery" else b""
