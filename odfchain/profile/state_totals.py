"""The totals of a dataset's state at a block: the multiset of rows over all columns but the system's.

`+A` and `+C` add a row, `-R` and `-C` take one away; of equal rows those with the largest offsets are in
force. Where the footers say that nothing was ever taken back, slices are added up one by one and merged, and
what was found of a slice is kept (`info/profile-parts`, private): the next profile reads new slices only.
Otherwise rows are netted by their hashes. Both ways end in the same bytes. Source: RFC-040, specification
"Projection".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain.errors import BadInputError, CodecError, ObjectNotFoundError, SliceNotFoundError, StoreError
from odfchain.manifest.footers import file_stats, quoted
from odfchain.profile.totals import Totals
from odfchain.profile.totals_bytes import from_bytes, to_bytes
from odfchain.profile.value_hashes import Hashes
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState, SliceRef
from odfchain.repo.read_slices import columns_of
from odfchain.slices.reader import fitted, open_parquet
from odfchain.slices.rows_in_force import SliceFile, in_force, rows_with_offsets
from odfchain.store import fsio

_MOST_BYTES = 256 * 1024 * 1024
"""A kept part of this size is not one of ours."""


def state_totals(
    dataset: DatasetFiles, state: DatasetState, progress: Progress = SILENT, *, keep: bool = True
) -> Totals:
    """The totals of the rows in force at a state's block; parts are kept, unless nothing is to be written.

    Raises:
        SliceNotFoundError, ObjectCorruptedError: a slice is not here, or damaged.
        BadInputError, OversizedInputError: naming a slice that cannot be read.
    """
    schema = profiled_columns(state)
    refs = state.slices()
    paths = [_verified(dataset, ref) for ref in refs]
    progress.phase(f"Profiling {dataset.alias}", sum(ref.slice.size for ref in refs))
    if all(_only_adds(path, state) for path in paths):
        found = Totals(schema)
        for ref, path in zip(refs, paths, strict=True):
            found.merge(_part(dataset, state, ref, path, schema, keep=keep))
            progress.advance(ref.slice.size)
        return found
    names = state.vocabulary
    files = [SliceFile(p, names, ref.slice.offset_interval) for ref, p in zip(refs, paths, strict=True)]
    offsets = in_force(files, (), net=True)
    found = Totals(schema)
    for item in files:
        for rows, numbers in rows_with_offsets(item, offsets, schema):
            found.update(rows, numbers)
        progress.advance(item.path.stat().st_size)
    return found


def profiled_columns(state: DatasetState) -> pa.Schema:
    """The declared columns but offset, operation and system time."""
    names = state.vocabulary
    system = {names.offset_column, names.operation_type_column, names.system_time_column}
    return pa.schema([field for field in columns_of(state, None) if field.name not in system])


def _only_adds(path: Path, state: DatasetState) -> bool:
    """Whether a slice's footer says that no row takes another back."""
    found = file_stats(path).column(quoted(state.vocabulary.operation_type_column))
    return found is not None and found.high == 0


def _part(
    dataset: DatasetFiles, state: DatasetState, ref: SliceRef, path: Path, schema: pa.Schema, *, keep: bool
) -> Totals:
    kept = dataset.folder / "info" / "profile-parts" / f"{ref.slice.physical_hash}.arrow"
    data = fsio.read_start(kept, _MOST_BYTES)
    if data is not None:
        with contextlib.suppress(CodecError):
            return from_bytes(data, schema)
    found = Totals(schema)
    for rows, offsets in _all_rows(path, state, schema):
        found.update(rows, offsets)
    if keep:
        with contextlib.suppress(StoreError):  # it only saves time
            fsio.make_folder(kept.parent)
            fsio.replace_file(kept, to_bytes(found))
    return found


def _all_rows(path: Path, state: DatasetState, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, Hashes]]:
    offset = state.vocabulary.offset_column
    with open_parquet(path) as file:
        present = file.schema_arrow.names
        if offset not in present:
            raise BadInputError(f"column `{offset}` is not there", file=str(path))
        for batch in file.batches([n for n in present if n in schema.names or n == offset]):
            numbers = batch.column(offset).to_numpy(zero_copy_only=False).astype(np.uint64)
            yield fitted(batch, schema), numbers


def _verified(dataset: DatasetFiles, ref: SliceRef) -> Path:
    try:
        return dataset.data.verified_path(ref.slice.physical_hash)
    except ObjectNotFoundError:
        path = dataset.data.locate(ref.slice.physical_hash)
        raise SliceNotFoundError.of(dataset.alias, path) from None
