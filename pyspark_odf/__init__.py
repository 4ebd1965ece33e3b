"""Spark's data source `odf`: PySpark imports every module called `pyspark_…`, so nothing is registered.

    spark.read.format("odf").load("s3://bucket/airports")
    spark.readStream.format("odf").option("maxRecordsPerTrigger", "1000000").load(url)

Options: `path` (a folder, a URL of `file http https s3 gs az`, or a workspace together with `dataset`);
`point`, `asAt` or `block`; `projection` (records, state); `verify`; `requireSignature`; `token`; `cacheDir`;
`filterPushdown`; for streams `startingOffset` (earliest, latest, a number) and `maxRecordsPerTrigger`. The
head is read once: a DataFrame is one block. A schema that is given chooses columns. Source: RFC-034.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_odf.pinned import Pinned


class DefaultSource(DataSource):
    """One dataset as of one block, as Spark asks for it."""

    _pinned: Pinned | None = None

    @classmethod
    def name(cls) -> str:
        """What `format(…)` is given."""
        return "odf"

    def schema(self) -> StructType:
        """The declared columns, as Spark carries them; reads the head, and stays with that block."""
        return self._at_block().struct()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The rows of the block in these columns."""
        from pyspark_odf.batch import FilteringReader, Reader

        pinned = self._at_block()
        pinned.check(schema)
        return (FilteringReader if pinned.options.filter_pushdown else Reader)(pinned, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The rows as they are recorded."""
        from pyspark_odf.stream import StreamReader

        pinned = self._at_block()
        pinned.check(schema)
        return StreamReader(pinned, schema)

    def writer(self, schema: Any, overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's signature
        """Refused: what is recorded is merged, signed and published by the workspace."""
        from odfchain.errors import UsageError

        raise UsageError(
            'records are not written by format("odf")',
            hint='with odfchain.open("."): workspace["name"].ingest_frame(df)',
        )

    streamWriter = writer  # noqa: N815 - Spark's name

    def _at_block(self) -> Pinned:
        if self._pinned is None:
            from pyspark_odf.pinned import pin

            self._pinned = pin(dict(self.options))
        return self._pinned
