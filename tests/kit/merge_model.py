"""What merges record, row by row in plain Python: a model to hold the kernels against (RFC-009)."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from odfchain.odf.enums import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from odfchain.workspace.config import DuplicateKeys, LateEdits

Row = dict[str, Any]
Record = tuple[int, Row]
"""An operation and the row's values."""
TIME = "event_time"
BACK = (RETRACT, CORRECT_FROM)


class RefusedByModelError(Exception):
    """The row of the input (from 1) for which it is refused, and what is wrong with it."""


def rows_of(table: pa.Table) -> list[Row]:
    """The rows, nanoseconds as numbers, which Python's times do not have."""
    plain = [
        column.cast(pa.int64()) if pa.types.is_time64(column.type) else column for column in table.columns
    ]
    return pa.Table.from_arrays(plain, names=table.column_names).to_pylist()


def same(value: Any) -> Any:
    """Equal where values are."""
    if isinstance(value, float | np.floating):
        return "NaN" if math.isnan(value) else float(value) + 0.0
    if isinstance(value, list):
        items = [same(item) for item in value]
        return tuple(sorted(items, key=repr) if value and isinstance(value[0], tuple) else items)
    if isinstance(value, tuple):
        return tuple(map(same, value))
    return tuple(map(same, value.values())) if isinstance(value, dict) else value


def ordered(value: Any) -> Any:
    """Ordered as values are: nulls first, NaN last, texts by their bytes."""
    if value is None:
        return (0,)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, float | np.floating):
        value = (1, 0.0) if math.isnan(value) else (0, float(value))
    elif isinstance(value, list):
        value = tuple(map(ordered, value))
    elif isinstance(value, dict):
        value = tuple(map(ordered, value.values()))
    assert isinstance(value, bytes | tuple | bool | int | Decimal | dt.date | dt.time | dt.timedelta), value
    return (1, value)


@dataclass(frozen=True)
class Model:
    """A dataset with rows, and how inputs meet them."""

    strategy: str
    key: tuple[str, ...]
    compare: tuple[str, ...] | None
    duplicates: DuplicateKeys
    edits: LateEdits
    event_time: dt.datetime
    """Of rows without one."""
    latest: dt.datetime | None
    """Later event times of added rows are refused."""
    recorded: list[Record]
    counts: Counter[str] = field(default_factory=Counter)
    """Of rows that were left out, recorded, or come with other values."""

    def merged(self, rows: Sequence[Row], ops: Sequence[int | None] | None) -> list[Record]:
        """What an input adds, in order; `RefusedByModelError` if it is refused."""
        numbered = list(enumerate(map(dict, rows), start=1))
        if TIME in self.key:
            for _, row in numbered:
                row[TIME] = row[TIME] or self.event_time
        changes = getattr(self, f"_{self.strategy}")(numbered, ops)
        for number, op, row, _ in sorted(changes, key=lambda change: change[0]):
            if self.latest and op not in BACK and (row[TIME] or self.event_time) > self.latest:
                raise RefusedByModelError(number, "later than")
        changes.sort(key=lambda change: change[3])
        return [(op, row | {TIME: row[TIME] or self.event_time}) for _, op, row, _ in changes]

    def _key(self, row: Row) -> Any:
        return tuple(same(row[name]) for name in self.key)

    def _state(self, *, retracted: bool = False, by: Sequence[str] | None = None) -> dict[Any, Record]:
        newest = {tuple(same(row[name]) for name in by or self.key): (op, row) for op, row in self.recorded}
        return {key: (op, row) for key, (op, row) in newest.items() if retracted or op not in BACK}

    def _one_each(self, rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
        self._named(rows)
        kept: dict[Any, tuple[int, Row]] = {}
        for number, row in rows:
            key = self._key(row)
            if key in kept and self.duplicates is DuplicateKeys.REFUSE and same(row) != same(kept[key][1]):
                raise RefusedByModelError(number, "occurs twice")
            if key not in kept or self.duplicates is DuplicateKeys.LAST:
                kept[key] = (number, row)
        for number, row in rows:
            chosen, other = kept[self._key(row)]
            if chosen != number:
                self.counts["copies" if same(row) == same(other) else "differing"] += 1
        return sorted(kept.values(), key=lambda each: each[0])

    def _named(self, rows: list[tuple[int, Row]]) -> None:
        for number, row in rows:
            if all(row[name] is None for name in self.key):
                raise RefusedByModelError(number, "null")

    def _changed(self, new: Row, old: Row) -> bool:
        names = self.compare or [name for name in new if name not in self.key]
        return any(
            same(new[name]) != same(old[name]) for name in names if name != TIME or new[TIME] is not None
        )

    def _in_time(self, number: int, row: Row) -> Any:
        return (ordered(row[TIME] or self.event_time), number)

    def _in_key(self, op: int, row: Row) -> Any:
        return (*(ordered(row[name]) for name in self.key), op)

    def _append(self, rows: list[tuple[int, Row]], _: object) -> list[Any]:
        return [(n, APPEND, row, self._in_time(n, row)) for n, row in rows]

    def _ledger(self, rows: list[tuple[int, Row]], _: object) -> list[Any]:
        seen, looks = self._state(retracted=True), self.edits is not LateEdits.IGNORE and bool(self.recorded)
        changes = []
        for n, row in self._one_each(rows):
            place = (ordered(row[TIME]), n) if looks else self._in_time(n, row)
            if self._key(row) not in seen:
                changes.append((n, APPEND, row, (*place, APPEND)))
                continue
            op, old = seen[self._key(row)]
            self.counts["known"] += not looks
            if looks and op not in BACK and self._changed(row, old):
                self.counts["edits"] += 1
                if self.edits is LateEdits.REFUSE:
                    raise RefusedByModelError(n, "is recorded with another")
                if self.edits is LateEdits.CORRECT:
                    changes.append((n, CORRECT_FROM, old, (*place, CORRECT_FROM)))
                    changes.append((n, CORRECT_TO, row, (*place, CORRECT_TO)))
        return changes

    def _snapshot(self, rows: list[tuple[int, Row]], _: object) -> list[Any]:
        state, changes = self._state(), []
        self.counts["recorded"] += len(state)
        for n, row in self._one_each(rows):
            _, old = state.pop(self._key(row), (None, None))
            changes += self._news(n, row, old)
        return changes + [(0, RETRACT, old, self._in_key(RETRACT, old)) for _, old in state.values()]

    def _news(self, number: int, row: Row, old: Row | None) -> list[Any]:
        if old is None:
            return [(number, APPEND, row, self._in_key(APPEND, row))]
        if not self._changed(row, old):
            return []
        return [
            (number, CORRECT_FROM, old, self._in_key(CORRECT_FROM, old)),
            (number, CORRECT_TO, row, self._in_key(CORRECT_TO, row)),
        ]

    def _upsert(self, rows: list[tuple[int, Row]], ops: Sequence[int | None]) -> list[Any]:
        codes = {n: APPEND if op is None else op for (n, _), op in zip(rows, ops, strict=True)}
        self._operations(codes)
        self._named(rows)
        last = {self._key(row): (n, row) for n, row in rows if codes[n] != CORRECT_FROM}
        state, changes = self._state(), []
        for key, (n, row) in last.items():
            _, old = state.get(key, (None, None))
            if codes[n] != RETRACT:
                changes += self._news(n, row, old)
            elif old is not None:
                changes.append((n, RETRACT, old, self._in_key(RETRACT, old)))
        return changes

    def _operations(self, codes: dict[int, Any]) -> None:
        for number, code in codes.items():
            if code not in (APPEND, RETRACT, CORRECT_FROM, CORRECT_TO):
                raise RefusedByModelError(number, "is not an operation")

    def _changelog(self, rows: list[tuple[int, Row]], ops: Sequence[int | None]) -> list[Any]:
        codes = {n: op for (n, _), op in zip(rows, ops, strict=True)}
        values = [name for name in rows[0][1] if name != TIME] if rows else []
        state, times = self._state(by=values) if values else {}, dict[Any, dt.datetime]()
        timed = []
        for n, row in rows:
            named = tuple(same(row[name]) for name in values)
            known = times.get(named) or (state[named][1][TIME] if named in state else None)
            times[named] = row[TIME] or self.event_time
            timed.append((n, row | ({TIME: known} if codes[n] in BACK and row[TIME] is None else {})))
        self._operations(codes)
        groups: dict[Any, list[int]] = {}
        for n, row in timed:
            groups.setdefault(self._key(row), []).append(n)
        whole: set[int] = set()
        for numbers in groups.values():
            for left, right in itertools.pairwise(numbers):
                whole |= {left, right} if (codes[left], codes[right]) == (CORRECT_FROM, CORRECT_TO) else set()
        torn = [n for n, code in codes.items() if code in (CORRECT_FROM, CORRECT_TO) and n not in whole]
        if torn:
            raise RefusedByModelError(min(torn), "of the same key")
        return [(n, codes[n], row, (*(ordered(row[name]) for name in self.key), n)) for n, row in timed]
