"""The totals of a dataset's state at a block: the multiset of rows over all columns but the system's.

`+A` and `+C` add a row, `-R` and `-C` take one away; of equal rows those with the largest offsets are in
force. Where the footers say that nothing was ever taken back, slices are added up one by one and merged, and
what was found of a slice is kept (`info/profile-parts`, private): the next profile reads new slices only.
Otherwise rows are netted by their hashes. Both ways end in the same bytes. Source: RFC-040, specification
"Projection".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain.branch.computing import Engine
from odfchain.branch.wanted_keys import takes_any_back
from odfchain.errors import BadInputError, CodecError
from odfchain.model.events import DatasetVocabulary, DataSlice
from odfchain.profile import large_states
from odfchain.profile.kept_parts import keep_part, kept_part
from odfchain.profile.near_duplicates import MOST_ROWS
from odfchain.profile.totals import Totals
from odfchain.profile.totals_bytes import from_bytes, to_bytes
from odfchain.profile.value_hashes import Hashes
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.read_slices import columns_of, verified_slice
from odfchain.slices.reader import fitted, open_parquet
from odfchain.slices.rows_in_force import SliceFile, in_force, rows_with_offsets


def state_totals(
    dataset: DatasetFiles,
    state: DatasetState,
    progress: Progress = SILENT,
    *,
    keep: bool = True,
    near_duplicates: bool = False,
    engine: Engine | None = None,
) -> Totals:
    """The totals of the rows in force at a state's block; parts are kept and used, unless all is to be read.

    Near duplicates are looked for among at most 262,144 rows, or among all of them where that is asked. Where
    rows are taken back and there are more than two million records, they are netted in files; by the engine,
    if there are more bytes than it is for.
    """
    slices, schema = state_slices(dataset, state), profiled_columns(state)
    return totals_of_slices(
        dataset,
        schema,
        state.vocabulary,
        slices,
        progress,
        keep=keep,
        near_duplicates=near_duplicates,
        engine=engine,
    )


@dataclass(frozen=True, slots=True)
class ProfiledSlice:
    """A slice that can be relied on, or one that is about to be committed."""

    path: Path
    named: DataSlice
    """As its block names it."""


def state_slices(dataset: DatasetFiles, state: DatasetState) -> list[ProfiledSlice]:
    """All slices up to a block, oldest first; errors as `state_totals`."""
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
    engine: Engine | None = None,
) -> Totals:
    """The totals of the rows that slices, oldest first, leave in force; errors as `state_totals`."""
    progress.phase(f"Profiling {dataset.alias}", sum(item.named.size for item in slices))
    files = [SliceFile(item.path, names, item.named.offset_interval) for item in slices]
    if not any(map(takes_any_back, files)):
        rows = sum(item.named.offset_interval.count for item in slices)
        found = Totals(schema, near_duplicates=near_duplicates or rows <= MOST_ROWS)
        for item in slices:
            empty = Totals(schema, near_duplicates=found.bands is not None)
            found.merge(_part(dataset, names, item, empty, keep=keep))
            progress.advance(item.named.size)
        return found
    if sum(item.interval.count for item in files) > large_states.IN_MEMORY:
        keys = [_key_of(dataset, item) for item in slices]
        return large_states.large_state(
            files, keys, schema, progress, engine=engine, near_duplicates=near_duplicates
        )
    offsets = in_force(files, (), net=True)
    found = Totals(schema, near_duplicates=near_duplicates or len(offsets) <= MOST_ROWS)
    for file in files:
        for rows, numbers in rows_with_offsets(file, offsets, schema):
            found.update(rows, numbers)
        progress.advance(file.path.stat().st_size)
    return found


def _key_of(dataset: DatasetFiles, item: ProfiledSlice) -> str | None:
    """Where a slice is in the workspace's store, if it has one; None of one that is not committed yet."""
    name = item.named.physical_hash
    return dataset.key("data", name) if item.path == dataset.data.path(name) else None


def profiled_columns(state: DatasetState) -> pa.Schema:
    """The declared columns but offset, operation and system time."""
    return without_system(columns_of(state, None), state.vocabulary)


def without_system(schema: pa.Schema, names: DatasetVocabulary) -> pa.Schema:
    """The columns of a schema that a profile is of."""
    system = {names.offset_column, names.operation_type_column, names.system_time_column}
    return pa.schema([field for field in schema if field.name not in system])


def _part(
    dataset: DatasetFiles, names: DatasetVocabulary, item: ProfiledSlice, empty: Totals, *, keep: bool
) -> Totals:
    """What is kept of a slice, else what was empty with the rows of it."""
    data = kept_part(dataset, item.named.physical_hash) if keep else None
    if data is not None:
        with contextlib.suppress(CodecError):
            return from_bytes(data, empty.schema, near_duplicates=empty.bands is not None)
    for rows, offsets in _all_rows(item.path, names, empty.schema):
        empty.update(rows, offsets)
    if keep:
        keep_part(dataset, item.named.physical_hash, to_bytes(empty))
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
