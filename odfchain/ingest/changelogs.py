"""A stream that says itself what each row does: what it takes back is in force when it is recorded.

A row that takes another back has the event time of that one, and means it where it says none. Whether it is
in force then is judged by the rule of check 10 (`odfchain.repo.corrections`). Source: RFC-052.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError
from odfchain.ingest.merge_input import MergeInput
from odfchain.ingest.merge_strategies import current_state, old_name
from odfchain.ingest.write_events import data_slices
from odfchain.ingest.writer_state import WriterState
from odfchain.limits import AUDIT
from odfchain.model.enums import TAKES_BACK
from odfchain.repo.corrections import taken_back_in_vain
from odfchain.slices.rows_in_force import SliceFile
from odfchain.slices.writer import SliceFacts
from odfchain.spark.columns import all_of, col
from odfchain.spark.input_frames import ROW_ID
from odfchain.spark.job import run_job

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BEFORE = "__odfchain_before"


def takes_back(new: MergeInput) -> Column:
    """Whether a row of the input takes another one back."""
    return col(new.vocabulary.operation_type_column).try_cast("int").isin(*TAKES_BACK)


def has_back_without_time(new: MergeInput) -> bool:
    """Whether a row takes another back and does not say of which event time that one is."""
    name = new.vocabulary.event_time_column
    return bool(new.frame.where(takes_back(new) & col(name).isNull()).limit(1).collect())


def with_times_taken_back(new: MergeInput, history: DataFrame | None, event_time: Column) -> MergeInput:
    """The input whose rows that take back without an event time have that of the row that they take back.

    That is the newest one with their other values, of those before them in the input or else of the recorded
    ones. Rows that are added without an event time have `event_time`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    time, op = new.vocabulary.event_time_column, new.vocabulary.operation_type_column
    values = tuple(name for name in new.schema.names if name not in (time, op))
    alike = Window.partitionBy(*[col(name) for name in values]).orderBy(col(ROW_ID))
    frame = new.frame.withColumn(_BEFORE, F.lag(F.coalesce(col(time), event_time)).over(alike))
    before = col(_BEFORE)
    if history is not None:
        state = current_state(history, values, new)
        same = all_of(col(name).eqNullSafe(col(old_name(name))) for name in values)
        frame, before = frame.join(state, same, "left"), F.coalesce(before, col(old_name(time)))
    filled = F.when(takes_back(new) & col(time).isNull(), before).otherwise(col(time))
    frame = frame.withColumn(time, filled).select(*[col(name) for name in new.frame.columns])
    return dataclasses.replace(new, frame=frame)


def refuse_in_vain(
    session: Callable[[], SparkSession],
    state: WriterState,
    facts: tuple[SliceFacts, ...],
    new: MergeInput,
    order: tuple[str, ...],
) -> tuple[str, ...]:
    """Nothing is taken back that is not in force; returns what the user should know.

    Raises:
        BadInputError: a row takes back what is not; the message has the first.
        ObjectNotFoundError, ObjectCorruptedError: an earlier slice is missing or damaged.
    """
    count = sum(each.ops.get(str(code), 0) for each in facts for code in TAKES_BACK)
    if count > AUDIT.retractions:  # as in a verification
        return (f"{count:,} rows are taken back; whether they were there is not checked",)
    names = state.vocabulary
    recorded = [SliceFile(piece.locate, names, piece.offsets) for piece in state.recorded().slices]
    slices = zip(facts, data_slices(facts, state.next_offset), strict=True)
    asked = [
        SliceFile(functools.partial(state.path_of, each), names, made.offset_interval)
        for each, made in slices
    ]
    wrong = taken_back_in_vain([*recorded, *asked], asked, in_force=not state.has_several_keys())
    if len(wrong):
        raise run_job(session(), lambda: _in_vain(new, order, int(wrong[0]) - state.next_offset))
    return ()


def _in_vain(new: MergeInput, order: tuple[str, ...], place: int) -> BadInputError:
    """The row that stands at a place of the slices, as an error."""
    ordered = new.frame.orderBy(*[col(name).asc_nulls_first() for name in order])
    (row,) = ordered.offset(place).limit(1).select(ROW_ID).collect()
    return BadInputError(
        "takes back (-R, 1, or -C, 2) values that no row in force has",
        file=new.file,
        row=new.frame.where(col(ROW_ID) < row[ROW_ID]).count() + 1,
        hint="write the values and the event time that were recorded; where no event time is written, it is "
        "that of the newest row with the same values",
    )
