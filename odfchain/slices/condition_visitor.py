"""Conditions of SQL as tests of columns: one rule for the trees of every parser and engine.

An adapter says what a node is, and which columns and values are in it. What it does not know is `MAYBE`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from odfchain.slices import skipping

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

    def condition(self, node: Any, *, negated: bool = False) -> skipping.Condition:
        """The tests that a node makes; `negated`: of its contrary."""
        kind, *parts = self.parts(node)
        match kind:
            case "not":
                return self.condition(parts[0], negated=not negated)
            case "and" | "or":
                sides = tuple(self.condition(side, negated=negated) for side in parts)
                return skipping.Every(sides) if (kind == "and") is not negated else skipping.AnyOf(sides)
            case "in" | "not in":
                path, other = self.path(parts[0]), (kind == "not in") is not negated
                tests = tuple(
                    self._test(skipping.Test.NE if other else skipping.Test.EQ, path, item)
                    for item in parts[1:]
                )
                return skipping.Every(tests) if other else skipping.AnyOf(tests)
            case skipping.Test.BEGINS:
                return skipping.MAYBE if negated else self._begins(*parts)
            case skipping.Test():
                test = skipping.INVERSE[kind] if negated else kind
                path = self.path(parts[0])
                if test in (skipping.Test.NULL, skipping.Test.VALUE):
                    return skipping.MAYBE if path is None else skipping.ColumnTest(path, test)
                if path is not None:
                    return self._test(test, path, parts[1])
                return self._test(skipping.TURNED.get(test, test), self.path(parts[1]), parts[0])
        return skipping.MAYBE

    def _begins(self, column: Any, pattern: str) -> skipping.Condition:
        path = self.path(column)
        if path is None or skipping.group_of(self.types[path]) is not skipping.Group.TEXT:
            return skipping.MAYBE
        most = min((pattern.index(sign) for sign in "%_\\" if sign in pattern), default=len(pattern))
        return skipping.ColumnTest(path, skipping.Test.BEGINS, skipping.Group.TEXT, pattern[:most])

    def _test(self, test: skipping.Test, path: str | None, literal: Any) -> skipping.Condition:
        if path is None:
            return skipping.MAYBE
        kind = self.types[path]
        value = self.value(literal, kind)
        if value is NULL:
            return skipping.ColumnTest(path, test)
        return (
            skipping.MAYBE
            if value is None
            else skipping.ColumnTest(path, test, skipping.group_of(kind), value)
        )
