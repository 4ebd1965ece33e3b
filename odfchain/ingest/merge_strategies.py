"""Merge strategies: new rows and recorded rows to the rows that are appended, as functions over Arrow tables.

Invariants (specification "Merge Strategies"; facts in `fixtures/conformance/merge_cases.json`; RFC-009 lists
where this deliberately differs from the reference implementation):

- Append takes every row; Ledger drops rows whose key was ever seen; both keep the order of event time, and of
  the file where event times are equal.
- Snapshot compares the input with the recorded state (`odfchain.slices.state`). Whether a row is
  present is a flag, never the nullness of a column. `-R` and `-C` carry the recorded values, event time
  included; `+A` and `+C` carry the new ones.
- A missing event time in the input is never a reason to see a change.
- One input is a set of keyed records. Rows that are equal in every column are one record; rows with one key
  and other values are refused unless the user says which counts. Parts of a key compare null-safe, like
  every other value; only a key of nulls alone names nothing and is refused.
- Values compare as in a state: -0.0 is 0.0, all NaN are one value, and a map has no order, at any depth.
- Output is ordered by primary key and operation, so that `-C` comes right before its `+C`.

Rows have the types in which they are recorded. A merge of some of the keys is that of these keys alone, so
the same function merges a whole input, or the rows of a bucket of keys. Source: RFC-058.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.odf import sources as src
from odfchain.odf.enums import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT, TAKES_BACK
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.row_hash import Numbers, comparable
from odfchain.slices.ordering import order_of
from odfchain.slices.state import codes_of, newest_of
from odfchain.slices.writer import in_milliseconds
from odfchain.text import cut
from odfchain.workspace.config import DuplicateKeys, LateEdits
from odfchain.workspace.dataset_state import OPERATIONS

NUMBER, GIVEN_TIME = "__odfchain_number", "__odfchain_time"
"""What rows may be ordered by beside their columns: the number in the input, and the event time as given."""

OTHER_ROW = "\0"
"""Stands in a message for the number of another row."""

_OPERATION_CODES = (APPEND, RETRACT, CORRECT_FROM, CORRECT_TO)
_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 6, 60
_FUTURE_COLUMNS, _FUTURE_CHARACTERS = 4, 120

Recorded = Iterable[pa.RecordBatch]
"""Recorded rows: offset, operation and data columns, in order of offset but for those of a checkpoint."""


Parts = list[tuple[int, Numbers, Numbers]]
"""Operations, the places of their rows among new and recorded ones, and of the input's rows, or -1."""


@dataclass(frozen=True, slots=True)
class Policies:
    """What the user chose, and the times of a run."""

    event_time_ms: int
    """Of rows that carry none."""
    duplicates: DuplicateKeys = DuplicateKeys.REFUSE
    edits: LateEdits = LateEdits.IGNORE
    latest_ms: int | None = None
    """The bound on event times of rows that are added; None is none."""
    bound: str = ""
    """How messages name it."""


class FaultKind(IntEnum):
    """Why an input is refused, in the order in which rows are looked at."""

    OPERATION, NULL_KEY, CONTRADICTION, LATE_EDIT, TORN_CORRECTION, FUTURE = range(6)


@dataclass(frozen=True, slots=True)
class Fault:
    """The first row for which an input is refused."""

    kind: int
    """A `FaultKind`."""
    row: int
    message: str
    hint: str = ""
    other: int = 0
    """The row that `OTHER_ROW` stands for."""


def first_fault(faults: Iterable[Fault]) -> Fault:
    """The fault that a merge of all rows would have found, of those of some of the keys each."""
    return min(faults, key=lambda fault: (fault.kind, fault.row))


class RefusedInputError(Exception):
    """A merge that was given up for a fault of its input."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows to append: places of rows, and what becomes of them."""

    source: pa.Table
    """Data columns of new rows and of recorded ones."""
    places: Numbers
    operations: Numbers
    inputs: Numbers
    """The number of the row of the input that each comes from; 0 where it comes from none."""
    order: tuple[str, ...]
    """Ascending, nulls first; no two rows are alike in it."""
    counts: Counter[str]
    """What was found on the way: `copies`, `differing`, `recorded`, `edits`, `known`."""
    operation: str
    """The name of the operation column."""
    times: pa.Array | None
    """The event times as given, of each."""

    def __len__(self) -> int:
        return len(self.places)

    def columns(self, names: Sequence[str], where: Numbers | None = None) -> pa.Table:
        """Some of the columns, of all rows or of some, in the order of `places` (or `where`)."""
        places = self.places if where is None else self.places[where]
        given = [name for name in names if name in self.source.column_names]
        table = self.source.select(given)
        # rows that follow each other need not be moved
        if len(places) and bool((np.diff(places) == 1).all()):
            table = table.slice(int(places[0]), len(places))
        else:
            table = table.take(pa.array(places))
        chosen = slice(None) if where is None else where
        others = {self.operation: lambda: pa.array(self.operations[chosen], pa.uint8())}
        others[NUMBER] = lambda: pa.array(self.inputs[chosen])
        if self.times is not None:
            times = self.times
            others[GIVEN_TIME] = lambda: times if where is None else times.take(pa.array(where))
        return pa.table([table[n] if n in given else others[n]() for n in names], names=list(names))

    def in_order(self) -> Numbers:
        """The numbers of the rows in their order."""
        order = list(self.order)
        # an input that is as it was needs no number to be told apart
        if order[-1] == NUMBER and bool((np.diff(self.inputs) >= 0).all()):
            order.pop()
        return order_of(self.columns(order).combine_chunks(), order)


@dataclass(frozen=True, slots=True)
class State:
    """What inputs are compared with: one recorded row of each key, or the keys of a ledger."""

    rows: pa.Table
    """A column that they lack is null."""
    back: Numbers
    """Which rows take another back."""

    @classmethod
    def of(
        cls,
        recorded: Recorded,
        strategy: src.MergeStrategy,
        vocabulary: DatasetVocabulary,
        edits: LateEdits = LateEdits.IGNORE,
    ) -> State:
        """What a merge with a key looks at, of rows with the columns that `columns_looked_at` names."""
        key = strategy.primary_key
        if not isinstance(strategy, src.MergeStrategyLedger):
            return cls.by_values(recorded, key, vocabulary)
        if edits is not LateEdits.IGNORE:
            return cls.by_values(recorded, key, vocabulary, retracted=True)
        batches = [batch.select(key) for batch in recorded]
        rows = pa.Table.from_batches(batches) if batches else pa.table({})
        return cls(rows, np.zeros(len(rows), bool))

    @classmethod
    def by_values(
        cls,
        recorded: Recorded,
        names: Sequence[str],
        vocabulary: DatasetVocabulary,
        *,
        retracted: bool = False,
    ) -> State:
        """The row in force of all that are equal in some columns, or the last one."""
        found = newest_of(recorded, names, vocabulary, retracted=retracted)
        return cls(pa.table({}), np.zeros(0, bool)) if found is None else cls(*found)

    def fitted(self, schema: pa.Schema) -> pa.Table:
        """The rows, in the columns of an input."""
        given = set(self.rows.column_names)
        columns = [self.rows[f.name] if f.name in given else pa.nulls(len(self.rows), f.type) for f in schema]
        return pa.table(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class NewRows:
    """The rows of an input, or those of some of its keys."""

    rows: pa.Table
    """Data columns, without system columns other than event time; everything may be null."""
    numbers: Numbers
    """Their numbers in the input, ascending."""
    vocabulary: DatasetVocabulary
    policies: Policies
    operations: pa.Array | None = None
    """The operation column as it is given, where a strategy takes it."""

    # --- strategies ------------------------------------------------------------------------------------

    def merged(self, strategy: src.MergeStrategy, recorded: State | None) -> Changes:
        """The rows that these add; `recorded` is the state of all keys, None if no slice was ever written."""
        looks = recorded is not None and self.policies.edits is not LateEdits.IGNORE
        places, counts, old = np.arange(len(self.rows)), Counter[str](), None
        match strategy:
            case src.MergeStrategyAppend():
                parts = [(APPEND, places, places)]
            case src.MergeStrategyLedger(primary_key=key) if looks and recorded is not None:
                parts, old = self._with_edits(key, recorded, counts)
            case src.MergeStrategyLedger(primary_key=key):
                parts = self._ledger(key, recorded, counts)
            case src.MergeStrategySnapshot(primary_key=key, compare_columns=compare):
                parts, old = self._snapshot(key, compare, recorded, counts)
            case src.MergeStrategyChangelogStream(primary_key=key):
                codes = self._operation_codes()
                self._refuse_torn_corrections(key, codes)
                parts = [(code, places[codes == code], places[codes == code]) for code in _OPERATION_CODES]
            case src.MergeStrategyUpsertStream(primary_key=key):
                parts, old = self._upsert(key, recorded)
        found = self._changes(parts, old, change_order(strategy, self.vocabulary, edits=looks), counts)
        self._refuse_future(found)
        return found

    def _ledger(self, key: tuple[str, ...], recorded: State | None, counts: Counter[str]) -> Parts:
        old = None if recorded is None else recorded.fitted(self._schema(key))
        mine, theirs, count = self._codes(key, old)
        seen = np.zeros(count, bool)
        seen[theirs] = True
        places = self._one_per_key(key, mine, count, counts)
        new = places[~seen[mine[places]]]
        counts["known"] = len(places) - len(new)
        return [(APPEND, new, new)]

    def _with_edits(
        self, key: tuple[str, ...], recorded: State, counts: Counter[str]
    ) -> tuple[Parts, pa.Table]:
        # late edits: known keys with other values, which the strategy itself never compares (RFC-009)
        old, back = recorded.fitted(self.rows.schema), recorded.back
        mine, theirs, count = self._codes(key, old)
        places = self._one_per_key(key, mine, count, counts)
        match_ = _places_of(theirs, count)[mine[places]]
        known, found = places[match_ >= 0], match_[match_ >= 0]
        changed = self._changed([n for n in self.rows.column_names if n not in key], known, old, found)
        edited = changed & ~back[found]
        counts["edits"] = int(edited.sum())
        if self.policies.edits is LateEdits.REFUSE and edited.any():
            first = int(np.flatnonzero(edited)[0])
            raise RefusedInputError(self._edit(key, int(known[first]), old, int(found[first])))
        new, edits = places[match_ < 0], known[edited]
        parts = [(APPEND, new, new)]
        if self.policies.edits is LateEdits.CORRECT:
            parts += [(CORRECT_FROM, len(self.rows) + found[edited], edits), (CORRECT_TO, edits, edits)]
        return parts, old

    def _snapshot(
        self,
        key: tuple[str, ...],
        compare: tuple[str, ...] | None,
        recorded: State | None,
        counts: Counter[str],
    ) -> tuple[Parts, pa.Table | None]:
        names = [n for n in self.rows.column_names if n not in key] if compare is None else list(compare)
        old = None if recorded is None else recorded.fitted(self.rows.schema)
        mine, theirs, count = self._codes(key, old)
        places = self._one_per_key(key, mine, count, counts)
        if old is None:
            return [(APPEND, places, places)], None
        counts["recorded"] = len(old)
        match_ = _places_of(theirs, count)[mine[places]]
        present = np.zeros(len(old), bool)
        present[match_[match_ >= 0]] = True
        gone = np.flatnonzero(~present)
        retracted = (RETRACT, len(self.rows) + gone, np.full(len(gone), -1))
        return [*self._news(names, places, match_, old), retracted], old

    def _upsert(self, key: tuple[str, ...], recorded: State | None) -> tuple[Parts, pa.Table | None]:
        codes = self._operation_codes(default=APPEND)
        self._refuse_null_keys(key)
        old = None if recorded is None else recorded.fitted(self.rows.schema)
        mine, theirs, count = self._codes(key, old)
        # `-C` states an old value; of the others the last one of a key counts
        given = np.flatnonzero(codes != CORRECT_FROM)
        last = _places_of(mine[given], count)
        places = given[last[mine[given]] == np.arange(len(given))]
        deleted = codes[places] == RETRACT
        if old is None:
            return [(APPEND, places[~deleted], places[~deleted])], None
        match_ = _places_of(theirs, count)[mine[places]]
        names = [n for n in self.rows.column_names if n not in key]
        gone = deleted & (match_ >= 0)
        retracted = (RETRACT, len(self.rows) + match_[gone], places[gone])
        return [*self._news(names, places[~deleted], match_[~deleted], old), retracted], old

    def without_time(self) -> int:
        """How many rows take another back and do not say of which event time that one is."""
        if self.operations is None:
            return 0
        return int((self._takes_back() & _nulls(self._column(self.vocabulary.event_time_column))).sum())

    def _takes_back(self) -> Numbers:
        return np.isin(self._operation_codes(default=-1, checked=False), TAKES_BACK)

    def with_times_taken_back(self, recorded: State | None) -> NewRows:
        """The input whose rows that take back without an event time have that of the row that they take back.

        That is the newest one with their other values, of those before them in the input or else of the
        recorded ones, of which the state is `by_values`. Rows that are added without an event time have
        that of the policies.
        """
        time = self.vocabulary.event_time_column
        values = tuple(name for name in self.rows.column_names if name != time)
        old = None if recorded is None else recorded.fitted(self.rows.schema)
        mine, theirs, count = self._codes(values, old)
        given = self._column(time)
        filled = pc.fill_null(given, self._default_time)
        known = filled if old is None else pa.concat_arrays([filled, _one(old[time])])
        order = np.argsort(mine, kind="stable")
        before = np.full(len(mine), -1)
        same = mine[order][1:] == mine[order][:-1]
        # an earlier row of the input is newer than any recorded one
        before[order[1:][same]] = order[:-1][same]
        behind = _places_of(theirs, count)[mine]
        before = np.where(before >= 0, before, np.where(behind >= 0, len(mine) + behind, -1))
        asked = self._takes_back() & _nulls(given)
        times = known.take(pa.array(before, mask=before < 0))
        place = self.rows.column_names.index(time)
        rows = self.rows.set_column(place, self.rows.field(time), pc.if_else(pa.array(asked), times, given))
        return dataclasses.replace(self, rows=rows)

    def with_event_times(self) -> NewRows:
        """The input in which rows without an event time have that of the policies."""
        return dataclasses.replace(self, rows=self._filled(self.rows))

    # --- rows to append --------------------------------------------------------------------------------

    def _news(self, names: Sequence[str], places: Numbers, match_: Numbers, old: pa.Table) -> Parts:
        # new rows, and both rows of corrections
        new, known, found = places[match_ < 0], places[match_ >= 0], match_[match_ >= 0]
        changed = self._changed(names, known, old, found)
        edits, before = known[changed], len(self.rows) + found[changed]
        return [(APPEND, new, new), (CORRECT_FROM, before, edits), (CORRECT_TO, edits, edits)]

    def _changes(
        self, parts: Parts, old: pa.Table | None, order: tuple[str, ...], counts: Counter[str]
    ) -> Changes:
        codes = np.repeat([code for code, _, _ in parts], [len(places) for _, places, _ in parts])
        places = np.concatenate([places for _, places, _ in parts]).astype(np.int64)
        mine = np.concatenate([mine for _, _, mine in parts]).astype(np.int64)
        source = self.rows
        if old is not None and len(places) and int(places.max()) >= len(self.rows):
            source = pa.concat_tables([self.rows, old]).combine_chunks()
        times = None
        if GIVEN_TIME in order:
            times = self._column(self.vocabulary.event_time_column).take(pa.array(mine))
        return Changes(
            self._filled(source), places, codes.astype(np.uint8), np.append(self.numbers, 0)[mine],
            order, counts, self.vocabulary.operation_type_column, times,
        )  # fmt: skip

    def _filled(self, rows: pa.Table) -> pa.Table:
        time = self.vocabulary.event_time_column
        if not rows[time].null_count:
            return rows
        place = rows.column_names.index(time)
        return rows.set_column(place, rows.field(time), pc.fill_null(rows[time], self._default_time))

    @property
    def _default_time(self) -> pa.Scalar:
        kind = self.rows.field(self.vocabulary.event_time_column).type
        return time_of(self.policies.event_time_ms, kind)

    # --- keys ------------------------------------------------------------------------------------------

    def _schema(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self.rows.field(name) for name in names])

    def _codes(self, key: tuple[str, ...], old: pa.Table | None) -> tuple[Numbers, Numbers, int]:
        """(a number for each row, for each recorded row; equal where the key is; the numbers' bound)."""
        both = pa.concat_tables([rows.select(key) for rows in (self.rows, old) if rows is not None])
        if not len(both):
            return np.zeros(0, np.int64), np.zeros(0, np.int64), 1
        codes, count = codes_of(both, key)
        return codes[: len(self.rows)], codes[len(self.rows) :], count

    def _refuse_null_keys(self, key: tuple[str, ...]) -> None:
        null = functools.reduce(np.logical_and, [_nulls(self._column(name)) for name in key])
        if null.any():
            what = f"column `{key[0]}` is null" if len(key) == 1 else f"({', '.join(key)}) has only nulls"
            self._refuse(FaultKind.NULL_KEY, null, f"primary key {what}")

    def _one_per_key(self, key: tuple[str, ...], codes: Numbers, count: int, counts: Counter[str]) -> Numbers:
        """The places of the rows that are kept; counts how many others are copies of them, and differ."""
        self._refuse_null_keys(key)
        places, last = np.arange(len(codes)), self.policies.duplicates is DuplicateKeys.LAST
        kept = _places_of(codes, count) if last else len(codes) - 1 - _places_of(codes[::-1], count)
        repeated = kept[codes] != places
        if not repeated.any():
            return places
        others = [name for name in self.rows.column_names if name not in key]
        rest = places[repeated]
        differs = self._differing(others, rest, self.rows, kept[codes[rest]])
        if self.policies.duplicates is DuplicateKeys.REFUSE and differs.any():
            place = int(rest[differs][0])
            raise RefusedInputError(self._contradiction(key, int(kept[codes[place]]), place))
        counts["differing"] = int(differs.sum())
        counts["copies"] = len(rest) - counts["differing"]
        unrepeated: Numbers = places[~repeated]
        return unrepeated

    def _differing(self, names: Sequence[str], places: Numbers, other: pa.Table, others: Numbers) -> Numbers:
        found = np.zeros(len(places), bool)
        for name in names:
            found |= differing(_taken(self.rows[name], places), _taken(other[name], others))
        return found

    def _changed(self, names: Sequence[str], places: Numbers, old: pa.Table, found: Numbers) -> Numbers:
        """Whether the values of rows differ from those of recorded ones."""
        time = self.vocabulary.event_time_column
        changed = self._differing([name for name in names if name != time], places, old, found)
        if time in names:  # a missing one is never a change
            given = ~_nulls(_taken(self.rows[time], places))
            changed |= given & self._differing([time], places, old, found)
        return changed

    def _column(self, name: str) -> pa.Array:
        return _one(self.rows[name])

    # --- operations ------------------------------------------------------------------------------------

    def _operation_codes(self, *, default: int | None = None, checked: bool = True) -> Numbers:
        """The operation of each row; `default` where none is given."""
        if self.operations is None:
            return np.full(len(self.rows), default, np.int64)
        raw = self.operations
        given = raw.is_valid().to_numpy(zero_copy_only=False)
        codes = _whole_numbers(raw)
        wrong = ~np.isin(codes, _OPERATION_CODES)
        if default is not None:
            codes, wrong = np.where(given, codes, default), wrong & given
        if checked and wrong.any():
            value = raw[int(np.flatnonzero(wrong)[0])].as_py()
            name = self.vocabulary.operation_type_column
            self._refuse(
                FaultKind.OPERATION, wrong, f"column `{name}`: {value!r} is not an operation ({OPERATIONS})"
            )
        return codes

    def _refuse_torn_corrections(self, key: tuple[str, ...], codes: Numbers) -> None:
        """A -C or +C without the other half next to it among the rows of its key is a fault."""
        if not np.isin(codes, (CORRECT_FROM, CORRECT_TO)).any():
            return
        keys, _, _ = self._codes(key, None)
        order = np.argsort(keys, kind="stable")
        steps, same = codes[order], keys[order][1:] == keys[order][:-1]
        pair = np.append(False, same & (steps[:-1] == CORRECT_FROM) & (steps[1:] == CORRECT_TO))
        torn = np.empty(len(codes), bool)
        without_new = (steps == CORRECT_FROM) & ~np.append(pair[1:], False)
        torn[order] = without_new | ((steps == CORRECT_TO) & ~pair)
        if not torn.any():
            return
        if codes[np.flatnonzero(torn)[0]] == CORRECT_FROM:
            message = "old values (-C, 2) without the new ones (+C, 3) of the same key after them"
            self._refuse(FaultKind.TORN_CORRECTION, torn, message, "a row that is taken back is -R (1)")
        message = "new values (+C, 3) without the old ones (-C, 2) of the same key before them"
        self._refuse(FaultKind.TORN_CORRECTION, torn, message, "a row that is new is +A (0)")

    # --- faults ----------------------------------------------------------------------------------------

    def _refuse(self, kind: FaultKind, rows: Numbers, message: str, hint: str = "") -> None:
        raise RefusedInputError(Fault(kind, int(self.numbers[np.flatnonzero(rows)[0]]), message, hint))

    def _contradiction(self, key: tuple[str, ...], first: int, place: int) -> Fault:
        there, here = (self._texts(at) for at in (first, place))
        others = [n for n in self.rows.column_names if n not in key and there[n] != here[n]]
        message = (
            f"primary key ({_listed(here, key)}) occurs twice: also in row {OTHER_ROW} with other values "
            f"({_listed(there, others)} there, {_listed(here, others)} here)"
        )
        hint = "choose other --key columns if these name no row; --duplicate-keys first or last keeps one"
        return Fault(
            FaultKind.CONTRADICTION, int(self.numbers[place]), message, hint, int(self.numbers[first])
        )

    def _edit(self, key: tuple[str, ...], place: int, old: pa.Table, found: int) -> Fault:
        others = [n for n in self.rows.column_names if n not in key]
        at, before = np.array([place]), np.array([found])
        column = next(n for n in others if self._changed([n], at, old, before)[0])
        shown = ", ".join(f"{n}={_as_python(self.rows[n][place])!r}" for n in key)
        was, now = _as_python(old[column][found]), _as_python(self.rows[column][place])
        return Fault(
            FaultKind.LATE_EDIT,
            int(self.numbers[place]),
            f"key ({shown}) is recorded with another {column}: {was!r}, not {now!r}",
            "late edits can be ignored or recorded as corrections: see --late-edits",
        )

    def _refuse_future(self, found: Changes) -> None:
        """A row that is added with an event time beyond the bound is a fault; taking back is always right."""
        bound, time = self.policies.latest_ms, self.vocabulary.event_time_column
        if bound is None or not len(found):
            return
        times = in_milliseconds(_one(found.columns([time])[time]))
        late = pc.fill_null(pc.greater(times, bound), False).to_numpy(zero_copy_only=False)
        rows = found.inputs[late & ~np.isin(found.operations, TAKES_BACK)]
        if not len(rows):
            return
        place = int(np.searchsorted(self.numbers, rows.min()))
        given = self.rows[time][place]
        names = [name for name in self.rows.column_names[:_FUTURE_COLUMNS] if name != time]
        # enough to recognise the row
        texts = {name: text_of(self.rows[name][place]) for name in names}
        shown = cut(", ".join(f"{name}={text!r}" for name, text in texts.items()), _FUTURE_CHARACTERS)
        whose = "its event time" if given.is_valid else "the row has no event time, and that of the source"
        millis = self.policies.event_time_ms if not given.is_valid else None
        written = given.cast(pa.timestamp("us", "UTC")) if millis is None else time_of(millis, _MOMENT)
        message = f"({shown}): {whose}, {text_of(written)}, is later than {self.policies.bound}"
        raise RefusedInputError(Fault(FaultKind.FUTURE, int(rows.min()), message))

    def _texts(self, place: int) -> dict[str, str]:
        found = {}
        for name in self.rows.column_names:
            value = self.rows[name][place]
            text = text_of(value)
            found[name] = repr(text) if t.is_string(value.type) else str(text)
        return found


_MOMENT = pa.timestamp("ms", "UTC")


def change_order(strategy: src.MergeStrategy, vocab: DatasetVocabulary, *, edits: bool) -> tuple[str, ...]:
    """What changes are ordered by, ascending, nulls first; no two are alike in it."""
    key, operation = strategy.primary_key, vocab.operation_type_column
    match strategy:
        case src.MergeStrategyLedger() if edits:
            # corrections stand where their new values stand in time, `-C` right before its `+C`
            return (GIVEN_TIME, NUMBER, operation)
        case src.MergeStrategySnapshot() | src.MergeStrategyUpsertStream():
            return (*key, operation)
        case src.MergeStrategyChangelogStream():
            # the order of the input within a key keeps multi-step histories intact
            return (*key, NUMBER)
    return (vocab.event_time_column, NUMBER)


def columns_looked_at(
    strategy: src.MergeStrategy, names: Sequence[str], edits: LateEdits, *, taken_back: bool = False
) -> Sequence[str]:
    """The data columns of recorded rows that a merge needs; event times, too, for what is `taken_back`."""
    if isinstance(strategy, src.MergeStrategyLedger) and edits is LateEdits.IGNORE:
        return strategy.primary_key
    return names if strategy.LOOKS_BACK or taken_back else ()


def time_of(epoch_ms: int, kind: pa.DataType) -> pa.Scalar:
    """A point in time as an event time of this type."""
    if t.is_date(kind):
        return pa.scalar(epoch_ms // 86_400_000, pa.int32()).cast(pa.date32()).cast(kind)
    return pa.scalar(epoch_ms, pa.int64()).cast(pa.timestamp("ms", kind.tz)).cast(kind)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _taken(column: pa.ChunkedArray, places: Numbers) -> pa.Array:
    return _one(column.take(pa.array(places)))


def _nulls(column: pa.Array) -> Numbers:
    found: Numbers = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _places_of(codes: Numbers, count: int) -> Numbers:
    """The last place of each code, -1 where there is none."""
    found = np.full(count, -1)
    found[codes] = np.arange(len(codes))
    return found


def _whole_numbers(raw: pa.Array) -> Numbers:
    """The values as numbers; -1 for what is no whole number."""
    kind = raw.type
    if t.is_string(kind):
        whole = pc.match_substring_regex(raw, r"\A[\x00-\x20\x7f]*[+-]?[0-9]{1,9}[\x00-\x20\x7f]*\z")
        raw = pc.replace_substring_regex(raw, r"[\x00-\x20\x7f+]", "")
        raw = pc.if_else(whole, raw, pa.scalar(None, kind))
    elif not (t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind) or t.is_boolean(kind)):
        return np.full(len(raw), -1)
    if t.is_boolean(kind):
        raw = raw.cast(pa.int8())
    numbers = pc.fill_null(raw.cast(pa.float64()), -1.0).to_numpy(zero_copy_only=False)
    found: Numbers = np.where(np.isin(numbers, (0, 1, 2, 3)), numbers, -1).astype(np.int64)
    return found


def differing(left: pa.Array, right: pa.Array) -> Numbers:
    """Where two columns of one type differ; nulls are equal."""
    unequal = pc.fill_null(pc.not_equal(comparable(left), comparable(right)), False)
    found: Numbers = unequal.to_numpy(zero_copy_only=False) | (_nulls(left) ^ _nulls(right))
    return found


# Values in messages.


def _listed(texts: dict[str, str], names: Sequence[str]) -> str:
    shown = [f"{name}={cut(texts[name], _SHOWN_CHARACTERS)}" for name in names[:_SHOWN_COLUMNS]]
    return ", ".join(shown) + (", …" if len(names) > _SHOWN_COLUMNS else "")


def text_of(value: pa.Scalar) -> str | None:
    """A value as messages show it: as a cast to text has it, UUIDs as they are usually written."""
    kind = value.type
    if not value.is_valid:
        return None
    if t.is_timestamp(kind) and kind.unit != "s":
        return str(value.cast(pa.string())).rstrip("Z").rstrip("0").rstrip(".")
    if t.is_timestamp(kind):
        return str(value)
    if t.is_time(kind) or t.is_duration(kind):
        return str(value.value)
    plain = value.as_py()
    if isinstance(plain, bytes):
        is_uuid = t.is_fixed_size_binary(kind) and len(plain) == 16
        return str(UUID(bytes=plain)) if is_uuid else plain.hex().upper()
    return format(plain, "f") if t.is_decimal(kind) else str(plain)


def _as_python(value: pa.Scalar) -> Any:
    found = value.value if t.is_time(value.type) and value.is_valid else value.as_py()
    return found.replace(tzinfo=None) if t.is_timestamp(value.type) and value.is_valid else found
