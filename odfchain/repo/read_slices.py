"""Recorded rows without Spark: whole datasets and their newest rows, as Arrow.

Slices are checked against their physical hash before they are read. The declared schema decides the types;
a column that an older slice does not have yet is null there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.codec.arrow import slice_schema
from odfchain.errors import (
    BadInputError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    SchemaError,
    SliceNotFoundError,
)
from odfchain.model.events import OffsetInterval
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState, SliceRef
from odfchain.text import first_line, one_line

if TYPE_CHECKING:
    import pyarrow as pa


def read_all(
    dataset: DatasetFiles,
    state: DatasetState,
    columns: Sequence[str] | None = None,
    slices: Sequence[SliceRef] | None = None,
) -> pa.Table:
    """All records (or those of some slices), with the declared schema (or the given columns of it)."""
    import pyarrow as pa  # noqa: PLC0415

    schema = columns_of(state, columns)
    tables = [_read_slice(dataset, ref, schema) for ref in (state.slices() if slices is None else slices)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def read_state(
    dataset: DatasetFiles,
    state: DatasetState,
    key: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    event_time: Timestamp | None = None,
    slices: Sequence[tuple[Path, OffsetInterval]] | None = None,
) -> pa.Table:
    """The rows in force at a head, as recorded, in order of offset (`odfchain.slices.rows_in_force`).

    Without `key` the one that the sources agree on tells rows apart; an empty one compares whole rows, and
    counts them. With `event_time` those in force then (`odfchain.slices.state_by_time`).
    `slices` are files that were verified already; the first may be a state that stands for older ones.

    Raises:
        SchemaError: a column is not in the schema, or sources have different keys.
        ObjectNotFoundError, ObjectCorruptedError: a slice is missing or damaged.
    """
    import pyarrow as pa  # noqa: PLC0415

    from odfchain.slices import rows_in_force as rule  # noqa: PLC0415
    from odfchain.slices.newest_rows import newest_rows  # noqa: PLC0415
    from odfchain.slices.state_by_time import state_at  # noqa: PLC0415

    key = state.primary_key if key is None else key
    schema, names = columns_of(state, columns), state.vocabulary
    if slices is None:
        slices = [(verified_slice(dataset, ref), ref.slice.offset_interval) for ref in state.slices()]
    files = [rule.SliceFile(path, names, interval) for path, interval in slices]
    if not files:
        return schema.empty_table()
    columns_of(state, key)
    try:
        if event_time is None and key:
            wanted = columns_of(state, list(dict.fromkeys([*schema.names, *key])))
            return newest_rows(files, key, wanted).select(schema.names)
        if event_time is None:
            return rule.state(files, key, schema, net=True)
        with_time = dict.fromkeys([*schema.names, names.event_time_column])
        wanted = columns_of(state, list(with_time))
        return state_at(files, key, wanted, event_time).select(schema.names)
    except BadInputError as error:
        raise unreadable(Path(error.file or dataset.folder), error.message) from None
    except (pa.ArrowException, ValueError) as error:
        raise unreadable(
            dataset.folder, f"it does not fit the declared schema: {first_line(error)}"
        ) from None


def read_tail(dataset: DatasetFiles, state: DatasetState, count: int, *, skip: int = 0) -> pa.Table:
    """The newest `count` records before the newest `skip`, in order of offset.

    Reads only the row groups that hold them; all values can be held by Python.
    """
    import pyarrow as pa  # noqa: PLC0415

    schema = columns_of(state, None)
    last = state.last_offset
    if last is None or count <= 0:
        return schema.empty_table()
    high = last - skip
    low = max(0, high - count + 1)
    tables: list[Any] = []
    for ref in state.slices_newest_first():
        interval = ref.slice.offset_interval
        if interval.start > high:
            continue
        if interval.end < low:
            break
        table = _read_slice(
            dataset,
            ref,
            schema,
            max(low, interval.start) - interval.start,
            min(high, interval.end) - interval.start,
        )
        tables.append(table)
    return pa.concat_tables(tables[::-1]) if tables else schema.empty_table()


def columns_of(state: DatasetState, columns: Sequence[str] | None) -> pa.Schema:
    """The declared columns, or those of them that are asked for, as an Arrow schema.

    Raises:
        SchemaError: a column is not in the schema.
    """
    import pyarrow as pa  # noqa: PLC0415

    declared = state.schema
    schema = slice_schema(declared) if declared is not None else pa.schema([])
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            present = f"the dataset has {', '.join(schema.names)}"
            reason = present if schema.names else "no data is recorded yet"
            raise SchemaError(f"no column {name!r} ({reason})")
    return pa.schema([schema.field(name) for name in columns])


def _read_slice(
    dataset: DatasetFiles, ref: SliceRef, schema: pa.Schema, first: int = 0, last: int | None = None
) -> pa.Table:
    """The rows `[first; last]` of a slice, counted from its beginning, in the declared types."""
    import pyarrow as pa  # noqa: PLC0415

    from odfchain.slices.reader import fitted, open_parquet  # noqa: PLC0415

    path = verified_slice(dataset, ref)
    end = ref.slice.offset_interval.count - 1 if last is None else last
    try:
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise unreadable(path, f"column `{one_line(twice)}` comes twice")
            present = [name for name in schema.names if name in names]
            table = file.rows_between(first, end, present)
        if table.num_rows != end - first + 1:
            raise unreadable(path, f"it has no row {first + table.num_rows + 1:,}, which its block promises")
        return fitted(table, schema)
    except BadInputError as error:
        raise unreadable(path, error.message) from None
    except (pa.ArrowException, ValueError) as error:
        raise unreadable(path, f"it does not fit the declared schema: {first_line(error)}") from None


def verified_slice(dataset: DatasetFiles, ref: SliceRef) -> Path:
    """The file of a slice, which hashes to its name.

    Raises:
        SliceNotFoundError, ObjectCorruptedError: naming the file.
    """
    try:
        return dataset.data.verified_path(ref.slice.physical_hash)
    except ObjectNotFoundError:
        path = dataset.data.locate(ref.slice.physical_hash)
        raise SliceNotFoundError.of(dataset.alias, path) from None


def unreadable(path: Path, reason: str) -> ObjectCorruptedError:
    """What is said of a slice that is not what its block says."""
    return ObjectCorruptedError(
        f"{path}: the slice cannot be read: {reason}",
        hint="`odfchain verify` says what else is wrong with it",
    )
