"""The totals of a dataset's state at a block: the multiset of rows over all columns but the system's.

`+A` and `+C` add a row, `-R` and `-C` take one away; of equal rows those with the largest offsets are in
force. Where the footers say that nothing was ever taken back, slices are added up one by one and merged, and
what was found of a slice is kept (`info/profile-parts`, private): the next profile reads new slices only.
Otherwise rows are netted first. Both ways end in the same bytes. Source: RFC-040, specification
"Projection".
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain.branches.key_lookup import takes_any_back
from odfchain.errors import BadInputError, CodecError
from odfchain.odf.events import DatasetVocabulary, DataSlice
from odfchain.odf.row_hash import Numbers
from odfchain.profiles.published import KeptParts
from odfchain.profiles.sketches import BANDS, MOST_ROWS, Hashes, Kmv
from odfchain.profiles.totals import Totals
from odfchain.progress import SILENT, Progress, reported
from odfchain.slices.reader import fitted, open_parquet
from odfchain.slices.state import SliceFile, in_force, rows_with_offsets
from odfchain.text import first_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import columns_of, verified_slice


def state_totals(
    dataset: DatasetFiles,
    state: DatasetState,
    progress: Progress = SILENT,
    *,
    keep: bool = True,
    near_duplicates: bool = False,
) -> Totals:
    """The totals of the rows in force at a state's block; parts are kept and used, unless all is to be read.

    Near duplicates are looked for among at most 262,144 rows, or among all of them where that is asked.
    """
    slices, schema = state_slices(dataset, state), profiled_columns(state)
    return totals_of_slices(
        dataset, schema, state.vocabulary, slices, progress, keep=keep, near_duplicates=near_duplicates
    )


@dataclass(frozen=True, slots=True)
class ProfiledSlice:
    """A slice that can be relied on, or one that is about to be committed."""

    path: Path
    named: DataSlice
    """As its block names it."""


def state_slices(dataset: DatasetFiles, state: DatasetState) -> list[ProfiledSlice]:
    """All slices up to a block, oldest first."""
    return [ProfiledSlice(verified_slice(dataset, ref), ref.slice) for ref in state.slices()]


def totals_of_slices(
    dataset: DatasetFiles,
    schema: pa.Schema,
    names: DatasetVocabulary,
    slices: Sequence[ProfiledSlice],
    progress: Progress = SILENT,
    *,
    keep: bool = True,
    near_duplicates: bool = False,
) -> Totals:
    """The totals of the rows that slices, oldest first, leave in force."""
    step = f"Profiling {dataset.alias}"
    progress.phase(step, sum(item.named.size for item in slices))
    told = functools.partial(reported, progress=progress, step=step, rows=lambda piece: piece[0].num_rows)
    files = [SliceFile(item.path, names, item.named.offset_interval) for item in slices]
    if not any(map(takes_any_back, files)):
        rows = sum(item.named.offset_interval.count for item in slices)
        found = Totals(schema, near_duplicates=near_duplicates or rows <= MOST_ROWS)
        for item in slices:
            empty = Totals(schema, near_duplicates=found.bands is not None)
            found.merge(_part(dataset, names, item, empty, told, keep=keep))
            progress.advance(item.named.size)
        return found
    offsets = in_force(files, (), net=True)
    found = Totals(schema, near_duplicates=near_duplicates or len(offsets) <= MOST_ROWS)
    for file in files:
        for rows, numbers in told(rows_with_offsets(file, offsets, schema)):
            found.update(rows, numbers)
        progress.advance(file.path.stat().st_size)
    return found


def profiled_columns(state: DatasetState) -> pa.Schema:
    """The declared columns but offset, operation and system time."""
    return without_system(columns_of(state, None), state.vocabulary)


def without_system(schema: pa.Schema, names: DatasetVocabulary) -> pa.Schema:
    """The columns of a schema that a profile is of."""
    system = {names.offset_column, names.operation_type_column, names.system_time_column}
    return pa.schema([field for field in schema if field.name not in system])


def _part(
    dataset: DatasetFiles, names: DatasetVocabulary, item: ProfiledSlice, empty: Totals,
    told: Callable[..., Iterator[tuple[pa.RecordBatch, Hashes]]], *, keep: bool,
) -> Totals:  # fmt: skip
    # the kept totals of a slice, else new ones from its rows
    parts, name = KeptParts(dataset), item.named.physical_hash
    data = parts.get(name) if keep else None
    if data is not None:
        with contextlib.suppress(CodecError):
            return from_bytes(data, empty.schema, near_duplicates=empty.bands is not None)
    for rows, offsets in told(_all_rows(item.path, names, empty.schema)):
        empty.update(rows, offsets)
    if keep:
        parts.keep(name, to_bytes(empty))
    return empty


def _all_rows(
    path: Path, names: DatasetVocabulary, schema: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, Hashes]]:
    offset, operation = names.columns[:2]
    with open_parquet(path) as file:
        present = file.schema_arrow.names
        if missing := next((name for name in (offset, operation) if name not in present), None):
            raise BadInputError(f"column `{missing}` is not there", file=str(path))
        for batch in file.batches([n for n in present if n in schema.names or n == offset]):
            numbers = batch.column(offset).to_numpy(zero_copy_only=False).astype(np.uint64)
            yield fitted(batch, schema), numbers


# Totals as one Arrow row with JSON scalars, for the cache and for executors. Private: bytes that cannot be
# read are computed again (RFC-040).

_VERSION = 2
_KEY = b"odfchain.totals"


def to_bytes(totals: Totals) -> bytes:
    """The totals as one Arrow stream."""
    arrays: dict[str, pa.Array] = {
        "kmv": _numbers(totals.kmv.hashes),
        "kmv counts": _numbers(totals.kmv.counts),
        "hll": _numbers(totals.hll.hashes),
        "sample offsets": _numbers(totals.sample_offsets),
    }
    if totals.bands is not None and totals.bands.is_small:
        arrays["bands"] = _numbers(totals.bands.held.reshape(-1))
    for number, values in enumerate(totals.sample.columns):
        arrays[f"sample {number}"] = _as_list(values)
    for number, column in enumerate(totals.columns):
        arrays[f"hll {number}"] = _numbers(column.hll.hashes)
        if column.counts is not None:
            arrays[f"keys {number}"] = _as_list(column.counts.keys)
            arrays[f"counts {number}"] = _numbers(column.counts.numbers)
    scalars = {"version": _VERSION, "rows": totals.rows, "columns": [c.scalars() for c in totals.columns]}
    schema = totals.schema.serialize().to_pybytes().hex()
    metadata = {_KEY: json.dumps({**scalars, "schema": schema}).encode()}
    table = pa.table(arrays).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(data: bytes, schema: pa.Schema, *, near_duplicates: bool = False) -> Totals:
    """The totals of rows with these columns."""
    try:
        return _read(data, schema, near_duplicates=near_duplicates)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CodecError(f"not the totals of a slice: {first_line(error)}") from None


def _read(data: bytes, schema: pa.Schema, *, near_duplicates: bool) -> Totals:
    table = pa.ipc.open_stream(data).read_all()
    table.validate(full=True)  # Arrow ends the process at an offset beyond the values
    scalars = json.loads(table.schema.metadata[_KEY])
    own = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(scalars["schema"])))
    if scalars["version"] != _VERSION or own != schema:
        raise ValueError("another version, or other columns")

    def listed(name: str) -> pa.Array:
        return table.column(name)[0].values

    found = Totals(schema, near_duplicates=near_duplicates)
    found.rows = scalars["rows"]
    found.kmv = Kmv(listed("kmv").to_numpy(), listed("kmv counts").to_numpy())
    found.hll.update(listed("hll").to_numpy())
    found.sample_offsets = listed("sample offsets").to_numpy()
    samples = [listed(f"sample {number}") for number in range(len(found.sample.schema))]
    found.sample = pa.Table.from_arrays(samples, schema=found.sample.schema)
    if found.bands is not None:
        keys = listed("bands").to_numpy().reshape(-1, BANDS)
        found.bands.add(keys, np.ones(len(keys), dtype=bool))
        found.bands.rows = found.rows
    present = set(table.column_names)
    for number, (column, given) in enumerate(zip(found.columns, scalars["columns"], strict=True)):
        column.hll.update(listed(f"hll {number}").to_numpy())
        counted = f"keys {number}" in present
        counts = (listed(f"keys {number}"), listed(f"counts {number}").to_numpy()) if counted else None
        column.restore(given, counts)
    return found


def _numbers(values: Numbers) -> pa.Array:
    return _as_list(pa.array(values))


def _as_list(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    return pa.LargeListArray.from_arrays(pa.array([0, len(whole)], pa.int64()), whole)
