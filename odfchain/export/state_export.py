"""The rows in force as one Parquet file, without the columns that only tell how they came about.

Offset, operation and system time are left out; the event time is a fact of the row. Of the rows only the
keys are held in memory (without a key, hashes), and as many rows as a row group has.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.codec.uuids import with_extensions
from odfchain.export.table_columns import cast_rows
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.read_slices import columns_of, verified_slice
from odfchain.slices.rows_in_force import SliceFile, in_force, rows_with_offsets
from odfchain.store import fsio

_GROUP_ROWS = 1 << 17


def state_columns(state: DatasetState) -> pa.Schema:
    """The declared columns that rows in force are exported with."""
    names = state.vocabulary
    system = {names.offset_column, names.operation_type_column, names.system_time_column}
    return pa.schema([field for field in columns_of(state, None) if field.name not in system])


def write_state(
    dataset: DatasetFiles, state: DatasetState, columns: pa.Schema, path: Path, progress: Progress
) -> None:
    """The file has the rows in force, in order of offset, as these columns, and appears when complete."""
    names, refs = state.vocabulary, state.slices()
    files = [SliceFile(verified_slice(dataset, ref), names, ref.slice.offset_interval) for ref in refs]
    offsets = in_force(files, state.primary_key)
    declared = state_columns(state)
    progress.phase(f"Writing the rows in force of {dataset.alias}", sum(ref.slice.size for ref in refs))
    with fsio.replaced(path) as stream, pq.ParquetWriter(stream, with_extensions(columns)) as writer:
        waiting: list[pa.RecordBatch] = []
        for item, ref in zip(files, refs, strict=True):
            for rows, _ in rows_with_offsets(item, offsets, declared):
                waiting.append(cast_rows(rows, columns))
                if sum(batch.num_rows for batch in waiting) >= _GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting), _GROUP_ROWS)
                    waiting = []
            progress.advance(ref.slice.size)
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), _GROUP_ROWS)
