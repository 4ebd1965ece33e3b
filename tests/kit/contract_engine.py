"""An engine that behaves as the contract's table says of the reference node's engine on DataFusion.

Offsets and operations are signed, times in milliseconds, the output watermark is the least of the inputs that
have one in this request, and there is no checkpoint and no version. It shares no code with ours.
"""

from __future__ import annotations

from typing import Any

import datafusion as df
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odfchain.odf.engine_messages import TransformRequest, TransformRequestInput
from odfchain.odf.events import OffsetInterval
from odfchain.odf.schema import DataSchema
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.transform.engines import Executed

_MS = pa.timestamp("ms", "UTC")


class ContractEngine:
    """`change` makes other rows of a result, as an engine that errs would."""

    forgets = True
    """An input without a mark in a step does not hold the output back."""

    def __init__(self, change: Any = lambda rows: rows) -> None:
        self.change = change
        self._known: dict[str, Timestamp] = {}

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        del schema, progress
        config = df.SessionConfig().with_target_partitions(1)
        context = df.SessionContext(config.set("datafusion.sql_parser.enable_ident_normalization", "false"))
        for given in request.query_inputs:
            rows = _rows(given)
            batches = rows.to_batches(max_chunksize=1) or [pa.RecordBatch.from_pylist([], rows.schema)]
            context.register_record_batches(f'"{given.query_alias}"', [batches])
        for step in request.transform.queries or ():
            frame = context.sql(step.query)
            context.register_view(step.alias or "__output__", frame)
        parts = [batch.to_pyarrow() for part in frame.execute_stream_partitioned() for batch in part]
        result = pa.Table.from_batches(parts, schema=frame.schema())
        rows = self.change(_plain(result))
        names = request.vocab
        first = request.next_offset
        columns = {
            names.offset_column: pa.array(range(first, first + len(rows)), pa.int64()),
            names.operation_type_column: pa.array([0] * len(rows), pa.int32()),
            names.system_time_column: pa.array([request.system_time.epoch_ms] * len(rows), pa.int64()).cast(
                _MS
            ),
            names.event_time_column: rows[names.event_time_column],
        }
        if names.operation_type_column in rows.schema.names:
            columns[names.operation_type_column] = rows[names.operation_type_column].cast(pa.int32())
        columns |= {name: rows[name] for name in rows.schema.names if name not in columns}
        required = [names.offset_column, names.operation_type_column, names.system_time_column]
        fields = [pa.field(n, c.type, nullable=n not in required) for n, c in columns.items()]
        made = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
        pq.write_table(made, request.new_data_path)
        interval = OffsetInterval(start=first, end=first + len(rows) - 1) if len(rows) else None
        return Executed(offset_interval=interval, watermark=self._watermark(request))

    def _watermark(self, request: TransformRequest) -> Timestamp | None:
        # the reference's coordinator sends those of the interval alone; ours sends the last known one first
        latest = []
        for given in request.query_inputs:
            key = f"{request.dataset_id} {given.query_alias}"
            marks = [mark.event_time for mark in given.explicit_watermarks]
            if self.forgets and marks and marks[0] == self._known.get(key):
                marks = marks[1:]
            if marks:
                latest.append(max(marks))
                self._known[key] = latest[-1]
        return min(latest, default=None)

    def query(self, request: Any, *, progress: Progress) -> int:
        raise NotImplementedError


class NamedContractEngine(ContractEngine):
    """One of ours of another version."""

    forgets = False

    version = "datafusion_54.1.0"


def _rows(given: TransformRequestInput) -> pa.Table:
    empty = pq.read_table(given.schema_file)
    tables = [pq.ParquetFile(path).read() for path in given.data_paths]
    if not tables or given.offset_interval is None:
        return empty
    table = pa.concat_tables(tables)
    offsets = table[given.vocab.offset_column].cast(pa.int64())
    inside = pc.and_(
        pc.greater_equal(offsets, given.offset_interval.start),
        pc.less_equal(offsets, given.offset_interval.end),
    )
    return table.filter(inside)


def _plain(rows: pa.Table) -> pa.Table:
    made = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        kind = column.type
        if pa.types.is_timestamp(kind):
            kind = _MS
        made[name] = column.cast(pa.string() if kind == pa.string_view() else kind)
    return pa.table(made)
