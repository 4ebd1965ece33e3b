"""Every node of one of Spark's plans, listed by few calls to the JVM.

A node asked by itself takes five calls to the JVM: for 1,002 nodes 5,029 calls and 234 ms, all together 40
calls and 48 ms (RFC-029). So the plan's own `foreach` is given a function that is made of nothing but the
method handles of public methods (`List.add`, `foreach`, `expressions`), and fills a list inside the JVM; the
class names of the whole list come back as one text. Nothing is hidden by this: the nodes are those that Spark
itself visits, in pre-order, so that a node's first child comes right after it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from odfchain.spark.query_rules import SUBQUERIES
from odfchain.spark.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def jvm_of(session: SparkSession) -> Any:
    """The JVM behind a session."""
    return session._jvm  # noqa: SLF001 - PySpark has no public way into the JVM


def java_of(session: SparkSession) -> Any:
    """The session as the JVM has it."""
    return session._jsparkSession  # noqa: SLF001 - as above


def java_schema(session: SparkSession, struct: StructType) -> Any:
    """A schema as the JVM has it."""
    return jvm_of(session).org.apache.spark.sql.types.DataType.fromJson(struct.json())


def declare_empty(java: Any, jvm: Any, name: str, schema: Any) -> None:
    """From now on there is a table without rows of this schema in a session, both of the JVM."""
    java.createDataFrame(jvm.java.util.ArrayList(), schema).createOrReplaceTempView(quoted(name))


def of_plan(java: Any, jvm: Any, plan: Any) -> Any:
    """The rows of a plan in a session, all of the JVM."""
    return jvm.org.apache.spark.sql.classic.Dataset.ofRows(java, plan)


def the_object(package: Any, name: str) -> Any:
    """The Scala object of this name."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def class_name(thing: Any) -> str:
    """Spark's class, without the package."""
    name: str = thing.getClass().getName()
    return name.rpartition(".")[2].strip("$")


def items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def strings(sequence: Any) -> list[str]:
    """The texts that a Scala sequence holds."""
    return [str(item) for item in items(sequence)]


def option(value: Any) -> Any:
    """The value of a Scala Option, or None."""
    return value.get() if value.isDefined() else None


@dataclass(frozen=True, slots=True)
class PlanNodes:
    """Nodes in pre-order: their class names, and the nodes themselves by index."""

    classes: tuple[str, ...]
    jvm: Any

    def __getitem__(self, index: int) -> Any:
        return self.jvm.get(index)

    def kind(self, index: int) -> str:
        """The class of a node, without the package."""
        return self.classes[index].rpartition(".")[2]

    def of(self, *names: str) -> list[int]:
        """Where the nodes of these classes stand, without the package."""
        return [i for i in range(len(self.classes)) if self.kind(i) in names]

    def subqueries(self) -> list[Any]:
        """The plans within expressions."""
        return [self[i].plan() for i, name in enumerate(self.classes) if name in SUBQUERIES]


_WALKERS: WeakKeyDictionary[SparkSession, PlanWalker] = WeakKeyDictionary()


def walker_of(session: SparkSession) -> PlanWalker:
    """The one walker of a session: its handles are costly to make and never change."""
    if (walker := _WALKERS.get(session)) is None:
        walker = _WALKERS[session] = PlanWalker(session)
    return walker


class PlanWalker:
    """Lists the nodes of plans of one JVM."""

    def __init__(self, session: SparkSession) -> None:
        self.jvm = jvm_of(session)
        """The JVM that is walked in."""
        invoke = self.jvm.java.lang.invoke
        self._handles, self._proxies, self._type = (
            invoke.MethodHandles,
            invoke.MethodHandleProxies,
            invoke.MethodType.methodType,
        )
        self._lookup = self._handles.publicLookup()
        find = self._class
        self._object, self._boolean, self._void = (
            find("java.lang.Object"), self._primitive("Boolean"), self._primitive("Void"),
        )  # fmt: skip
        self._function = find("scala.Function1")
        self._tree = find("org.apache.spark.sql.catalyst.trees.TreeNode")
        self._sequence = find("scala.collection.immutable.Seq")
        get_class = self._lookup.findVirtual(self._object, "getClass", self._type(find("java.lang.Class")))
        get_name = self._lookup.findVirtual(
            find("java.lang.Class"), "getName", self._type(find("java.lang.String"))
        )
        self._name_of = self._as_mapper(self._handles.filterReturnValue(get_class, get_name))
        query_plan = find("org.apache.spark.sql.catalyst.plans.QueryPlan")
        self._expressions = self._lookup.findVirtual(query_plan, "expressions", self._type(self._sequence))
        size = self._lookup.findVirtual(self._sequence, "size", self._type(self._primitive("Integer")))
        children = self._lookup.findVirtual(self._tree, "children", self._type(self._sequence))
        self._number_of_children = self._as_mapper(self._handles.filterReturnValue(children, size))
        self._expression_count = self._as_mapper(self._handles.filterReturnValue(self._expressions, size))

    def _class(self, name: str) -> Any:
        return self.jvm.java.lang.Class.forName(name)

    def _primitive(self, name: str) -> Any:
        return self._class(f"java.lang.{name}").getField("TYPE").get(None)

    def _as_function(self, handle: Any) -> Any:
        return self._proxies.asInterfaceInstance(self._function, handle)

    def replacing(self, changed: Any) -> Any:
        """The function that gives what a `java.util.Map` holds for a thing, or else the thing."""
        look = self._lookup.findVirtual(
            self._class("java.util.Map"),
            "getOrDefault",
            self._type(self._object, self._array(self.jvm.java.lang.Class, self._object, self._object)),
        )
        itself, once = self._type(self._object, self._object), self._array(self.jvm.int, 0, 0)
        return self._as_function(self._handles.permuteArguments(look.bindTo(changed), itself, once))

    def _array(self, kind: Any, *items: Any) -> Any:
        array = self._gateway().new_array(kind, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def _as_mapper(self, handle: Any) -> Any:
        return self._proxies.asInterfaceInstance(self._class("java.util.function.Function"), handle)

    def _adder(self, into: Any) -> Any:
        add = self._lookup.findVirtual(
            self._class("java.util.ArrayList"), "add", self._type(self._boolean, self._object)
        )
        return self._as_function(add.bindTo(into))

    def _each(self, owner: Any, function: Any) -> Any:
        """The handle of `x -> x.foreach(function)` for an `x` of this class."""
        foreach = self._lookup.findVirtual(owner, "foreach", self._type(self._void, self._function))
        # bindTo binds the receiver; the function is the other argument, so the two change places
        swapped = self._handles.permuteArguments(
            foreach,
            self._type(self._void, self._function, self._array(self.jvm.java.lang.Class, owner)),
            self._array(self.jvm.int, 1, 0),
        )
        return swapped.bindTo(function)

    @staticmethod
    def _gateway() -> Any:
        from pyspark import SparkContext

        return SparkContext._gateway  # noqa: SLF001

    def _listed(self, filled: Any) -> PlanNodes:
        text: str = filled.stream().map(self._name_of).toList().toString()
        return PlanNodes(tuple(text[1:-1].split(", ")) if text != "[]" else (), filled)

    def plans(self, plan: Any) -> PlanNodes:
        """The plan and all plans beneath it, without those of subqueries and of WITH; so of an expression."""
        nodes = self.jvm.java.util.ArrayList()
        plan.foreach(self._adder(nodes))
        return self._listed(nodes)

    def expressions(self, plan: Any) -> PlanNodes:
        """All expressions of the plan and of the plans beneath it, without those of subqueries."""
        nodes = self.jvm.java.util.ArrayList()
        whole_tree = self._as_function(self._each(self._tree, self._adder(nodes)))
        each = self._each(self._sequence, whole_tree)
        plan.foreach(self._as_function(self._handles.filterReturnValue(self._expressions, each)))
        return self._listed(nodes)

    def regions(self, root: Any) -> Iterator[tuple[PlanNodes, tuple[PlanNodes, ...]]]:
        """The plan, its subqueries and WITH: nodes, expressions, those of each WINDOW; lazily, one by one."""
        plans = [root]
        while plans:
            plan = plans.pop()
            nodes = self.plans(plan)
            windows = [nodes[i].windowDefinitions().values() for i in nodes.of("WithWindowDefinition")]
            expressions = (self.expressions(plan), *map(self.inside, windows))
            yield nodes, expressions
            for i in nodes.of("UnresolvedWith"):
                inner = nodes[i].innerChildren()
                plans += [inner.apply(k) for k in range(inner.size())]
            for part in expressions:
                plans += part.subqueries()

    def inside(self, sequence: Any) -> PlanNodes:
        """All expressions beneath those of a Scala collection."""
        nodes = self.jvm.java.util.ArrayList()
        sequence.foreach(self._as_function(self._each(self._tree, self._adder(nodes))))
        return self._listed(nodes)

    def tokens(self, sql: str) -> list[str]:
        """The text as Spark's own lexer cuts it up, blanks and comments included."""
        parser = self.jvm.org.apache.spark.sql.catalyst.parser
        text = self.jvm.org.antlr.v4.runtime.CharStreams.fromString(sql)
        # only Spark's lexer tells comments from strings: comments nest, and r'\' is a string
        lexer = parser.SqlBaseLexer(parser.UpperCaseCharStream(text))
        lexer.removeErrorListeners()
        return self.texts(PlanNodes((), lexer.getAllTokens()), "org.antlr.v4.runtime.Token", "getText")

    def children(self, nodes: PlanNodes) -> list[int]:
        """How many children each node has."""
        return self._numbers(nodes, self._number_of_children)

    def own_expressions(self, plans: PlanNodes) -> list[int]:
        """How many expressions each plan has, without what is beneath them."""
        return self._numbers(plans, self._expression_count)

    @staticmethod
    def _numbers(nodes: PlanNodes, function: Any) -> list[int]:
        text: str = nodes.jvm.stream().map(function).toList().toString()
        return [int(number) for number in text[1:-1].split(", ")] if nodes.classes else []

    def texts(self, nodes: PlanNodes, owner: str, method: str) -> list[str]:
        """The results of a method of the class `owner` for each of its nodes."""
        of_kind = self._lookup.findVirtual(
            self._class("java.lang.Class"), "isInstance", self._type(self._boolean, self._object)
        )
        ours = self._proxies.asInterfaceInstance(
            self._class("java.util.function.Predicate"), of_kind.bindTo(self._class(owner))
        )
        string = self._class("java.lang.String")
        said = self._lookup.findVirtual(self._class(owner), method, self._type(string))
        text = self._lookup.findStatic(string, "valueOf", self._type(string, self._object))
        described = self._handles.filterReturnValue(said, text.asType(self._type(string, string)))
        # a name may hold any character, so what separates them is a random text
        between = uuid.uuid4().hex
        joining = self.jvm.java.util.stream.Collectors.joining(between)
        joined: str = nodes.jvm.stream().filter(ours).map(self._as_mapper(described)).collect(joining)
        return joined.split(between)


# Kinds of sessions: Spark Connect, a JVM of this process, local mode.


def is_remote(session: SparkSession) -> bool:
    """True if it is a session of Spark Connect, which gives nothing of Java away."""
    return not hasattr(session, "_jsparkSession")


def is_local(session: SparkSession) -> bool:
    """True if all of a session's Spark is in one JVM, that of this process."""
    # PySpark has no public way to ask
    return not is_remote(session) and bool(session._jsparkSession.sparkContext().isLocal())  # noqa: SLF001


def map_in_arrow(frame: DataFrame, function: Callable[..., Any], schema: StructType | str) -> DataFrame:
    """`frame.mapInArrow(function, schema)`, for which this process does not load pandas (0.3 s)."""
    if is_remote(frame.sparkSession):
        return frame.mapInArrow(function, schema)
    from pyspark.sql.classic.dataframe import DataFrame as Frame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    call = udf(*[frame[name] for name in frame.columns])
    return Frame(frame._jdf.mapInArrow(call._jc, False, None), frame.sparkSession)  # noqa: SLF001


# Plans for few rows: one task from reading to writing, and nothing is compiled.
#
# For a thousand rows Spark's own work is dear: a stage for each shuffle, a plan made anew between two
# stages, and classes that are written, compiled and run once. The rows are the same either way. Source:
# RFC-031.

FEW_ROWS = 50_000
"""So many rows, old and new, take longer to compile for than to interpret."""

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings under which plans are not compiled."""

ONE_TASK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.maxPartitionBytes": str(1 << 60),
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
"""Settings under which files are read as one partition and stay one."""

FEW_SETTINGS = ONE_TASK | INTERPRETED | {"spark.sql.autoBroadcastJoinThreshold": "-1"}
