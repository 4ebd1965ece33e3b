"""Types of the system columns in new datasets: the specification's, or those of the reference node.

    specification   offset uint64, op uint8
    reference       offset int64, op int32

A chain is continued as it declares itself, so the choice counts until the first `SetDataSchema` is written,
and that carries it from then on. It is kept in the dataset's private settings (`info/config`), else in the
workspace's. Source: specification "Common Data Schema"; RFC-001.
"""

from __future__ import annotations

from enum import Enum

from odfchain.model import data_schema as ds
from odfchain.model.events import DatasetVocabulary


class SystemColumns(Enum):
    """Whose types offsets and operations have."""

    SPECIFICATION = "specification"
    """As the specification says: what every reader can read."""
    REFERENCE = "reference"
    """As the reference node writes them: it can append to such a dataset."""

    def numbers(self, vocabulary: DatasetVocabulary) -> tuple[ds.DataField, ds.DataField]:
        """The columns of offsets and operations."""
        offset: ds.DataType = ds.DataTypeUInt64()
        operation: ds.DataType = ds.DataTypeUInt8()
        if self is SystemColumns.REFERENCE:
            offset, operation = ds.DataTypeInt64(), ds.DataTypeInt32()
        return (
            ds.DataField(name=vocabulary.offset_column, type=offset),
            ds.DataField(name=vocabulary.operation_type_column, type=operation),
        )

    def of(self, schema: ds.DataSchema, vocabulary: DatasetVocabulary) -> ds.DataSchema:
        """The schema with these types of offsets and operations."""
        mine = {field.name: field for field in self.numbers(vocabulary)}
        fields = tuple(mine.get(field.name, field) for field in schema.fields)
        return ds.DataSchema(fields=fields, extra=schema.extra)
