"""An engine in another process, reached by gRPC: both sides of the protocol.

The coordinator sends a call once and never repeats it here: an engine is a pure function, so the caller may
ask again. Every failure on the way is one line that names the address.

The engine streams `Progress` while it runs and ends a call with one of `Success`, `InvalidQuery` and
`InternalError`. What it writes gets the names that the request asks for only when the run is over, went well
and is still wanted: a coordinator that went away or gave up finds nothing there later, and can send the same
request again, here or to another engine. The protocol has no authentication: a client that can connect can
make the engine read and write files. Hence a loopback address or a socket that only its owner may use.
Source: specification "Engine Protocol", "Engine Contract"; RFC-019.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import re
import socket as sockets
import stat
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from odfchain import errors
from odfchain.odf import engine_messages as messages
from odfchain.odf.block_codec import Encoder, decoder
from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.flatbuffers import load_fbs
from odfchain.odf.sources import Transform
from odfchain.odf.transform_options import REBUILD_MARK, split_version
from odfchain.spark.query_refusals import QueryStep
from odfchain.storage import fsio
from odfchain.text import excerpt, one_line
from odfchain.transform.engines import Executed, TransformEngine, check_version, required_place

if TYPE_CHECKING:
    from odfchain.odf.schema import DataSchema
    from odfchain.progress import Progress
    from odfchain.workspace.config import TransformConfig


# Messages of the engine protocol: FlatBuffers in `bytes flatbuffer = 1`, which on the wire is protobuf's
# `BytesValue`, so there is no generated code (specification "Engine Protocol"; protobuf "Encoding").

DEFAULT_PORT = 2884
"""The engines' port; the specification's text says 5544, but no implementation uses it."""

MESSAGE_BYTES = 64 << 20
"""Largest message either side takes [bytes]; a request grows with the number of files that it names."""

VERSION_KEY = "odf-engine-version"
"""In the metadata that an engine's answer begins with: its version. The protocol itself has no place for it,
and engines of others leave it out."""

NOTES_KEY = "odfchain-notes-bin"
"""In the metadata that an engine's answer ends with: notes for the user, as a list in JSON."""
NOTES, NOTE_CHARACTERS = 10, 300
"""Notes of one call [count], and the length of each [characters]: metadata has 8 KiB."""

REFUSED = "refused: "
"""Prefix of an InvalidQuery's message that asks for something that this engine forbids."""


def load_grpc() -> Any:
    """The module `grpc`, imported now; its own log lines are kept off standard error."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is raised, in one line
    return import_module("grpc")


# --- the protobuf message ------------------------------------------------------------------------


def wrap(flatbuffer: bytes) -> bytes:
    """The protobuf message that holds a buffer; an empty one is left out, as proto3 says."""
    from google.protobuf.wrappers_pb2 import BytesValue

    return bytes(BytesValue(value=flatbuffer).SerializeToString())


def unwrap(message: bytes) -> bytes:
    """The buffer in a protobuf message, empty when it has none."""
    # unknown fields are skipped, and the last of several values counts, as proto3 demands of readers
    from google.protobuf.message import DecodeError as MalformedError
    from google.protobuf.wrappers_pb2 import BytesValue

    try:
        return bytes(BytesValue.FromString(message).value)
    except MalformedError as error:
        raise errors.CodecError(f"not a protobuf message: {error}") from None


# --- calls ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One of the two calls of the service: its name, and the tables that requests and responses are."""

    method: str
    request_table: str
    response_table: str
    response_prefix: str

    @property
    def path(self) -> str:
        """The method as gRPC addresses it."""
        return f"/{SERVICE}/{self.method}"

    def pack_request(self, request: TransformRequest | RawQueryRequest) -> bytes:
        """A request as a message; blank names of columns are written out, as older engines need it."""
        return _pack(self.request_table, _with_vocabulary(request))

    def unpack_request(self, message: bytes) -> Any:
        """The request in a message; blank names of columns are the default ones."""
        return _with_vocabulary(decoder().decode(self.request_table, unwrap(message)))

    def pack_response(self, kind: str, **values: Any) -> bytes:
        """A response of a kind (`Progress`, `Success`, `InvalidQuery`, `InternalError`) as a message."""
        return _pack(self.response_table, getattr(messages, self.response_prefix + kind)(**values))

    def unpack_response(self, message: bytes) -> Any:
        """The response in a message."""
        return decoder().decode(self.response_table, unwrap(message))


SERVICE = "engine.Engine"
EXECUTE_TRANSFORM = Call("ExecuteTransform", "TransformRequest", "TransformResponseRoot", "TransformResponse")
EXECUTE_RAW_QUERY = Call("ExecuteRawQuery", "RawQueryRequest", "RawQueryResponseRoot", "RawQueryResponse")


@lru_cache
def _encoder() -> Encoder:
    return Encoder(load_fbs("odf.fbs"), 4)


def _pack(table: str, value: Any) -> bytes:
    message = wrap(_encoder().encode(table, value))
    if len(message) > MESSAGE_BYTES:
        raise errors.CodecError(
            f"{table}: {len(message):,} bytes are more than a message may have, {MESSAGE_BYTES:,}"
        )
    return message


def _with_vocabulary(request: TransformRequest | RawQueryRequest) -> TransformRequest | RawQueryRequest:
    # coordinators may leave the names of system columns blank: the defaults
    if isinstance(request, RawQueryRequest):
        return request
    inputs = tuple(replace(item, vocab=_filled(item.vocab)) for item in request.query_inputs)
    return replace(request, vocab=_filled(request.vocab), query_inputs=inputs)


def _filled(vocab: DatasetVocabulary) -> DatasetVocabulary:
    return DatasetVocabulary(**{name: column for name, column in asdict(vocab).items() if column})


CONNECT_SECONDS = 30.0
_ADDRESS = re.compile(r"unix:.+|(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):[0-9]{1,5}")
_TEXT_CHARACTERS = 2_000
_VERSION = re.compile(r"[!-~]{1,256}")
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),  # an engine sees our files, so it is not behind a proxy
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),  # an engine that is being started is soon there
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class RemoteEngine:
    """The engine at `address` (`host:port` or `unix:path`), which sees the same file system.

    `connect_timeout` is how long it may take to come up, `deadline` how long one call may take after that
    (None: for ever), both in seconds. `accept` is given the version that the engine says it has, before its
    result is looked at, and raises where another one is wanted. `where` is what messages say instead of the
    address, `shown` the paths that the engine knows files by. Each call has a connection of its own, so there
    is nothing to close and calls may come from several threads.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_timeout: float = CONNECT_SECONDS,
        deadline: float | None = None,
        accept: Callable[[str], None] | None = None,
        where: str | None = None,
        shown: Callable[[str], str] | None = None,
        notes: bool = False,
    ) -> None:
        if not _ADDRESS.fullmatch(address):
            hint = "it looks like 127.0.0.1:2884 or unix:/run/engine.sock"
            raise errors.UsageError(f"{address!r} is not the address of an engine", hint=hint)
        self.address = address
        self._connect_timeout = connect_timeout
        self._deadline = deadline
        self._accept = accept
        self._where = where or f"at {address}"
        self._shown = shown or _absolute
        self._notes = notes  # an engine of ours: its calls end as they should

    @classmethod
    def of(cls, transform: Transform, config: TransformConfig) -> RemoteEngine | None:
        """The engine at the address that the settings give for a transform; None where this one is meant."""
        place = required_place(transform, config)
        if place is None or place.address is None:
            return None
        address = place.address

        def accept(version: str) -> None:
            check_version(transform, config, version, f"the engine at {address}")

        return cls(address, deadline=config.timeout_seconds or None, accept=accept)

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        """Execute the next step of a transformation; the files are there, and plain, when this returns.

        Without rows there may be none: some engines write nothing then. `schema` does not travel: the
        protocol has no place for it. Ctrl-C cancels the call at once.

        Raises:
            QueryError: the query is at fault.
            EngineError: the engine is, or cannot be reached, or did not do what the contract asks for.
        """
        del schema
        success, version = self._call(request, progress)
        interval = success.new_offset_interval
        if interval is not None and not request.next_offset == interval.start <= interval.end:
            raise self._broken(
                f"its records have the offsets {interval.start} to {interval.end}, "
                f"{request.next_offset} was to be the first"
            )
        self.check_file(request.new_data_path, optional=interval is None)
        self.check_file(request.new_checkpoint_path, "checkpoint", optional=True)
        return Executed(offset_interval=interval, watermark=success.new_watermark, version=version)

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """Run a query over raw files; the number of records. Else as `execute`."""
        count: int = self._call(request, progress)[0].num_records
        self.check_file(request.output_data_path, optional=not count)
        return count

    # --- the call --------------------------------------------------------------------------------

    def _call(self, request: Any, progress: Progress) -> tuple[Any, str | None]:
        """(the result, the version of what made it)."""
        grpc, is_raw = load_grpc(), isinstance(request, RawQueryRequest)
        call = EXECUTE_RAW_QUERY if is_raw else EXECUTE_TRANSFORM
        message = call.pack_request(with_paths(request, self._shown))
        with self._connected(grpc) as channel:
            progress.phase(f"waiting for the engine {self._where}")
            stream = channel.unary_stream(call.path)(message, timeout=self._deadline)
            try:
                version = self._version_in(stream.initial_metadata() or ())
                for received in stream:
                    try:
                        response = call.unpack_response(received)
                    except errors.CodecError as error:
                        raise self._broken(f"its response cannot be read: {error}") from error
                    if response.KIND != "Progress":
                        result = self._result(response, request.transform)
                        for note in self._notes_of(stream) if self._notes else ():
                            progress.note(note)
                        return result, version
                    progress.advance()
            except grpc.RpcError as error:
                raise self._failed(grpc, error) from error
            finally:
                stream.cancel()  # also on Ctrl-C; nothing happens when it is over
        raise self._broken("it ended the call without a result")

    @contextmanager
    def _connected(self, grpc: Any) -> Iterator[Any]:
        channel = grpc.insecure_channel(self.address, options=_OPTIONS)
        ready = grpc.channel_ready_future(channel)
        try:
            try:
                ready.result(timeout=self._connect_timeout)
            except grpc.FutureTimeoutError:
                message = f"no engine answers {self._where} (waited {self._connect_timeout:g} s)"
                hint = "start it there with `odfchain engine serve`, or check the address"
                raise errors.EngineError(message, hint=hint) from None
            yield channel
        finally:
            ready.cancel()
            channel.close()

    def _version_in(self, metadata: Any) -> str | None:
        # the version will be recorded, and asked for at the next step
        said = next((value for key, value in metadata if key == VERSION_KEY), None)
        if said is None or self._accept is None:
            return None
        if not _VERSION.fullmatch(said) or said.endswith(REBUILD_MARK) or split_version(said)[1]:
            raise self._broken(f"the version that it says, {one_line(said)!r}, cannot be one")
        self._accept(said)
        return str(said)

    def _notes_of(self, stream: Any) -> list[str]:
        for _ in stream:  # metadata comes at the end
            raise self._broken("it went on after its result")
        said = dict(stream.trailing_metadata() or ()).get(NOTES_KEY, b"[]")
        try:
            return [one_line(str(note), NOTE_CHARACTERS) for note in json.loads(said)[:NOTES]]
        except (ValueError, TypeError, RecursionError):
            raise self._broken("its notes cannot be read") from None

    def _result(self, response: Any, transform: Transform) -> Any:
        if response.KIND == "Success":
            return response
        said = one_line(response.message, _TEXT_CHARACTERS)
        if response.KIND == "InvalidQuery":
            refused, what = said.startswith(REFUSED), said.removeprefix(REFUSED)
            raise errors.QueryError(what, excerpt=_excerpt(what, transform), refused=refused)
        failure = errors.EngineError(f"the engine {self._where} failed: {said}")
        if response.backtrace:
            failure.add_note(response.backtrace)
        raise failure

    def _failed(self, grpc: Any, error: Any) -> errors.EngineError:
        code, details = error.code(), one_line(error.details() or "", _TEXT_CHARACTERS)
        where = f"the engine {self._where}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            hint = "allow more time and try again"
            return errors.EngineError(f"{where} did not finish within {self._deadline:g} s", hint=hint)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            hint = "start it again and repeat the command; nothing was committed"
            return errors.EngineError(f"{where} went away in the middle of a call: {details}", hint=hint)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return errors.EngineError(f"what listens {self._where} is not an engine: {details}")
        return errors.EngineError(f"{where} broke off the call: {code.name}: {details}")

    # --- the contract ----------------------------------------------------------------------------

    def _broken(self, what: str) -> errors.EngineError:
        return errors.EngineError(f"the engine {self._where} breaks the engine contract: {what}")

    def check_file(self, path: str, name: str = "data", *, optional: bool = False) -> None:
        """A file that a request asked for is there, and plain; raises as `execute`."""
        # a symbolic link, a folder or a device could change its content later
        try:
            mode = Path(path).lstat().st_mode
        except FileNotFoundError:
            if optional:
                return
            raise self._broken(f"it succeeded, but wrote no {name} file at {path}") from None
        except OSError as error:
            raise self._broken(f"its {name} file {path} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(mode):
            raise self._broken(f"its {name} file {path} is not a plain file")


def _excerpt(said: str, transform: Transform) -> tuple[str, ...]:
    # the protocol has no place for it: it is found again by the step and the place that the message names
    place = re.match(r"(.+?), line (\d+), column (\d+): ", said)
    steps = {step.label: step.sql for step in QueryStep.all_of(transform)}
    return excerpt(steps.get(place[1]), int(place[2]), int(place[3])) if place else ()


def with_paths(
    request: TransformRequest | RawQueryRequest, shown: Callable[[str], str]
) -> TransformRequest | RawQueryRequest:
    """The request with the paths that the engine knows its files by."""
    if isinstance(request, RawQueryRequest):
        paths = tuple(map(shown, request.input_data_paths))
        return replace(request, input_data_paths=paths, output_data_path=shown(request.output_data_path))
    before = request.prev_checkpoint_path
    return replace(
        request,
        query_inputs=tuple(
            replace(item, data_paths=tuple(map(shown, item.data_paths)), schema_file=shown(item.schema_file))
            for item in request.query_inputs
        ),
        prev_checkpoint_path=None if before is None else shown(before),
        new_checkpoint_path=shown(request.new_checkpoint_path),
        new_data_path=shown(request.new_data_path),
    )


def _absolute(path: str) -> str:
    # the engine has another working folder
    return str(Path(path).absolute()) if path else path


_SENT_CHARACTERS = 1 << 16
_OUTPUTS = ("new_checkpoint_path", "new_data_path", "output_data_path")


class _Run:
    """One request being executed, and its progress; outputs get their names if it succeeded and is wanted."""

    def __init__(self, call: Call, request: TransformRequest | RawQueryRequest) -> None:
        self.call = call
        self.answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """The terminal message, or None when the client has gone."""
        self.notes: list[str] = []
        self._outputs: list[tuple[Path, Path]] = []
        """(where the engine writes, the name that was asked for), in the order of publication."""
        self._lock = threading.Lock()
        self._given_up = self._settled = False
        changes: dict[str, Any] = {}
        for name in _OUTPUTS:
            path = getattr(request, name, None)
            if path is None:
                continue
            if not Path(path).is_absolute() or "\0" in path:
                raise errors.EngineError(f"{name} is {path!r}: the paths in a request must be absolute")
            changes[name] = f"{path}.{uuid.uuid4().hex}"
            self._outputs.append((Path(changes[name]), Path(path)))
        self.request: Any = replace(request, **changes)

    def give_up(self) -> bool:
        """The client has gone; returns true if there was something left to cancel."""
        with self._lock:
            if not self._settled:
                self._given_up = True
            self.answers.put(None)
            return self._given_up

    def answer(self, engine: TransformEngine) -> bytes:
        """The terminal message; never raises."""
        try:
            self._check()
            if self.call is EXECUTE_RAW_QUERY:
                num_records = engine.query(self.request, progress=self)
                message = self.call.pack_response("Success", num_records=num_records)
            else:
                done = engine.execute(self.request, schema=None, progress=self)
                message = self.call.pack_response(
                    "Success", new_offset_interval=done.offset_interval, new_watermark=done.watermark
                )
            # the slow part of publication, while it can still be cancelled
            for written, _ in self._outputs:
                if written.exists():
                    fsio.sync_file(written)
            with self._lock:
                self._check()
                self._settled = True
            self._publish()
        except BaseException as error:  # noqa: BLE001 - every error is sent to the caller
            with self._lock:
                self._settled = True  # too late to cancel
            if not isinstance(error, errors.QueryError):
                return _internal_error(self.call, error)
            refused = REFUSED if error.refused else ""
            return self.call.pack_response("InvalidQuery", message=_text(refused + _with_hint(error)))
        finally:
            for written, _ in self._outputs:
                fsio.remove_quietly(written)
        return message

    def _publish(self) -> None:
        # all files get the names that were asked for, or none does
        try:
            for written, wanted in self._outputs:
                fsio.remove_quietly(wanted)  # of an earlier try
                if written.exists() and not fsio.adopt_file(written, wanted):
                    raise errors.EngineError(f"{wanted} already exists and cannot be replaced")  # noqa: TRY301
        except BaseException:
            for _, wanted in self._outputs:
                fsio.remove_quietly(wanted)
            raise

    def _check(self) -> None:
        if self._given_up:
            raise errors.EngineError("the call was cancelled")

    # of what the engine reports notes are passed on: the protocol's `Progress` is empty

    def phase(self, name: str, total: int | None = None) -> None:  # noqa: ARG002
        self._check()

    def advance(self, steps: int = 1) -> None:  # noqa: ARG002
        self._check()

    def note(self, text: str) -> None:
        self._check()
        self.notes.append(text)


# --- messages ------------------------------------------------------------------------------------


def _internal_error(call: Call, error: BaseException) -> bytes:
    if isinstance(error, errors.OdfchainError):
        message = _with_hint(error)
    else:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    backtrace = _text(trace[-_SENT_CHARACTERS:])
    return call.pack_response("InternalError", message=_text(message), backtrace=backtrace)


def _with_hint(error: errors.OdfchainError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _text(text: str) -> str:
    # cut to what fits into a message
    return text[:_SENT_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


PROGRESS_SECONDS = 3.0
STOP_SECONDS = 5.0
"""Time for a run to end when the server stops; coordinators wait as long for a container."""

_WAITING_CALLS = 32
"""Calls that may wait for a worker; more are refused."""
_SOCKET_PATH_BYTES = 107


class EngineServer:
    """An engine, listening; as a context manager it is stopped at the end."""

    address: str
    """The address for clients: `host:port` or `unix:path`."""

    def __init__(
        self,
        engine: TransformEngine,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        socket: Path | None = None,
        workers: int = 4,
        progress_interval: float = PROGRESS_SECONDS,
    ) -> None:
        """Listen on a Unix socket if one is named, else on a TCP port (0 is any free one).

        `workers` requests are executed at a time, others wait. `progress_interval` is in seconds. An engine's
        `version`, visible ASCII without blanks, is sent. One with a method `cancel(request)` is called when
        the client of a request has gone (which can be before it has seen the request); any other notices at
        the next thing that it reports, where an `EngineError` is raised.
        """
        grpc = load_grpc()
        calls = workers + _WAITING_CALLS
        self._engine, self._interval = engine, progress_interval
        self._free = threading.Semaphore(workers)
        self._threads: set[threading.Thread] = set()
        version = getattr(engine, "version", None)
        self._metadata = () if version is None else ((VERSION_KEY, version),)
        self._pool = ThreadPoolExecutor(calls, thread_name_prefix="odfchain-call")
        self._server = grpc.server(
            self._pool,
            maximum_concurrent_rpcs=calls,
            options=(
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.max_send_message_length", MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),  # a port that is taken is an error
            ),
        )
        handlers = {
            call.method: grpc.unary_stream_rpc_method_handler(functools.partial(self.respond, call))
            for call in (EXECUTE_TRANSFORM, EXECUTE_RAW_QUERY)
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((handler,))
        try:
            self.address = (
                _bind_socket(self._server, socket) if socket else _bind_port(self._server, host, port)
            )
            self._server.start()
        except BaseException:
            self._server.stop(None)
            self._pool.shutdown()
            raise

    def wait(self) -> None:
        """Return when the server has been stopped; Ctrl-C gets through."""
        self._server.wait_for_termination()

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """Refuse further calls and cancel those that run; their runs have `grace` seconds to end."""
        deadline = time.monotonic() + grace
        self._server.stop(None).wait()
        self._pool.shutdown()
        for thread in tuple(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def respond(self, call: Call, message: bytes, context: Any) -> Iterator[bytes]:
        """The answer to a call, and until then that the engine is at work."""
        context.send_initial_metadata(self._metadata)  # before the work: the version may not be wanted
        try:
            run = _Run(call, call.unpack_request(message))
        except errors.OdfchainError as error:
            yield _internal_error(call, error)
            return
        if not context.add_callback(run.give_up):
            return
        # the engine runs on a thread of its own, so that the call can say that it does
        thread = threading.Thread(target=self._execute, args=(run,), name="odfchain-run", daemon=True)
        self._threads.add(thread)
        thread.start()
        try:
            while True:
                try:
                    answer = run.answers.get(timeout=self._interval)
                except queue.Empty:
                    yield call.pack_response("Progress")
                    continue
                if answer is not None:
                    notes = [_text(note)[:NOTE_CHARACTERS] for note in run.notes[:NOTES]]
                    context.set_trailing_metadata(
                        ((NOTES_KEY, json.dumps(notes, ensure_ascii=False).encode()),)
                    )
                    yield answer
                return
        finally:  # also when gRPC drops this generator because the client has gone
            cancel = getattr(self._engine, "cancel", None)
            if run.give_up() and cancel is not None:
                with contextlib.suppress(Exception):  # what it stops may have ended by itself
                    cancel(run.request)

    def _execute(self, run: _Run) -> None:
        with self._free:
            run.answers.put(run.answer(self._engine))
        self._threads.discard(threading.current_thread())


# --- addresses -----------------------------------------------------------------------------------


def _bind_port(server: Any, host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{name}:{port}")
    except RuntimeError as error:
        message = f"cannot listen on {name}:{port}: the port is taken or the address is not this machine's"
        raise errors.EngineError(message, hint="port 0 takes any free one") from error
    return f"{name}:{bound}"


def _bind_socket(server: Any, path: Path) -> str:
    path = path.absolute()
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise errors.EngineError(f"{path}: the path of a socket may have {_SOCKET_PATH_BYTES} bytes")
    _remove_dead_socket(path)
    mask = os.umask(0o177)  # the protocol has no authentication: only the owner may connect
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        hint = "is its folder there and writable?"
        raise errors.EngineError(f"cannot listen on {path}", hint=hint) from error
    finally:
        os.umask(mask)
    return f"unix:{path}"


def _remove_dead_socket(path: Path) -> None:
    # an engine that was killed leaves its socket behind
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise errors.EngineError(f"cannot listen on {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise errors.EngineError(f"{path} already exists and is not a socket")
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            fsio.remove_quietly(path)
            return
        except OSError as error:
            raise errors.EngineError(f"cannot listen on {path}: {error.strerror}") from error
    raise errors.EngineError(f"an engine listens on {path} already", hint="stop it, or use another path")
