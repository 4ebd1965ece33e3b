"""Rows of which a condition is true, by the embedded engine: for who reads records without a query."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from odfchain.query.embedded import engine_library, engine_says
from odfchain.slices.conditions import Where


class RowFilter:
    """One condition, which knows no tables, no files and no statements."""

    def __init__(self, where: Where) -> None:
        library = engine_library()
        config = library.SessionConfig().with_information_schema(False).with_target_partitions(1)
        runtime = library.RuntimeEnvBuilder().with_disk_manager_disabled()
        self._context = library.SessionContext(config, runtime)
        options = library.SQLOptions().with_allow_ddl(False).with_allow_dml(False)
        self._options: Any = options.with_allow_statements(False)
        self._where = where

    def of(self, rows: pa.Table) -> pa.Table:
        """The rows that it is true of, in their order."""
        place = "#"
        while place in rows.schema.names:
            place += "#"
        columns = [*self._where.columns, place]
        numbered = rows.append_column(place, pa.array(range(len(rows)), pa.int64())).select(columns)
        batches = numbered.to_batches() or [pa.RecordBatch.from_pylist([], schema=numbered.schema)]
        with engine_says(self._where.text):
            self._context.register_record_batches("rows", [batches])
            try:
                # a condition is all that it is (`parse_where`), and the context has nothing else to read
                sql = f'SELECT "{place}" FROM rows WHERE ({self._where.text}\n)'  # noqa: S608
                found = self._context.sql_with_options(sql, self._options).to_arrow_table()
            finally:
                self._context.deregister_table("rows")
        kept = found.column(0).combine_chunks().sort()
        return rows if len(kept) == len(rows) else rows.take(kept)
