"""Records that are read when they are asked for, as of one block."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.api.known_errors import OwnErrors
from odfchain.api.options import Time, as_time
from odfchain.errors import UsageError
from odfchain.ids.multihash import Multihash
from odfchain.model.timestamp import Timestamp
from odfchain.query.arrow_rows import ArrowRows
from odfchain.repo.dataset_state import DatasetState, SliceRef
from odfchain.repo.points import block_at
from odfchain.repo.read_slices import columns_of, read_all, read_tail
from odfchain.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.api.dataset import Dataset
    from odfchain.manifest.where import Where
    from odfchain.query.query_result import SlicesRead
    from odfchain.repo.dataset_files import DatasetFiles

At = Multihash | int | Time | None
"""A moment of a dataset: a block by its hash or sequence number, a system time, or None for now."""

_PREVIEW_ROWS = 10


@dataclass(frozen=True, slots=True)
class Scan(ArrowRows, OwnErrors):
    """The records of a dataset up to one block (or those in force then), as recorded, in order of offset.

    Nothing is read before one of the `to_…` methods is called; then only the slices up to that block are.
    What is committed later does not change it.
    """

    dataset: Dataset
    columns: tuple[str, ...] | None
    """None is all, system columns included."""
    summary: DatasetState
    """What the chain says as of the block."""
    key: tuple[str, ...] | None = None
    """Only what is in force by this key; None is every record."""
    event_time: Timestamp | None = None
    """What was in force then, by all that is known at the block."""
    where: Where | None = None
    """Only records of which it is true; slices without any are not read."""

    @property
    def slices(self) -> SlicesRead:
        """How many slices the condition leaves to be read, by what their footers report.

        Raises:
            SliceNotFoundError, ObjectCorruptedError: nothing is known of a slice, and it cannot be read.
        """
        from odfchain.query.query_result import SlicesRead

        everything = self.summary.slices()
        return SlicesRead(len(self._needed(everything)), len(everything))

    def _needed(self, everything: list[SliceRef], *, signed_nan: bool = True) -> list[SliceRef]:
        from odfchain.repo.needed_slices import needed_slices

        if self.where is None:
            return everything
        return needed_slices(self.dataset._files, everything, self.where.condition, signed_nan=signed_nan)

    def to_arrow(self) -> pa.Table:
        """All records with the declared types; held in memory. Starts no JVM.

        Raises:
            ObjectCorruptedError, ObjectNotFoundError: naming the slice.
        """
        files = self.dataset._files
        if self.key is None and self.where is not None:
            return self._filtered(self.where)
        if self.key is None:
            return read_all(files, self.summary, self.columns)
        from odfchain.api.kept_states import state_of

        return state_of(self)

    def _filtered(self, where: Where) -> pa.Table:
        import pyarrow as pa

        from odfchain.query.row_filter import RowFilter

        names = columns_of(self.summary, self.columns).names
        read, files = list(dict.fromkeys([*names, *where.columns])), self.dataset._files
        chosen = RowFilter(where)
        # of no slice: says what is wrong with the condition, wherever none is needed
        cuts = [[], *([ref] for ref in self._needed(self.summary.slices()))]
        parts = [chosen.of(read_all(files, self.summary, read, cut)) for cut in cuts]
        return pa.concat_tables(parts).select(names)

    def to_spark(self) -> DataFrame:
        """The records as a Spark DataFrame; unsigned columns appear as the next larger signed type.

        Raises:
            QueryError: Spark cannot compute the condition.
            JavaNotFoundError, EngineError: Spark does not start.
            ObjectCorruptedError, ObjectNotFoundError: naming the slice.
            BadInputError: a slice is not readable, or becomes more than the limits allow.
        """
        return self.on_spark(self.dataset._workspace.session())

    def on_spark(self, session: SparkSession, *, plain_offset: bool = False) -> DataFrame:
        """As `to_spark`, in a session of the caller's; with `plain_offset` offsets are `bigint`."""
        from odfchain.query.checked_slices import CheckedSlices
        from odfchain.query.pins import Pin
        from odfchain.query.relations import Relation, StateOf
        from odfchain.query.spark_tables import matching_on_spark, rows_on_spark, with_plain_offset
        from odfchain.spark.columns import col

        pin = Pin(str(self.dataset.alias), self.dataset._files, self.summary)
        relation = Relation(pin, None if self.key is None else StateOf(self.event_time, self.key))
        if self.where is None:
            found = rows_on_spark(session, relation, CheckedSlices())
        else:
            found = matching_on_spark(session, relation, CheckedSlices(), self.where)
        if plain_offset:
            found = with_plain_offset(found, pin)
        return found if self.columns is None else found.select(*[col(name) for name in self.columns])

    def __repr__(self) -> str:
        if self.key is None:
            return f"<scan of {self._described()}>"
        then = f" at {self.event_time}" if self.event_time else ""
        return f"<state{then} of {self._described()}, by {', '.join(self.key) or 'all values'}>"

    def _repr_html_(self) -> str:
        from odfchain.api.views import table_html

        if self.key is not None or self.where is not None:
            table = self.to_arrow()
            table = table.slice(max(0, len(table) - _PREVIEW_ROWS))
        else:
            table = read_tail(self.dataset._files, self.summary, _PREVIEW_ROWS)
            table = table if self.columns is None else table.select(list(self.columns))
        rows = [list(row.values()) for row in table.to_pylist()]
        return table_html(table.schema.names, rows, f"{self!r}, the newest")

    def _described(self) -> str:
        block = self.summary.head_block
        columns = "" if self.columns is None else f", columns {', '.join(self.columns)}"
        where = "" if self.where is None else f", where {one_line(self.where.text, 80)}"
        return (
            f"{self.dataset.alias}: {self.summary.record_count:,} records "
            f"up to block {block.sequence_number} ({block.system_time}){columns}{where}"
        )


def scan(dataset: Dataset, columns: Sequence[str] | None, at: At, where: str | None = None) -> Scan:
    """The records up to a moment; errors as `Dataset.scan`."""
    summary = DatasetState.read(dataset._files.chain, head_at(dataset._files, at))
    chosen = None if columns is None else tuple(columns)
    columns_of(summary, chosen)  # says which one is missing
    if where is None:
        return Scan(dataset, chosen, summary)
    from odfchain.manifest.where import parse_where

    return Scan(dataset, chosen, summary, where=parse_where(where, columns_of(summary, None)))


def state(
    dataset: Dataset,
    columns: Sequence[str] | None,
    at: At,
    key: Sequence[str] | None,
    event_time: Time | None = None,
) -> Scan:
    """The records in force at a moment; errors as `Dataset.state`."""
    found = scan(dataset, columns, at)
    chosen = found.summary.primary_key if key is None else tuple(key)
    if key is None and not chosen:
        raise UsageError(
            f"{dataset.alias}: no primary key is recorded that tells which records replace which",
            hint="give one: key=[...] (an empty one tells records apart by all values); scan() has them all",
        )
    if found.summary.schema is not None:  # nothing is in force before the first data
        columns_of(found.summary, chosen)
    return dataclasses.replace(
        found, key=chosen, event_time=None if event_time is None else as_time(event_time)
    )


def head_at(dataset: DatasetFiles, at: At) -> Multihash | None:
    """The block that was the head at a moment; None is the present one.

    Raises:
        InvalidIdError: a text that is neither a hash nor a time.
        ObjectNotFoundError: there is no such block.
        DatasetNotFoundError: the dataset was not there yet.
    """
    if at is None:
        return None
    if isinstance(at, str) and not at[:1].isdecimal():
        at = Multihash.parse(at)
    return block_at(dataset, at if isinstance(at, Multihash | int) else as_time(at))
