"""How logical types travel through Spark.

Spark has no unsigned integers and no half floats, so a column travels as the smallest Spark type that holds
all its values (its *physical type*) and becomes the declared Arrow type when the slice is written. These are
also the types as which Spark reads such columns from Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, SchemaError
from odfchain.lazy import F, Window, pa, t
from odfchain.limits import INPUT
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import castable
from odfchain.odf.enums import TAKES_BACK, TimeUnit
from odfchain.odf.events import DatasetVocabulary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType
    from pyspark.sql.types import DataType as SparkType


_CARRIED: dict[type[ds.DataType], str] = {
    ds.DataTypeBool: "bool_",
    ds.DataTypeInt8: "int8",
    ds.DataTypeInt16: "int16",
    ds.DataTypeInt32: "int32",
    ds.DataTypeInt64: "int64",
    ds.DataTypeUInt8: "int16",
    ds.DataTypeUInt16: "int32",
    ds.DataTypeUInt32: "int64",
    ds.DataTypeFloat16: "float32",
    ds.DataTypeFloat32: "float32",
    ds.DataTypeFloat64: "float64",
    ds.DataTypeDate: "date32",
    ds.DataTypeTime: "int64",
    ds.DataTypeDuration: "int64",
    ds.DataTypeString: "string",
    ds.DataTypeBinary: "binary",
    ds.DataTypeNull: "string",
}


def carried_type(data_type: ds.DataType) -> pa.DataType:
    """The Arrow form of a physical type; SchemaError for decimals of more than 38 digits."""
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return carried_type(inner)
        case ds.DataTypeTimestamp():
            return pa.timestamp("us", "UTC")
        case ds.DataTypeUInt64():
            return pa.decimal128(20, 0)
        case ds.DataTypeDecimal(precision=precision, scale=scale) if precision <= 38 and scale >= 0:
            return pa.decimal128(precision, scale)
        case ds.DataTypeList(item_type=item):
            return pa.list_(pa.field("element", carried_type(item)))
        case ds.DataTypeMap(key_type=key, value_type=value):
            return pa.map_(carried_type(key), carried_type(value))
        case ds.DataTypeStruct(fields=fields):
            return pa.struct([pa.field(f.name, carried_type(f.type)) for f in fields])
    made = _CARRIED.get(type(data_type))
    if made is None:
        raise SchemaError(f"type {data_type.KIND} cannot be processed by Spark")
    found: pa.DataType = getattr(pa, made)()
    return found


def as_physical(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in the type as which it travels through Spark."""
    return column if column.type == kind else column.cast(castable(column.type)).cast(kind)


def physical_type(data_type: ds.DataType) -> SparkType:
    """The Spark type that carries a logical type; errors as `carried_type`."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(carried_type(data_type))


def physical_struct(fields: tuple[ds.DataField, ...]) -> StructType:
    """The Spark struct that carries these fields; everything is nullable."""
    return t.StructType([t.StructField(f.name, physical_type(f.type), True) for f in fields])


def from_spark_type(data_type: SparkType, unit: TimeUnit = TimeUnit.MILLISECOND) -> ds.DataType:
    """The logical type of a type that Spark inferred; integers become 64-bit, timestamps UTC in `unit`."""
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
    within = [kind for f in given.fields for kind in ds.types_within(f.type)]
    fine = any(isinstance(k, ds.DataTypeTimestamp) and k.unit is TimeUnit.MICROSECOND for k in within)
    unit = TimeUnit.MICROSECOND if fine else TimeUnit.MILLISECOND
    for f in struct.fields:
        known = given.field(f.name)
        if known is not None and physical_type(known.type) == f.dataType:
            logical = known.value_type
        else:
            logical = _exact(f.dataType, unit)
        fields.append(ds.DataField(name=f.name, type=ds.optional(logical)))
    return ds.DataSchema(fields=tuple(fields))


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
    """The rows in force by this key (`odfchain.slices.state`)."""
    latest = Window.partitionBy(*[col(name) for name in key]).orderBy(col(vocabulary.offset_column).desc())
    rows = history.withColumn(_RANK, F.row_number().over(latest)).where(col(_RANK) == 1).drop(_RANK)
    return rows.where(~col(vocabulary.operation_type_column).isin(*TAKES_BACK))
