"""One fast pass over a text file before Spark sees it.

Spark replaces broken UTF-8 silently, splits quoted line breaks unless told otherwise, and knows one way of
escaping quotes at a time. So the file is looked at first: is it valid in its encoding, does a quoted field
span lines, how are quotes escaped. Vectorised; memory stays at one chunk.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from odfchain.errors import BadInputError, SchemaError
from odfchain.store.fsio import storage_error

LONGEST_SHORT_LINE = 4_096
"""Bytes of a line; many lines of at most this length fit in memory together."""

_CHUNK = 4 << 20
_CONTROLS = bytes([*range(32), 127])
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class TextTraits:
    """What a text file turned out to be like."""

    size: int
    """Bytes."""
    bom: bool
    multiline: bool
    """A quoted field holds a line break (or might: quotes are escaped by backslashes)."""
    backslash_quotes: bool
    doubled_quotes: bool
    controls: bool
    """There may be control characters besides line breaks and separators."""

    long_lines: bool
    """A line has more than `LONGEST_SHORT_LINE` bytes."""

    @property
    def plain(self) -> bool:
        """Whether no value can hold a control character, line breaks and separators included."""
        return not (self.controls or self.multiline)


def codec_name(encoding: str | None) -> str:
    """The Python codec of a read step's encoding (default UTF-8).

    Raises:
        SchemaError: the encoding is not known.
    """
    try:
        "".encode(encoding or "utf-8")  # refuses codecs that are not of text, such as hex
        return codecs.lookup(encoding or "utf-8").name
    except LookupError:
        raise SchemaError(f"unknown encoding {encoding!r}") from None


def scan_text(
    path: Path,
    *,
    encoding: str = "utf-8",
    quote: str | None = None,
    separator: str = ",",
    progress: Callable[[int], None] | None = None,
) -> TextTraits:
    """Check that a file is valid in its encoding and learn how its quotes work.

    Raises:
        BadInputError: a byte that the encoding does not allow, with its line.
        StoreError: the file cannot be read.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    single_byte_quote = (
        quote is not None and encoding not in ("utf-16", "utf-32") and len(quote.encode()) == 1
    )
    quote_byte = quote.encode() if quote is not None and single_byte_quote else b""
    ascii_based = encoding in ("utf-8", "ascii")
    control_separator = separator.encode() if separator.encode() in _CONTROLS else b"\r"
    size, lines, odd = 0, 0, False
    bom = multiline = backslash = doubled = quotes = False
    controls = not ascii_based
    lengths = _LineLengths()
    previous = b""
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                if size == 0:
                    bom = chunk.startswith(codecs.BOM_UTF8)
                try:
                    if not (ascii_based and chunk.isascii() and not decoder.getstate()[0]):
                        decoder.decode(chunk)
                except UnicodeDecodeError as error:
                    # `error.start` counts from the bytes the decoder had kept back from the chunk before
                    at = chunk[: max(error.start, 0)].count(b"\n")
                    raise _invalid(path, encoding, error, lines + at + 1) from None
                breaks = int(np.count_nonzero(np.frombuffer(chunk, dtype=np.uint8) == _NEWLINE))
                lengths.add(chunk)
                controls = controls or _has_controls(chunk, breaks, control_separator)
                if quote_byte and quote_byte in chunk:
                    quotes = True
                    tail = previous[-1:] + chunk
                    backslash = backslash or b"\\" + quote_byte in tail
                    doubled = doubled or quote_byte * 2 in tail
                    if not multiline:
                        multiline, odd = _spans_lines(chunk, quote_byte[0], odd=odd)
                elif odd and b"\n" in chunk:
                    multiline = True
                size += len(chunk)
                lines += breaks
                previous = chunk
                if progress is not None:
                    progress(len(chunk))
            try:
                decoder.decode(b"", final=True)
            except UnicodeDecodeError as error:
                raise _invalid(path, encoding, error, lines + 1) from None
    except OSError as error:
        raise storage_error(error, path) from error
    controls = controls or (quotes and separator.encode() in _CONTROLS)
    return TextTraits(size, bom, multiline or backslash, backslash, doubled, controls, lengths.long)


def _has_controls(chunk: bytes, breaks: int, separator: bytes) -> bool:
    """Whether there are control characters besides so many line breaks, and the separator."""
    low = int(np.count_nonzero(np.frombuffer(chunk, dtype=np.uint8) < 32))
    expected = breaks + sum(chunk.count(c) for c in {b"\r", separator} if c in chunk)
    return b"\x7f" in chunk or low != expected


class _LineLengths:
    """Looks out for a long line without looking at every line: it hops from line break to line break."""

    def __init__(self) -> None:
        self.long = False
        self._begun = 0
        """Bytes of the line that the last chunk ended in."""

    def add(self, chunk: bytes) -> None:
        at = -self._begun
        while not self.long and len(chunk) - at > LONGEST_SHORT_LINE:
            end = chunk.rfind(b"\n", max(at, 0), at + LONGEST_SHORT_LINE + 1)
            self.long = end < 0
            at = end + 1
        last = chunk.rfind(b"\n", max(at, 0))
        self._begun = len(chunk) - (at if last < 0 else last + 1)


def _invalid(path: Path, encoding: str, error: UnicodeDecodeError, line: int) -> BadInputError:
    byte = error.object[error.start]
    return BadInputError(
        f"line {line:,}: byte 0x{byte:02x} is not valid {encoding}",
        file=str(path),
        hint="set the read step's 'encoding' (for example latin1) if the file is not UTF-8",
    )


def _spans_lines(chunk: bytes, quote: int, *, odd: bool) -> tuple[bool, bool]:
    """(a line break stands inside quotes, the chunk ends inside quotes)."""
    data = np.frombuffer(chunk, dtype=np.uint8)
    inside = np.add.accumulate((data == quote).astype(np.uint8), dtype=np.uint8) & 1
    if odd:
        inside ^= 1
    return bool(np.any(inside[data == _NEWLINE])), bool(inside[-1])


def read_header(path: Path, *, encoding: str, separator: str, quote: str, escape: str) -> list[str]:
    """The column names in the first record of a CSV file; empty for an empty file.

    Raises:
        BadInputError: the first record cannot be read.
    """
    with path.open("r", encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline="") as stream:
        reader = csv.reader(
            stream,
            delimiter=separator,
            quotechar=quote or None,
            escapechar=escape if escape and escape != quote else None,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        )
        try:
            return next((record for record in reader if record), [])
        except csv.Error as error:
            raise BadInputError(f"line 1: the header cannot be read: {error}", file=str(path)) from None


def rewrite_quotes(
    source: Path, target: Path, *, encoding: str, separator: str, quote: str, escape: str
) -> None:
    """Copy a CSV file that escapes quotes in two ways so that it does so by doubling only.

    Raises:
        BadInputError: the file is not CSV.
    """
    with (
        source.open("r", encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline="") as stream,
        target.open("w", encoding="utf-8", newline="") as out,
    ):
        reader = csv.reader(stream, delimiter=separator, quotechar=quote, escapechar=escape, strict=False)
        writer = csv.writer(out, delimiter=separator, quotechar=quote, lineterminator="\n")
        try:
            writer.writerows(record for record in reader if record)
        except csv.Error as error:
            raise BadInputError(f"line {reader.line_num:,}: {error}", file=str(source)) from None


def transcode(source: Path, target: Path, encoding: str) -> None:
    """Copy a text file in another encoding as UTF-8.

    Raises:
        StorageFullError, StoreError: it cannot be written.
    """
    try:
        with (
            source.open("r", encoding=encoding, newline="") as stream,
            target.open("x", encoding="utf-8", newline="") as out,
        ):
            while chunk := stream.read(_CHUNK):
                out.write(chunk)
    except OSError as error:
        raise storage_error(error, target) from error


def spool(stream: BinaryIO, target: Path) -> None:
    """Copy standard input to a file, so that it can be read more than once.

    Raises:
        StorageFullError, StoreError: it cannot be written.
    """
    try:
        with target.open("xb") as out:
            while chunk := stream.read(_CHUNK):
                out.write(chunk)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise storage_error(error, target) from error
