"""Reading a dataset at one block: which tasks there are, and what each hands over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_odf.pinned import Pinned
from pyspark_odf.pruning import may_hold
from pyspark_odf.rows import pieces_of, read_pieces, read_state_rows, tasks_of


class Reader(DataSourceReader):
    """The rows of one block."""

    def __init__(self, pinned: Pinned, wanted: StructType) -> None:
        self._pinned, self._wanted = pinned, wanted
        self._filters: tuple[Filter, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """The tasks; a state is one."""
        if self._pinned.options.state:
            return [InputPartition(None)]
        return [InputPartition(pieces) for pieces in tasks_of(pieces_of(self._pinned))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, as Arrow batches."""
        return self._read(partition.value)

    def _read(self, pieces: Any) -> Iterator[pa.RecordBatch]:
        if self._pinned.options.state:
            yield from read_state_rows(self._pinned, self._wanted)
        elif pieces is not None:  # Spark makes one task of none
            filters = self._filters
            keeps = (lambda group: all(may_hold(group, f) for f in filters)) if filters else None
            yield from read_pieces(self._pinned, pieces, self._wanted, keeps)


class FilteringReader(Reader):
    """As `Reader`, where Spark hands over filters; without that setting this method is an error."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Remember them for row groups; Spark applies all of them itself."""
        self._filters = tuple(filters)
        return iter(filters)
