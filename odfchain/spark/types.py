"""How logical types travel through Spark.

Spark has no unsigned integers and no half floats, so a column travels as the smallest Spark type that holds
all its values (its *physical type*) and becomes the declared Arrow type when the slice is written. These are
also the types as which Spark reads such columns from Parquet.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, SchemaError
from odfchain.lazy import F, Window, t
from odfchain.limits import INPUT
from odfchain.odf import schema as ds
from odfchain.odf.enums import TAKES_BACK, TimeUnit
from odfchain.odf.events import DatasetVocabulary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType
    from pyspark.sql.types import DataType as SparkType


_SIMPLE: dict[type[ds.DataType], str] = {
    ds.DataTypeBool: "BooleanType",
    ds.DataTypeInt8: "ByteType",
    ds.DataTypeInt16: "ShortType",
    ds.DataTypeInt32: "IntegerType",
    ds.DataTypeInt64: "LongType",
    ds.DataTypeUInt8: "ShortType",
    ds.DataTypeUInt16: "IntegerType",
    ds.DataTypeUInt32: "LongType",
    ds.DataTypeFloat16: "FloatType",
    ds.DataTypeFloat32: "FloatType",
    ds.DataTypeFloat64: "DoubleType",
    ds.DataTypeDate: "DateType",
    ds.DataTypeTimestamp: "TimestampType",
    ds.DataTypeTime: "LongType",
    ds.DataTypeDuration: "LongType",
    ds.DataTypeString: "StringType",
    ds.DataTypeBinary: "BinaryType",
    ds.DataTypeNull: "StringType",
}


def physical_type(data_type: ds.DataType) -> SparkType:
    """The Spark type that carries a logical type.

    Raises:
        SchemaError: a type that Spark cannot carry (decimals of more than 38 digits).
    """
    simple = _SIMPLE.get(type(data_type))
    if simple is not None:
        found: SparkType = getattr(t, simple)()
        return found
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return physical_type(inner)
        case ds.DataTypeUInt64():
            return t.DecimalType(20, 0)
        case ds.DataTypeDecimal(precision=precision, scale=scale) if precision <= 38 and scale >= 0:
            return t.DecimalType(precision, scale)
        case ds.DataTypeList(item_type=item):
            return t.ArrayType(physical_type(item))
        case ds.DataTypeMap(key_type=key, value_type=value):
            return t.MapType(physical_type(key), physical_type(value))
        case ds.DataTypeStruct(fields=fields):
            return physical_struct(fields)
    raise SchemaError(f"type {data_type.KIND} cannot be processed by Spark")


def physical_struct(fields: tuple[ds.DataField, ...]) -> StructType:
    """The Spark struct that carries these fields; everything is nullable."""
    return t.StructType([t.StructField(f.name, physical_type(f.type), True) for f in fields])


def from_spark_type(data_type: SparkType, unit: TimeUnit = TimeUnit.MILLISECOND) -> ds.DataType:
    """The logical type of a type that Spark inferred; integers become 64-bit, timestamps UTC in `unit`.

    Raises:
        SchemaError: a type without a logical counterpart.
    """
    match data_type:
        case t.BooleanType():
            return ds.DataTypeBool()
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return ds.DataTypeInt64()
        case t.FloatType() | t.DoubleType():
            return ds.DataTypeFloat64()
        case t.DecimalType():
            return ds.DataTypeDecimal(precision=data_type.precision, scale=data_type.scale)
        case t.DateType():
            return ds.DataTypeDate()
        case t.TimestampType() | t.TimestampNTZType():
            return ds.DataTypeTimestamp(unit=unit, timezone="UTC")
        case t.StringType() | t.NullType():
            return ds.DataTypeString()
        case t.BinaryType():
            return ds.DataTypeBinary()
        case t.ArrayType():
            return ds.DataTypeList(item_type=ds.optional(from_spark_type(data_type.elementType, unit)))
        case t.StructType():
            return ds.DataTypeStruct(
                fields=tuple(
                    ds.DataField(name=f.name, type=ds.optional(from_spark_type(f.dataType, unit)))
                    for f in data_type.fields
                )
            )
    raise SchemaError(f"Spark type {data_type.simpleString()} has no counterpart in ODF")


def result_schema(struct: StructType, given: ds.DataSchema) -> ds.DataSchema:
    """The logical schema of a query's result: exact types, every column optional.

    A column that keeps its name and its Spark type keeps the logical type it has in `given`, so that unsigned
    integers, times and identifiers survive a query that passes them on. Timestamps that a query computes have
    the finest unit of those in `given`.
    """
    fields = []
    fine = any(_has_microseconds(f.type) for f in given.fields)
    unit = TimeUnit.MICROSECOND if fine else TimeUnit.MILLISECOND
    for f in struct.fields:
        known = given.field(f.name)
        if known is not None and physical_type(known.type) == f.dataType:
            logical = known.value_type
        else:
            logical = _exact(f.dataType, unit)
        fields.append(ds.DataField(name=f.name, type=ds.optional(logical)))
    return ds.DataSchema(fields=tuple(fields))


def _has_microseconds(data_type: ds.DataType) -> bool:
    match data_type:
        case ds.DataTypeOption(inner=inner) | ds.DataTypeList(item_type=inner):
            return _has_microseconds(inner)
        case ds.DataTypeStruct(fields=fields):
            return any(_has_microseconds(f.type) for f in fields)
        case ds.DataTypeTimestamp(unit=unit):
            return unit is TimeUnit.MICROSECOND
    return False


def _exact(data_type: SparkType, unit: TimeUnit) -> ds.DataType:
    match data_type:
        case t.ByteType():
            return ds.DataTypeInt8()
        case t.ShortType():
            return ds.DataTypeInt16()
        case t.IntegerType():
            return ds.DataTypeInt32()
        case t.FloatType():
            return ds.DataTypeFloat32()
    return from_spark_type(data_type, unit)


# Columns by their exact names, and conditions put together.


def quoted(name: str) -> str:
    """A name as Spark takes it literally, dots and backticks and all."""
    return "`" + name.replace("`", "``") + "`"


def col(name: str) -> Column:
    """A column by its exact name."""
    return F.col(quoted(name))


def any_of(conditions: Iterable[Column]) -> Column:
    """True if some condition holds; false for none."""
    found = list(conditions)
    return functools.reduce(operator.or_, found) if found else F.lit(False)


def comparable(value: Column, kind: DataType) -> Column:
    """A value as Spark can compare it: maps, which have no order, are entries in order, at any depth."""
    if "map<" not in kind.simpleString():
        return value
    if isinstance(kind, t.ArrayType):
        return F.transform(value, lambda item: comparable(item, kind.elementType))
    if isinstance(kind, t.MapType):
        entry = t.StructType().add("key", kind.keyType).add("value", kind.valueType)
        return F.array_sort(comparable(F.map_entries(value), t.ArrayType(entry)))
    assert isinstance(kind, t.StructType)  # noqa: S101 - nothing else holds a map
    parts = [comparable(value[field.name], field.dataType).alias(field.name) for field in kind]
    return F.when(value.isNotNull(), F.struct(*parts))


RESERVED = "__odfchain_"
"""Prefix of the names of helper columns while an input is read and merged."""


def check_columns(names: Sequence[str], file: str) -> None:
    """Refuse an input of more columns than a plan can bear, or of names that plans use themselves."""
    check_count(names, file)
    seen: set[str] = set()
    for name in names:
        if name.startswith(RESERVED):
            raise BadInputError(f"column {name!r}: names that begin with {RESERVED} are reserved", file=file)
        if name in seen:
            raise BadInputError(f"column {name!r} occurs twice", file=file)
        seen.add(name)


def check_count(names: Sequence[str], file: str) -> None:
    """Refuse an input of more columns than a plan can bear."""
    if len(names) > INPUT.columns:
        raise BadInputError(
            f"{len(names):,} columns ({', '.join(n[:20] for n in names[:3])}, …), "
            f"at most {INPUT.columns:,} are read",
            file=file,
            hint="is the separator right? Wide tables can be turned into rows of name and value",
        )


# The newest row of each key, as an expression of Spark's (`odfchain.slices.state` has the rule).

_RANK = f"{RESERVED}rank"


def latest_rows(history: DataFrame, key: tuple[str, ...], vocabulary: DatasetVocabulary) -> DataFrame:
    """The rows in force by this key.

    Source: `odfchain.slices.state`.
    """
    latest = Window.partitionBy(*[col(name) for name in key]).orderBy(col(vocabulary.offset_column).desc())
    rows = history.withColumn(_RANK, F.row_number().over(latest)).where(col(_RANK) == 1).drop(_RANK)
    return rows.where(~col(vocabulary.operation_type_column).isin(*TAKES_BACK))
