"""The newest row of each key, as an expression of Spark's (`odfchain.slices.rows_in_force` has the rule)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.model.enums import TAKES_BACK
from odfchain.model.events import DatasetVocabulary
from odfchain.spark.columns import RESERVED, col

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RANK = f"{RESERVED}rank"


def latest_rows(
    history: DataFrame, key: tuple[str, ...], vocabulary: DatasetVocabulary, *, retracted: bool = False
) -> DataFrame:
    """The rows in force by this key, or with the last rows of keys that are not.

    Source: `odfchain.slices.rows_in_force`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    latest = Window.partitionBy(*[col(name) for name in key]).orderBy(col(vocabulary.offset_column).desc())
    rows = history.withColumn(_RANK, F.row_number().over(latest)).where(col(_RANK) == 1).drop(_RANK)
    return rows if retracted else rows.where(~col(vocabulary.operation_type_column).isin(*TAKES_BACK))
