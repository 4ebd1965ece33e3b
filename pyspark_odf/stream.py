"""Streaming a dataset: batches of records in order of offset, each once, over a history that only grows.

{"offset": 25271, "block": "f1620…"}      the last record that was read (-1: none), the block that brought it
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from odfchain.errors import PointNotFoundError, UsageError
from odfchain.odf.identity import Multihash
from odfchain.transfer.reading import slice_objects
from odfchain.transfer.slice_files import DataObject
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.points import is_referenced
from pyspark_odf.pinned import Chain, Pinned
from pyspark_odf.rows import Piece, read_pieces, rows_in, tasks_of


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Records as they are recorded."""

    def __init__(self, pinned: Pinned, wanted: StructType) -> None:
        """Prepare; nothing is read yet.

        Raises:
            UsageError: options that are for no stream.
        """
        if pinned.options.state or pinned.options.point is not None:
            raise UsageError("a stream has records up to the newest block: no projection and no point")
        self._pinned, self._wanted = pinned, wanted
        self._chain: Chain | None = None
        self._files: DatasetFiles | None = None
        self._until: DatasetFiles | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: a chain is of one process."""
        return self.__dict__ | {"_chain": None, "_files": None, "_until": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Where a new stream starts."""
        files, wanted = self._refreshed(), self._pinned.options.starting_offset
        last = _last(files)
        if wanted == "earliest":
            return _offset(files, -1)
        if wanted == "latest":
            return _offset(files, last)
        if not (wanted.isascii() and wanted.isdecimal() and int(wanted) <= last + 1):
            raise UsageError(
                f"startingOffset is earliest, latest, or a number up to {last + 1:,}, not {wanted!r}"
            )
        return _offset(files, int(wanted) - 1)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How many records a batch has at most."""
        most = self._pinned.options.most_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all that this run reads."""
        self._until = self._refreshed()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends: at the end of a slice where the limit allows.

        Raises:
            PointNotFoundError: the history that was read so far was rewritten.
        """
        files = self._until or self._refreshed()
        _check(files, start)
        last, read = _last(files), int(start["offset"])
        if isinstance(limit, ReadMaxRows) and last > read + limit.max_rows:
            most = read + limit.max_rows
            ends = [item.offsets.end for item in _slices(files) if item.offsets is not None]
            last = max((end for end in ends if read < end <= most), default=most)
        return start if last <= read else _offset(files, last)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch, the same whenever it is planned.

        Raises:
            PointNotFoundError: the history was rewritten since.
        """
        if start["offset"] == end["offset"]:
            return []
        files = self._until or self._files
        if files is None or not _is_part(files, end):  # a batch of a run before this one
            files = self._refreshed()
        _check(files, start)
        _check(files, end)
        first, last = int(start["offset"]) + 1, int(end["offset"])
        pieces = []
        for item in _slices(files):
            assert item.offsets is not None  # noqa: S101 - a slice has them
            low, high = max(first - item.offsets.start, 0), min(last + 1 - item.offsets.start, rows_in(item))
            if low < high:
                pieces.append(Piece(item, low, high))
        return [InputPartition(found) for found in tasks_of(pieces)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, as Arrow batches."""
        return read_pieces(self._pinned, partition.value, self._wanted)

    def stop(self) -> None:
        """The chain's folder is gone."""
        if self._chain is not None:
            self._chain.close()
            self._chain = self._files = self._until = None

    def _refreshed(self) -> DatasetFiles:
        if self._chain is None:
            signed = self._pinned.options.require_signature
            self._chain = Chain(self._pinned.origin, require_signature=signed)
        self._files = self._chain.read()
        return self._files


def _slices(files: DatasetFiles) -> list[DataObject]:
    return slice_objects(DatasetState.read(files.chain))


def _last(files: DatasetFiles) -> int:
    last = DatasetState.read(files.chain).last_offset
    return -1 if last is None else last


def _offset(files: DatasetFiles, last: int) -> dict[str, Any]:
    """The record and the block that brought it; before the first record, the first block."""
    state = DatasetState.read(files.chain)
    block = files.chain.hashes(state.head)[0]
    for ref in state.slices_newest_first():
        if ref.slice.offset_interval.start <= last:
            block = ref.block_hash
            break
    return {"offset": last, "block": str(block)}


def _is_part(files: DatasetFiles, offset: dict[str, Any]) -> bool:
    block = Multihash.parse(offset["block"])
    head = DatasetState.read(files.chain).head
    return files.chain.contains(block) and is_referenced(files, block, head=head)


def _check(files: DatasetFiles, offset: dict[str, Any]) -> None:
    if not _is_part(files, offset):
        head = DatasetState.read(files.chain).head
        raise PointNotFoundError(
            f"{files.alias}: records were read up to {offset['offset']} of block {offset['block']}, which is "
            f"no part of the history whose newest block is {head}: it was rewritten",
            hint="begin anew with another checkpointLocation; startingOffset says where",
        )
