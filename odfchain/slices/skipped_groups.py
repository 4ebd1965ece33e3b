"""Row groups that cannot have a value, by what their statistics say; in doubt they may have it.

Bounds of floating-point numbers leave NaN out, and those of texts may be cut by who wrote them: the true
maximum begins with such a bound. Statistics of another type than the values say nothing.
"""

from __future__ import annotations

import bisect
import datetime as dt
from collections.abc import Sequence
from typing import Any

_ORDERED = (int, str, dt.date)
"""What compares as its column does; a moment has a zone, and is left out."""


def ordered(values: Sequence[Any]) -> list[Any]:
    """Values as their column orders them: texts by their bytes."""
    return sorted(values, key=_comparable)


def may_hold(statistics: Any, values: Sequence[Any]) -> bool:
    """Whether one of some ordered values (None is null, alone) may be where a column chunk has these."""
    if statistics is None:
        return True
    if values[0] is None:
        return not statistics.has_null_count or statistics.null_count > 0
    if (
        not statistics.has_min_max
        or not isinstance(values[0], _ORDERED)
        or isinstance(values[0], dt.datetime)
    ):
        return True
    if type(statistics.min) is not type(values[0]):
        return True
    low, high = _comparable(statistics.min), _comparable(statistics.max)
    at = bisect.bisect_left(values, low, key=_comparable)
    if at < len(values) and _comparable(values[at]) <= high:
        return True
    after = bisect.bisect_left(values, high, key=_comparable)
    return isinstance(high, bytes) and after < len(values) and _comparable(values[after]).startswith(high)


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
