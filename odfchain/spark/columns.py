"""Columns by their exact names, and conditions put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError
from odfchain.limits import INPUT

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def quoted(name: str) -> str:
    """A name as Spark takes it literally, dots and backticks and all."""
    return "`" + name.replace("`", "``") + "`"


def col(name: str) -> Column:
    """A column by its exact name."""
    from pyspark.sql import functions as F

    return F.col(quoted(name))


def all_of(conditions: Iterable[Column]) -> Column:
    """Whether every condition holds; true for none."""
    from pyspark.sql import functions as F

    result: Column | None = None
    for condition in conditions:
        result = condition if result is None else result & condition
    return F.lit(True) if result is None else result


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether some condition holds; false for none."""
    from pyspark.sql import functions as F

    result: Column | None = None
    for condition in conditions:
        result = condition if result is None else result | condition
    return F.lit(False) if result is None else result


def comparable(value: Column, kind: DataType) -> Column:
    """A value as Spark can compare it: maps, which have no order, are entries in order, at any depth."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as t

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
"""How the names of columns begin that stand beside those of an input while it is read and merged."""


def check_columns(names: Sequence[str], file: str) -> None:
    """Refuse an input of more columns than a plan can bear, or of names that plans use themselves.

    Raises:
        BadInputError: there are too many, one occurs twice, or one is reserved.
    """
    check_count(names, file)
    seen: set[str] = set()
    for name in names:
        if name.startswith(RESERVED):
            raise BadInputError(f"column {name!r}: names that begin with {RESERVED} are reserved", file=file)
        if name in seen:
            raise BadInputError(f"column {name!r} occurs twice", file=file)
        seen.add(name)


def check_count(names: Sequence[str], file: str) -> None:
    """Refuse an input of more columns than a plan can bear.

    Raises:
        BadInputError: there are too many.
    """
    if len(names) > INPUT.columns:
        raise BadInputError(
            f"{len(names):,} columns ({', '.join(n[:20] for n in names[:3])}, …), "
            f"at most {INPUT.columns:,} are read",
            file=file,
            hint="is the separator right? Wide tables can be turned into rows of name and value",
        )
