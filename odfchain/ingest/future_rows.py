"""The rows of an input that are dated further in the future than is believed (RFC-014)."""

from __future__ import annotations

from pathlib import Path

from odfchain.errors import GuardError
from odfchain.ingest.merge_input import MergeInput
from odfchain.model.duration import Duration
from odfchain.model.enums import TAKES_BACK
from odfchain.model.events import DatasetVocabulary
from odfchain.model.timestamp import Timestamp
from odfchain.repo.watermark import ALLOW_FUTURE
from odfchain.spark.columns import col
from odfchain.spark.input_frames import ROW_ID
from odfchain.text import cut

_DAY_MS = 86_400_000
_SHOWN = 120
_TIMES = 100


def times_after(written: Path, vocabulary: DatasetVocabulary, bound: Timestamp) -> list[int]:
    """The first later event times that a slice adds rows of [ms]; taking such rows back is always right."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    op, time = vocabulary.operation_type_column, vocabulary.event_time_column
    table = pq.read_table(written, columns=[op, time])
    times = table[time]
    if pa.types.is_date(times.type):
        times = pc.multiply(times.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), _DAY_MS)
    else:
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())
    back = pc.is_in(table[op].cast(pa.int32()), pa.array(TAKES_BACK, pa.int32()))
    late = times.filter(pc.and_not(pc.greater(times, bound.epoch_ms), back))
    late_times: list[int] = late.unique().to_pylist()[:_TIMES]
    return late_times


def first_future_row(
    new: MergeInput, times: list[int], event_time: Timestamp, bound: Timestamp, system_time: Timestamp
) -> GuardError:
    """The first row of the input at one of these times [ms], as an error; rows without have `event_time`."""
    from pyspark.sql import functions as F

    name = new.vocabulary.event_time_column
    given = col(name).cast("timestamp")
    time = F.coalesce(given, F.timestamp_millis(F.lit(event_time.epoch_ms)))
    future = new.frame.where(F.unix_millis(time).isin(times))
    shown = [col(n).cast("string").alias(f"c{i}") for i, n in enumerate(_plain(new))]
    columns = [col(ROW_ID), time.cast("string").alias("time"), given.isNull().alias("none"), *shown]
    rows = future.orderBy(ROW_ID).limit(1).select(*columns).collect()
    after = Duration(bound.epoch_ms - system_time.epoch_ms)
    limit = f"{bound} ({after} after the system time {system_time})"
    if not rows:  # the input does not read the same twice
        return _refused(f"{new.file}: a row has an event time later than {limit}")
    row = rows[0]
    number = new.frame.where(col(ROW_ID) < row[ROW_ID]).count() + 1
    values = ", ".join(f"{n}={row[f'c{i}']!r}" for i, n in enumerate(_plain(new)) if n != name)
    whose = "the row has no event time, and that of the source" if row["none"] else "its event time"
    return _refused(
        f"{new.file}: row {number:,} ({cut(values, _SHOWN)}): {whose}, {row['time']}, is later than {limit}"
    )


def _refused(message: str) -> GuardError:
    return GuardError(
        message,
        flag=ALLOW_FUTURE,
        setting="set ingest.maxFuture, or the source's `watermark: {maxFuture: …}`",
    )


def _plain(new: MergeInput) -> list[str]:
    """The first columns, to tell the row by."""
    return list(new.schema.names)[:4]
