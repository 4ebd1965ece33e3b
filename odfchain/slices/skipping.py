"""Data skipping: a file is skipped only where none of its rows can match a condition.

A condition is a tree of tests (a column against a value), AND and OR; any other part is `MAYBE`. Texts
compare by their UTF-8 bytes, as engines do. Values are of the declared types, and a test decides only where
a file's column is of such a type too. Where engines may round (decimals, floats, times), a test skips only
what is out of bounds both as it is written and as it would be rounded.

NaN is in no bound. Spark has it greater than every number: `>`, `>=`, `<>` and `= NaN` of floats skip
nothing. The embedded engine has a NaN with a sign below all numbers: for it `<` and `<=` skip nothing either.
Source: RFC-039.
"""

from __future__ import annotations

import enum
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.slices.footers import ColumnStats, FileStats, Value, nanoseconds_per_unit


class Test(enum.Enum):
    """A comparison of a column with a value."""

    __test__ = False

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    BEGINS = "LIKE 'x%'"
    NULL = "IS NULL"
    VALUE = "IS NOT NULL"


class Group(enum.Enum):
    """Types whose values compare with each other."""

    TRUTH = "boolean"
    WHOLE = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    MOMENT = "timestamp"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ColumnTest:
    """A test of one column; a comparison with null is never true."""

    column: str
    """A path, as statistics name it."""
    test: Test
    group: Group = Group.OTHER
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class Every:
    """All of these are true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of these is true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    """No test: rows may or may not match."""


Condition = ColumnTest | Every | AnyOf | Maybe
_FEW = 100
"""Values that a condition names one by one [count]."""
MAYBE = Maybe()
INVERSE = {
    Test.EQ: Test.NE, Test.NE: Test.EQ, Test.LT: Test.GE, Test.GE: Test.LT, Test.GT: Test.LE,
    Test.LE: Test.GT, Test.NULL: Test.VALUE, Test.VALUE: Test.NULL,
}  # fmt: skip
"""The tests that are true where these are false; of null neither is."""
TURNED = {Test.LT: Test.GT, Test.GT: Test.LT, Test.LE: Test.GE, Test.GE: Test.LE}
"""The tests that say the same with the sides exchanged."""


def understood(condition: Condition) -> bool:
    """True if any of it can skip something."""
    match condition:
        case Every(parts) | AnyOf(parts):
            return (any if isinstance(condition, Every) else all)(map(understood, parts))
    return not isinstance(condition, Maybe)


def about(condition: Condition, columns: Collection[str]) -> Condition:
    """The part of a condition about some columns alone: true of every row of which the whole is."""
    match condition:
        case Every(parts):
            return Every(tuple(about(part, columns) for part in parts))
        case AnyOf(parts):
            return AnyOf(tuple(about(part, columns) for part in parts))
        case ColumnTest(column) if column not in columns:
            return MAYBE
    return condition


def with_any_of(column: str, values: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> Condition:
    """A condition true of rows with one of these values at a path; of many values, also of those between."""
    nulls = (ColumnTest(column, Test.NULL),) if values.null_count else ()
    if values.null_count == len(values):
        return AnyOf(nulls)
    numbers, scale = values, 1
    if t.is_timestamp(values.type):
        numbers, scale = values.cast(pa.int64()), nanoseconds_per_unit(values.type)
    elif t.is_date32(values.type):
        numbers = values.cast(pa.int32())
    # a NaN that is looked for is in no bound
    elif group_of(kind) in (Group.FLOAT, Group.OTHER):
        return MAYBE
    group, ends = group_of(kind), pc.min_max(numbers).as_py()
    few = numbers.drop_null().to_pylist() if len(values) <= _FEW else []
    given = [ends["min"], ends["max"], *few]
    if group not in (Group.MOMENT, Group.DATE):
        given = [value_for(value, kind) for value in given]
    elif group_of(values.type) is not group:
        return MAYBE
    if any(value is None for value in given):
        return MAYBE
    low, high, *each = (value * scale if group is Group.MOMENT else value for value in given)
    tests = (ColumnTest(column, Test.GE, group, low), ColumnTest(column, Test.LE, group, high))
    one = AnyOf(tuple(ColumnTest(column, Test.EQ, group, value) for value in each))
    return AnyOf((*nulls, Every((*tests, one) if each else tests)))


def group_of(kind: pa.DataType) -> Group:
    """The group of types that values of a type compare with."""
    for is_one, group in _GROUPS:
        if is_one(kind):
            return group
    return Group.OTHER


_GROUPS: tuple[tuple[Callable[[pa.DataType], bool], Group], ...] = (
    (t.is_boolean, Group.TRUTH),
    (t.is_integer, Group.WHOLE),
    (t.is_floating, Group.FLOAT),
    (t.is_decimal, Group.DECIMAL),
    (t.is_string, Group.TEXT),
    (t.is_large_string, Group.TEXT),
    (t.is_binary, Group.BINARY),
    (t.is_large_binary, Group.BINARY),
    (t.is_date, Group.DATE),
    (t.is_timestamp, Group.MOMENT),
)


def may_match(stats: FileStats, condition: Condition, *, signed_nan: bool = False) -> bool:
    """True if a file with these statistics may hold a row that fits; `signed_nan`: as the embedded engine."""
    if stats.row_count == 0:
        return False
    match condition:
        case Every(parts):
            return all(may_match(stats, part, signed_nan=signed_nan) for part in parts)
        case AnyOf(parts):
            return any(may_match(stats, part, signed_nan=signed_nan) for part in parts)
        case ColumnTest():
            return _may(condition, stats, signed_nan=signed_nan)
    return True


def _may(asked: ColumnTest, stats: FileStats, *, signed_nan: bool) -> bool:
    found = stats.column(asked.column)
    if asked.test is Test.NULL:
        return found is None or found.null_count > 0
    if found is None:
        below = f"{asked.column}."
        return stats.present is None or any(p == asked.column or p.startswith(below) for p in stats.present)
    if found.null_count == stats.row_count:
        return False
    if asked.test is Test.VALUE:
        return True
    if asked.value is None:
        return False  # no comparison with null is true
    if found.low is None or found.high is None or group_of(found.type) is not asked.group:
        return True
    return _within(asked, found, signed_nan=signed_nan)


def _within(asked: ColumnTest, found: ColumnStats, *, signed_nan: bool) -> bool:
    low, high, at, test = found.low, found.high, asked.value, asked.test
    match asked.group:
        case Group.TEXT:
            low, high, at = (str(value).encode() for value in (low, high, at))
            if test is Test.BEGINS:
                return low[: len(at)] <= at <= high
        case Group.FLOAT:
            number = float(at)  # type: ignore[arg-type]
            unordered = (Test.LT, Test.LE) if signed_nan else ()
            if math.isnan(number) or test in (Test.GT, Test.GE, Test.NE, *unordered):
                return True
            if test is Test.LT and low == number == 0:
                return True  # -0.0 is less than 0.0 for some
            rounded = _rounded(number, found.type)
            return _may_pass(test, low, high, min(number, rounded), max(number, rounded))
        case Group.DECIMAL:
            assert isinstance(at, Decimal)  # noqa: S101 - `value_for`
            double = Decimal(float(at))  # a literal with a point is one for some, and so are both sides
            if _may_pass(test, low, high, min(at, double), max(at, double)):
                return True
            low, high, at = (float(value) for value in (low, high, at))  # type: ignore[arg-type]
        case Group.MOMENT:
            # Spark has microseconds: what is finer is cut off
            low, high = int(low) // 1_000 * 1_000, -(-int(high) // 1_000) * 1_000  # type: ignore[arg-type]
    return _may_pass(test, low, high, at, at)


def _may_pass(test: Test, low: Any, high: Any, least: Any, most: Any) -> bool:
    match test:
        case Test.EQ:
            return bool(low <= most and least <= high)
        case Test.NE:
            return not low == high == least == most
        case Test.LT:
            return bool(low < most)
        case Test.LE:
            return bool(low <= most)
        case Test.GT:
            return bool(high > least)
        case Test.GE:
            return bool(high >= least)
    return True


def _rounded(value: float, kind: pa.DataType) -> float:
    if t.is_float64(kind) or math.isinf(value):
        return value
    try:
        code = "f" if t.is_float32(kind) else "e"
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def value_for(value: object, kind: pa.DataType) -> Value | None:
    """A value as a bound of a column of this type; None where engines would not compare it exactly."""
    match group_of(kind):
        case Group.TRUTH:
            return value if isinstance(value, bool) else None
        case Group.TEXT:
            return value if isinstance(value, str) else None
        case Group.BINARY:
            return value if isinstance(value, bytes) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    match group_of(kind):
        case Group.WHOLE:
            if isinstance(value, int):
                return value
            # beyond 2^53 engines compare integers with floats in different ways
            return int(value) if abs(float(value)) < 2**53 and value == int(value) else None
        case Group.FLOAT:
            return float(value)
        case Group.DECIMAL if not isinstance(value, float):
            number = Decimal(value)
            return number if number.is_finite() and _digits_after_point(number) <= kind.scale else None
    return None


def _digits_after_point(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


# Conditions of SQL as tests of columns: one rule for the trees of every parser and engine. An adapter says
# what a node is, and which columns and values are in it. What it does not know is `MAYBE`.

Parts: TypeAlias = tuple[Any, ...]
"""The kind of a node (a `Test`, or one of the words in `condition`), then what it is made of."""
UNKNOWN: Parts = (None,)
NULL = object()
"""The value of a literal that is null."""


class ConditionVisitor(ABC):
    """Makes the condition that a tree means; `types` are those of the columns, by their path."""

    types: Mapping[str, pa.DataType]

    @abstractmethod
    def parts(self, node: Any) -> Parts:
        """What a node is; `UNKNOWN` for others."""

    @abstractmethod
    def path(self, node: Any) -> str | None:
        """The path of the column that a node is; None where it is none of `types`."""

    @abstractmethod
    def value(self, node: Any, kind: pa.DataType) -> Any:
        """A literal as a bound of a column of this type; `NULL`, or None for what only the engine knows."""

    def condition(self, node: Any, *, negated: bool = False) -> Condition:
        """The tests that a node makes; `negated`: of its contrary."""
        kind, *parts = self.parts(node)
        match kind:
            case "not":
                return self.condition(parts[0], negated=not negated)
            case "and" | "or":
                sides = tuple(self.condition(side, negated=negated) for side in parts)
                return Every(sides) if (kind == "and") is not negated else AnyOf(sides)
            case "in" | "not in":
                path, other = self.path(parts[0]), (kind == "not in") is not negated
                tests = tuple(self._test(Test.NE if other else Test.EQ, path, item) for item in parts[1:])
                return Every(tests) if other else AnyOf(tests)
            case Test.BEGINS:
                return MAYBE if negated else self._begins(*parts)
            case Test():
                test = INVERSE[kind] if negated else kind
                path = self.path(parts[0])
                if test in (Test.NULL, Test.VALUE):
                    return MAYBE if path is None else ColumnTest(path, test)
                if path is not None:
                    return self._test(test, path, parts[1])
                return self._test(TURNED.get(test, test), self.path(parts[1]), parts[0])
        return MAYBE

    def _begins(self, column: Any, pattern: str) -> Condition:
        path = self.path(column)
        if path is None or group_of(self.types[path]) is not Group.TEXT:
            return MAYBE
        most = min((pattern.index(sign) for sign in "%_\\" if sign in pattern), default=len(pattern))
        return ColumnTest(path, Test.BEGINS, Group.TEXT, pattern[:most])

    def _test(self, test: Test, path: str | None, literal: Any) -> Condition:
        if path is None:
            return MAYBE
        kind = self.types[path]
        value = self.value(literal, kind)
        if value is NULL:
            return ColumnTest(path, test)
        return MAYBE if value is None else ColumnTest(path, test, group_of(kind), value)
