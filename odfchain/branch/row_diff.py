"""What lies between two states of a dataset with a primary key, row by row; pure, in Arrow.

An ODF changelog carries its own base: the first row of a key after a block says what the key was there (`+A`:
absent; `-C`, `-R`: the old values), and the last one what it is now. So the rows that come after a fork are
all that has to be read. Source: RFC-036; specification "Projection".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from odfchain.branch.cell_text import json_text, tree_of
from odfchain.branch.cells import same_cells
from odfchain.codec.arrow import nullable
from odfchain.digest.row_hash import Numbers, hash_rows
from odfchain.errors import ChainError
from odfchain.model.enums import OperationType
from odfchain.slices.rows_in_force import comparable, takes_back
from odfchain.text import one_line

_ADDED, _CORRECTED = OperationType.APPEND.code, OperationType.CORRECT_TO.code
_FIRST, _LAST = "first", "last"
_SHOWN = 60
"""Of a value in a message [characters]."""


@dataclass(frozen=True, slots=True, eq=False)
class RowDiff:
    """The keys whose rows differ between two states, each once: the row before and the row after.

    All tables and masks are of one length and order. The columns are those of the data: no offset, operation
    or system time; all are null where there is no row.
    """

    key: tuple[str, ...]
    before: pa.Table
    had: Numbers
    """Whether there was a row before."""
    after: pa.Table
    has: Numbers
    """Whether there is a row after."""
    keys: pa.Table
    """The key as columns that are equal where it is."""

    def __len__(self) -> int:
        return len(self.had)

    @property
    def schema(self) -> pa.Schema:
        """The data columns."""
        return self.after.schema

    def rows_of_keys(self) -> pa.Table:
        """The columns of the key, with their values."""
        return either(self.has, self.after.select(self.key), self.before.select(self.key))

    def only(self, chosen: Numbers) -> RowDiff:
        """The keys that a mask or positions choose."""
        at = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        index = pa.array(at)
        return RowDiff(
            self.key, self.before.take(index), self.had[at], self.after.take(index), self.has[at],
            self.keys.take(index),
        )  # fmt: skip

    def reversed(self) -> RowDiff:
        """The way back."""
        return RowDiff(self.key, self.after, self.has, self.before, self.had, self.keys)

    @classmethod
    def joined(cls, diffs: Sequence[RowDiff]) -> RowDiff:
        """Diffs of different keys as one."""
        return cls(
            diffs[0].key,
            pa.concat_tables(d.before for d in diffs),
            np.concatenate([d.had for d in diffs]),
            pa.concat_tables(d.after for d in diffs),
            np.concatenate([d.has for d in diffs]),
            pa.concat_tables(d.keys for d in diffs),
        )


def net_of(operations: Numbers, rows: pa.Table, key: Sequence[str]) -> RowDiff:
    """What the rows of an interval (in order of offset, data columns) did to each key, all in all.

    Raises:
        ChainError: a key begins with a `+C` that nothing goes before.
    """
    keys = key_columns(rows, key)
    grouped = _grouped(keys, {_FIRST: pa.array(np.arange(len(operations)))}, {_FIRST: ("min", "max")})
    first, last = (grouped.column(f"{_FIRST}_{which}").to_numpy() for which in ("min", "max"))
    begins = operations[first]
    if (torn := begins == _CORRECTED).any():
        row = rows.slice(int(first[np.flatnonzero(torn)[0]]), 1).select(list(key))
        raise ChainError(f"{key_text(row)}: a +C (corrected to) without the -C that it follows")
    had, has = begins != _ADDED, ~takes_back(operations[last])
    found = RowDiff(
        tuple(key),
        take(rows, np.where(had, first, -1)),
        had,
        take(rows, np.where(has, last, -1)),
        has,
        grouped.select(keys.column_names),
    )
    return found.only(changed(found))


def between(one: RowDiff, other: RowDiff) -> RowDiff:
    """From the state that `one` leads to, to the one that `other` leads to; both begin at the same state."""
    keys, at_one, at_other = aligned(one, other)
    check_same_base(one, other, at_one, at_other)
    by_other = at_other >= 0
    # a key that only one of them has is at the other as it was at the beginning
    before = either(at_one >= 0, take(one.after, at_one), take(other.before, at_other))
    had = np.where(at_one >= 0, _mask(one.has, at_one), _mask(other.had, at_other))
    after = either(by_other, take(other.after, at_other), take(one.before, at_one))
    has = np.where(by_other, _mask(other.has, at_other), _mask(one.had, at_one))
    found = RowDiff(one.key, before, had, after, has, keys)
    return found.only(changed(found))


def changed(diff: RowDiff) -> Numbers:
    """Which keys really have another row after than before."""
    found: Numbers = diff.had != diff.has
    return found | (diff.had & ~same_rows(diff.before, diff.after, diff.schema.names))


def same_rows(one: pa.Table, other: pa.Table, columns: Sequence[str]) -> Numbers:
    """Which rows of two tables are equal in these columns."""
    found = np.ones(one.num_rows, dtype=bool)
    for name in columns:
        found &= same_cells(one.column(name), other.column(name))
    return found


def aligned(one: RowDiff, other: RowDiff) -> tuple[pa.Table, Numbers, Numbers]:
    """All keys of two diffs, and where each stands in them; -1 is nowhere."""
    count, more = len(one), len(other)
    nowhere = pa.nulls(more, pa.int64()), pa.nulls(count, pa.int64())
    places = {
        _FIRST: pa.chunked_array([pa.array(np.arange(count)), nowhere[0]]),
        _LAST: pa.chunked_array([nowhere[1], pa.array(np.arange(more))]),
    }
    grouped = _grouped(pa.concat_tables([one.keys, other.keys]), places, {_FIRST: ("max",), _LAST: ("max",)})
    at = [grouped.column(f"{name}_max").fill_null(-1).to_numpy() for name in (_FIRST, _LAST)]
    return grouped.select(one.keys.column_names), at[0], at[1]


def check_same_base(one: RowDiff, other: RowDiff, at_one: Numbers, at_other: Numbers) -> None:
    """Nothing where both sides say the same of the state that they began at.

    Raises:
        ChainError: they do not, so one of the changelogs is not true.
    """
    both = (at_one >= 0) & (at_other >= 0)
    if not both.any():
        return
    mine, theirs = at_one[both], at_other[both]
    left, right = take(one.before, mine), take(other.before, theirs)
    wrong = one.had[mine] != other.had[theirs]
    wrong |= one.had[mine] & ~same_rows(left, right, one.schema.names)
    if wrong.any():
        row = one.only(mine[wrong][:1]).rows_of_keys()
        raise ChainError(
            f"{key_text(row)}: the two branches say different things of what it was where they part",
            hint="`odfchain verify` both of them: one takes back a row that was not there",
        )


def key_columns(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The key as columns that are equal where it is, whatever their types."""
    whole = rows.select(list(key)).combine_chunks()
    batch = whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], schema=whole.schema)
    columns = [column for name in key for column in comparable(batch, name)]
    return pa.table(columns, [str(number) for number in range(len(columns))])


def key_hashes(keys: pa.Table) -> Numbers:
    """64 bits for each key (`key_columns`); who has the same ones may be another key."""
    found = [hash_rows(batch, ())["high"] for batch in keys.to_batches()]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def key_text(rows: pa.Table, index: int = 0) -> str:
    """One row of the columns of a key, for messages, as `history` takes it: `iata=ZRH`."""
    trees = {name: tree_of(rows.column(name)[index]) for name in rows.column_names}
    texts = {name: tree if isinstance(tree, str) else json_text(tree) for name, tree in trees.items()}
    return ", ".join(f"{one_line(name)}={one_line(text, _SHOWN)}" for name, text in texts.items())


def take(rows: pa.Table, at: Numbers) -> pa.Table:
    """Rows by position; nulls where that is -1."""
    return rows.take(pa.array(at, pa.int64(), mask=at < 0)).cast(nullable(rows.schema))


def either(mask: Numbers, one: pa.Table, other: pa.Table) -> pa.Table:
    """The rows of one table where a mask says so, else those of the other."""
    count = one.num_rows
    rows = pa.concat_tables([one, other])
    return rows.take(pa.array(np.where(mask, np.arange(count), np.arange(count) + count), pa.int64()))


def _mask(values: Numbers, at: Numbers) -> Numbers:
    return values[at] if len(values) else np.zeros(len(at), dtype=bool)


def _grouped(
    keys: pa.Table, places: dict[str, pa.Array | pa.ChunkedArray], asked: dict[str, Sequence[str]]
) -> pa.Table:
    table = keys
    for name, values in places.items():
        table = table.append_column(name, values)
    wanted = [(name, how) for name, hows in asked.items() for how in hows]
    return table.group_by(keys.column_names, use_threads=False).aggregate(wanted)
