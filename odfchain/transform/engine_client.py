"""An engine in another process, reached by gRPC: the coordinator's side of the protocol.

A call is sent once and never repeated here: an engine is a pure function, so the caller may ask again.
Every failure on the way is one line that names the address. Source: specification "Engine Protocol";
RFC-019.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import (
    CodecError,
    EngineError,
    QueryError,
    RefusedQueryError,
    TransformError,
    UsageError,
)
from odfchain.odf import engine_messages as messages
from odfchain.odf.block_codec import Decoder, Encoder
from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.flatbuffers import load_fbs
from odfchain.odf.sources import Transform
from odfchain.odf.transform_options import OWN_ENGINE, is_own_name, without_marks
from odfchain.text import one_line
from odfchain.transform.engines import Executed, address_of, check_version

if TYPE_CHECKING:
    from odfchain.odf.schema import DataSchema
    from odfchain.progress import Progress
    from odfchain.workspace.config import TransformConfig


# Messages of the engine protocol: FlatBuffers in `bytes flatbuffer = 1`, which on the wire is protobuf's
# `BytesValue`, so there is no generated code. Used by both sides, here and in
# `odfchain.transform.engine_service` (specification "Engine Protocol"; protobuf "Encoding").

DEFAULT_PORT = 2884
"""The engines' port; the specification's text says 5544, but no implementation uses it."""

MESSAGE_BYTES = 64 << 20
"""Largest message either side takes [bytes]; a request grows with the number of files that it names."""

VERSION_KEY = "odf-engine-version"
"""In the metadata that an engine's answer begins with: its version. The protocol itself has no place for it,
and engines of others leave it out."""

REFUSED = "refused: "
"""Prefix of an InvalidQuery's message that asks for something that this engine forbids."""


def load_grpc() -> Any:
    """The module `grpc`, imported now; its own log lines are kept off standard error.

    Raises:
        EngineError: it is not installed.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is raised, in one line
    try:
        import_module("google.protobuf.wrappers_pb2")
        return import_module("grpc")
    except ImportError as error:
        raise EngineError(
            f"engines are called by gRPC, and its library does not load: {error}",
            hint="pip install 'odfchain[engine]' brings it",
        ) from error


# --- the protobuf message ------------------------------------------------------------------------


def wrap(flatbuffer: bytes) -> bytes:
    """The protobuf message that holds a buffer; an empty one is left out, as proto3 says."""
    from google.protobuf.wrappers_pb2 import BytesValue

    return bytes(BytesValue(value=flatbuffer).SerializeToString())


def unwrap(message: bytes) -> bytes:
    """The buffer in a protobuf message, empty when it has none.

    Raises:
        CodecError: these bytes are no such message.
    """
    # unknown fields are skipped, and the last of several values counts, as proto3 demands of readers
    from google.protobuf.message import DecodeError as MalformedError
    from google.protobuf.wrappers_pb2 import BytesValue

    try:
        return bytes(BytesValue.FromString(message).value)
    except MalformedError as error:
        raise CodecError(f"not a protobuf message: {error}") from None


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
        return _with_vocabulary(_decoder().decode(self.request_table, unwrap(message)))

    def pack_response(self, kind: str, **values: Any) -> bytes:
        """A response of a kind (`Progress`, `Success`, `InvalidQuery`, `InternalError`) as a message."""
        return _pack(self.response_table, getattr(messages, self.response_prefix + kind)(**values))

    def unpack_response(self, message: bytes) -> Any:
        """The response in a message."""
        return _decoder().decode(self.response_table, unwrap(message))


SERVICE = "engine.Engine"
EXECUTE_TRANSFORM = Call("ExecuteTransform", "TransformRequest", "TransformResponseRoot", "TransformResponse")
EXECUTE_RAW_QUERY = Call("ExecuteRawQuery", "RawQueryRequest", "RawQueryResponseRoot", "RawQueryResponse")


@lru_cache
def _encoder() -> Encoder:
    return Encoder(load_fbs("odf.fbs"), 4)


@lru_cache
def _decoder() -> Decoder:
    return Decoder(load_fbs("odf.fbs"))


def _pack(table: str, value: Any) -> bytes:
    message = wrap(_encoder().encode(table, value))
    if len(message) > MESSAGE_BYTES:
        raise CodecError(
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
    default = DatasetVocabulary()
    return DatasetVocabulary(
        offset_column=vocab.offset_column or default.offset_column,
        operation_type_column=vocab.operation_type_column or default.operation_type_column,
        system_time_column=vocab.system_time_column or default.system_time_column,
        event_time_column=vocab.event_time_column or default.event_time_column,
    )


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
    result is looked at, and raises where another one is wanted. Each call has a connection of its own, so
    there is nothing to close and calls may come from several threads.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_timeout: float = CONNECT_SECONDS,
        deadline: float | None = None,
        accept: Callable[[str], None] | None = None,
    ) -> None:
        if not _ADDRESS.fullmatch(address):
            raise UsageError(
                f"{address!r} is not the address of an engine",
                hint="it looks like 127.0.0.1:2884 or unix:/run/engine.sock",
            )
        self.address = address
        self._connect_timeout = connect_timeout
        self._deadline = deadline
        self._accept = accept

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
        sent = _absolute(request)
        success, version = self._call(EXECUTE_TRANSFORM, sent, progress)
        interval = success.new_offset_interval
        if interval is not None and not request.next_offset == interval.start <= interval.end:
            raise self._broken(
                f"its records have the offsets {interval.start} to {interval.end}, "
                f"{request.next_offset} was to be the first"
            )
        self._check_file(sent.new_data_path, "data", optional=interval is None)
        self._check_file(sent.new_checkpoint_path, "checkpoint", optional=True)
        return Executed(offset_interval=interval, watermark=success.new_watermark, version=version)

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """Run a query over raw files; without records there may be no file."""
        sent = _absolute(request)
        success, _ = self._call(EXECUTE_RAW_QUERY, sent, progress)
        records: int = success.num_records
        self._check_file(sent.output_data_path, "data", optional=records == 0)
        return records

    # --- the call --------------------------------------------------------------------------------

    def _call(self, call: Call, request: Any, progress: Progress) -> tuple[Any, str | None]:
        """(the result, the version of what made it)."""
        grpc = load_grpc()
        message = call.pack_request(request)
        with self._connected(grpc) as channel:
            progress.phase(f"waiting for the engine at {self.address}")
            stream = channel.unary_stream(call.path)(message, timeout=self._deadline)
            try:
                version = self._version_in(stream.initial_metadata() or ())
                for received in stream:
                    response = self._read(call, received)
                    if response.KIND != "Progress":
                        return self._result(response), version
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
                raise EngineError(
                    f"no engine answers at {self.address} (waited {self._connect_timeout:g} s)",
                    hint="start it there with `odfchain engine serve`, or check the address",
                ) from None
            yield channel
        finally:
            ready.cancel()
            channel.close()

    def _version_in(self, metadata: Any) -> str | None:
        # the version will be recorded, and asked for at the next step
        said = next((value for key, value in metadata if key == VERSION_KEY), None)
        if said is None or self._accept is None:
            return None
        if not _VERSION.fullmatch(said) or without_marks(said) != said:
            raise self._broken(f"the version that it says, {one_line(said)!r}, cannot be one")
        self._accept(said)
        return str(said)

    def _read(self, call: Call, received: bytes) -> Any:
        try:
            return call.unpack_response(received)
        except CodecError as error:
            raise self._broken(f"its response cannot be read: {error}") from error

    def _result(self, response: Any) -> Any:
        if response.KIND == "Success":
            return response
        said = one_line(response.message, _TEXT_CHARACTERS)
        if response.KIND == "InvalidQuery":
            if said.startswith(REFUSED):
                raise RefusedQueryError(said.removeprefix(REFUSED))
            raise QueryError(said)
        failure = EngineError(f"the engine at {self.address} failed: {said}")
        if response.backtrace:
            failure.add_note(response.backtrace)
        raise failure

    def _failed(self, grpc: Any, error: Any) -> EngineError:
        code, details = error.code(), one_line(error.details() or "", _TEXT_CHARACTERS)
        where = f"the engine at {self.address}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return EngineError(
                f"{where} did not finish within {self._deadline:g} s", hint="allow more time and try again"
            )
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return EngineError(
                f"{where} went away in the middle of a call: {details}",
                hint="start it again and repeat the command; nothing was committed",
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return EngineError(f"what listens at {self.address} is not an engine: {details}")
        return EngineError(f"{where} broke off the call: {code.name}: {details}")

    # --- the contract ----------------------------------------------------------------------------

    def _broken(self, what: str) -> EngineError:
        return EngineError(f"the engine at {self.address} breaks the engine contract: {what}")

    def _check_file(self, path: str, name: str, *, optional: bool = False) -> None:
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


def remote_engine(transform: Transform, config: TransformConfig) -> RemoteEngine | None:
    """The engine at the address that the settings give for a transform; None where this one is meant.

    Raises:
        TransformError: the transform is for another engine, and no address is known.
    """
    address = address_of(transform, config)
    if address is not None:

        def accept(version: str) -> None:
            check_version(transform, config, version, f"the engine at {address}")

        return RemoteEngine(address, deadline=config.timeout_seconds or None, accept=accept)
    if not is_own_name(transform.engine):
        name = transform.engine.lower()
        raise TransformError(
            f"the transform is for the engine `{transform.engine}`, which is not this one",
            hint=f"give its address in the settings: transform.engines.{name}, "
            f"or write the query for {OWN_ENGINE}",
        )
    return None


_PATHS = ("prev_checkpoint_path", "new_checkpoint_path", "new_data_path", "output_data_path")


def _absolute(request: Any) -> Any:
    # the engine has another working folder
    changes: dict[str, Any] = {
        name: _full(path) for name in _PATHS if (path := getattr(request, name, None)) is not None
    }
    if hasattr(request, "query_inputs"):
        changes["query_inputs"] = tuple(
            replace(item, data_paths=tuple(map(_full, item.data_paths)), schema_file=_full(item.schema_file))
            for item in request.query_inputs
        )
    else:
        changes["input_data_paths"] = tuple(map(_full, request.input_data_paths))
    return replace(request, **changes)


def _full(path: str) -> str:
    return str(Path(path).absolute()) if path else path
