"""Conflicts, line by line, and what a person decides of them; pure, so that it can run anywhere.

A conflict is a line: a cell that both sides changed, or a whole row where one side has none. `ours` and
`theirs` decide lines only: what merges without a conflict stays merged. A decision of a file is bound to the
values that its line shows, not to heads: it holds as long as both sides still have them, wherever the
branches have moved. Source: RFC-036.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.branch.cell_text import array_of, json_text, tree_of
from odfchain.branch.row_diff import RowDiff, changed
from odfchain.branch.three_way import Conflicts, Side, ThreeWay
from odfchain.errors import MergeConflictError
from odfchain.repo import merge_record
from odfchain.text import counted, one_line

LINE_COLUMNS = ("conflict", "column", "base", "ours", "theirs")
DECISION_COLUMNS = ("take", "value")
WHOLE_ROW = ""
"""The column of a line that is about a row."""
_SHOWN = 5

Cell = tuple[tuple[str, ...], str]
"""A key, as JSON texts, and a column."""


class Take(Enum):
    """What becomes of a conflict."""

    OURS = "ours"
    THEIRS = "theirs"
    BASE = "base"
    DELETE = "delete"
    """The row is not there afterwards."""
    VALUE = "value"
    """What the person wrote."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A line of a file. Values are JSON texts, None where there is no row."""

    line: int
    take: Take
    ours: str | None
    theirs: str | None
    value: Any = None
    """A tree of JSON, for `Take.VALUE`."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """How conflicts are to be decided: all for one side, or one by one."""

    side: Take | None = None
    decisions: Mapping[Cell, Decision] = field(default_factory=dict)
    source: str | None = None
    """The file that has the decisions."""

    @classmethod
    def of_side(cls, name: str) -> Resolution:
        """All for `ours`, or all for `theirs`."""
        return cls(side=Take(name))


UNDECIDED = Resolution()


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """A merge with its conflicts decided, as far as they are."""

    changes: RowDiff
    """From our rows to the result; without the keys of which a line is open."""
    lines: pa.Table
    """All conflicts: `lines_schema`."""


def key_names(key: Sequence[str]) -> list[str]:
    """What the columns of a key are called beside those of a line."""
    taken = (*LINE_COLUMNS, *DECISION_COLUMNS, "problem")
    return [f"key.{name}" if name in taken else name for name in key]


def lines_schema(key: Sequence[str]) -> pa.Schema:
    """Lines: the key and the values as JSON texts (null: no row), what was taken, or why it is open."""
    names = [*key_names(key), *LINE_COLUMNS, *DECISION_COLUMNS, "problem"]
    return pa.schema([(name, pa.string()) for name in names])


def resolve(three_way: ThreeWay, resolution: Resolution = UNDECIDED) -> Resolved:
    """Decide the conflicts of a merge, or of a part of it."""
    conflicts = three_way.conflicts
    choice = _Choice(conflicts)
    lines = [_decided(line, choice, resolution) for line in _lines(conflicts)]
    for line in lines:
        _delete_whole_rows(line, choice)
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
    take: Take | None = None
    value: str | None = None
    problem: str | None = None

    def texts(self) -> tuple[str | None, ...]:
        values = (self.kind, self.column or None, self.base, self.ours, self.theirs)
        return (*self.key, *values, self.take.value if self.take else None, self.value, self.problem)


def _lines(conflicts: Conflicts) -> list[_Line]:
    """In order of the key, as far as Arrow sorts its types; then of the columns."""
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


def _text(side: Side, row: int, column: str, key: Sequence[str]) -> str | None:
    if not side.there[row]:
        return None
    if column:
        return json_text(tree_of(side.rows.column(column)[row]))
    names = [name for name in side.rows.column_names if name not in key]
    return json_text({name: tree_of(side.rows.column(name)[row]) for name in names})


def _decided(line: _Line, choice: _Choice, resolution: Resolution) -> _Line:
    """The line with what was taken, or with what keeps it open."""
    if resolution.side is not None:
        line.take = resolution.side
        choice.take(line, line.take)
        return line
    decision = resolution.decisions.get((line.key, line.column))
    if decision is None:
        line.problem = "is not decided"
    elif stale := [s for s in ("ours", "theirs") if getattr(decision, s) != getattr(line, s)]:
        now = [getattr(line, side) or "no row" for side in stale]
        shown = " and ".join(f"{s} is {one_line(v, 60)}" for s, v in zip(stale, now, strict=True))
        line.problem = f"has changed since line {decision.line:,} was written: {shown} now"
    elif decision.take is Take.BASE and line.base is None:
        line.problem = f"has no base to take (line {decision.line:,})"
    else:
        line.take = decision.take
        line.value = json_text(decision.value) if decision.take is Take.VALUE else None
        choice.take(line, line.take, decision.value)
    return line


def _delete_whole_rows(line: _Line, choice: _Choice) -> None:
    if choice.deleted[line.row] and line.take not in (Take.DELETE, None):
        line.problem = "is kept, and another line deletes its row: decide the same in all lines of a row"


class _Choice:
    """The rows of the conflicts as they are decided; what is not is as ours."""

    def __init__(self, conflicts: Conflicts) -> None:
        self._conflicts, count = conflicts, len(conflicts)
        self.deleted = np.zeros(count, dtype=bool)
        both = conflicts.ours.there & conflicts.theirs.there
        self._there = conflicts.ours.there.copy()
        own = np.where(both, 0, 1) * count + np.arange(count)
        self._tables = (conflicts.merged, conflicts.ours.rows, conflicts.theirs.rows, conflicts.base.rows)
        self._taken = {name: own.copy() for name in conflicts.merged.column_names}
        self._written: dict[str, list[Any]] = {name: [] for name in self._taken}

    def take(self, line: _Line, take: Take, value: Any = None) -> None:
        """Take one side's cell or row, or what was written."""
        row, count = line.row, len(self._conflicts)
        if take is Take.DELETE:
            self.deleted[row], self._there[row] = True, False
            return
        if line.column:
            names = [line.column]
        else:
            names = [name for name in self._taken if name not in self._conflicts.key]
            value = value if take is Take.VALUE else dict.fromkeys(names)
        if take is Take.VALUE:
            for name in names:
                self._taken[name][row] = 4 * count + len(self._written[name])
                self._written[name].append(value if line.column else value[name])
            self._there[row] = True
        else:
            sides = (Take.OURS, Take.THEIRS, Take.BASE)
            tables = (self._conflicts.ours, self._conflicts.theirs, self._conflicts.base)
            which = sides.index(take)
            for name in names:
                self._taken[name][row] = (which + 1) * count + row
            if not line.column:
                self._there[row] = tables[which].there[row]

    def rows(self) -> RowDiff:
        """From ours to what was decided."""
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
        return RowDiff(
            conflicts.key,
            conflicts.ours.rows,
            conflicts.ours.there,
            after.take(there),
            self._there,
            conflicts.keys,
        )


# --- in the driver ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """How the conflicts of a whole merge were decided."""

    recorded: tuple[merge_record.Resolution, int]
    """As the merge record has it."""
    taken: Mapping[str, int]
    """Conflicts by what was taken, in words of `Take`."""
    notes: tuple[str, ...] = ()


def check_decided(lines: pa.Table, resolution: Resolution, key: Sequence[str]) -> Decided:
    """How all conflicts were decided; decisions about what conflicts no more are noted.

    Raises:
        MergeConflictError: some were not (`open_lines`); it has all lines, and names the first open ones.
    """
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


def open_lines(lines: pa.Table) -> pa.Table:
    """Those that nobody has decided."""
    return lines.filter(lines.column("problem").is_valid())


def _named(cell: Cell, key: Sequence[str]) -> str:
    """`iata=ZRH, elevation`."""
    parts = [f"{name}={one_line(text.strip(chr(34)), 60)}" for name, text in zip(key, cell[0], strict=True)]
    return ", ".join([*parts, one_line(cell[1], 60)] if cell[1] else parts)
