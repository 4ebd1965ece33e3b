"""What a merge is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.model import data_schema as ds
from odfchain.model.events import DatasetVocabulary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class MergeInput:
    """New rows: `ROW_ID` and data columns (event time among them) as physical types."""

    frame: DataFrame
    schema: ds.DataSchema
    """Data columns, without system columns other than event time (and the operation, where it is given)."""
    vocabulary: DatasetVocabulary
    file: str = ""
