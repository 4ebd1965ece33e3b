"""CSV to records by one strict rule, for files that are not as regular as Arrow's reader needs them.

Fields are separated by the separator, records by LF, CR LF or CR; empty lines hold no record. A field that
begins with the quote is quoted and ends at the next quote that is neither doubled nor escaped; after that
only a separator or the end of the record may come. Before a quote, two escape characters are one and a single
one makes the quote part of the field; everywhere else the escape character is literal, and so does a
quote in a field that does not begin with one. Sources: RFC 4180, the specification's "ReadStep::Csv",
RFC-010.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odfchain.errors import BadInputError, SchemaError
from odfchain.limits import INPUT
from odfchain.spark.types import check_count
from odfchain.storage.fsio import storage_errors
from odfchain.text import cut

_SHOWN = 40
_BREAK = re.compile(r"[\r\n]")


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """The characters that a CSV file is written with; empty where there is none."""

    separator: str = ","
    quote: str = '"'
    escape: str = ""
    """Empty when quotes are only doubled."""
    encoding: str = "utf-8"


class CsvRecords:
    """The records of a CSV file in order; an empty unquoted field is None."""

    def __init__(self, path: Path, dialect: CsvDialect, file: str) -> None:
        self._path = path
        self._dialect = dialect
        self._file = file
        self._line = 0
        self.line = 0
        """The line on which the record that was given last begins."""
        self.read: Callable[[], int] = lambda: 0
        """How many bytes were read."""
        quote, escape = re.escape(dialect.quote), re.escape(dialect.escape)
        self._special = re.compile(f"{escape}*{quote}" if escape else quote) if quote else None

    def __iter__(self) -> Iterator[list[str | None]]:
        quote, separator = self._dialect.quote, self._dialect.separator
        # a byte order mark is no part of the first name
        encoding = "utf-8-sig" if self._dialect.encoding == "utf-8" else self._dialect.encoding
        with storage_errors(self._path), self._path.open("r", encoding=encoding, newline="") as stream:
            self.read = stream.buffer.tell  # type: ignore[attr-defined]  # it is a file's
            for line in stream:
                self._line += 1
                self.line = self._line
                self._check(line)
                body = line.rstrip("\r\n")
                if not body:
                    continue
                if quote and quote in body:
                    # with its line break, which may be part of a quoted field
                    yield list(self._fields(line, stream))
                else:
                    yield [field or None for field in body.split(separator)]

    def _fields(self, line: str, stream: Iterator[str]) -> Iterator[str | None]:
        quote, separator = self._dialect.quote, self._dialect.separator
        at = 0
        while True:
            if line.startswith(quote, at):
                text, line, at = self._quoted(line, at + len(quote), stream)
                yield text
                if at == len(line) or line[at] in "\r\n":
                    return
                if not line.startswith(separator, at):
                    raise self._after_quote(line, at)
            else:
                end = line.find(separator, at)
                match = _BREAK.search(line, at)
                stop = match.start() if match else len(line)
                if end < 0 or end >= stop:
                    yield line[at:stop] or None
                    return
                yield line[at:end] or None
                at = end
            at += len(separator)

    def _quoted(self, line: str, at: int, stream: Iterator[str]) -> tuple[str, str, int]:
        """(a quoted field, of which the text begins here; the line that it ends on; where it ends)."""
        assert self._special is not None  # noqa: S101 - there is a quote
        quote, begun, size = self._dialect.quote, self._line, 0
        pieces: list[str] = []
        while True:
            match = self._special.search(line, at)
            if match is None:
                pieces.append(line[at:])
                size += len(line) - at
                # a forgotten quote would take the rest of the file into memory
                if size > INPUT.record_bytes:
                    message = f"a quoted field that begins here has more than {INPUT.record_bytes >> 20} MiB"
                    raise self._fault(begun, message, hint="is its closing quote missing?")
                line, at = next(stream, ""), 0
                self._line += 1
                self._check(line)
                if not line:
                    raise self._fault(begun, "a quoted field that begins here has no closing quote")
                continue
            escapes = len(match[0]) - len(quote)
            pieces.append(line[at : match.start()] + self._dialect.escape * (escapes // 2))
            at = match.end()
            if escapes % 2:
                pieces.append(quote)
            elif line.startswith(quote, at):
                pieces.append(quote)
                at += len(quote)
            else:
                return "".join(pieces), line, at

    def _check(self, line: str) -> None:
        if "\0" in line:
            raise self._fault(
                self._line,
                "a NUL character",
                hint="is the file in another encoding, UTF-16 perhaps? Set the read step's 'encoding', or "
                "import it with --encoding utf-16le",
            )

    def _after_quote(self, line: str, at: int) -> BadInputError:
        rest = line[at:].rstrip("\r\n")
        return self._fault(
            self._line,
            f"text after a closing quote: {cut(rest, _SHOWN)!r}; a separator or the end of the line was "
            "expected",
            hint="a quote inside a quoted field is written twice"
            + (f", or as {self._dialect.escape}{self._dialect.quote}" if self._dialect.escape else ""),
        )

    def _fault(self, line: int, message: str, *, hint: str | None = None) -> BadInputError:
        return BadInputError(f"line {line:,}: {message}", file=self._file, hint=hint)

    def rewrite(self, target: Path) -> bool:
        """Copy them as UTF-8, commas, quoted texts, LF; True if a field holds a line break."""
        breaks = False
        with storage_errors(target), target.open("x", encoding="utf-8", newline="") as out:
            for record in self:
                breaks = breaks or any(f is not None and ("\n" in f or "\r" in f) for f in record)
                out.write(",".join(["" if f is None else '"' + f.replace('"', '""') + '"' for f in record]))
                out.write("\n")
        return breaks


def header_of(path: Path, dialect: CsvDialect, file: str) -> list[str]:
    """The fields of the first record; none for a file without records."""
    names = [field or "" for field in next(iter(CsvRecords(path, dialect, file)), [])]
    check_count(names, file)
    return names


def first_misfit(
    path: Path, dialect: CsvDialect, columns: list[str], *, header: bool, file: str
) -> BadInputError | None:
    """The first record that breaks the rule or has another number of fields, as an error."""
    # only after a job has failed
    records = CsvRecords(path, dialect, file)
    row = -1 if header else 0
    try:
        for record in records:
            row += 1
            if row > 0 and len(record) != len(columns):
                text = dialect.separator.join(f or "" for f in record[:_SHOWN])
                shown = text if len(text) <= 60 else text[:57] + "…"
                return BadInputError(
                    f"expected {len(columns):,} fields ({', '.join(columns[:6])}"
                    f"{', …' if len(columns) > 6 else ''}) but the record has {len(record):,}: {shown!r}",
                    file=file,
                    row=row,
                )
    except BadInputError as error:
        return error
    return None


# One vectorised pass over a text file before Arrow reads it, one chunk in memory. Arrow's reader splits
# quoted line breaks by default, takes text after a closing quote for part of the field, and knows one way of
# escaping quotes at a time.

LONGEST_SHORT_LINE = 4_096
"""Bytes of a line; many lines of at most this length fit in memory together."""

_CHUNK = 4 << 20
_NEWLINE = 10
_RETURN = 13


@dataclass(frozen=True, slots=True)
class TextTraits:
    """Traits of a text file."""

    size: int
    """Bytes."""
    multiline: bool
    """A quoted field holds a line break."""
    irregular: bool
    """CSV that Arrow's reader might not read as it is meant, or that breaks the rule (`CsvRecords`)."""
    long_lines: bool
    """A line has more than `LONGEST_SHORT_LINE` bytes."""
    lines: int | None = None
    """Number of lines, where a byte is enough to find their ends."""


def codec_name(encoding: str | None) -> str:
    """The Python codec of a read step's encoding (default UTF-8)."""
    try:
        "".encode(encoding or "utf-8")  # refuses codecs that are not of text, such as hex
        return codecs.lookup(encoding or "utf-8").name
    except LookupError:
        hint = "names are like utf-8, utf-16, latin1 and cp1252"
        raise SchemaError(f"unknown encoding {encoding!r}", hint=hint) from None


def scan_text(
    path: Path,
    *,
    encoding: str = "utf-8",
    csv: CsvDialect | None = None,
    progress: Callable[[int], None] | None = None,
) -> TextTraits:
    """Check that a file is valid in its encoding and learn how its quotes work."""
    decoder = codecs.getincrementaldecoder(encoding)()
    ascii_based = encoding in ("utf-8", "ascii")
    shape = _CsvShape(csv) if csv is not None and ascii_based else None
    size, lines = 0, 0
    bom, ended = False, True
    lengths, bound = _LineLengths(LONGEST_SHORT_LINE), _LineLengths(INPUT.record_bytes)
    with storage_errors(path), path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            if size == 0:
                bom = chunk.startswith(codecs.BOM_UTF8)
            try:
                # ASCII needs no decoding, unless the chunk before ended within a character
                if not (ascii_based and chunk.isascii() and not decoder.getstate()[0]):
                    decoder.decode(chunk)
            except UnicodeDecodeError as error:
                # `error.start` counts from the bytes the decoder had kept back from the chunk before
                at = chunk[: max(error.start, 0)].count(b"\n")
                raise _invalid(path, encoding, error, lines + at + 1) from None
            except UnicodeError as error:  # what has to begin with a mark, and has none
                hint = "say utf-16le or utf-16be where there is no mark"
                raise BadInputError(f"not valid {encoding}: {error}", file=str(path), hint=hint) from None
            low = _LowBytes.of(chunk)
            lengths.add(chunk)
            bound.add(chunk)
            if bound.long:
                raise _too_long(path, lines + chunk.count(b"\n", 0, max(bound.start, 0)) + 1)
            if shape is not None:
                shape.add(chunk, low, first=size == 0, bom=bom)
            size += len(chunk)
            lines += low.newlines
            ended = chunk.endswith(b"\n")
            if progress is not None:
                progress(len(chunk))
        try:
            # the file may end within a character
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _invalid(path, encoding, error, lines + 1) from None
    known = lines + (not ended) if ascii_based else None
    irregular, multiline = csv is not None, False
    if shape is not None:
        irregular, multiline = shape.irregular, shape.multiline
    return TextTraits(size, multiline, irregular, lengths.long, known)


@dataclass(frozen=True, slots=True)
class _LowBytes:
    """Positions of bytes below 32 in a chunk, mostly line breaks: found once for all checks."""

    data: NDArray[np.uint8]
    at: NDArray[np.intp]
    values: NDArray[np.uint8]

    @classmethod
    def of(cls, chunk: bytes) -> _LowBytes:
        data = np.frombuffer(chunk, dtype=np.uint8)
        at = np.flatnonzero(data < 32)
        return cls(data, at, data[at])

    @property
    def newlines(self) -> int:
        return int(np.count_nonzero(self.values == _NEWLINE))

    @property
    def breaks(self) -> NDArray[np.intp]:
        breaks: NDArray[np.intp] = self.at[(self.values == _NEWLINE) | (self.values == _RETURN)]
        return breaks


_BLANKS = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x20]+(?=[\r\n]|\Z)")


def _blank_line(chunk: bytes, low: _LowBytes) -> bool:
    # a chunk's first and last line may go on in another chunk, so they count
    starts = np.concatenate(([0], low.breaks + 1))
    starts = starts[starts < len(chunk)]
    first = low.data[starts]
    suspects = starts[(first <= 32) & (first != _NEWLINE) & (first != _RETURN)]
    return any(_BLANKS.match(chunk, at) for at in suspects.tolist())


class _CsvShape:
    """Shape of a CSV file: anything that Arrow's reader may read differently counts as irregular."""

    def __init__(self, dialect: CsvDialect) -> None:
        own = (dialect.separator, dialect.quote)
        exotic = any(len(c.encode()) != 1 or not (c == "\t" or c.isprintable()) for c in own if c)
        self._quote = dialect.quote.encode()
        self._escaped = (dialect.escape + dialect.quote).encode() if dialect.escape and dialect.quote else b""
        allowed = [10, 13, *dialect.separator.encode()[:1], *self._quote[:1]]
        self._neighbours = np.zeros(256, dtype=bool)
        """Bytes allowed before an opening and after a closing quote."""
        self._neighbours[allowed] = True
        self._sure = not exotic
        self._odd = False
        self._returns = False
        self._last = b""
        self.multiline = False

    @property
    def irregular(self) -> bool:
        return not self._sure or self._odd or (self.multiline and self._returns)

    def add(self, chunk: bytes, low: _LowBytes, *, first: bool, bom: bool) -> None:
        if not self._sure:
            return
        self._returns = self._returns or b"\r" in chunk
        quoted = bool(self._quote) and self._quote in chunk
        self._sure = not (
            b"\0" in chunk
            # escape and quote may be in two chunks
            or (self._escaped and self._escaped in self._last + chunk)
            or _blank_line(chunk, low)
            or (quoted and not self._quotes_fit(chunk[3:] if first and bom else chunk, first=first))
        )
        if quoted:
            spans, self._odd = _spans_lines(low, self._quote[0], odd=self._odd)
            self.multiline = self.multiline or spans
        elif self._odd and (b"\n" in chunk or b"\r" in chunk):
            self.multiline = True
        self._last = chunk[-1:]

    def _quotes_fit(self, chunk: bytes, *, first: bool) -> bool:
        # the beginning of the file is as good as a line break
        before = b"\n" if first else self._last
        data = np.frombuffer(before + chunk + b"\n", dtype=np.uint8)
        at = np.flatnonzero(data[1:-1] == self._quote[0]) + 1
        opening = at[1:] if self._odd else at
        opening = opening[::2]
        closing = at[0 if self._odd else 1 :][::2]
        return bool(self._neighbours[data[opening - 1]].all() and self._neighbours[data[closing + 1]].all())


class _LineLengths:
    """Looks out for a long line without looking at every line: it hops from line break to line break."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.long = False
        self.start = 0
        """Start of the long line in the last chunk; negative in one before."""
        self._begun = 0
        """Bytes of the line that the last chunk ended in."""

    def add(self, chunk: bytes) -> None:
        at = -self._begun
        while not self.long and len(chunk) - at > self._most:
            # all lines up to the last break within reach are short, so none of them is looked at
            end = chunk.rfind(b"\n", max(at, 0), max(at + self._most + 1, 0))
            self.long = end < 0
            self.start = at
            at = end + 1
        last = chunk.rfind(b"\n", max(at, 0))
        self._begun = len(chunk) - (at if last < 0 else last + 1)


def _too_long(path: Path, line: int) -> BadInputError:
    message = f"line {line:,} has more than {INPUT.record_bytes >> 20} MiB"
    hint = "is this the right format? A JSON document is read as Json, not as NdJson"
    return BadInputError(message, file=str(path), hint=hint)


def _invalid(path: Path, encoding: str, error: UnicodeDecodeError, line: int) -> BadInputError:
    if line == 1 and error.object.startswith(b"\x1f\x8b"):
        return gzipped(path)
    byte = error.object[error.start]
    return BadInputError(
        f"line {line:,}: byte 0x{byte:02x} is not valid {encoding}",
        file=str(path),
        hint="if a spreadsheet wrote the file, import it with --encoding windows-1252; a manifest says it as "
        "the read step's 'encoding'",
    )


def gzipped(path: Path) -> BadInputError:
    """The error for a compressed file where text is expected."""
    return BadInputError("this is gzip", file=str(path), hint=f"decompress it: gunzip -c {path.name} > FILE")


def _spans_lines(low: _LowBytes, quote: int, *, odd: bool) -> tuple[bool, bool]:
    """(a line break is inside quotes, the chunk ends inside quotes)."""
    quotes = np.flatnonzero(low.data == quote)
    before = np.searchsorted(quotes, low.breaks) + odd
    return bool(np.any(before & 1)), bool((len(quotes) + odd) & 1)
