"""The rows in force of some keys, looked up in a dataset: what nobody asks about is not kept.

The rule is that of `odfchain.slices.rows_in_force`, from the newest slice to the oldest, or to a state
checkpoint of this key; what is decided is not looked for again. Only the key is read of a slice, and the rest
of the row groups that have a newest row. Row groups whose statistics say that no key is in them are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.branch.row_diff import either, key_columns, key_hashes, take
from odfchain.codec.arrow import nullable
from odfchain.digest.row_hash import Numbers
from odfchain.errors import BadInputError, ObjectNotFoundError, SliceNotFoundError
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.read_slices import unreadable
from odfchain.repo.recorded import RecordedRows
from odfchain.slices.footers import quoted
from odfchain.slices.reader import ParquetSource, fitted, open_parquet
from odfchain.slices.rows_in_force import takes_back
from odfchain.slices.skipped_groups import may_hold, ordered
from odfchain.slices.skipping import Condition, with_any_of
from odfchain.text import first_line

_ASKED, _PLACE = "asked", "place"


def rows_of_keys(
    dataset: DatasetFiles, state: DatasetState, asked: pa.Table, key: Sequence[str], schema: pa.Schema
) -> tuple[pa.Table, Numbers]:
    """(the row in force of each key, by a schema; whether there is one); nulls where there is none.

    `asked` has distinct keys, in the declared types.

    Raises:
        SliceNotFoundError, ObjectCorruptedError: a slice is missing or damaged.
    """
    names = state.vocabulary
    keys = key_columns(asked, key)
    loose = nullable(schema)
    rows = pa.table([pa.nulls(len(keys), field.type) for field in loose], schema=loose)
    there = np.zeros(len(keys), dtype=bool)
    open_ = np.arange(len(keys))
    first = asked.column(key[0])
    files = _newest_first(dataset, state, tuple(key), with_any_of(quoted(key[0]), first, first.type))
    while len(open_) and (path := next(files, None)) is not None:
        try:
            with open_parquet(path) as file:
                search = _Search(file, asked.take(pa.array(open_)), keys.take(pa.array(open_)), key)
                place, back = search.newest(names.operation_type_column)
                found = search.rows(place[(place >= 0) & ~back], loose)
        except BadInputError as error:
            raise unreadable(path, error.message) from None
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise unreadable(path, first_line(error)) from None
        decided = place >= 0
        kept = open_[decided & ~back]
        at = np.full(len(keys), -1)
        at[kept] = np.arange(len(kept))
        there[kept] = True
        rows = either(at >= 0, take(found, at), rows)
        open_ = open_[~decided]
    return rows, there


def _newest_first(
    dataset: DatasetFiles, state: DatasetState, key: tuple[str, ...], condition: Condition
) -> Iterator[Path]:
    """The files that may decide about keys of which a condition is true, verified when they are asked for."""
    recorded = RecordedRows.since_checkpoint(dataset, state, key).rows
    for piece in reversed(recorded.slices):
        if not piece.may_hold(condition):
            continue
        try:
            yield piece.locate()
        except ObjectNotFoundError:
            path = dataset.data.locate(piece.name) if piece.name is not None else dataset.folder
            raise SliceNotFoundError.of(dataset.alias, path) from None
    if recorded.checkpoint is not None and state.checkpoint is not None:
        yield dataset.checkpoints.verified_path(state.checkpoint.physical_hash)


class _Search:
    """Keys that are looked for in one file."""

    def __init__(self, file: ParquetSource, asked: pa.Table, keys: pa.Table, key: Sequence[str]) -> None:
        self._file, self._asked, self._keys, self._key = file, asked, keys, list(key)
        self._own = pa.schema([asked.schema.field(name).with_nullable(True) for name in key])
        self._values = [pc.unique(keys.column(name)) for name in keys.column_names]
        self._hashes = np.unique(key_hashes(keys))
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def newest(self, operation: str) -> tuple[Numbers, Numbers]:
        """(where the last row of each key stands in the file, -1 is nowhere; whether it takes one back)."""
        tables, places, backs = [self._keys.slice(0, 0)], [np.zeros(0, np.int64)], [np.zeros(0, dtype=bool)]
        for group in self._groups():
            start = self._starts[group]
            for batch in self._file.batches([operation, *self._key], groups=[group]):
                keys = key_columns(pa.Table.from_batches([fitted(batch, self._own)]), self._key)
                hit = self._may_be(keys)
                tables.append(keys.take(pa.array(hit)))
                places.append(start + hit)
                codes = batch.column(operation).to_numpy(zero_copy_only=False)
                backs.append(takes_back(codes[hit]))
                start += batch.num_rows
        found = self._match(pa.concat_tables(tables), np.concatenate(places))
        order = np.concatenate(places)
        back = np.zeros(len(found), dtype=bool)
        if len(order):
            at = np.minimum(np.searchsorted(order, found), len(order) - 1)
            back = (found >= 0) & np.concatenate(backs)[at]
        return found, back

    def rows(self, places: Numbers, schema: pa.Schema) -> pa.Table:
        """The rows that stand there, in the order given, by a schema."""
        order = np.argsort(places, kind="stable")
        wanted = places[order]
        present = [name for name in self._file.schema_arrow.names if name in schema.names]
        parts = [schema.empty_table()]
        for group in np.unique(np.searchsorted(self._starts, wanted, side="right") - 1):
            start = self._starts[group]
            for batch in self._file.batches(present, groups=[int(group)]):
                low, high = np.searchsorted(wanted, [start, start + batch.num_rows])
                chosen = batch.take(pa.array(wanted[low:high] - start))
                parts.append(pa.Table.from_batches([fitted(chosen, schema)]))
                start += batch.num_rows
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_tables(parts).take(pa.array(back))

    def _may_be(self, keys: pa.Table) -> Numbers:
        """Positions of rows whose key may be one that is looked for: few others."""
        mask = np.ones(keys.num_rows, dtype=bool)
        for column, values in zip(keys.columns, self._values, strict=True):
            mask &= pc.is_in(column, value_set=values).to_numpy()
        at = np.flatnonzero(mask)
        if len(self._values) > 1:
            at = at[np.isin(key_hashes(keys.take(pa.array(at))), self._hashes)]
        found: Numbers = at
        return found

    def _match(self, found: pa.Table, places: Numbers) -> Numbers:
        """For each key that is looked for the last place where it was found; -1 is none."""
        count = self._keys.num_rows
        asked = self._keys.append_column(_ASKED, pa.array(np.arange(count)))
        asked = asked.append_column(_PLACE, pa.nulls(count, pa.int64()))
        found = found.append_column(_ASKED, pa.nulls(len(places), pa.int64()))
        found = found.append_column(_PLACE, pa.array(places))
        grouped = pa.concat_tables([asked, found]).group_by(self._keys.column_names, use_threads=False)
        joined = grouped.aggregate([(_ASKED, "max"), (_PLACE, "max")])
        joined = joined.filter(joined.column(f"{_ASKED}_max").is_valid())
        last = np.full(count, -1, dtype=np.int64)
        last[joined.column(f"{_ASKED}_max").to_numpy()] = (
            joined.column(f"{_PLACE}_max").fill_null(-1).to_numpy()
        )
        return last

    def _groups(self) -> list[int]:
        """The row groups in which a key may be, by the statistics of its first column."""
        footer, name = self._file.metadata, self._key[0]
        every = list(range(footer.num_row_groups))
        column = self._asked.column(name)
        place = next((i for i in range(footer.num_columns) if footer.schema.column(i).path == name), None)
        if place is None or column.null_count or not (t.is_string(column.type) or t.is_integer(column.type)):
            return every
        values = ordered(column.unique().to_pylist())
        return [
            group for group in every if may_hold(footer.row_group(group).column(place).statistics, values)
        ]
