"""Messages and lists of Arrow Flight SQL, made of what `flight_sql.json` says; no package has their classes.

Fields of messages are numbered in order unless a number is named; `*` is repeated, and enumerations are
integers, as on the wire. Columns are texts unless a type is named, and `!` is never null. Facts are by the
codes of `SqlInfo`. Source: `Flight.proto` and `FlightSql.proto` of Apache Arrow.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from odfchain.lazy import pa
from odfchain.limits import LIMITS
from odfchain.query.row_streams import stream_of

_TYPE = "type.googleapis.com/arrow.flight.protocol.sql."


@functools.cache
def said(part: str) -> dict[str, Any]:
    """What is written down: `messages`, `tables` or `facts`."""
    text = Path(__file__).with_name("flight_sql.json").read_text("utf-8")
    return dict(json.loads(text)[part])


@functools.cache
def _classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    # an edition, where a text that is absent is another than an empty one, and none is without UTF-8
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="odfchain.flight")
    file.syntax, file.edition = "editions", descriptor_pb2.EDITION_2023
    kinds, pool = descriptor_pb2.FieldDescriptorProto, descriptor_pool.DescriptorPool()
    for name, fields in said("messages").items():
        made = file.message_type.add(name=name)
        for number, text in enumerate(fields.split(), 1):
            of, kind, star, own = re.fullmatch(r"(\w+):(\w+)(\*?)=?(\d*)", text).groups()  # type: ignore[union-attr]
            label = kinds.LABEL_REPEATED if star else kinds.LABEL_OPTIONAL
            field = made.field.add(name=of, number=int(own or number), label=label)
            if kind in said("messages"):
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".odfchain.flight.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"odfchain.flight.{each.name}") for each in file.message_type)
    return {each.name: message_factory.GetMessageClass(each) for each in found}


def message(kind: str, **values: Any) -> Any:
    """A message with these values."""
    return _classes()[kind](**values)


def parsed(kind: str, data: bytes) -> Any:
    """The message of a kind in bytes of a client."""
    return _classes()[kind].FromString(data)


def written(kind: str, **values: Any) -> bytes:
    """A message as it is sent."""
    return bytes(message(kind, **values).SerializeToString())


def packed(kind: str, **values: Any) -> bytes:
    """A message of Flight SQL within `Any`."""
    return written("Any", type_url=_TYPE + kind, value=written(kind, **values))


def unpacked(data: bytes) -> tuple[str, Any]:
    """The name and the message within `Any`; an empty one where the name is not known."""
    found = parsed("Any", data)
    name = found.type_url.removeprefix(_TYPE)
    return name, parsed(name if name in _classes() else "Any", found.value if name in _classes() else b"")


def flight_data(schema: pa.Schema, batch: pa.RecordBatch | None = None) -> list[bytes]:
    """A batch as it is sent, with its dictionaries; without one the schema."""
    stream = stream_of(schema, [] if batch is None else [batch])
    messages = list(pa.ipc.MessageReader.open_stream(stream))
    return [
        written("FlightData", data_header=bytes(each.metadata), data_body=bytes(each.body or b""))
        for each in (messages[:1] if batch is None else messages[1:])
    ]


def put_rows(sent: Iterable[Any]) -> bytes:
    """What came in `FlightData`, as a stream of Arrow."""
    framed = bytearray()
    for each in sent:
        header = each.data_header + bytes(-len(each.data_header) % 8)
        framed += b"\xff" * 4 + len(header).to_bytes(4, "little") + header + each.data_body
    return bytes(framed)


# --- what is listed ---------------------------------------------------------------------------------------


def _kinds_of_facts() -> dict[str, pa.DataType]:
    return {
        "string_value": pa.string(), "bool_value": pa.bool_(), "bigint_value": pa.int64(),
        "int32_bitmask": pa.int32(), "string_list": pa.list_(pa.string()),
        "int32_to_int32_list_map": pa.map_(pa.int32(), pa.list_(pa.int32())),
    }  # fmt: skip


def columns_of(name: str, command: Any) -> pa.Schema | None:
    """The columns of a list; None where the command is for none."""
    if name == "CommandGetSqlInfo":
        values = pa.dense_union([pa.field(name, kind) for name, kind in _kinds_of_facts().items()])
        return pa.schema([pa.field("info_name", pa.uint32(), nullable=False), ("value", values)])
    if name not in said("tables"):
        return None
    fields = []
    for text in said("tables")[name].split() + ["table_schema:binary!"] * getattr(
        command, "include_schema", 0
    ):
        of, _, kind = text.removesuffix("!").partition(":")
        made = pa.list_(pa.string()) if kind == "list" else pa.type_for_alias(kind or "string")
        fields.append(pa.field(of, made, nullable=not text.endswith("!")))
    return pa.schema(fields)


def info_rows(facts: Mapping[int, str | bool | int], schema: pa.Schema) -> pa.RecordBatch:
    """The answer to `CommandGetSqlInfo`: a text, a truth or a number for each code."""
    kinds = _kinds_of_facts()
    codes = [(str, bool, type(None), int).index(type(value)) for value in facts.values()]
    held = [[v for v, code in zip(facts.values(), codes, strict=True) if code == kind] for kind in range(6)]
    places = [codes[:at].count(code) for at, code in enumerate(codes)]
    union = pa.UnionArray.from_dense(
        pa.array(codes, pa.int8()), pa.array(places, pa.int32()),
        [pa.array(values, kind) for values, kind in zip(held, kinds.values(), strict=True)], list(kinds),
    )  # fmt: skip
    return pa.RecordBatch.from_arrays([pa.array(list(facts), pa.uint32()), union], schema=schema)


def fits(pattern: str, text: str) -> bool:
    """True if a text is like a pattern, in which `%` is any text and `_` any character."""
    if len(pattern) > 4 * LIMITS.name_bytes:
        return False
    glob = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return fnmatch.fnmatchcase(text, "".join(glob.get(each, each) for each in pattern))
