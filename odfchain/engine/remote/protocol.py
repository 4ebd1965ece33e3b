"""How the messages of the engine protocol travel: FlatBuffers in a one-field protobuf message, by gRPC.

Every protobuf message of the service is `bytes flatbuffer = 1` and nothing else. On the wire that is
protobuf's own `BytesValue`, so there is no generated code. Both sides of the protocol,
`odfchain.engine.remote.service` and `odfchain.engine.remote.client`, share this module. Source:
specification "Engine Protocol"; protobuf "Encoding".
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

from odfchain.codec.decoder import Decoder
from odfchain.codec.encoder import Encoder
from odfchain.codec.fbs import load_fbs
from odfchain.errors import CodecError, DecodeError, EngineError
from odfchain.model import engine_messages as messages
from odfchain.model.engine_messages import RawQueryRequest, TransformRequest
from odfchain.model.events import DatasetVocabulary

DEFAULT_PORT = 2884
"""What engines listen on; the specification's text says 5544, no implementation does."""

MESSAGE_BYTES = 64 << 20
"""Largest message either side takes [bytes]; a request grows with the number of files that it names."""

VERSION_KEY = "odf-engine-version"
"""In the metadata that an engine's answer begins with: its version. The protocol itself has no place for it,
and engines of others leave it out."""

REFUSED = "refused: "
"""How the message of an InvalidQuery begins that asks for what this engine does not allow."""


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

    Other fields are skipped and of several values the last one counts, as proto3 asks of readers.

    Raises:
        DecodeError: these bytes are no such message.
    """
    from google.protobuf.message import DecodeError as MalformedError
    from google.protobuf.wrappers_pb2 import BytesValue

    try:
        return bytes(BytesValue.FromString(message).value)
    except MalformedError as error:
        raise DecodeError(f"not a protobuf message: {error}") from None


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
    """Coordinators may leave the names of system columns blank, which means the default ones."""
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
