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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.branches.row_diff import Conflicts, RowDiff, ThreeWay, array_of, changed, json_text, tree_of
from odfchain.chain.statements import read_regular
from odfchain.errors import BadInputError, MergeConflictError, UsageError
from odfchain.storage import fsio
from odfchain.text import counted, one_line
from odfchain.workspace import merge_record

# Conflict lines and their resolution; pure functions, so that they can run on executors.
# A line is a cell that both sides changed, or a whole row where one side has none. `ours` and `theirs` decide
# conflicts only. A decision in a file is bound to the values of its line, not to heads: it holds as long as
# both sides have them (RFC-036).

LINE_COLUMNS = ("conflict", "column", "base", "ours", "theirs")
DECISION_COLUMNS = ("take", "value")
WHOLE_ROW = ""
"""The column of a line that is about a row."""
_SHOWN = 5

Cell = tuple[tuple[str, ...], str]
"""A key, as JSON texts, and a column."""


class Choice(Enum):
    """A resolution of a conflict."""

    OURS = "ours"
    THEIRS = "theirs"
    BASE = "base"
    DELETE = "delete"
    """The row is not there afterwards."""
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Decision:
    """A line of a file. Values are JSON texts, None where there is no row."""

    line: int
    take: Choice
    ours: str | None
    theirs: str | None
    value: Any = None
    """A tree of JSON, for `Choice.VALUE`."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolution of conflicts: all for one side, or one by one."""

    side: Choice | None = None
    decisions: Mapping[Cell, Decision] = field(default_factory=dict)
    source: str | None = None
    """The file that has the decisions."""

    @classmethod
    def of_side(cls, name: str) -> Resolution:
        """All for `ours`, or all for `theirs`."""
        return cls(side=Choice(name))


UNDECIDED = Resolution()


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """A merge with its conflicts decided, as far as they are."""

    changes: RowDiff
    """From our rows to the result; without the keys of which a line is open."""
    lines: pa.Table
    """All conflicts: `lines_schema`."""


def key_names(key: Sequence[str]) -> list[str]:
    """Names of key columns that do not collide with those of a line."""
    taken = (*LINE_COLUMNS, *DECISION_COLUMNS, "problem")
    return [f"key.{name}" if name in taken else name for name in key]


def lines_schema(key: Sequence[str]) -> pa.Schema:
    """Lines: the key and the values as JSON texts (null: no row), what was taken, or why it is open."""
    names = [*key_names(key), *LINE_COLUMNS, *DECISION_COLUMNS, "problem"]
    return pa.schema([(name, pa.string()) for name in names])


def resolve(three_way: ThreeWay, resolution: Resolution = UNDECIDED) -> Resolved:
    """Decide the conflicts of a merge, or of a part of it."""
    conflicts = three_way.conflicts
    choice = _DecidedRows(conflicts)
    lines = [_decided(line, choice, resolution) for line in _lines(conflicts)]
    for line in lines:
        if choice.deleted[line.row] and line.take not in (Choice.DELETE, None):
            line.problem = "is kept, and another line deletes its row: decide the same in all lines of a row"
    opened = np.zeros(len(conflicts), dtype=bool)
    opened[[line.row for line in lines if line.problem]] = True
    decided = choice.rows().only(~opened)
    decided = decided.only(changed(decided))
    changes = RowDiff.joined([three_way.changes, decided]) if len(decided) else three_way.changes
    columns = list(zip(*(line.texts() for line in lines), strict=True))
    schema = lines_schema(conflicts.key)
    return Resolved(changes, pa.table(columns, schema=schema) if columns else schema.empty_table())


@dataclass(slots=True)
class _Line:
    row: int
    key: tuple[str, ...]
    kind: str
    column: str
    base: str | None
    ours: str | None
    theirs: str | None
    take: Choice | None = None
    value: str | None = None
    problem: str | None = None

    def texts(self) -> tuple[str | None, ...]:
        values = (self.kind, self.column or None, self.base, self.ours, self.theirs)
        return (*self.key, *values, self.take.value if self.take else None, self.value, self.problem)


def _lines(conflicts: Conflicts) -> list[_Line]:
    # in order of the key, as far as Arrow sorts its types; then of the columns
    keys = conflicts.rows_of_keys()
    by = [(n, "ascending") for n in keys.column_names if not pa.types.is_nested(keys.schema.field(n).type)]
    order = pc.sort_indices(keys, by).to_pylist() if by else range(len(conflicts))
    found = []
    for row in order:
        key = tuple(json_text(tree_of(column[row])) for column in keys.columns)
        for name in [name for name, mask in conflicts.cells.items() if mask[row]] or [WHOLE_ROW]:
            base, ours, theirs = (
                _text(side, row, name, conflicts.key)
                for side in (conflicts.base, conflicts.ours, conflicts.theirs)
            )
            found.append(_Line(row, key, conflicts.kinds[row].value, name, base, ours, theirs))
    return found


def _text(side: RowDiff, row: int, column: str, key: Sequence[str]) -> str | None:
    if not side.has[row]:
        return None
    if column:
        return json_text(tree_of(side.after.column(column)[row]))
    names = [name for name in side.after.column_names if name not in key]
    return json_text({name: tree_of(side.after.column(name)[row]) for name in names})


def _decided(line: _Line, choice: _DecidedRows, resolution: Resolution) -> _Line:
    if resolution.side is not None:
        line.take = resolution.side
        choice.take(line, line.take)
        return line
    if (decision := resolution.decisions.get((line.key, line.column))) is None:
        line.problem = "is not decided"
    elif stale := [s for s in ("ours", "theirs") if getattr(decision, s) != getattr(line, s)]:
        now = [getattr(line, side) or "no row" for side in stale]
        shown = " and ".join(f"{s} is {one_line(v, 60)}" for s, v in zip(stale, now, strict=True))
        line.problem = f"has changed since line {decision.line:,} was written: {shown} now"
    elif decision.take is Choice.BASE and line.base is None:
        line.problem = f"has no base to take (line {decision.line:,})"
    else:
        line.take = decision.take
        line.value = json_text(decision.value) if decision.take is Choice.VALUE else None
        choice.take(line, line.take, decision.value)
    return line


class _DecidedRows:
    """The rows of the conflicts as they are decided; what is not is as ours."""

    def __init__(self, conflicts: Conflicts) -> None:
        self._conflicts, count = conflicts, len(conflicts)
        self.deleted = np.zeros(count, dtype=bool)
        both = conflicts.ours.has & conflicts.theirs.has
        self._there = conflicts.ours.has.copy()
        own = np.where(both, 0, 1) * count + np.arange(count)
        self._tables = (conflicts.merged, conflicts.ours.after, conflicts.theirs.after, conflicts.base.after)
        self._taken = {name: own.copy() for name in conflicts.merged.column_names}
        self._written: dict[str, list[Any]] = {name: [] for name in self._taken}

    def take(self, line: _Line, take: Choice, value: Any = None) -> None:
        row, count = line.row, len(self._conflicts)
        if take is Choice.DELETE:
            self.deleted[row], self._there[row] = True, False
            return
        if line.column:
            names = [line.column]
        else:
            names = [name for name in self._taken if name not in self._conflicts.key]
            value = value if take is Choice.VALUE else dict.fromkeys(names)
        if take is Choice.VALUE:
            for name in names:
                self._taken[name][row] = 4 * count + len(self._written[name])
                self._written[name].append(value if line.column else value[name])
            self._there[row] = True
        else:
            sides = (Choice.OURS, Choice.THEIRS, Choice.BASE)
            tables = (self._conflicts.ours, self._conflicts.theirs, self._conflicts.base)
            which = sides.index(take)
            for name in names:
                self._taken[name][row] = (which + 1) * count + row
            if not line.column:
                self._there[row] = tables[which].has[row]

    def rows(self) -> RowDiff:
        # rows without a decision stay as ours
        conflicts, keys = self._conflicts, self._conflicts.rows_of_keys()
        columns = []
        for name, taken in self._taken.items():
            kind = conflicts.merged.schema.field(name).type
            if name in conflicts.key:
                columns.append(keys.column(name))
                continue
            written = array_of(self._written[name], kind)
            parts = [table.column(name).cast(kind) for table in self._tables]
            whole = pa.chunked_array([*(chunk for part in parts for chunk in part.chunks), written], kind)
            columns.append(whole.take(pa.array(taken)))
        after = pa.table(columns, schema=conflicts.merged.schema)
        there = pa.array(np.where(self._there, np.arange(len(conflicts)), -1), mask=~self._there)
        ours = conflicts.ours
        return RowDiff(conflicts.key, ours.before, ours.had, after.take(there), self._there, ours.keys)


# --- in the driver ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions on all conflicts of a merge."""

    recorded: tuple[merge_record.Resolution, int]
    taken: Mapping[str, int]
    """Conflicts by what was taken, in words of `Choice`."""
    notes: tuple[str, ...] = ()


def check_decided(lines: pa.Table, resolution: Resolution, key: Sequence[str]) -> Decided:
    """The decisions on all conflicts; those about lines that conflict no more are noted."""
    cells = [_cell(line, key) for line in lines.select([*key_names(key), "column"]).to_pylist()]
    if lines.column("problem").null_count < lines.num_rows:
        raise _conflict_error(lines, cells, resolution, key)
    present = set(cells)
    gone = [decision for cell, decision in resolution.decisions.items() if cell not in present]
    notes = [
        f"{resolution.source}, line {decision.line:,}: this conflicts no more, so it was left out"
        for decision in sorted(gone, key=lambda decision: decision.line)
    ]
    taken = Counter(lines.column("take").to_pylist())
    how = merge_record.Resolution.NONE
    if lines.num_rows:
        side = resolution.side
        how = merge_record.Resolution(side.value) if side is not None else merge_record.Resolution.ROWS
    return Decided((how, lines.num_rows), taken, tuple(notes))


def _cell(line: dict[str, str | None], key: Sequence[str]) -> Cell:
    return tuple(str(line[name]) for name in key_names(key)), line["column"] or WHOLE_ROW


def _conflict_error(
    lines: pa.Table, cells: list[Cell], resolution: Resolution, key: Sequence[str]
) -> MergeConflictError:
    columns = (lines.column(name).to_pylist() for name in ("conflict", "problem"))
    opened = [
        f"{_named(cell, key)} {problem}" if resolution.source else f"{_named(cell, key)}: {kind}"
        for cell, kind, problem in zip(cells, *columns, strict=True)
        if problem is not None
    ]
    rest = f"; and {len(opened) - _SHOWN:,} more" if len(opened) > _SHOWN else ""
    what, named = counted(len(opened), "conflict"), "; ".join(opened[:_SHOWN]) + rest
    if resolution.source:
        return MergeConflictError(
            f"{resolution.source}: {what} not decided, so nothing was changed: {named}",
            lines,
            hint="--conflicts NEWFILE writes them as they are now, and what is decided: fill in the rest",
        )
    return MergeConflictError(
        f"{what}, so nothing was changed: {named}",
        lines,
        hint="--resolve ours or --resolve theirs decides all; or write them with --conflicts FILE, fill in "
        "`take` (ours, theirs, base, delete; or value, and the value), and give the file to --resolve",
    )


def _named(cell: Cell, key: Sequence[str]) -> str:
    # `iata=ZRH, elevation`
    parts = [f"{name}={one_line(text.strip(chr(34)), 60)}" for name, text in zip(key, cell[0], strict=True)]
    return ", ".join([*parts, one_line(cell[1], 60)] if cell[1] else parts)


MOST_BYTES = 256 << 20
"""A file that is read [bytes]."""
_SEPARATORS = (",", ";", "\t")
_BY_BOM = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_WORDS = ("conflict", "column", "take")
_ADVICE = (
    "write numbers with digits and a point only, and times like 2026-01-31T12:00:00Z; spreadsheets change "
    "them unless their columns are imported as text"
)


def check_ending(path: Path, what: str = "conflicts") -> Path:
    """The path, to which rows can be written."""
    if path.suffix.lower() not in (".csv", ".ndjson"):
        raise UsageError(f"{path}: {what} are written as .csv or .ndjson")
    return path


def write_rows(
    path: Path, names: Sequence[str], rows: Iterable[dict[str, Any]], text: Callable[[str, Any], Any]
) -> None:
    """Durably write rows to a `.csv` or `.ndjson` file; `text` gives the value of a column as CSV has it."""
    made = io.StringIO(newline="")
    if path.suffix.lower() == ".csv":
        writer = csv.writer(made, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([text(*item) for item in row.items()] for row in rows)
    else:
        made.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    fsio.replace_file(path, made.getvalue().encode())


# --- writing ----------------------------------------------------------------------------------------------


def write_conflicts(lines: pa.Table, path: Path) -> None:
    """All conflicts, and what is decided of them already; replaces the file, or leaves it as it is."""
    names = [name for name in lines.column_names if name != "problem"]

    def text(name: str, value: Any) -> Any:
        # a text that is a decision is what the person writes
        return value if name in _WORDS or (name == "value" and isinstance(value, str)) else plain_text(value)

    rows = (_shown(row) for row in lines.select(names).to_pylist())
    write_rows(check_ending(path), names, rows, text)


def values_of(line: dict[str, str | None]) -> dict[str, Any]:
    """A line with values in place of their JSON texts."""
    return {
        name: text if text is None or name in _WORDS or name == "problem" else json.loads(text)
        for name, text in line.items()
    }


def _shown(line: dict[str, str | None]) -> dict[str, Any]:
    # an undecided line is written with empty fields
    found = values_of(line)
    value = found["value"] if found["take"] == Choice.VALUE.value else ""
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
    # as JSON where the text would be read as another value, or a spreadsheet would compute it
    number = text[1:].replace(".", "", 1).isdigit()
    formula = text[:1] in ("=", "@") or (text[:1] in ("+", "-") and not number)
    return json_text(text) if not text or text[0] == '"' or text != text.strip() or formula else text


# --- reading ----------------------------------------------------------------------------------------------


def read_resolution(given: str | Path | None, data: pa.Schema, key: Sequence[str]) -> Resolution:
    """The decisions: none, of a side (`ours`, `theirs`), or of a filled-in file.

    Its lines without `take` decide nothing, earlier decisions stay. `data` are the columns of the data,
    the key among them.

    Raises:
        BadInputError: it is not such a file, or a line cannot be understood; names the line.
    """
    if given is None:
        return UNDECIDED
    if given in ("ours", "theirs"):
        return Resolution.of_side(str(given))
    path = Path(given)
    if (found := read_regular(path, MOST_BYTES, follow=True)) is None:
        raise fsio.no_file(path, "--resolve takes ours, theirs, or a file of --conflicts")
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


def text_of(content: bytes, path: Path) -> str:
    """The text of a file that was written by hand: UTF-8, or UTF-16 with a mark."""
    encoding = next((name for mark, name in _BY_BOM if content.startswith(mark)), "utf-8-sig")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise BadInputError("it is not UTF-8", file=str(path), hint="save it as `CSV UTF-8`") from None


def csv_text(content: bytes, wanted: Iterable[str], path: Path) -> tuple[str, str, list[str]]:
    """(text, separator, names of columns) of a CSV file, by the separator that gives most `wanted` names."""
    csv.field_size_limit(MOST_BYTES)
    text = text_of(content, path)
    if text[:4].lower() == "sep=":
        text = text.partition("\n")[2]
    first = text[: 1 << 20]  # a header is no longer: the rows are not copied for each separator
    headers = {s: next(csv.reader(io.StringIO(first, newline=""), delimiter=s), []) for s in _SEPARATORS}
    separator = max(_SEPARATORS, key=lambda s: len(set(wanted) & set(headers[s])))
    return text, separator, headers[separator]


class _File:
    """A file of decisions about rows with these columns."""

    def __init__(self, path: Path, data: pa.Schema, key: tuple[str, ...]) -> None:
        self._path, self._data, self._key = path, data, key
        self._row = pa.struct([each for each in data if each.name not in key])
        self._needed = [*key_names(key), "column", "ours", "theirs", *DECISION_COLUMNS]
        self._texts = True
        """True if values are texts that have to be understood, as in CSV."""

    def wrong(self, number: int, message: str, hint: str | None = None) -> BadInputError:
        return BadInputError(f"line {number:,}: {message}", file=str(self._path), hint=hint)

    def _check_columns(self, number: int, names: Sequence[str]) -> None:
        if missing := [name for name in self._needed if name not in names]:
            raise self.wrong(
                number,
                f"there is no column {', '.join(map(one_line, missing))}",
                "--conflicts FILE writes a file with all that are needed",
            )

    def csv(self, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        text, separator, header = csv_text(content, self._needed, self._path)
        self._check_columns(1, header)
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
        self._texts = False
        for number, text in enumerate(text_of(content, self._path).split("\n"), 1):
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

    def decision(self, number: int, line: dict[str, Any]) -> tuple[Cell, Decision | None]:
        # None for a line that is not filled in
        word, written = line["take"] or "", line["value"]
        filled = written is not None and written != ""
        if not isinstance(word, str) or not word.strip():
            if filled:
                raise self.wrong(number, "`value` is filled in and `take` is not: write `value` there")
            return ((), ""), None
        try:
            take = Choice(word.strip().casefold())
        except ValueError:
            words = ", ".join(item.value for item in Choice)
            raise self.wrong(number, f"`take` is {one_line(word)!r}, and not one of {words}") from None
        if filled != (take is Choice.VALUE):
            problem, hint = f"is `{take.value}`, and something is", None
            if take is Choice.VALUE:
                problem = "is `value`, and nothing is"
                hint = 'null is written `null`, and the empty text `""`'
            raise self.wrong(number, f"`take` {problem} written as `value`", hint)
        column = line["column"] or WHOLE_ROW
        kind = self._row if column == WHOLE_ROW else self._kind(number, column)
        names = zip(key_names(self._key), self._key, strict=True)
        key = tuple(self._value(number, line[n], self._data.field(own).type) for n, own in names)
        ours, theirs = (self._side(number, line[name], column, kind) for name in ("ours", "theirs"))
        value = self._written(number, written, column, kind) if take is Choice.VALUE else None
        return (key, column), Decision(number, take, ours, theirs, value)

    def _kind(self, number: int, column: Any) -> pa.DataType:
        names = [each.name for each in self._row]
        if column not in names:
            raise self.wrong(number, f"there is no column {one_line(str(column))!r} in the data")
        return self._row.field(names.index(column)).type

    def _side(self, number: int, given: Any, column: str, kind: pa.DataType) -> str | None:
        # None: this side has no row
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
        return json_text(self._canonical(number, self._tree(number, given, kind), kind))

    def _canonical(self, number: int, tree: Any, kind: pa.DataType) -> Any:
        # a value that was written by hand as JSON has it
        try:
            return tree_of(array_of([tree], kind)[0])
        except ValueError as error:
            raise self.wrong(number, one_line(str(error)), _ADVICE) from None

    def _written(self, number: int, given: Any, column: str, kind: pa.DataType) -> Any:
        if isinstance(given, str) and given.strip().casefold() == "null":
            given = None
        elif isinstance(given, str):
            given = self._understood(number, given, kind)
        if column == WHOLE_ROW and isinstance(given, dict) and given.keys() != set(kind.names):
            wrong = sorted(given.keys() ^ set(kind.names))
            raise self.wrong(number, f"a row has each column once: {', '.join(map(one_line, wrong))}")
        if column == WHOLE_ROW and given is None:
            raise self.wrong(number, "a row cannot be null: `delete` takes it away")
        return self._canonical(number, given, kind)

    def _tree(self, number: int, given: Any, kind: pa.DataType) -> Any:
        return self._understood(number, given, kind) if self._texts else given

    def _understood(self, number: int, text: str, kind: pa.DataType) -> Any:
        # JSON where the type has parts, and where a text is quoted
        quoted = len(text) > 1 and text[0] == text[-1] == '"' and pa.types.is_string(kind)
        if not quoted and not pa.types.is_nested(kind):
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            if quoted:
                return text
            raise self.wrong(number, f"{one_line(text, 60)} is not JSON") from None
