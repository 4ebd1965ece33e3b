"""Row groups that cannot hold what is looked for, by what their footers say.

Statistics leave NaN out, so those of floating-point columns are not believed; where a value and a bound are
not plainly of one kind, the row group is read.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from pyspark.sql import datasource as d

_FLOATS = frozenset({"FLOAT", "DOUBLE"})


def may_hold(group: Any, wanted: d.Filter) -> bool:
    """Whether a row group (its metadata) may have a row for which a filter holds."""
    attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
    if len(attribute) != 1 or (column := _column(group, attribute[0])) is None:
        return True
    found = column.statistics
    if found is None or column.physical_type in _FLOATS or "Float16" in str(found.logical_type):
        return True
    nulls = found.null_count if found.has_null_count else None
    match wanted:
        case d.IsNull():
            return bool(nulls != 0)
        case d.IsNotNull():
            return bool(nulls != group.num_rows)
    if not found.has_min_max:
        return True
    try:
        return _overlaps(wanted, found.min, found.max)
    except TypeError:
        return True


def _overlaps(wanted: d.Filter, low: Any, high: Any) -> bool:
    match wanted:
        case d.EqualTo(_, value) | d.EqualNullSafe(_, value) if _alike(value, low):
            return bool(low <= value <= high)
        case d.GreaterThan(_, value) if _alike(value, low):
            return bool(high > value)
        case d.GreaterThanOrEqual(_, value) if _alike(value, low):
            return bool(high >= value)
        case d.LessThan(_, value) if _alike(value, low):
            return bool(low < value)
        case d.LessThanOrEqual(_, value) if _alike(value, low):
            return bool(low <= value)
        case d.In(_, values) if all(_alike(value, low) for value in values):
            return any(low <= value <= high for value in values)
    return True


def _alike(value: Any, bound: Any) -> bool:
    """Whether both are texts, whole numbers, days, or moments with a time zone."""
    if isinstance(value, dt.datetime) and isinstance(bound, dt.datetime):
        return value.tzinfo is not None and bound.tzinfo is not None
    return type(value) is type(bound) and isinstance(value, str | int | dt.date)


def _column(group: Any, name: str) -> Any:
    found = [group.column(i) for i in range(group.num_columns)]
    same = [column for column in found if column.path_in_schema == name]
    return same[0] if len(same) == 1 else None
