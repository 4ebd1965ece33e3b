"""Several slices into one, without Spark: the same records in the same order, under one logical hash.

The settings of the Parquet file are those of every other slice ("Common Data Schema"). What was written is
read again and hashed before anybody relies on it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, ObjectCorruptedError, OdfchainError, StoreError
from odfchain.model.events import DatasetVocabulary, DataSlice, OffsetInterval
from odfchain.repo.commit import StagedFile
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio
from odfchain.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class MergedSlice:
    """A slice that is not committed yet, and its file."""

    slice: DataSlice
    staged: StagedFile


def same_columns(dataset: DatasetFiles, slices: Sequence[DataSlice]) -> bool:
    """Whether the files of all slices have the same columns, of the same types and in the same order."""
    first, *others = (_schema(dataset, found) for found in slices)
    return all(first.equals(other) for other in others)


def merge_slices(
    dataset: DatasetFiles, slices: Sequence[DataSlice], vocabulary: DatasetVocabulary, folder: Path
) -> MergedSlice:
    """One file in `folder` with the records of neighbouring slices that have the same columns."""
    path = folder / f"merged-{uuid.uuid4().hex}.parquet"
    try:
        with fsio.storage_errors(path):
            return _merge(dataset, slices, vocabulary, path)
    except BaseException:
        fsio.remove_quietly(path)
        raise


def _merge(
    dataset: DatasetFiles, slices: Sequence[DataSlice], vocabulary: DatasetVocabulary, path: Path
) -> MergedSlice:
    from odfchain.slices.hashes import hash_parquet  # noqa: PLC0415
    from odfchain.slices.observers import LogicalHash, PhysicalHash  # noqa: PLC0415
    from odfchain.slices.writer import ObservedParquet  # noqa: PLC0415

    schema = _schema(dataset, slices[0])
    physical, logical = PhysicalHash(), LogicalHash(schema)
    with ObservedParquet(path, schema, vocabulary, [physical, logical]) as file:
        for found in slices:
            for batch in _rows(dataset, found, vocabulary):
                file.write(batch)
    interval = OffsetInterval(start=slices[0].offset_interval.start, end=slices[-1].offset_interval.end)
    if hash_parquet(path) != (logical.hash, interval.count):
        raise StoreError(f"{path}: what was written is not what was to be written; nothing was changed")
    merged = DataSlice(
        logical_hash=logical.hash,
        physical_hash=physical.hash,
        offset_interval=interval,
        size=physical.size,
    )
    return MergedSlice(merged, StagedFile(path, physical.hash, file.footer))


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    import pyarrow as pa  # noqa: PLC0415

    try:
        yield
    except (pa.ArrowException, KeyError, ValueError, BadInputError) as error:
        reason = error.message if isinstance(error, BadInputError) else one_line(str(error))
        raise ObjectCorruptedError(
            f"{path}: not a slice that can be read: {reason}",
            hint="`odfchain verify` says more",
        ) from None


def _schema(dataset: DatasetFiles, found: DataSlice) -> pa.Schema:
    from odfchain.slices.reader import open_parquet  # noqa: PLC0415

    path = dataset.data.verified_path(found.physical_hash)
    with _readable(path), open_parquet(path) as file:
        return file.schema_arrow.remove_metadata()


def _rows(dataset: DatasetFiles, found: DataSlice, vocabulary: DatasetVocabulary) -> Iterator[pa.RecordBatch]:
    """The records of a slice; their offsets are those that its block says, without gaps."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    from odfchain.slices.reader import open_parquet  # noqa: PLC0415

    path = dataset.data.verified_path(found.physical_hash)
    at, end = found.offset_interval.start, found.offset_interval.end
    with _readable(path), open_parquet(path) as file:
        for batch in file.batches():
            offsets = batch.column(vocabulary.offset_column).cast(pa.uint64()).to_numpy()
            if not np.array_equal(offsets, np.arange(at, at + batch.num_rows, dtype=np.uint64)):
                raise _other_offsets(path, found)
            at += batch.num_rows
            yield pa.RecordBatch.from_arrays(batch.columns, schema=batch.schema.remove_metadata())
    if at != end + 1:
        raise _other_offsets(path, found)


def _other_offsets(path: Path, found: DataSlice) -> OdfchainError:
    interval = found.offset_interval
    return ObjectCorruptedError(
        f"{path}: the records do not have the offsets {interval.start} to {interval.end} that its block says",
        hint="`odfchain verify` says more",
    )
