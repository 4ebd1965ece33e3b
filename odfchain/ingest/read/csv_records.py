"""CSV to records by one strict rule, for files that are not as regular as Spark's reader needs them.

Fields are separated by the separator, records by LF, CR LF or CR; empty lines hold no record. A field that
begins with the quote is quoted and ends at the next quote that is neither doubled nor escaped; after that
only a separator or the end of the record may come. Before a quote, two escape characters are one and a single
one makes the quote part of the field; everywhere else the escape character stands for itself, and so does a
quote in a field that does not begin with one. Sources: RFC 4180, the specification's "ReadStep::Csv",
RFC-010.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import BadInputError
from odfchain.limits import INPUT
from odfchain.spark.columns import check_count
from odfchain.store.fsio import storage_errors
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
    """The records of a CSV file in order; a field is None where nothing stands between the separators."""

    def __init__(self, path: Path, dialect: CsvDialect, file: str) -> None:
        self._path = path
        self._dialect = dialect
        self._file = file
        self._line = 0
        self.line = 0
        """The line on which the record that was given last begins."""
        quote, escape = re.escape(dialect.quote), re.escape(dialect.escape)
        self._special = re.compile(f"{escape}*{quote}" if escape else quote) if quote else None

    def __iter__(self) -> Iterator[list[str | None]]:
        """Read the file."""
        quote, separator = self._dialect.quote, self._dialect.separator
        encoding = "utf-8-sig" if self._dialect.encoding == "utf-8" else self._dialect.encoding
        with storage_errors(self._path), self._path.open("r", encoding=encoding, newline="") as stream:
            for line in stream:
                self._line += 1
                self.line = self._line
                self._check(line)
                body = line.rstrip("\r\n")
                if not body:
                    continue
                if quote and quote in body:
                    yield list(self._fields(line, stream))
                else:
                    yield [field or None for field in body.split(separator)]

    def _fields(self, line: str, stream: Iterator[str]) -> Iterator[str | None]:
        """The fields of a record that begins with this line and has quotes."""
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
                if size > INPUT.record_bytes:
                    raise self._fault(
                        begun,
                        f"a quoted field that begins here has more than {INPUT.record_bytes >> 20} MiB",
                        hint="is its closing quote missing?",
                    )
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
                hint="is the file in another encoding, UTF-16 perhaps? Set the read step's 'encoding'",
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


def header_of(path: Path, dialect: CsvDialect, file: str) -> list[str]:
    """The fields of the first record; none for a file without records."""
    names = [field or "" for field in next(iter(CsvRecords(path, dialect, file)), [])]
    check_count(names, file)
    return names


def rewrite_csv(source: Path, target: Path, dialect: CsvDialect, file: str) -> bool:
    """Copy a CSV file into the one form that Spark reads exactly: UTF-8, commas, every text quoted, LF.

    Tells whether a field holds a line break.
    """
    breaks = False
    with storage_errors(target), target.open("x", encoding="utf-8", newline="") as out:
        for record in CsvRecords(source, dialect, file):
            breaks = breaks or any(f is not None and ("\n" in f or "\r" in f) for f in record)
            out.write(",".join(["" if f is None else '"' + f.replace('"', '""') + '"' for f in record]))
            out.write("\n")
    return breaks


def first_misfit(
    path: Path, dialect: CsvDialect, columns: list[str], *, header: bool, file: str
) -> BadInputError | None:
    """The first record that breaks the rule or has another number of fields, as an error.

    Called only after a job has failed.
    """
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
