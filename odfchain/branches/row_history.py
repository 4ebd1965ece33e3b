"""Every change that the rows of a dataset went through: of one key, newest first, or of all.

A row that puts values in force is a change from what the key had before it: from the `-C` in front, or from
the row that was in force, or from nothing. Of one key, row groups are skipped by what they say of their keys;
not by bounds of floating-point numbers, which leave NaN out, and not by bounds of texts that may be cut.
Source: RFC-035.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain import errors
from odfchain.branches.diff import Change, table_of_changes
from odfchain.branches.intervals import MergedColumns, slice_batches
from odfchain.branches.key_lookup import WantedKeys, groups_with, key_schema, keys_of
from odfchain.branches.row_diff import RowDiff, array_of, take
from odfchain.chain.chain import MetadataChain
from odfchain.odf.enums import OperationType
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers
from odfchain.odf.times import Timestamp
from odfchain.slices.footers import quoted
from odfchain.slices.reader import open_parquet
from odfchain.slices.skipping import Condition, Every, may_match, with_any_of
from odfchain.slices.state import codes_of
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.merge_record import MergeMode, MergeRecord, merges
from odfchain.workspace.points import opened_at
from odfchain.workspace.read_slices import KeptFooters, readable

BLOCK, OFFSET, SYSTEM_TIME = "block", "offset", "system_time"
"""Columns of a table of all changes after those of a diff (`odfchain.branches.diff`)."""

_BACK, _FROM = OperationType.RETRACT.code, OperationType.CORRECT_FROM.code
_LONGEST_PATH = 32
"""Merges of merges that are followed [count]."""

Locate = Callable[[SliceRef], Path]


@dataclass(frozen=True, slots=True)
class ChangeOrigin:
    """The origin of a merged change: `BLOCK#OFFSET` on a branch."""

    branch: str
    """The reference's name; empty where a block was reverted."""
    block: Multihash
    """The block that made the change; or the one that was merged, where that cannot be read here."""
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one row by one block."""

    block: Multihash
    sequence_number: int
    system_time: Timestamp
    offset: int
    """Of its last record; a change is named `BLOCK#OFFSET`."""
    change: Change
    before: Mapping[str, Any] | None
    """The columns that are no key; None where there was no row."""
    after: Mapping[str, Any] | None
    columns: tuple[str, ...]
    """Those that changed."""
    via: ChangeOrigin | None = None
    """The origin of a merged change, or the block that was reverted."""


@dataclass(frozen=True, slots=True)
class RowHistory:
    """The changes of rows by their key in the chain up to a head."""

    dataset: DatasetFiles
    state: DatasetState

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key."""
        if key := self.state.primary_key:
            return key
        raise errors.UsageError(
            f"{self.dataset.alias}: no primary key is recorded that tells which rows were one",
            hint=f"`odfchain tail {self.dataset.alias}` shows the records as they came",
        )

    @property
    def _columns(self) -> pa.Schema:
        # offset, operation and system time, then the data; none before the first data
        rows, time = MergedColumns.of(self.state).rows, self.state.vocabulary.system_time_column
        columns = [*list(rows)[:2], pa.field(time, pa.timestamp("ms", "UTC")), *list(rows)[2:]]
        return pa.schema(columns if set(self.key) <= set(rows.names) else [])

    @property
    def schema(self) -> pa.Schema:
        """The columns of `changes`; none before the first data."""
        schema = self._columns
        return _changes(schema.empty_table(), np.zeros(0, np.int64), self.key).schema if schema else schema

    def changes(self, locate: Locate) -> pa.Table:
        """Every change, oldest first: as `Diff.changes`, with block, offset and system time."""
        if not (schema := self._columns):
            return schema.empty_table()
        parts, blocks = [schema.empty_table()], [np.zeros(0, np.int64)]
        for ref in self.state.slices():
            batches = list(_batches(locate(ref), self.state, ref, schema))
            parts.append(pa.Table.from_batches(batches, schema))
            blocks.append(np.full(parts[-1].num_rows, ref.sequence_number))
        return _changes(pa.concat_tables(parts), np.concatenate(blocks), self.key)

    def of(self, key: Mapping[str, Any], *, limit: int | None = None, locate: Locate) -> list[RowChange]:
        """The changes of the row with this key, newest first, each where the chain has it.

        Values are those of the key's columns, or texts that mean them.
        """
        sought = self._sought(key)
        found: list[tuple[SliceRef, pa.Table]] = []
        count = 0
        kept = KeptFooters(self.dataset)
        for ref in self.state.slices_newest_first():
            if not may_match(kept.stats(ref, locate), sought.condition):
                continue
            rows = sought.rows(locate(ref), ref)
            if rows.num_rows:
                found.append((ref, rows))
                count += rows.num_rows - int(pc.sum(pc.equal(rows.column(1), _FROM)).as_py())
            if limit is not None and count > limit:  # what goes before the oldest of them is among these too
                break
        return self._described(sought, found[::-1], locate)[::-1][:limit]

    def _sought(self, given: Mapping[str, Any]) -> _Sought:
        key = self.key
        if set(given) != set(key):
            raise errors.UsageError(
                f"{self.dataset.alias}: the primary key is {one_line(', '.join(key))}, "
                f"not {one_line(', '.join(given)) or 'nothing'}",
                hint=f"write {' '.join(f'{one_line(name)}=VALUE' for name in key)}",
            )
        if not (schema := self._columns):
            return _Sought(self.state, schema, key, pa.RecordBatch.from_pylist([]))
        columns = [_cell(name, given[name], schema.field(name).type) for name in key]
        return _Sought(self.state, schema, key, pa.RecordBatch.from_arrays(columns, list(key)))

    def _described(
        self, sought: _Sought, found: Sequence[tuple[SliceRef, pa.Table]], locate: Locate
    ) -> list[RowChange]:
        # oldest first
        if not found:
            return []
        chain, head = self.dataset.chain, self.state.head
        blocks = np.concatenate([np.full(rows.num_rows, place) for place, (_, rows) in enumerate(found)])
        table = _changes(pa.concat_tables(rows for _, rows in found), blocks, sought.key)
        records = {merge.block.hash: merge.record for merge in merges(chain, head)}
        changes = []
        for row in table.to_pylist(maps_as_pydicts="lossy"):
            ref = found[row[BLOCK]][0]
            record = records.get(ref.block_hash)
            changes.append(
                RowChange(
                    ref.block_hash,
                    ref.sequence_number,
                    chain.get(ref.block_hash).system_time,
                    row[OFFSET],
                    Change(row["change"]),
                    row["from"],
                    row["to"],
                    tuple(row["columns"]),
                    None if record is None else _origin(self.dataset, head, record, sought, locate),
                )
            )
        return changes


def _batches(
    path: Path, state: DatasetState, ref: SliceRef, schema: pa.Schema, **part: Any
) -> Iterator[pa.RecordBatch]:
    names = state.vocabulary  # those of system columns stay as soon as there are records (append rules)
    return slice_batches(path, names, ref.slice.offset_interval, names, schema, **part)


def _changes(rows: pa.Table, blocks: Numbers, key: Sequence[str]) -> pa.Table:
    # `rows` are of `RowHistory._columns`, in order of offset
    operations, data = rows.column(1).to_numpy(), rows.select(range(3, rows.num_columns))
    codes, _ = codes_of(data, key)
    order = np.lexsort((np.arange(len(codes)), codes))
    same = np.zeros(len(order), dtype=bool)
    same[1:] = codes[order][1:] == codes[order][:-1]
    previous = np.full(len(order), -1, dtype=np.int64)
    previous[order[1:]] = np.where(same[1:], order[:-1], -1)
    following = np.full(len(order), -1, dtype=np.int64)
    following[previous[previous >= 0]] = np.flatnonzero(previous >= 0)
    back = np.isin(operations, (_BACK, _FROM))
    # a -C is the first half of a change, unless the key has no values after it
    goes = (operations == _BACK) | ((operations == _FROM) & ((following < 0) | back[following]))
    kept = np.flatnonzero(~back | goes)
    earlier = previous[kept]
    was_there = (earlier >= 0) & (operations[earlier] != _BACK)
    before = np.where(back[kept], kept, np.where(was_there, earlier, -1))
    after = np.where(back[kept], -1, kept)
    found = table_of_changes(
        RowDiff(
            tuple(key), take(data, before), before >= 0, take(data, after), after >= 0, data.select([]),
        )
    )  # fmt: skip
    at = pa.array(kept)
    return (
        found.append_column(BLOCK, pa.array(blocks[kept], pa.int64()))
        .append_column(OFFSET, rows.column(0).take(at).cast(pa.int64()))
        .append_column(SYSTEM_TIME, rows.column(2).take(at))
    )


@dataclass(frozen=True, slots=True)
class _Sought:
    """One key, and how its rows are found in a slice."""

    state: DatasetState
    schema: pa.Schema
    key: tuple[str, ...]
    values: pa.RecordBatch
    """One row: the key."""

    @property
    def condition(self) -> Condition:
        keys = zip(self.values.schema.names, self.values.columns, strict=True)
        return Every(tuple(with_any_of(quoted(name), value, value.type) for name, value in keys))

    def rows(self, path: Path, ref: SliceRef) -> pa.Table:
        schema = key_schema(self.schema, self.key)
        wanted = WantedKeys.of(schema, [keys_of(self.values, self.key, schema)], nulls=True)
        found: list[pa.RecordBatch] = []
        with readable(path), open_parquet(path) as file:
            groups = list(groups_with(file, self.condition, self.key))
        for group, place in groups:
            first = ref.slice.offset_interval.start + place
            for batch in _batches(path, self.state, ref, self.schema, groups=[group], first=first):
                at, _ = wanted.find(keys_of(batch, self.key, schema))
                found.append(batch.take(pa.array(at)))
        return pa.Table.from_batches(found, self.schema)


def _cell(name: str, value: Any, kind: pa.DataType) -> pa.Array:
    try:
        return array_of([value], kind) if isinstance(value, str) else pa.array([value], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise errors.UsageError(f"{one_line(name)}: {one_line(str(error))}") from None


def _origin(
    dataset: DatasetFiles, head: Multihash, record: MergeRecord, sought: _Sought, locate: Locate
) -> ChangeOrigin:
    # the block from which the newest change of a key comes that a merge brought
    if record.mode is MergeMode.REVERT:
        return ChangeOrigin("", record.base[0])
    branch, tip, chain = record.source_ref, record.source, dataset.chain
    origin = ChangeOrigin(branch, tip)
    for _ in range(_LONGEST_PATH):
        try:
            source = opened_at(dataset, tip)
            place = _newest(chain, head, DatasetState.read(source.chain), sought, locate)
            if place is None:
                return origin
            origin = ChangeOrigin(branch, *place)
            made = [m for m in merges(source.chain, tip) if m.block.hash == place[0]]
        except (errors.ObjectNotFoundError, errors.PointNotFoundError):  # it was not fetched
            return origin
        if not made or made[0].record.mode is MergeMode.REVERT:
            return origin
        chain, head, branch, tip = source.chain, place[0], made[0].record.source_ref, made[0].record.source
    return origin


def _newest(
    chain: MetadataChain, head: Multihash, source: DatasetState, sought: _Sought, locate: Locate
) -> tuple[Multihash, int] | None:
    # only blocks that the other chain lacks
    for ref in source.slices_newest_first():
        if chain.hash_at(ref.sequence_number, head) == ref.block_hash:
            return None
        rows = sought.rows(locate(ref), ref)
        if rows.num_rows:
            return ref.block_hash, rows.column(0)[-1].as_py()
    return None
