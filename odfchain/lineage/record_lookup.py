"""Single records, read from the slices that are here; and which record a correction or retraction is about.

A slice is hashed before it is read. Only the row groups that hold the records are decoded. Values are those
of the slice file, under its own column names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.errors import (
    BadInputError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    SchemaError,
)
from odfchain.limits import LINEAGE, LineageLimits
from odfchain.model.enums import TAKES_BACK, OperationType
from odfchain.model.events import DatasetVocabulary
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import SliceRef
from odfchain.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record: its offset, its operation (`+A`, `-R`, `-C`, `+C`; None: unknown) and its values."""

    offset: int
    op: str | None
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CorrectedRecord:
    """The record that another one corrects or retracts and its block, or why it is not known."""

    row: StoredRecord | None
    sequence_number: int | None = None
    problem: str | None = None


def read_rows(
    dataset: DatasetFiles, ref: SliceRef, vocabulary: DatasetVocabulary, first: int, last: int
) -> list[StoredRecord]:
    """The records `[first; last]` of a slice.

    Raises:
        SchemaError: it has other records than its block says.
    """
    start = ref.slice.offset_interval.start
    table = _read(dataset, ref, None, first - start, last - start)
    rows = [_row(values, vocabulary, first + index) for index, values in enumerate(_values(table))]
    file = dataset.data.locate(ref.slice.physical_hash)
    if len(rows) != last - first + 1:
        interval = f"{start} to {ref.slice.offset_interval.end}"
        raise SchemaError(
            f"{file}: block {ref.sequence_number} promises the records {interval}, and {last} is not there"
        )
    for row in rows:
        found = row.values.get(vocabulary.offset_column)
        if found != row.offset:
            raise SchemaError(
                f"{file}: the record {row.offset} says that its offset is {one_line(str(found))}"
            )
    return rows


def _row(values: dict[str, Any], vocabulary: DatasetVocabulary, offset: int) -> StoredRecord:
    code = values.get(vocabulary.operation_type_column)
    try:
        op = None if code is None else OperationType.from_code(code).value
    except ValueError:
        op = None
    return StoredRecord(offset, op, values)


def _values(table: pa.Table) -> Iterator[dict[str, Any]]:
    from odfchain.slices.values import plain_value  # noqa: PLC0415

    for index in range(table.num_rows):
        yield {
            name: plain_value(column[index])
            for name, column in zip(table.column_names, table.columns, strict=True)
        }


def _read(
    dataset: DatasetFiles, ref: SliceRef, columns: Sequence[str] | None, first: int, last: int
) -> pa.Table:
    """Rows of a slice by position, both ends included; only their row groups are decoded."""
    from odfchain.slices.reader import open_parquet  # noqa: PLC0415

    path = dataset.data.verified_path(ref.slice.physical_hash)
    try:
        with open_parquet(path) as file:
            return file.rows_between(first, last, columns)
    except BadInputError as error:
        raise ObjectCorruptedError(
            f"{path}: the slice cannot be read: {error.message}", hint=error.hint
        ) from None


def find_corrected(
    dataset: DatasetFiles,
    slices: Iterable[SliceRef],
    row: StoredRecord,
    key: Sequence[str],
    vocabulary: DatasetVocabulary,
    limits: LineageLimits = LINEAGE,
) -> CorrectedRecord:
    """The newest record before `row` with the same key that was true until then.

    `slices` come newest first and begin with the slice of `row`. The search ends at `limits`, and says so.
    """
    size = 0
    for count, ref in enumerate(slices):
        size += ref.slice.size
        if count >= limits.searched_slices or size > limits.searched_bytes:
            return CorrectedRecord(
                None, problem=f"not found in the {count} slices before it; there are older ones"
            )
        try:
            position = _newest_match(dataset, ref, row, key, vocabulary)
            if position is None:
                continue
            offset = ref.slice.offset_interval.start + position
            (record,) = read_rows(dataset, ref, vocabulary, offset, offset)
        except ObjectNotFoundError:
            return CorrectedRecord(
                None, problem=f"not known: the slice of block {ref.sequence_number} is not here"
            )
        except OdfchainError as error:
            return CorrectedRecord(None, problem=f"not known: {error}")
        return CorrectedRecord(record, ref.sequence_number)
    return CorrectedRecord(None, problem="no earlier record has the same key")


def _newest_match(
    dataset: DatasetFiles, ref: SliceRef, row: StoredRecord, key: Sequence[str], vocabulary: DatasetVocabulary
) -> int | None:
    """Position of the newest record in a slice that `row` may be about."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    interval = ref.slice.offset_interval
    last = min(interval.end, row.offset - 1) - interval.start
    if last < 0:
        return None
    op = vocabulary.operation_type_column
    if missing := [name for name in key if name not in row.values]:
        raise SchemaError(f"the record has no column {missing[0]!r}, which is part of the key")
    table = _read(dataset, ref, [op, *key], 0, last)
    if missing := [name for name in (op, *key) if name not in table.column_names]:
        raise SchemaError(f"the slice of block {ref.sequence_number} has no column {missing[0]!r}")
    try:
        mask = pc.invert(pc.is_in(table[op], value_set=pa.array(TAKES_BACK, table[op].type)))
        for name in key:
            column = table[name]
            value = row.values[name]
            same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
            mask = pc.and_(mask, pc.fill_null(same, fill_value=False))
        matches = pc.indices_nonzero(mask)
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError):  # KeyError: a name twice
        raise SchemaError(f"the keys of block {ref.sequence_number} cannot be compared") from None
    return int(matches[-1].as_py()) if len(matches) else None
