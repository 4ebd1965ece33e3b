"""SQL in this process, by DataFusion, which reads and never writes: no Java, about a second.

A query is planned twice. First against empty tables: what the planner asks for by name is what the query
reads, in subqueries and functions too, and nothing of ours parses SQL. Then those are pinned, checked and
registered, and the query runs. The engine is closed: it knows no files, no statements that change anything,
and no names but those it is given (RFC-033).
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import EngineError, OdfchainError, QueryError
from odfchain.lazy import pa
from odfchain.query import sql_text
from odfchain.query.answers import number_schema, reread
from odfchain.query.resolved_tables import Changes, CheckedSlices, Pin
from odfchain.query.results import QueryResult, SlicesRead
from odfchain.slices import skipping
from odfchain.slices.footers import Value, quoted
from odfchain.slices.skipping import UNKNOWN, ConditionVisitor, Parts, Test
from odfchain.text import one_line
from odfchain.transform import closed_sql

if TYPE_CHECKING:
    import datafusion as df

    from odfchain.slices.conditions import Where


DIALECT = "SqlDataFusion"


@dataclass(frozen=True, slots=True)
class Embedded:
    """How queries are run; the default is for the person who sits before it."""

    spill: Path | None = None
    """The folder for rows that exceed memory; None: the query fails then."""
    memory: int = 2 << 30
    """Memory limit of a query's rows [bytes]."""
    partitions: int | None = None
    """Tasks side by side; None is one for each core."""
    batch_size: int = 8192
    """Rows that are worked on at a time."""
    without: frozenset[str] = frozenset()
    """Functions that cannot be named."""
    links: Path | None = None
    """The folder for links to slices, which are removed with the rows; None: among temporary files."""
    checked: CheckedSlices = field(default_factory=CheckedSlices)

    def run(self, query: sql_text.Query) -> QueryResult:
        """The rows of one query; nothing is computed before they are asked for."""
        planned = _Planner(self, query)
        frame, inputs = planned.plan()
        if query.limit is not None:
            frame = frame.limit(query.limit, query.skip)
        schema = closed_sql.plain_schema(frame.schema())

        def batches() -> Iterator[pa.RecordBatch]:
            with planned.files, closed_sql.translate_errors(planned.sql):
                for batch in frame.execute_stream():
                    yield _plain(batch.to_pyarrow(), schema)
                planned.check_links()

        return QueryResult(schema, inputs, batches, slices=planned.slices)

    def describe(self, query: sql_text.Query) -> tuple[pa.Schema, pa.Schema]:
        """The columns of the answer, and names and types of the values that it needs; no slice is read."""
        planned = _Planner(self, query)
        with planned.files, closed_sql.translate_errors(planned.sql):
            planned.asked()
            plan = planned.frame.logical_plan()
            return closed_sql.plain_schema(planned.frame.schema()), _values_of(
                plan, sql_text.value_names(planned.sql)
            )

    def explain(self, query: sql_text.Query) -> str:
        """How the query would be run, as text; errors as `run`."""
        planned = _Planner(self, query)
        with planned.files, closed_sql.translate_errors(query.sql):
            frame, _ = planned.plan()
            return str(frame.execution_plan().display_indent())


class _Planner:
    """One query on its way to a plan: a context, what it asked for, and the files it reads."""

    def __init__(self, engine: Embedded, query: sql_text.Query) -> None:
        self.sql = sql_text.checked_text(query.sql)
        self._library = import_module("datafusion")
        self._engine, self._params, self._pins = engine, dict(query.params or {}), query.pins
        self.files = contextlib.ExitStack()
        # Those of records.
        self.slices = SlicesRead()
        self._linked: dict[Path, int] = {}

    def plan(self) -> tuple[df.DataFrame, tuple[Pin, ...]]:
        records, states, wanted = self.asked()
        relations: dict[Any, Pin | Changes] = {**records, **states}
        inexact = any(relation.has_floats for relation in relations.values())
        # tables are registered under internal numbers
        with closed_sql.translate_errors(self.sql):
            context, tables = self._context(inexact)
            for number, (asked, relation) in enumerate(relations.items()):
                internal = f"#{number}"
                if isinstance(relation, Pin) and relation.projection is None:
                    self._register_records(context, internal, relation)
                else:
                    rows = relation.rows(self._engine.checked, wanted)
                    context.register_record_batches(
                        internal, [rows.to_batches() or [closed_sql.no_rows(rows.schema)]]
                    )
                tables.given[asked] = tables.registered[internal]
            self._engine.checked.keep()
            frame = self._planned(context)
        used = [*records, *(pin.name for relation in states.values() for pin in relation.pins)]
        return frame, self._pins.used(used)

    def check_links(self) -> None:
        """The files are still there: of a folder without files the engine makes a table without rows."""
        for folder, count in self._linked.items():
            if not folder.is_dir() or sum(1 for _ in folder.iterdir()) != count:
                raise EngineError(f"{folder}: files of the query were removed while it ran", hint="ask again")

    def asked(self) -> tuple[dict[str, Pin], dict[sql_text.Call, Pin | Changes], frozenset[str]]:
        """The tables that the query reads, and columns of states; `frame` is the query over empty ones."""
        context, tables = self._context(inexact=False)
        states: dict[sql_text.Call, Pin | Changes] = {}
        names: list[str] = []

        def empty(relation: Pin | Changes) -> Any:
            import pyarrow.dataset as ds

            # tables are empty: planning only finds names and columns
            nullable = [column.with_nullable(True) for column in relation.schema]
            for column in nullable:
                if "\0" in f"{column.name}{column.type}":
                    # names end there on their way to the engine, which would read nulls
                    named = f"{relation.pins[0].alias}: the name of the column {one_line(column.name, 60)}"
                    message = f"{named} has a null character, which the engine cannot read"
                    raise QueryError(message, hint="use --engine spark")

            return self._library.catalog.Table(ds.dataset(pa.schema(nullable).empty_table()))

        def records(name: str) -> Any:
            if name in hidden:
                return None
            try:
                table = empty(self._pins.pin(name))
            except OdfchainError as error:
                # the planner asks for the names of functions as well: what is wrong with those is no matter
                tables.missing[name] = error
                return None
            if name not in names:
                names.append(name)
            return table

        def state(call: sql_text.Call) -> Any:
            states[call] = relation = sql_text.relation_of(call, self._pins)
            relation.key  # noqa: B018 - a fault of it is reported before anything is read
            return empty(relation)

        hidden: set[str] = set()
        tables.records, tables.state = records, state
        with closed_sql.translate_errors(self.sql, tables):
            frame = self._planned(context)
            scanned = {scan.table_name() for scan, _ in _scans(frame.logical_plan())}
            for name in [each for each in names if each not in scanned]:
                # a function is called like this dataset, or a subquery or an unused WITH names it: only what
                # the query can be planned without is not read
                hidden.add(name)
                try:
                    frame = self._planned(context)
                except Exception:  # noqa: BLE001 - it was none with the dataset
                    hidden.discard(name)
            names[:] = [name for name in names if name not in hidden]
            self.frame = frame
            columns = {name for relation in states.values() for name in relation.schema.names}
            plan = frame.optimized_logical_plan()
            wanted = _columns_of_functions(plan, columns)
            found = {name: replace(self._pins.pin(name), signed_nan=True) for name in names}
            if self._engine.checked.remembers:  # a proof is made of all slices, wherever it is made
                asked = conditions_of_tables(plan, {name: each.schema for name, each in found.items()})
                found |= {name: replace(found[name], condition=asked[name]) for name in asked}
        return found, states, wanted

    def _planned(self, context: df.SessionContext) -> df.DataFrame:
        return closed_sql.query_plan(context, self.sql, self._params)

    def _context(self, inexact: bool) -> tuple[df.SessionContext, _Tables]:
        library, engine, tables = self._library, self._engine, _Tables()
        context = closed_sql.closed_context(
            tables,
            memory=engine.memory,
            spill=engine.spill,
            partitions=engine.partitions,
            batch_size=engine.batch_size,
            inexact=inexact,
        )
        for name in sql_text.FUNCTIONS:
            context.register_udtf(library.udtf(tables.function(name), name))
        for name in engine.without:
            context.deregister_udf(name)
        return context, tables

    def _register_records(self, context: df.SessionContext, name: str, relation: Pin) -> None:
        schema = relation.schema
        paths = relation.paths(self._engine.checked)
        self.slices += SlicesRead(len(paths), len(self._engine.checked.slices(relation.state)))
        if not paths:
            context.register_record_batches(name, [[closed_sql.no_rows(schema)]])
            return
        # a folder of links is one table: the folder of the slices may have other files
        folder = closed_sql.linked(paths, self.files, self._engine.links)
        self._linked[folder] = len(paths)
        context.register_parquet(
            name, folder, schema=closed_sql.view_schema(schema), parquet_pruning=not relation.has_floats
        )


class _Tables(closed_sql.GivenTables):
    """Those of one query: the planner's questions are answered with records, and calls with states."""

    def __init__(self) -> None:
        super().__init__()
        self.records: Callable[[str], Any] = self.given.get
        self.state: Callable[[sql_text.Call], Any] = self.given.get
        self.error: OdfchainError | None = None
        # Why names that were asked for are no datasets.
        self.missing: dict[str, OdfchainError] = {}

    def table(self, name: str) -> Any:
        return self._looked_up(self.records, name)

    def function(self, name: str) -> Callable[..., Any]:
        def call(*expressions: Any) -> Any:
            return self._looked_up(lambda _: self.state(_arguments_of(name, expressions)), name)

        return call

    def _looked_up(self, look: Callable[[str], Any], name: str) -> Any:
        try:
            return look(name)
        except OdfchainError as error:
            self.error = error  # the engine hands on its text only
            raise


def _arguments_of(name: str, expressions: Sequence[Any]) -> sql_text.Call:
    """A call as the embedded engine hands over its arguments: names and texts; NULL is None."""
    if wrong := sql_text.wrong_count(name, len(expressions)):
        raise QueryError(f"{name}(…) has {wrong}", hint=sql_text.usage(name))
    return (name, *(_argument(name, number, each) for number, each in enumerate(expressions)))


def _argument(function: str, number: int, expression: Any) -> str | None:
    kind = expression.variant_name()
    if kind == "Column" and sql_text.may_be_name(function, number):
        column = expression.to_variant()
        if column.relation() is None:
            return str(column.name())
        whole = f"{column.relation()}.{column.name()}"
        raise closed_sql.dotted_name(whole, f"{function}('{whole}')")
    if kind == "Literal":
        value = expression.python_value()
        value = getattr(value, "as_py", lambda: value)()
        if isinstance(value, str) or (value is None and not sql_text.may_be_name(function, number)):
            return value
    raise QueryError(f"argument {number + 1} of {function}(…) is not a text", hint=sql_text.usage(function))


class RowFilter:
    """Rows of which a condition is true, for a scan: it knows no tables, no files and no statements."""

    def __init__(self, where: Where) -> None:
        library = import_module("datafusion")
        config = library.SessionConfig().with_information_schema(False).with_target_partitions(1)
        runtime = library.RuntimeEnvBuilder().with_disk_manager_disabled()
        self._context = library.SessionContext(config, runtime)
        options = library.SQLOptions().with_allow_ddl(False).with_allow_dml(False)
        self._options: Any = options.with_allow_statements(False)
        self._where = where

    def of(self, rows: pa.Table) -> pa.Table:
        """The rows that it is true of, in their order."""
        place = "#"
        while place in rows.schema.names:
            place += "#"
        columns = [*self._where.columns, place]
        numbered = rows.append_column(place, pa.array(range(len(rows)), pa.int64())).select(columns)
        batches = numbered.to_batches() or [closed_sql.no_rows(numbered.schema)]
        with closed_sql.translate_errors(self._where.text):
            self._context.register_record_batches("rows", [batches])
            try:
                # a condition is all that it is (`parse_where`), and the context has nothing else to read
                sql = f'SELECT "{place}" FROM rows WHERE ({self._where.text}\n)'  # noqa: S608
                found = self._context.sql_with_options(sql, self._options).to_arrow_table()
            finally:
                self._context.deregister_table("rows")
        kept = found.column(0).combine_chunks().sort()
        return rows if len(kept) == len(rows) else rows.take(kept)


def _values_of(plan: Any, names: Iterable[str]) -> pa.Schema:
    # as the planner infers them; a value that it has no type for is a text, and a LIMIT is in no expression
    kinds: dict[str, pa.DataType] = {}
    nodes, waiting = [plan], list[Any]()
    while nodes:
        node = nodes.pop()
        nodes += node.inputs()
        variant = closed_sql.variant_of(node)
        for part in ("predicate", "projections", "group_by_exprs", "aggregate_exprs"):
            found: Any = getattr(variant, part, list)()
            waiting += found if isinstance(found, list) else [found]
    while waiting:
        expression = waiting.pop()
        kind = expression.variant_name()
        if kind == "Placeholder":
            value = expression.to_variant()
            kinds[value.id()] = value.field().type if value.field() is not None else pa.string()
        elif kind not in ("Column", "Literal", "Wildcard"):  # these are their own operands
            with contextlib.suppress(Exception):  # the library has none of them for some functions
                waiting += [each for each in expression.rex_call_operands() if each.variant_name() != kind
                            or str(each) != str(expression)]  # fmt: skip
    return pa.schema([pa.field(name, kinds.get(f"${name}", pa.int64())) for name in names])


def _columns_of_functions(plan: Any, columns: Collection[str]) -> frozenset[str]:
    found: set[str] = set()
    for scan, _ in _scans(plan):
        if scan.table_name().endswith("()"):
            found.update(name for _, name in scan.projection())
            # what only filters use is in no projection; their text names it
            # (a column too many costs time, one too few gives wrong rows)
            texts = [str(condition) for condition in scan.filters()]
            found.update(
                name
                for name in columns
                if texts and (not name.isidentifier() or any(name in text for text in texts))
            )
    return frozenset(found)


def _scans(plan: Any) -> Iterator[tuple[Any, list[Any]]]:
    # each with the conditions of the filters right above it
    waiting: list[tuple[Any, list[Any]]] = [(plan, [])]
    while waiting:
        node, above = waiting.pop()
        variant = closed_sql.variant_of(node)
        kind = type(variant).__name__
        if kind == "TableScan":
            yield variant, above
        above = [*above, variant.predicate()] if kind == "Filter" else []
        # subqueries in expressions are no inputs of a node
        waiting += [(child, above) for child in node.inputs()]


def _plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    numbers, found = number_schema(schema), reread(batch, number_schema(batch.schema))
    columns = [
        column if column.type == want.type else column.cast(want.type)
        for column, want in zip(found.columns, numbers, strict=True)
    ]
    if not columns:
        return batch
    return reread(pa.RecordBatch.from_arrays(columns, schema=numbers), schema)


# The conditions that the optimizer pushed down to scans: typed by then, with literals in the type of their
# column, so nothing has to be parsed; those that came through joins and subqueries are among them. A table
# that is read in several places is asked for what any of them asks.

_TESTS = {"=": Test.EQ, "!=": Test.NE, "<": Test.LT, "<=": Test.LE, ">": Test.GT, ">=": Test.GE}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def conditions_of_tables(plan: Any, schemas: Mapping[str, pa.Schema]) -> dict[str, skipping.Condition]:
    """The pushed-down condition of each of these tables in an optimized plan, if it is read."""
    found: dict[str, list[skipping.Condition]] = defaultdict(list)
    scans = list(_scans(plan))
    # a scan is missing where a subquery is a value, which is no part of the plan's tree
    if plan.display_indent().count("TableScan: ") != len(scans):
        return {}
    for scan, above in scans:
        if (name := scan.table_name()) in schemas:
            asked = [*above, *scan.filters()]
            found[name].append(skipping.Every(tuple(map(_Pushed(schemas[name]).condition, asked))))
    return {name: skipping.AnyOf(tuple(conditions)) for name, conditions in found.items()}


class _Pushed(ConditionVisitor):
    def __init__(self, schema: pa.Schema) -> None:
        self.types = {quoted(column.name): column.type for column in schema}

    def parts(self, node: Any) -> Parts:
        kind, node = node.variant_name(), closed_sql.variant_of(node)
        match kind:
            case _ if node is None:
                return UNKNOWN
            case "BinaryExpr" if node.op() in ("AND", "OR"):
                return node.op().lower(), node.left(), node.right()
            case "BinaryExpr" if node.op() in _TESTS:
                return _TESTS[node.op()], node.left(), node.right()
            case "IsNull" | "IsNotNull":
                return Test.NULL if kind == "IsNull" else Test.VALUE, node.expr()
            case "InList":
                return "not in" if node.negated() else "in", node.expr(), *node.list()
            case "Not":
                return "not", node.expr()
        return UNKNOWN

    def path(self, node: Any) -> str | None:
        path = quoted(node.to_variant().name()) if node.variant_name() == "Column" else None
        return path if path in self.types else None

    def value(self, node: Any, kind: pa.DataType) -> Value | object | None:
        if node.variant_name() != "Literal":
            return None
        try:
            value = node.python_value()
        except (ValueError, NotImplementedError, TypeError, OverflowError):
            return None
        value = value.as_py() if hasattr(value, "as_py") else value
        return skipping.NULL if value is None else _bound(value, kind)


def _bound(value: Any, kind: pa.DataType) -> Value | None:
    group = skipping.group_of(kind)
    if group is skipping.Group.DATE and pa.types.is_date32(kind):
        is_day = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
        return (value - _EPOCH.date()).days if is_day else None
    if group is skipping.Group.MOMENT:
        # Python has no nanoseconds
        if not isinstance(value, dt.datetime) or kind.unit == "ns":
            return None
        moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (moment - _EPOCH) // dt.timedelta(microseconds=1) * 1_000
    return skipping.value_for(value, kind)
