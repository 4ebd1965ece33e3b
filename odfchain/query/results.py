"""Results of a query: columns, rows as they arrive, and the blocks that were read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.errors import UsageError
from odfchain.lazy import pa
from odfchain.query.resolved_tables import Pin

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame


# Arrow rows as frames of other libraries.


class ArrowRows:
    """Mixin: converts Arrow rows to data frames."""

    __slots__ = ()

    def to_arrow(self) -> pa.Table:
        """All rows; held in memory."""
        raise NotImplementedError

    def to_pandas(self) -> pd.DataFrame:
        """As `to_arrow`, with columns of Arrow types: nulls, NaN, unsigned and times stay what they are."""
        import pandas as pd

        return self.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)

    def to_polars(self) -> pl.DataFrame:
        """As `to_arrow`, for polars.

        Raises:
            UsageError: polars is not installed.
        """
        try:
            import polars as pl
        except ImportError:
            raise UsageError("polars is not installed", hint="pip install polars") from None
        return pl.from_arrow(self.to_arrow())


@dataclass(frozen=True, slots=True)
class SlicesRead:
    """How many slices of records a query reads, of how many; the others can have no row of its answer."""

    read: int = 0
    there: int = 0

    def __add__(self, other: SlicesRead) -> SlicesRead:
        """Both together."""
        return SlicesRead(self.read + other.read, self.there + other.there)

    @property
    def skipped(self) -> int:
        """Those that are not read."""
        return self.there - self.read


class QueryResult(ArrowRows):
    """The rows of a query, read once: by `batches`, or whole by one of the `to_…` methods.

    Whole, they are kept: then they can be had again. pandas, polars and DuckDB take it as it is, by Arrow's C
    stream interface.
    """

    def __init__(
        self, schema: pa.Schema, inputs: tuple[Pin, ...], batches: Callable[[], Iterator[pa.RecordBatch]],
        frame: Callable[[], DataFrame] | None = None, *, slices: SlicesRead | None = None,
    ) -> None:  # fmt: skip
        self.schema = schema
        """Names and types of the columns."""
        self.inputs = inputs
        """The datasets that the query reads, each at its block; ordered by name."""
        self._batches: Callable[[], Iterator[pa.RecordBatch]] | None = batches
        self._frame = frame
        self._table: pa.Table | None = None
        self.slices = slices or SlicesRead()
        """How many slices were skipped by what their footers report."""

    def batches(self) -> pa.RecordBatchReader:
        """The rows as they are computed; they can be had once.

        Raises (while it is read too):
            UsageError: they were had already.
            QueryError: a value cannot be computed.
            EngineError: memory or time is used up.
            ObjectCorruptedError: a slice changed while it was read.
        """
        if self._table is not None:
            return self._table.to_reader()
        if self._batches is None:
            raise UsageError("the rows of this query were read already", hint="ask again, or keep to_arrow()")
        batches, self._batches = self._batches, None
        return pa.RecordBatchReader.from_batches(self.schema, batches())

    def to_arrow(self) -> pa.Table:
        """All rows; held in memory. Errors as `batches`."""
        if self._table is None:
            self._table = self.batches().read_all()
        return self._table

    def to_spark(self) -> DataFrame:
        """The rows as a Spark DataFrame that nothing was computed of yet.

        Raises:
            UsageError: another engine has computed them.
        """
        if self._frame is None:
            raise UsageError("only Spark gives a DataFrame of Spark's", hint='ask with engine="spark"')
        return self._frame()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows for other libraries (Arrow PyCapsule interface)."""
        return self.batches().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs)) or "no dataset"
        return f"<result of a query over {inputs}: {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        from html import escape

        table = self.to_arrow()
        shown = table.slice(0, 20).to_pandas(types_mapper=None).to_html(index=False, escape=True)
        return f"{shown}<p>{len(table):,} rows; {escape(', '.join(map(str, self.inputs)))}</p>"
