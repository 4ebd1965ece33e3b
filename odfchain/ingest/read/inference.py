"""Fix-ups for inputs whose schema nobody declared.

Columns that collide with system columns get a leading underscore, and an event time column of whole numbers
(seconds) or text becomes a timestamp, which the writer cuts to milliseconds like any other. With a declared
schema none of this happens: there a collision or a wrong type is an error. Facts in
`fixtures/conformance/writer_cases.json` (`inference_…`).
"""

from __future__ import annotations

import dataclasses

from odfchain.ingest.schema_fit import US_UTC
from odfchain.model import data_schema as ds
from odfchain.model.events import DatasetVocabulary
from odfchain.spark.columns import col
from odfchain.spark.input_frames import InputFrame
from odfchain.spark.parse import TextRules, or_fail, parse_text

_WHOLE = (
    ds.DataTypeInt16,
    ds.DataTypeInt32,
    ds.DataTypeInt64,
    ds.DataTypeUInt16,
    ds.DataTypeUInt32,
    ds.DataTypeUInt64,
)


def fix_up(source: InputFrame, vocabulary: DatasetVocabulary, *, operations: bool) -> InputFrame:
    """The input with colliding columns renamed and event time made a timestamp."""
    return _event_time(_rename(source, vocabulary, operations=operations), vocabulary)


def _rename(source: InputFrame, vocabulary: DatasetVocabulary, *, operations: bool) -> InputFrame:
    reserved = {vocabulary.offset_column, vocabulary.system_time_column}
    if not operations:
        reserved.add(vocabulary.operation_type_column)
    taken = set(source.schema.names)
    names: dict[str, str] = {}
    for name in source.schema.names:
        if name in reserved:
            new = f"_{name}"
            while new in taken:
                new = f"_{new}"
            names[name] = new
            taken.add(new)
    if not names:
        return source
    fields = tuple(
        dataclasses.replace(f, name=names[f.name]) if f.name in names else f for f in source.schema.fields
    )
    return dataclasses.replace(
        source,
        frame=source.frame.withColumnsRenamed(names),
        text=source.text.withColumnsRenamed(names) if source.text is not None else None,
        schema=ds.DataSchema(fields=fields),
    )


def _event_time(source: InputFrame, vocabulary: DatasetVocabulary) -> InputFrame:
    from pyspark.sql import functions as F

    name = vocabulary.event_time_column
    field = source.schema.field(name)
    if field is None:
        return source
    value = col(name)
    if isinstance(field.value_type, _WHOLE):
        value = F.timestamp_seconds(value.cast("bigint"))
    elif isinstance(field.value_type, ds.DataTypeString):
        value = or_fail(value, parse_text(value, US_UTC, TextRules()), name, required=False)
    else:
        return source
    fields = tuple(
        ds.DataField(name=name, type=ds.optional(US_UTC)) if f.name == name else f
        for f in source.schema.fields
    )
    return dataclasses.replace(
        source, frame=source.frame.withColumn(name, value), schema=ds.DataSchema(fields=fields)
    )
