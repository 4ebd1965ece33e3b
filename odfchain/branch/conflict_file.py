"""Conflicts as a file that people fill in, and what they decided read back from it.

One line for each cell in conflict, or for a row where a side has none (then `column` is empty, and values are
rows as JSON). `take` is `ours`, `theirs`, `base`, `delete`, or `value` with a `value`:

    iata,conflict,column,base,ours,theirs,take,value
    ZRH,update-update,elevation,1416,1417,1418,value,1419

Spreadsheets are understood: a BOM, UTF-16, `;` or tabs, quotes anywhere, lines that end with CR LF, columns
in another order or more of them, and numbers that are exactly equal by the type of their column. Empty is
null; a text that is empty, or could be taken for something else, is JSON (`""`). To set null write `null`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfchain.branch.cell_text import canonical_text, json_text
from odfchain.branch.resolving import (
    DECISION_COLUMNS,
    UNDECIDED,
    WHOLE_ROW,
    Cell,
    Decision,
    Resolution,
    Take,
    key_names,
)
from odfchain.errors import BadInputError, UsageError
from odfchain.store import fsio
from odfchain.text import one_line
from odfchain.trust.files import read_regular

MOST_BYTES = 256 << 20
"""A file that is read [bytes]."""
_SEPARATORS = (",", ";", "\t")
_BY_BOM = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_SIDES = ("ours", "theirs")
_WORDS = ("conflict", "column", "take")
_ADVICE = (
    "write numbers with digits and a point only, and times like 2026-01-31T12:00:00Z; spreadsheets change "
    "them unless their columns are imported as text"
)


def check_conflict_file(path: Path) -> Path:
    """The path, to which conflicts can be written.

    Raises:
        UsageError: its name does not say how.
    """
    if path.suffix.lower() not in (".csv", ".ndjson"):
        raise UsageError(f"{path}: conflicts are written as .csv or .ndjson")
    return path


# --- writing ----------------------------------------------------------------------------------------------


def write_conflicts(lines: pa.Table, path: Path) -> None:
    """All conflicts, and what is decided of them already; replaces the file, or leaves it as it is."""
    form = check_conflict_file(path).suffix.lower()
    names = [name for name in lines.column_names if name != "problem"]
    rows = (_shown(row) for row in lines.select(names).to_pylist())
    text = io.StringIO(newline="")
    if form == ".csv":
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow(
                # a text that is a decision is what the person writes
                v if name in _WORDS or (name == "value" and isinstance(v, str)) else plain_text(v)
                for name, v in row.items()
            )
    else:
        text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    fsio.replace_file(path, text.getvalue().encode())


def values_of(line: dict[str, str | None]) -> dict[str, Any]:
    """A line with values in place of their JSON texts."""
    return {
        name: text if text is None or name in _WORDS or name == "problem" else json.loads(text)
        for name, text in line.items()
    }


def _shown(line: dict[str, str | None]) -> dict[str, Any]:
    """A line as it is written; what is not decided is empty."""
    found = values_of(line)
    value = found["value"] if found["take"] == Take.VALUE.value else ""
    if value is None or (isinstance(value, str) and value.casefold() == "null"):
        value = json_text(value)
    elif isinstance(value, str) and found["take"]:
        value = _unmistakable(value)
    return found | {"take": found["take"] or "", "value": value}


def plain_text(value: Any) -> str:
    """A value in CSV; nothing for null."""
    if value is None:
        return ""
    return _unmistakable(value) if isinstance(value, str) else json_text(value)


def _unmistakable(text: str) -> str:
    """The text; as JSON where it would be read as something else, or a spreadsheet would compute it."""
    number = text[1:].replace(".", "", 1).isdigit()
    formula = text[:1] in ("=", "@") or (text[:1] in ("+", "-") and not number)
    return json_text(text) if not text or text[0] == '"' or text != text.strip() or formula else text


# --- reading ----------------------------------------------------------------------------------------------


def resolution_of(who: str | Path | None) -> Resolution | Path:
    """Who decides conflicts: nobody, `ours`, `theirs`, or a file that is read when its columns are known."""
    if who is None:
        return UNDECIDED
    return Resolution.of_side(str(who)) if who in _SIDES else Path(who)


def read_resolution(given: Resolution | Path, data: pa.Schema, key: Sequence[str]) -> Resolution:
    """What a filled-in file decides; lines without `take` decide nothing. What is decided already stays.

    `data` are the columns of the data, the key among them.

    Raises:
        BadInputError: it is not such a file, or a line cannot be understood; names the line.
        StoreError: it cannot be read.
    """
    if isinstance(given, Resolution):
        return given
    path = given
    found = read_regular(path, MOST_BYTES, follow=True)
    if found is None:
        raise UsageError(
            f"{path}: no such file", hint="--resolve takes ours, theirs, or a file of --conflicts"
        )
    content = found[0]
    if len(content) > MOST_BYTES:
        raise BadInputError(f"it has more than {MOST_BYTES:,} bytes", file=str(path))
    file = _File(path, data, tuple(key))
    lines = file.ndjson(content) if path.suffix.lower() in (".ndjson", ".jsonl") else file.csv(content)
    decisions: dict[Cell, Decision] = {}
    for number, line in lines:
        cell, decision = file.decision(number, line)
        if decision is None:
            continue
        earlier = decisions.setdefault(cell, decision)
        if (earlier.take, earlier.value) != (decision.take, decision.value):
            raise file.wrong(number, f"line {earlier.line:,} decides the same conflict, and differently")
    return Resolution(decisions=decisions, source=str(path))


class _File:
    """A file of decisions about rows with these columns."""

    def __init__(self, path: Path, data: pa.Schema, key: tuple[str, ...]) -> None:
        self._path, self._data, self._key = path, data, key
        others = [each for each in data if each.name not in key]
        self._row = pa.struct(others)
        self._needed = [*key_names(key), "column", "ours", "theirs", *DECISION_COLUMNS]
        self._texts = True
        """Whether values are texts that have to be understood, as in CSV."""

    def wrong(self, number: int, message: str, hint: str | None = None) -> BadInputError:
        """What is wrong with a line."""
        return BadInputError(f"line {number:,}: {message}", file=str(self._path), hint=hint)

    def _check_columns(self, number: int, names: Sequence[str]) -> None:
        missing = [name for name in self._needed if name not in names]
        if missing:
            raise self.wrong(
                number,
                f"there is no column {', '.join(map(one_line, missing))}",
                "--conflicts FILE writes a file with all that are needed",
            )

    def csv(self, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        """The lines of a table, as texts."""
        text = self._text(content)
        if text[:4].lower() == "sep=":
            text = text.partition("\n")[2]
        first = text.partition("\n")[0].rstrip("\r")
        headers = {s: next(csv.reader([first], delimiter=s), []) for s in _SEPARATORS}
        separator = max(_SEPARATORS, key=lambda s: len(set(self._needed) & set(headers[s])))
        header = headers[separator]
        self._check_columns(1, header)
        csv.field_size_limit(MOST_BYTES)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            next(reader)
            before = reader.line_num
            for row in reader:
                number, before = before + 1, reader.line_num
                if any(row):
                    yield number, dict(zip(header, [*row, *[""] * len(header)], strict=False))
        except csv.Error as error:
            raise self.wrong(reader.line_num, f"it is not CSV: {one_line(str(error))}") from None

    def ndjson(self, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        """The lines of a file of objects."""
        self._texts = False
        for number, text in enumerate(self._text(content).split("\n"), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise self.wrong(number, f"it is not JSON: {one_line(str(error))}") from None
            if not isinstance(line, dict):
                raise self.wrong(number, "it is not an object")
            self._check_columns(number, list(line))
            yield number, line

    def _text(self, content: bytes) -> str:
        encoding = next((name for mark, name in _BY_BOM if content.startswith(mark)), "utf-8-sig")
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            raise BadInputError(
                "it is not UTF-8", file=str(self._path), hint="save it as `CSV UTF-8`"
            ) from None

    def decision(self, number: int, line: dict[str, Any]) -> tuple[Cell, Decision | None]:
        """What a line decides; None for one that is not filled in."""
        word, written = line["take"] or "", line["value"]
        filled = written is not None and written != ""
        if not isinstance(word, str) or not word.strip():
            if filled:
                raise self.wrong(number, "`value` is filled in and `take` is not: write `value` there")
            return ((), ""), None
        try:
            take = Take(word.strip().casefold())
        except ValueError:
            words = ", ".join(item.value for item in Take)
            raise self.wrong(number, f"`take` is {one_line(word)!r}, and not one of {words}") from None
        if filled != (take is Take.VALUE):
            problem = (
                "is `value`, and nothing is" if take is Take.VALUE else f"is `{take.value}`, and something is"
            )
            hint = 'null is written `null`, and the empty text `""`' if take is Take.VALUE else None
            raise self.wrong(number, f"`take` {problem} written as `value`", hint)
        column = line["column"] or WHOLE_ROW
        kind = self._row if column == WHOLE_ROW else self._kind(number, column)
        names = zip(key_names(self._key), self._key, strict=True)
        key = tuple(self._value(number, line[n], self._data.field(own).type) for n, own in names)
        ours, theirs = (self._side(number, line[name], column, kind) for name in ("ours", "theirs"))
        value = self._written(number, written, column, kind) if take is Take.VALUE else None
        return (key, column), Decision(number, take, ours, theirs, value)

    def _kind(self, number: int, column: Any) -> pa.DataType:
        names = [each.name for each in self._row]
        if column not in names:
            raise self.wrong(number, f"there is no column {one_line(str(column))!r} in the data")
        return self._row.field(names.index(column)).type

    def _side(self, number: int, given: Any, column: str, kind: pa.DataType) -> str | None:
        """What the line says that one side has, as a JSON text; None is no row."""
        if column == WHOLE_ROW:
            if given in (None, ""):
                return None
            tree = self._tree(number, given, kind)
            if isinstance(tree, dict) and tree.keys() != set(kind.names):
                return json_text(tree)  # of other columns than there are by now
        return self._value(number, given, kind)

    def _value(self, number: int, given: Any, kind: pa.DataType) -> str:
        if self._texts and given == "":
            return json_text(None)
        tree = self._tree(number, given, kind)
        try:
            return canonical_text(tree, kind)
        except ValueError as error:
            raise self.wrong(number, one_line(str(error)), _ADVICE) from None

    def _written(self, number: int, given: Any, column: str, kind: pa.DataType) -> Any:
        """The tree of a value that a person wrote."""
        if isinstance(given, str) and given.strip().casefold() == "null":
            given = None
        elif isinstance(given, str):
            given = self._understood(number, given, kind)
        if column == WHOLE_ROW and isinstance(given, dict) and given.keys() != set(kind.names):
            wrong = sorted(given.keys() ^ set(kind.names))
            raise self.wrong(number, f"a row has each column once: {', '.join(map(one_line, wrong))}")
        if column == WHOLE_ROW and given is None:
            raise self.wrong(number, "a row cannot be null: `delete` takes it away")
        try:
            return json.loads(canonical_text(given, kind))
        except ValueError as error:
            raise self.wrong(number, one_line(str(error)), _ADVICE) from None

    def _tree(self, number: int, given: Any, kind: pa.DataType) -> Any:
        return self._understood(number, given, kind) if self._texts else given

    def _understood(self, number: int, text: str, kind: pa.DataType) -> Any:
        """The tree of a text: JSON where the type has parts, and where a text is quoted."""
        quoted = len(text) > 1 and text[0] == text[-1] == '"' and pa.types.is_string(kind)
        if not quoted and not pa.types.is_nested(kind):
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            if quoted:
                return text
            raise self.wrong(number, f"{one_line(text, 60)} is not JSON") from None
