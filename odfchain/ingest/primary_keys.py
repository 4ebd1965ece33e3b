"""Primary keys of an input: which are missing, which occur twice, and what is done about it (RFC-009).

One input is a set of keyed records. Rows that are equal in every column are one record; rows with one key and
other values are refused unless the user says which counts. Parts of a key compare null-safe, like every other
value; only a key of nulls alone names nothing and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError
from odfchain.ingest.merge_input import MergeInput
from odfchain.model import data_schema as ds
from odfchain.repo.workspace_config import DuplicateKeys
from odfchain.slices.marker import marker
from odfchain.spark.columns import all_of, col, comparable
from odfchain.spark.input_frames import ROW_ID
from odfchain.spark.types import physical_type
from odfchain.text import cut

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.window import WindowSpec

_COPY, _DIFFERS = "__odfchain_copy", "__odfchain_differs"
_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 6, 60


def refuse_null_keys(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """The same rows, or a failed task where every part of a key is null."""
    from pyspark.sql import functions as F

    failure = F.raise_error(F.lit(marker("null-key"))).cast("boolean")
    is_null = all_of(col(name).isNull() for name in key)
    return frame.where(F.when(is_null, failure).otherwise(F.lit(True)))


def one_row_per_key(
    new: MergeInput, key: tuple[str, ...], duplicates: DuplicateKeys
) -> tuple[DataFrame, Observation]:
    """One row of the input for each key, or a failed task where a key is null.

    The observation counts `repeated`, the rows that are left out. Where there are any `check_repeated` tells
    what they are: comparing all values of rows whose keys differ anyway would take a third of a merge.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    copy = F.row_number().over(_same_key(key, last=duplicates is DuplicateKeys.LAST))
    numbered = refuse_null_keys(new.frame, key).withColumn(_COPY, copy)
    observed = numbered.observe(seen, F.count_if(col(_COPY) > 1).alias("repeated"))
    return observed.where(col(_COPY) == 1).drop(_COPY), seen


def check_repeated(new: MergeInput, key: tuple[str, ...], duplicates: DuplicateKeys) -> tuple[int, int]:
    """(rows left out that are copies of the one that is kept, rows left out that differ from it).

    Raises:
        BadInputError: there are rows that differ, and nobody said which counts.
    """
    from pyspark.sql import functions as F

    numbered = _numbered(new, key, last=duplicates is DuplicateKeys.LAST)
    copy = F.count_if((col(_COPY) > 1) & ~col(_DIFFERS))
    ((copies, others),) = numbered.agg(copy, F.count_if(col(_DIFFERS))).collect()
    if others and duplicates is DuplicateKeys.REFUSE and (refusal := first_bad_key(new, key)) is not None:
        raise refusal
    return copies, others


def _same_key(key: tuple[str, ...], *, last: bool) -> WindowSpec:
    from pyspark.sql import Window

    return Window.partitionBy(*[col(name) for name in key]).orderBy(
        col(ROW_ID).desc() if last else col(ROW_ID).asc()
    )


def _numbered(new: MergeInput, key: tuple[str, ...], *, last: bool) -> DataFrame:
    """Rows with their number among those of their key, and whether they differ from the first of them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    same = _same_key(key, last=last)
    numbered = new.frame.withColumn(_COPY, F.row_number().over(same))
    others = [comparable(col(f.name), physical_type(f.type)) for f in new.schema.fields if f.name not in key]
    if not others:
        return numbered.withColumn(_DIFFERS, F.lit(False))
    upto = same.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    values = F.struct(*[value.alias(f"v{index}") for index, value in enumerate(others)])
    return numbered.withColumn(_DIFFERS, ~values.eqNullSafe(F.first(values).over(upto)))


def first_bad_key(new: MergeInput, key: tuple[str, ...], *, unique: bool = True) -> BadInputError | None:
    """The first null key, or (`unique`) key of two rows that differ, as an error.

    Called only after a job has failed.
    """

    def row_number(row_id: int) -> int:
        return new.frame.where(col(ROW_ID) < row_id).count() + 1

    null = new.frame.where(all_of(col(n).isNull() for n in key)).orderBy(ROW_ID).limit(1).collect()
    if null:
        what = f"column `{key[0]}` is null" if len(key) == 1 else f"({', '.join(key)}) has only nulls"
        return BadInputError(f"primary key {what}", file=new.file, row=row_number(null[0][ROW_ID]))
    if not unique:
        return None
    differing = _numbered(new, key, last=False).where(_DIFFERS)
    twice = differing.orderBy(ROW_ID).limit(1).collect()
    if not twice:
        return None
    of_key = all_of(col(name).eqNullSafe(twice[0][name]) for name in key)
    (first,) = new.frame.where(of_key).orderBy(ROW_ID).limit(1).collect()
    there, here = (_texts(new, row[ROW_ID]) for row in (first, twice[0]))
    others = [n for n in new.schema.names if n not in key and there[n] != here[n]]
    return BadInputError(
        f"primary key ({_listed(here, key)}) occurs twice: also in row {row_number(first[ROW_ID]):,} "
        f"with other values ({_listed(there, others)} there, {_listed(here, others)} here)",
        file=new.file,
        row=row_number(twice[0][ROW_ID]),
        hint="--duplicate-keys first or last keeps one of them",
    )


def _texts(new: MergeInput, row_id: int) -> dict[str, str]:
    """The values of a row for a message, times in UTC; made by Spark, since Python's would be local."""
    texts = [_text(col(f.name), f).alias(f.name) for f in new.schema.fields]
    (row,) = new.frame.where(col(ROW_ID) == row_id).select(*texts).collect()
    texts_only = {f.name for f in new.schema.fields if isinstance(f.value_type, ds.DataTypeString)}
    return {name: repr(row[name]) if name in texts_only else str(row[name]) for name in new.schema.names}


def _text(value: Column, field: ds.DataField) -> Column:
    from pyspark.sql import functions as F

    match field.value_type:
        case ds.DataTypeBinary(fixed_length=16):
            return F.regexp_replace(F.lower(F.hex(value)), "^(.{8})(.{4})(.{4})(.{4})", "$1-$2-$3-$4-")
        case ds.DataTypeBinary():
            return F.hex(value)
    return value.cast("string")


def _listed(texts: dict[str, str], names: Sequence[str]) -> str:
    shown = [f"{name}={cut(texts[name], _SHOWN_CHARACTERS)}" for name in names[:_SHOWN_COLUMNS]]
    return ", ".join(shown) + (", …" if len(names) > _SHOWN_COLUMNS else "")


def notes_on_duplicates(copies: int, others: int, duplicates: DuplicateKeys) -> tuple[str, ...]:
    """What the user should know about rows of an input that were left out."""
    notes = []
    if copies:
        notes.append(f"rows that are copies of others in every column: {copies:,}; each is recorded once")
    if others:
        notes.append(
            f"rows with a key of another row and other values: {others:,}; the {duplicates.value} was kept"
        )
    return tuple(notes)
