"""JSON values as they were written, strictly: one text or one value to what a column takes. Runs on a worker.

Numbers keep their digits, since they may end up in a text or decimal column. What JSON leaves open, and what
readers settle in different ways, is refused: a key twice in one object, half of a surrogate pair, NaN, a
second value. A breach of any rule or bound is a `RecordError`. Sources: RFC 8259, RFC 7493 (I-JSON), RFC-010.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain
from json.encoder import encode_basestring
from typing import Any, BinaryIO, TypeAlias

from odfchain.lazy import pa
from odfchain.limits import INPUT
from odfchain.odf import schema as ds
from odfchain.spark.types import carried_type
from odfchain.text import cut

quoted = encode_basestring
"""A text as a JSON string."""


class Number(str):
    """A number with the digits that it was written with."""

    __slots__ = ()


Value: TypeAlias = Any
"""None, a boolean, a text, a `Number`, a list of values, or a dictionary of them."""

Record: TypeAlias = dict[str, Value]
"""The members of one JSON object."""

_BLANK = " \t\r\n"
_SHOWN = 40


class RecordError(Exception):
    """A record or its document is not as declared; `row` counts from 1, None if unknown, 0 without one."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.row = row


def shown(text: str, most: int = _SHOWN) -> str:
    """The beginning of a text from a file, for a message."""
    return repr(cut(text, most))


def number(text: str) -> Number:
    """A number as JSON writes it."""
    if len(text) > INPUT.number_characters:
        raise RecordError(f"a number of more than {INPUT.number_characters:,} digits")
    return Number(text)


def _unique(pairs: Iterable[tuple[str, Value]]) -> Record:
    members: Record = {}
    for key, value in pairs:
        if key in members:
            raise RecordError(f"key {shown(key)} occurs twice in one object")
        members[key] = value
    return members


def _members_of_pairs(pairs: list[tuple[str, Value]]) -> Record:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _unique(pairs)


def _no_constant(text: str) -> Value:
    raise RecordError(f"not valid JSON: {text} is not a JSON number")


def decoder(integer: Callable[[str], Value], other: Callable[[str], Value]) -> json.JSONDecoder:
    """A decoder that refuses keys twice, and NaN, and makes numbers as it is told."""
    return json.JSONDecoder(
        object_pairs_hook=_members_of_pairs, parse_int=integer, parse_float=other, parse_constant=_no_constant
    )


_DECODER = decoder(number, number)


def parse_object(text: str) -> Record:
    """The members of the one JSON object that a text holds."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RecordError(_fault(text, error)) from None
    except RecursionError:
        raise _too_deep() from None
    if "\\u" in text or text.count("[") + text.count("{") > INPUT.json_depth:
        _check_value(value)
    if not isinstance(value, dict):
        raise RecordError("not a JSON object")
    return value


def _fault(text: str, error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        rest = text[error.pos :].rstrip(_BLANK)
        return f"something follows the JSON value, at column {error.pos + 1:,}: {shown(rest)}"
    return f"not valid JSON: {error.msg.removesuffix(' at')} at column {error.pos + 1:,}"


def _too_deep() -> RecordError:
    return RecordError(f"nested more than {INPUT.json_depth} levels deep")


def _check_value(value: Value, depth: int = 0) -> None:
    """Refuse half surrogate pairs, which no encoding can carry, and too much nesting."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _lone_surrogate(ord(value[error.start])) from None
        return
    if not isinstance(value, list | dict):
        return
    if depth >= INPUT.json_depth:
        raise _too_deep()
    if isinstance(value, dict):
        for key in value:
            _check_value(key)
    for item in value.values() if isinstance(value, dict) else value:
        _check_value(item, depth + 1)


def _lone_surrogate(code: int) -> RecordError:
    return RecordError(f"not valid JSON: \\u{code:04x} is half of a surrogate pair, without the other half")


# --- values for columns ----------------------------------------------------------------------------


def json_text(value: Value, *, sort_keys: bool = False) -> str:
    """A value as JSON without blanks."""
    if isinstance(value, dict):
        items = sorted(value.items()) if sort_keys else value.items()
        return "{" + ",".join([f"{quoted(k)}:{json_text(v, sort_keys=sort_keys)}" for k, v in items]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([json_text(v, sort_keys=sort_keys) for v in value]) + "]"
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return str(quoted(value))
    return "null" if value is None else "true" if value else "false"


def column_text(value: Value) -> str | None:
    """A value as a column of text takes it: texts and numbers as they are written, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value
    return _TRUTH[value] if isinstance(value, bool) else json_text(value)


_TRUTH = {True: "true", False: "false"}


def text_type(data_type: ds.DataType) -> pa.DataType:
    """The Arrow type of a column before parsing: text in the form of the column."""
    nested = ds.DataTypeOption | ds.DataTypeList | ds.DataTypeMap | ds.DataTypeStruct
    text = ds.DataTypeString()
    return carried_type(ds.with_types(data_type, lambda each: None if isinstance(each, nested) else text))


def _of_form(value: Value, form: type) -> Any:
    if not isinstance(value, form):
        raise RecordError(
            f"a value does not fit the nested type of its column: {shown(column_text(value) or '')} "
            f"where {'a list' if form is list else 'an object'} was expected"
        )
    return value


def check_case(members: Iterable[str], fields: tuple[ds.DataField, ...]) -> None:
    """Refuse keys that differ from a column only by case: leaving them out would lose their values."""
    names = {f.name for f in fields}
    if all(key in names for key in members):
        return
    folded = {name.casefold(): name for name in names}
    for key in members:
        if key not in names and (column := folded.get(key.casefold())) is not None:
            raise RecordError(f"key {shown(key)} differs from column {shown(column)} only by case")


Fields: TypeAlias = tuple[ds.DataField, ...] | None
"""The columns to give; None for whole records as JSON, of which Spark infers types."""


def record_batch(records: list[Record], first: int, fields: Fields) -> pa.RecordBatch:
    """Records, whole or these columns; a RecordError has the row that does not fit, counted from `first`."""
    try:
        columns = [whole_texts(records)] if fields is None else columns_of(records, fields)
    except RecordError as error:
        # of which record it is, each by itself says
        for row, record in enumerate(records if len(records) > 1 else (), first):
            record_batch([record], row, fields)
        error.row = first + 1
        raise
    return batch_of(columns, len(records))


def batch_of(columns: list[pa.Array], rows: int) -> pa.RecordBatch:
    """So many rows of these columns, as `c0`, …; they may be none."""
    names = [f"c{i}" for i in range(len(columns))]
    # with one more, which tells how many rows there are
    return pa.RecordBatch.from_arrays([*columns, pa.nulls(rows)], names=[*names, ""]).select(names)


def columns_of(records: list[Record], fields: tuple[ds.DataField, ...]) -> list[pa.Array]:
    """These columns as texts, and lists, maps, structs of texts; a `RecordError` does not know its row."""
    check_case(dict.fromkeys(chain.from_iterable(records)), fields)
    columns = []
    for f in fields:
        try:
            columns.append(_column([r.get(f.name) for r in records], f.type))
        except RecordError as error:
            raise RecordError(f"column `{f.name}`: {error.message}") from None
    return columns


def _column(values: list[Value], kind: ds.DataType) -> pa.Array:
    import numpy as np

    if isinstance(kind, ds.DataTypeOption):
        return _column(values, kind.inner)
    if isinstance(kind, ds.DataTypeList | ds.DataTypeMap | ds.DataTypeStruct):
        form: type = list if isinstance(kind, ds.DataTypeList) else dict
        held = [form() if v is None else _of_form(v, form) for v in values]
        nulls, made = pa.array([v is None for v in values], pa.bool_()), text_type(kind)
        if isinstance(kind, ds.DataTypeStruct):
            return pa.StructArray.from_arrays(columns_of(held, kind.fields), fields=list(made), mask=nulls)
        ends = pa.array(np.cumsum([0, *map(len, held)], dtype=np.int32))
        if isinstance(kind, ds.DataTypeList):
            items = _column(list(chain.from_iterable(held)), kind.item_type)
            return pa.ListArray.from_arrays(ends, items, made, mask=nulls)
        keys = pa.array(list(chain.from_iterable(held)), pa.string())
        items = _column([v for members in held for v in members.values()], kind.value_type)
        return pa.MapArray.from_arrays(ends, keys, items, made, mask=nulls)
    if not set(map(type, values)) <= {str, Number, type(None)}:
        values = [v if isinstance(v, str) else column_text(v) for v in values]
    return pa.array(values, pa.string())


def whole_texts(records: list[Record], text_of: Callable[[Value], str] | None = None) -> pa.Array:
    """Records as JSON for inference; of which one a `RecordError` is, is not known."""
    text_of = text_of or json_text
    texts = []
    for record in records:
        if len(record) > INPUT.columns:
            raise RecordError(f"{len(record):,} keys, at most {INPUT.columns:,} are read")
        text = text_of(record)
        if text.count("{") + text.count("[") > INPUT.type_depth:
            _check_depth(record)
        if '"":' in text:
            _check_named(record)
        # a type without fields would drop its column
        texts.append(text_of(_without_empty(record)) if "{}" in text else text)
    return pa.array(texts, pa.string())


def _check_depth(record: Record) -> None:
    most = INPUT.type_depth
    for name, value in record.items():
        level, depth = [value], 0
        # level by level, not by recursion: how deep a record is, strangers decide
        while level := [v for v in level if isinstance(v, list | dict)]:
            depth += 1
            if depth > most:
                raise RecordError(
                    f"column {shown(name)}: nested more than {most} levels deep, too deep for a "
                    "type; declare the column as STRING to take its values as text"
                )
            level = [item for v in level for item in (v.values() if isinstance(v, dict) else v)]


class Spellings:
    """How keys are spelled, at each place of the records that were added."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Spellings]] = {}

    def add(self, record: Record) -> None:
        """Take one more record."""
        for key, value in record.items():
            other, below = self._known.setdefault(key.casefold(), (key, Spellings()))
            if other != key:
                raise RecordError(f"the keys {shown(other)} and {shown(key)} differ only by case")
            items = [value]
            while items:
                item = items.pop()
                if isinstance(item, list):
                    items += reversed(item)
                elif isinstance(item, dict):
                    below.add(item)


def _check_named(value: Value) -> None:
    # no column can have such a name, and its values would be lost
    items = [value]
    while items:
        item = items.pop()
        if isinstance(item, dict):
            if "" in item:
                raise RecordError("a key is empty, which no column can be; declare a schema to leave it out")
            items += item.values()
        elif isinstance(item, list):
            items += item


def _without_empty(value: Value) -> Value:
    if isinstance(value, dict):
        return {k: _without_empty(v) if v != {} else None for k, v in value.items()}
    return [_without_empty(v) if v != {} else None for v in value] if isinstance(value, list) else value


# Records out of one JSON text, streamed: the elements of an array, each as its members.
#
# Runs on a worker. A document may be larger than memory: ijson gives its parts one by one, and only one
# record is held at a time. Everything an untrusted file can grow without end has a bound.

_CHUNK = 1 << 16
_PLAIN_EXPONENT = -40
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.|\Z)",
    re.DOTALL,
)
_LONGEST_ESCAPE = 12
# Characters that no JSON text may hold; yajl takes some of them for blanks.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")

Events: TypeAlias = Iterator[tuple[str, Any]]
"""Parts of a JSON text as ijson names them: `start_map`, `map_key`, `number`, …"""


class CharacterCheck:
    """Looks for what the parser lets pass: control characters, and escapes of half a character."""

    def __init__(self) -> None:
        # The end of the last chunk, from an escape that may go on in the next one.
        self._rest = ""
        self._line = 1

    def check(self, chunk: str, *, last: bool) -> None:
        """Refuse them in the next part of a text."""
        if control := _CONTROL.search(chunk):
            line = self._line + chunk.count("\n", 0, control.start())
            message = f"line {line:,}: not valid JSON: control character 0x{ord(control[0]):02x}"
            raise RecordError(message, 0)
        text, self._rest = self._rest + chunk, ""
        complete = len(text) if last else len(text) - _LONGEST_ESCAPE
        for match in _ESCAPE.finditer(text):
            if match.start() > complete:
                self._rest = text[match.start() :]
                self._line += text.count("\n", 0, match.start())
                return
            if match[1]:
                fault = _lone_surrogate(int(match[1], 16))
                line = self._line + text.count("\n", 0, match.start())
                raise RecordError(f"line {line:,}: {fault.message}", 0)
        self._line += text.count("\n")


class _Source:
    """A binary stream as UTF-8 without byte order mark, from any encoding; counts what it gives."""

    def __init__(self, stream: BinaryIO, encoding: str = "utf-8") -> None:
        self._stream = stream
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._line = 1
        self._started = False
        self._since = 0
        self._characters = CharacterCheck()
        self.row: int | None = None
        """The record that is being read, from 1; None outside of records."""

    def next_record(self) -> None:
        """A new record begins: it has a number and the whole bound on bytes to itself."""
        self.row = (self.row or 0) + 1
        self._since = 0

    def progressed(self) -> None:
        """Release the text that was read so far."""
        self._since = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes; empty at the end."""
        while True:
            data = self._stream.read(size)
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                # `error.start` counts from the bytes that the decoder had kept back
                line = self._line + data[: error.start].count(b"\n")
                byte = error.object[error.start]
                message = f"line {line:,}: byte 0x{byte:02x} is not valid {self._encoding}"
                raise RecordError(message, 0) from None
            self._line += data.count(b"\n")
            self._since += len(data)
            if self._since > INPUT.record_bytes:
                raise RecordError(f"a record of more than {INPUT.record_bytes >> 20} MiB")
            if not self._started and text:
                self._started = True
                text = text.removeprefix("\ufeff")
            self._characters.check(text, last=not data)
            if text or not data:
                return text.encode()


def _events_of(source: _Source) -> Events:
    """The parts of a JSON text; a fault comes after all parts that stand before it."""
    return chain.from_iterable(_parsed_chunks(source))


def _parsed_chunks(source: _Source) -> Iterator[list[tuple[str, Any]]]:
    # The parser is fed, not pulled: pulled, it may hand out parts while an exception is pending.
    import ijson  # type: ignore[import-untyped]

    parts = ijson.sendable_list()
    parser = ijson.basic_parse_coro(parts)
    ended = False
    while True:
        data = b"" if ended else source.read(_CHUNK)
        if not data and not ended:
            # yajl forgets a string that is open at the end behind the value; no string holds a line break
            data, ended = b"\n", True
        fault: Exception | None = None
        try:
            parser.send(data)
        except StopIteration:
            pass
        except (ijson.JSONError, ArithmeticError, ValueError) as error:
            fault = error
        except SystemError as error:
            # ijson goes on for one more part after a number that Python refuses to make
            if not isinstance(error.__cause__, ArithmeticError | ValueError):
                raise
            fault = error.__cause__
            parts.pop()
        yield parts
        if fault is not None:
            raise fault
        if not data:
            return
        parts.clear()


@contextlib.contextmanager
def _faults_of(source: _Source) -> Iterator[None]:
    """Turn what goes wrong while parsing into the one error of this module, with the record's number."""
    import ijson

    try:
        yield
    except RecordError as error:
        if error.row is None:
            error.row = source.row
        raise
    except ijson.JSONError as error:
        text = str(error).strip().splitlines()
        raise RecordError(f"not valid JSON: {text[0] if text else 'incomplete'}", source.row) from None
    except (InvalidOperation, ValueError):
        # Python's own bounds on the digits of a number
        raise RecordError(f"a number of more than {INPUT.number_characters:,} digits", source.row) from None


# --- values ----------------------------------------------------------------------------------------


def number_value(value: int | Decimal) -> Number:
    """A number as JSON: digits as they were written, exponents only where they were needed."""
    text = str(value)
    if "E" in text and isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if isinstance(exponent, int) and _PLAIN_EXPONENT < exponent <= 0:
            text = format(value, "f")
    return number(text)


def _value_of(event: str, value: Any, events: Events, depth: int = 1) -> Value:
    """A value; `event` is its first part, the rest is taken from `events`."""
    if event == "number":
        return number_value(value)
    if event not in ("start_map", "start_array"):
        return value
    if depth > INPUT.json_depth:
        raise _too_deep()
    if event == "start_map":
        return _members_of(events, depth)
    items = []
    for part, item in events:
        if part == "end_array":
            break
        items.append(_value_of(part, item, events, depth + 1))
    return items


def _members_of(events: Events, depth: int = 0) -> Record:

    def pairs() -> Iterator[tuple[str, Value]]:
        for event, key in events:
            if event == "end_map":
                break
            yield key, _value_of(*next(events), events, depth + 1)

    return _unique(pairs())


def _objects_of(events: Events, source: _Source) -> Iterator[Record]:
    """The records of an array that has begun, to its end."""
    for event, _ in events:
        if event == "end_array":
            break
        source.next_record()
        if event != "start_map":
            raise RecordError("not a JSON object")
        yield _members_of(events)
    source.row = None


def _skip(event: str, events: Events, source: _Source) -> None:
    depth = 0
    while True:
        source.progressed()
        if event in ("start_map", "start_array"):
            depth += 1
            if depth > INPUT.json_depth:
                raise _too_deep()
        elif event in ("end_map", "end_array"):
            depth -= 1
        if depth == 0:
            return
        event, _ = next(events)


# --- the array of a document -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JsonArray:
    """A JSON document with an array of objects at `sub_path` (`a.b.c`), or as a whole when that is empty."""

    path: str
    encoding: str = "utf-8"
    sub_path: str = ""

    def moved(self, path: str) -> JsonArray:
        """The same of a copy of the file elsewhere."""
        return dataclasses.replace(self, path=path)

    def records(self) -> Iterator[Record]:
        """The objects in order; the document is read, and has to be JSON, to its end."""
        with open(self.path, "rb") as stream:  # noqa: PTH123 - a path as it came from the driver
            yield from self.records_of(stream)

    def records_of(self, stream: BinaryIO) -> Iterator[Record]:
        """The same of a stream."""
        source = _Source(stream, self.encoding)
        with _faults_of(source):
            events = _events_of(source)
            yield from self._found(events, source)
            for _ in events:
                raise RecordError("more than one JSON value")

    def _found(self, events: Events, source: _Source) -> Iterator[Record]:
        _enter(events, source, self.keys)
        yield from _objects_of(events, source)
        _leave(events, source, self.keys)

    def record(self, members: Record) -> Record:
        """The record of an object of the array."""
        return members

    @property
    def keys(self) -> tuple[str, ...]:
        """The way to the array."""
        return tuple(self.sub_path.split(".")) if self.sub_path else ()


def _enter(events: Events, source: _Source, keys: tuple[str, ...]) -> None:
    event, _ = next(events)
    for depth, key in enumerate(keys, start=1):
        event = _find(events, source, key) if event == "start_map" else "null"
        if event == "null":
            raise RecordError(f"Sub-path not found: {'.'.join(keys[:depth])}")
    if event != "start_array":
        raise RecordError(f"Sub-path does not specify an array: {'.'.join(keys) or '.'}")


def _find(events: Events, source: _Source, key: str) -> str:
    """The first part of the member's value; `null` when there is no such member."""
    for event, name in events:
        if event == "end_map":
            break
        first, _ = next(events)
        if name == key:
            return first
        _skip(first, events, source)
    return "null"


def _leave(events: Events, source: _Source, keys: tuple[str, ...]) -> None:
    for depth in range(len(keys), 0, -1):
        for event, name in events:
            if event == "end_map":
                break
            if name == keys[depth - 1]:
                # the path occurs a second time: either list could be meant
                raise RecordError(f"Sub-path occurs twice: {'.'.join(keys[:depth])}")
            _skip(next(events)[0], events, source)


# GeoJSON features to records: their properties, and the geometry as JSON text. Runs on a worker.
#
# The text has sorted keys, no blanks, and numbers as they were written, so that equal geometries are equal
# texts. A feature without geometry (null) or properties is legal and gives nulls. Source: RFC 7946.

GEOMETRY = "geometry"
"""The column of the geometry; a property of this name gives way to it."""


@dataclass(frozen=True, slots=True)
class FeatureCollection(JsonArray):
    """A GeoJSON document: one `FeatureCollection`, each feature as its properties and its geometry."""

    sub_path: str = "features"

    def _found(self, events: Events, source: _Source) -> Iterator[Record]:
        event, _ = next(events)
        if event != "start_map":
            _check_type("FeatureCollection", None)
        yield from _collection(events, source)

    def record(self, members: Record) -> Record:
        """The record of a feature."""
        return feature_record(members)


def parse_feature(text: str) -> Record:
    """The properties and the geometry of the one GeoJSON feature that a text holds."""
    return feature_record(parse_object(text))


def _check_type(expected: str, found: Value) -> None:
    if found == expected:
        return
    if found is None:
        raise RecordError(f"Expected {expected} type but got none")
    text = json_text(found)
    shown = text if len(text) <= 60 else text[:57] + "…"
    raise RecordError(f"Expected {expected} type but got {shown} instead")


def _collection(events: Events, source: _Source) -> Iterator[Record]:
    kind: Value = None
    seen: set[str] = set()
    for event, name in events:
        if event == "end_map":
            break
        first, value = next(events)
        if name in seen:
            raise RecordError(f"{name!r} occurs twice")
        if name == "type":
            seen.add(name)
            kind = _value_of(first, value, events)
            _check_type("FeatureCollection", kind)
        elif name == "features":
            seen.add(name)
            if first != "start_array":
                raise RecordError("'features' is not an array")
            yield from map(feature_record, _objects_of(events, source))
        else:
            _skip(first, events, source)
    # the type may follow the features: then they were given out already, and the whole input is refused
    _check_type("FeatureCollection", kind)
    if "features" not in seen:
        raise RecordError("the FeatureCollection has no 'features'")


def geometry_text(geometry: Record) -> str:
    """A geometry as its column takes it."""
    return json_text(geometry, sort_keys=True)


def feature_record(feature: Record, text_of: Callable[[Record], str] = geometry_text) -> Record:
    """A feature as its properties and its geometry."""
    for name in ("properties", GEOMETRY):
        if not isinstance(feature.get(name), dict | None):
            raise RecordError(f"Invalid geojson: {name!r} is neither an object nor null")
    _check_type("Feature", feature.get("type"))
    geometry = feature.get(GEOMETRY)
    text = None if geometry is None else text_of(geometry)
    return (feature.get("properties") or {}) | {GEOMETRY: text}
