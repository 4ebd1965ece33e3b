"""Records out of one JSON text, streamed: the elements of an array, each as its members in JSON.

Runs on a worker. A document may be larger than memory: ijson gives its parts one by one, and only one record
is held at a time. Numbers keep their digits, since they may end up in a text or decimal column. Everything a
stranger's file can grow without end has a bound.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain
from json.encoder import encode_basestring
from typing import Any, BinaryIO, TypeAlias

quoted = encode_basestring
"""A text as a JSON string."""

MAX_DEPTH = 200
"""Nesting of a document [levels]."""

MAX_RECORD_BYTES = 64 << 20
"""One record, or one value that is skipped [bytes]."""

MAX_NUMBER = 1_000
"""One number [characters]; Spark's JSON parser has the same bound."""

_CHUNK = 1 << 16
_PLAIN_EXPONENT = -40

Record: TypeAlias = dict[str, str]
"""The members of a record: each name with its value as JSON."""

Events: TypeAlias = Iterator[tuple[str, Any]]
"""Parts of a JSON text as ijson names them: `start_map`, `map_key`, `number`, …"""


class RecordError(Exception):
    """A record, or the document around it, is not what was declared.

    `row` counts records from 1; it is None while it is not known, and 0 when the fault has no row.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.row = row


class JsonSource:
    """A binary stream as UTF-8 without byte order mark, whatever its encoding; counts what it gives."""

    def __init__(
        self, stream: BinaryIO, encoding: str = "utf-8", *, row: int | None = None, line: int = 1
    ) -> None:
        self._stream = stream
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._line = line
        self._started = False
        self._since = 0
        self.row = row
        """The record that is being read, from 1; None outside of records."""

    def next_record(self) -> None:
        """A new record begins: it has a number and the whole bound on bytes to itself."""
        self.row = (self.row or 0) + 1
        self._since = 0

    def progressed(self) -> None:
        """What was read so far is no longer held."""
        self._since = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes; empty at the end.

        Raises:
            RecordError: bytes that the encoding does not allow, or too many of them for one record.
        """
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
            if self._since > MAX_RECORD_BYTES:
                raise RecordError(f"a record of more than {MAX_RECORD_BYTES >> 20} MiB")
            if not self._started and text:
                self._started = True
                text = text.removeprefix("\ufeff")
            if text or not data:
                return text.encode()


def events_of(source: JsonSource) -> Events:
    """The parts of a JSON text; a fault comes after all parts that stand before it."""
    return chain.from_iterable(_parsed_chunks(source))


def _parsed_chunks(source: JsonSource) -> Iterator[list[tuple[str, Any]]]:
    # The parser is fed, not pulled: pulled, it may hand out parts while an exception is pending.
    import ijson  # type: ignore[import-untyped]

    parts = ijson.sendable_list()
    parser = ijson.basic_parse_coro(parts)
    while True:
        data = source.read(_CHUNK)
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
def faults_of(source: JsonSource) -> Iterator[None]:
    """Turn what goes wrong while parsing into the one error of this module, with the record's number.

    Raises:
        RecordError: the text is not JSON, or breaks a bound.
    """
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
        raise RecordError(f"a number of more than {MAX_NUMBER:,} digits", source.row) from None


# --- values ----------------------------------------------------------------------------------------


def number_text(value: int | Decimal) -> str:
    """A number as JSON: digits as they were written, exponents only where they were needed.

    Raises:
        RecordError: too many digits.
    """
    text = str(value)
    if "E" in text and isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if isinstance(exponent, int) and _PLAIN_EXPONENT < exponent <= 0:
            text = format(value, "f")
    if len(text) > MAX_NUMBER:
        raise RecordError(f"a number of more than {MAX_NUMBER:,} digits")
    return text


def scalar_text(event: str, value: Any) -> str:
    """A text, number, boolean or null as JSON."""
    if event == "string":
        return str(quoted(value))
    if event == "number":
        return number_text(value)
    if event == "boolean":
        return "true" if value else "false"
    return "null"


def value_text(event: str, value: Any, events: Events) -> str:
    """A value as JSON without blanks; `event` is its first part, the rest is taken from `events`.

    Raises:
        RecordError: it is nested too deeply.
    """
    if event == "start_map":
        pieces = ["{"]
    elif event == "start_array":
        pieces = ["["]
    else:
        return scalar_text(event, value)
    add = pieces.append
    depth = 1
    for part, item in events:
        if part == "map_key":
            add(quoted(item) + ":")
        elif part == "start_map" or part == "start_array":  # noqa: PLR1714 - the innermost loop
            add("{" if part == "start_map" else "[")
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep()
        elif part == "end_map" or part == "end_array":  # noqa: PLR1714
            if pieces[-1][-1] == ",":
                pieces[-1] = pieces[-1][:-1]
            add("}," if part == "end_map" else "],")
            depth -= 1
            if depth == 0:
                break
        else:
            add(scalar_text(part, item) + ",")
    return "".join(pieces)[:-1]


def _too_deep() -> RecordError:
    return RecordError(f"nested more than {MAX_DEPTH} levels deep")


def object_fields(events: Events) -> Record:
    """The members of an object whose start was taken, each as JSON; of a name given twice, the last.

    Raises:
        RecordError: a member is nested too deeply.
    """
    fields: Record = {}
    for event, key in events:
        if event == "end_map":
            break
        fields[key] = value_text(*next(events), events)
    return fields


def object_text(fields: Record) -> str:
    """An object of members that are JSON already."""
    return "{" + ",".join([f"{quoted(key)}:{value}" for key, value in fields.items()]) + "}"


def skip(event: str, events: Events, source: JsonSource) -> None:
    """Pass over a value, of which `event` is the first part.

    Raises:
        RecordError: it is nested too deeply.
    """
    depth = 0
    while True:
        source.progressed()
        if event in ("start_map", "start_array"):
            depth += 1
            if depth > MAX_DEPTH:
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

    def records(self) -> Iterator[Record]:
        """The objects in order; the document is read, and has to be JSON, to its end.

        Raises:
            RecordError: the document is not JSON, or not of this form.
            OSError: the file cannot be read.
        """
        keys = self.sub_path.split(".") if self.sub_path else []
        with open(self.path, "rb") as stream:  # noqa: PTH123 - a path as it came from the driver
            source = JsonSource(stream, self.encoding)
            with faults_of(source):
                events = events_of(source)
                _enter(events, source, keys)
                for event, _ in events:
                    if event == "end_array":
                        break
                    source.next_record()
                    if event != "start_map":
                        raise RecordError("not a JSON object")
                    yield object_fields(events)
                source.row = None
                _leave(events, source, keys)


def _enter(events: Events, source: JsonSource, keys: list[str]) -> None:
    """Go to the first element of the array.

    Raises:
        RecordError: there is no such array.
    """
    event, _ = next(events)
    for depth, key in enumerate(keys, start=1):
        event = _find(events, source, key) if event == "start_map" else "null"
        if event == "null":
            raise RecordError(f"Sub-path not found: {'.'.join(keys[:depth])}")
    if event != "start_array":
        raise RecordError(f"Sub-path does not specify an array: {'.'.join(keys) or '.'}")


def _find(events: Events, source: JsonSource, key: str) -> str:
    """The first part of the member's value; `null` when there is no such member."""
    for event, name in events:
        if event == "end_map":
            break
        first, _ = next(events)
        if name == key:
            return first
        skip(first, events, source)
    return "null"


def _leave(events: Events, source: JsonSource, keys: list[str]) -> None:
    """Read on to the end of the document.

    Raises:
        RecordError: the path occurs a second time, so that it is not clear which is meant.
    """
    for depth in range(len(keys), 0, -1):
        for event, name in events:
            if event == "end_map":
                break
            if name == keys[depth - 1]:
                raise RecordError(f"Sub-path occurs twice: {'.'.join(keys[:depth])}")
            skip(next(events)[0], events, source)
    for _ in events:
        raise RecordError("more than one JSON value")
