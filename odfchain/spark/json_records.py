"""Records out of one JSON text, streamed: the elements of an array, each as its members.

Runs on a worker. A document may be larger than memory: ijson gives its parts one by one, and only one record
is held at a time. Everything an untrusted file can grow without end has a bound.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, BinaryIO, TypeAlias

from odfchain.limits import INPUT
from odfchain.spark.json_values import (
    Number,
    Record,
    RecordError,
    Value,
    lone_surrogate,
    number,
    too_deep,
    unique,
)

_CHUNK = 1 << 16
_PLAIN_EXPONENT = -40
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.|\Z)",
    re.DOTALL,
)
_LONGEST_ESCAPE = 12
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""What no JSON text may hold; yajl takes some of them for blanks."""

Events: TypeAlias = Iterator[tuple[str, Any]]
"""Parts of a JSON text as ijson names them: `start_map`, `map_key`, `number`, …"""


class _CharacterCheck:
    """Looks for what the parser lets pass: control characters, and escapes of half a character."""

    def __init__(self, line: int) -> None:
        self._rest = ""
        """The end of the last chunk, from an escape that may go on in the next one."""
        self._line = line

    def check(self, chunk: str, *, last: bool) -> None:
        """Go on with a chunk.

        Raises:
            RecordError: half of a pair without the other half.
        """
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
                fault = lone_surrogate(int(match[1], 16))
                line = self._line + text.count("\n", 0, match.start())
                raise RecordError(f"line {line:,}: {fault.message}", 0)
        self._line += text.count("\n")


def check_characters(text: str) -> None:
    """Look for what parsers let pass in a whole text."""
    _CharacterCheck(1).check(text, last=True)


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
        self._characters = _CharacterCheck(line)
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
            if self._since > INPUT.record_bytes:
                raise RecordError(f"a record of more than {INPUT.record_bytes >> 20} MiB")
            if not self._started and text:
                self._started = True
                text = text.removeprefix("\ufeff")
            self._characters.check(text, last=not data)
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


def value_of(event: str, value: Any, events: Events, depth: int = 1) -> Value:
    """A value; `event` is its first part, the rest is taken from `events`.

    Raises:
        RecordError: it is nested too deeply, or a key occurs twice in one object.
    """
    if event == "number":
        return number_value(value)
    if event not in ("start_map", "start_array"):
        return value
    if depth > INPUT.json_depth:
        raise too_deep()
    if event == "start_map":
        return members_of(events, depth)
    items = []
    for part, item in events:
        if part == "end_array":
            break
        items.append(value_of(part, item, events, depth + 1))
    return items


def members_of(events: Events, depth: int = 0) -> Record:
    """The members of an object whose start was taken."""

    def pairs() -> Iterator[tuple[str, Value]]:
        for event, key in events:
            if event == "end_map":
                break
            yield key, value_of(*next(events), events, depth + 1)

    return unique(pairs())


def objects_of(events: Events, source: JsonSource) -> Iterator[Record]:
    """The records of an array that has begun, to its end.

    Raises:
        RecordError: an element is no object.
    """
    for event, _ in events:
        if event == "end_array":
            break
        source.next_record()
        if event != "start_map":
            raise RecordError("not a JSON object")
        yield members_of(events)
    source.row = None


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
            if depth > INPUT.json_depth:
                raise too_deep()
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
        source = JsonSource(stream, self.encoding)
        with faults_of(source):
            events = events_of(source)
            _enter(events, source, self.keys)
            yield from objects_of(events, source)
            _leave(events, source, self.keys)

    def record(self, members: Record) -> Record:
        """What an object of the array is as a record."""
        return members

    @property
    def keys(self) -> tuple[str, ...]:
        """The way to the array."""
        return tuple(self.sub_path.split(".")) if self.sub_path else ()


def _enter(events: Events, source: JsonSource, keys: tuple[str, ...]) -> None:
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


def _leave(events: Events, source: JsonSource, keys: tuple[str, ...]) -> None:
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
