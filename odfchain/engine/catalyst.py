"""Spark's own plans as trees that can be read, cut and put together again.

A query that has passed the gate is a plan of Spark's analyzer over empty tables. Here it is read once into
plain nodes; later its leaves, or whole branches, are replaced by rows that are at hand. Attributes are known
by the number that Spark gave them, so rows take the place of a branch when they carry its numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.spark.plan_walk import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TRANSPARENT = ("SubqueryAlias",)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of a plan: its number, what it is called, and the JVM's object."""

    id: int
    name: str
    reference: Any

    @property
    def is_window(self) -> bool:
        """Whether it is what `window(…)` computes: a struct of start and end."""
        return "spark.timeWindow" in self.reference.metadata().json()

    @property
    def is_session(self) -> bool:
        """Whether it is what `session_window(…)` computes."""
        return "spark.sessionWindow" in self.reference.metadata().json()


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node of a plan; `kind` is Spark's class, without the package."""

    kind: str
    plan: Any
    children: tuple[PlanNode, ...]
    output: tuple[Attribute, ...]
    table: str | None = None
    """The input that a leaf stands for."""

    def walk(self) -> Iterator[PlanNode]:
        """The node and all beneath it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class _AttributeParts:
    """What an attribute is put together of in the JVM: its number, its metadata, a null of its type."""

    number: Any
    metadata: Any
    null: Any


def scala_items(sequence: Any) -> list[Any]:
    """What a Scala sequence holds."""
    return [sequence.apply(index) for index in range(sequence.size())]


def class_name(thing: Any) -> str:
    """Spark's class, without the package."""
    name: str = thing.getClass().getName()
    return name.rpartition(".")[2].strip("$")


class Catalyst:
    """Reads and makes plans in the JVM of one session."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._jvm = jvm_of(session)
        self._java = session._jsparkSession  # noqa: SLF001 - PySpark has no public way into the JVM
        sql = self._jvm.org.apache.spark.sql
        self._dataset = sql.classic.Dataset
        self._logical = sql.catalyst.plans.logical
        self._expressions = sql.catalyst.expressions
        self._plans = sql.catalyst.plans
        self._to_seq = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self._none = getattr(getattr(self._jvm.scala, "None$"), "MODULE$")
        self._nothing = self._to_seq([])
        self._known: dict[int, _AttributeParts] = {}
        self._inline = sql.catalyst.optimizer.InlineCTE(True, False, False)

    # --- reading -----------------------------------------------------------------------------------

    def read(self, plan: Any, tables: Iterable[str]) -> PlanNode:
        """The nodes of an analyzed plan; views named in `tables` are leaves, others are looked through.

        What WITH defines stands in every place where it is used.
        """
        return self._read(self._inline.apply(plan), frozenset(tables))

    def _read(self, plan: Any, tables: frozenset[str]) -> PlanNode:
        kind = class_name(plan)
        while kind in _TRANSPARENT or (kind == "View" and not self._is_input(plan, tables)):
            plan = plan.children().apply(0)
            kind = class_name(plan)
        table = self._table(plan) if kind == "View" else None
        children = () if table else tuple(self._read(c, tables) for c in scala_items(plan.children()))
        return PlanNode(kind, plan, children, self.attributes(plan), table)

    def _is_input(self, view: Any, tables: frozenset[str]) -> bool:
        """Inputs are views of empty rows; a temporal table has the name of an input, and is made of it."""
        below = class_name(view.children().apply(0))
        return self._table(view) in tables and below == "LocalRelation"

    @staticmethod
    def _table(view: Any) -> str:
        name: str = view.desc().identifier().table()
        return name

    @staticmethod
    def attributes(plan: Any) -> tuple[Attribute, ...]:
        """The columns of a plan."""
        return tuple(Attribute(a.exprId().id(), a.name(), a) for a in scala_items(plan.output()))

    @staticmethod
    def references(node: PlanNode) -> frozenset[int]:
        """The numbers of the attributes that the node's own expressions use."""
        return frozenset(a.exprId().id() for a in scala_items(node.plan.references().toSeq()))

    @staticmethod
    def used_by(node: PlanNode, wanted: set[int]) -> frozenset[int]:
        """The numbers of the attributes from which a projection computes some of its own."""
        named = [e for e in scala_items(node.plan.projectList()) if e.exprId().id() in wanted]
        return frozenset(a.exprId().id() for e in named for a in scala_items(e.references().toSeq()))

    @staticmethod
    def expanded_from(node: PlanNode, wanted: set[int]) -> frozenset[int]:
        """The numbers of the attributes from which an Expand makes some of its own."""
        places = [index for index, a in enumerate(node.output) if a.id in wanted]
        rows = [scala_items(row) for row in scala_items(node.plan.projections())]
        made = [row[place] for row in rows for place in places]
        return frozenset(a.exprId().id() for e in made for a in scala_items(e.references().toSeq()))

    @staticmethod
    def has_subquery(node: PlanNode) -> bool:
        """Whether an expression of the node holds a query of its own."""
        return not node.plan.subqueries().isEmpty() or not node.plan.innerChildren().isEmpty()

    # --- making ------------------------------------------------------------------------------------

    def sequence(self, items: Sequence[Any]) -> Any:
        """A Scala sequence."""
        return self._to_seq(list(items))

    def rebuilt(self, node: PlanNode, children: Sequence[Any]) -> Any:
        """The node over other plans that have its children's attributes."""
        return node.plan.withNewChildren(self.sequence(children)) if children else node.plan

    def frame(self, plan: Any) -> DataFrame:
        """The rows of a plan, with columns `c0`, `c1`, … by position."""
        from pyspark.sql import DataFrame

        made = DataFrame(self._dataset.ofRows(self._java, plan), self.session)
        return made.toDF(*[f"c{index}" for index in range(len(made.columns))])

    def adapted(self, frame: DataFrame, attributes: Sequence[Attribute]) -> Any:
        """The plan of `frame`, whose columns `c0`, `c1`, … become these attributes; missing ones are null."""
        places = {name: index for index, name in enumerate(frame.schema.names)}
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        output, nothing = plan.output(), self._nothing
        named = []
        for index, attribute in enumerate(attributes):
            known = self._known_of(attribute)
            place = places.get(f"c{index}")
            value = known.null if place is None else output.apply(place)
            named.append(
                self._expressions.Alias(value, attribute.name, known.number, nothing, known.metadata, nothing)
            )
        return self.project(plan, named)

    def _known_of(self, attribute: Attribute) -> _AttributeParts:
        """What is asked of the JVM once for each attribute of a query."""
        if (known := self._known.get(attribute.id)) is None:
            reference = attribute.reference
            known = self._known[attribute.id] = _AttributeParts(
                reference.exprId(),
                self._jvm.scala.Option.apply(reference.metadata()),
                self._expressions.Literal(None, reference.dataType()),
            )
        return known

    def project(self, plan: Any, named: Sequence[Any]) -> Any:
        """A plan that computes these named expressions."""
        return self._logical.Project(self.sequence(named), plan)

    def alias(self, expression: Any, name: str) -> Any:
        """The expression under a name and a number of its own."""
        number = getattr(self._expressions, "NamedExpression$")
        fresh = getattr(number, "MODULE$").newExprId()
        nothing = self._nothing
        return self._expressions.Alias(expression, name, fresh, nothing, self._none, nothing)

    def join(self, node: PlanNode, left: Any, right: Any, kind: str) -> Any:
        """A join of the node's condition and of another type (such as `Inner`), over these plans."""
        type_class = getattr(self._plans, f"{kind}$")
        hint = self._logical.JoinHint.NONE()
        join_type = getattr(type_class, "MODULE$")
        return self._logical.Join(left, right, join_type, node.plan.condition(), hint)

    @staticmethod
    def schema_of(plan: Any) -> StructType:
        """The names, types and nullability of a plan's columns."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(plan.schema().json()))
