"""A query that has passed the gate, and what is known of it before any row is read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.digest.sha3 import sha3_256
from odfchain.engine.catalyst import Catalyst
from odfchain.engine.engine_version import EngineRules, rules_of
from odfchain.engine.step_inputs import StepInput
from odfchain.engine.stream.event_times import EventTimes
from odfchain.engine.stream.flow import blind_to, used_columns
from odfchain.engine.stream.operators import (
    InputScan,
    Operator,
    PlanReader,
    QueryKind,
    Retracting,
    RowWise,
    is_windowed,
    kind_of,
)
from odfchain.errors import QueryError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import DatasetVocabulary
from odfchain.model.own_engine import FORMER_NAME, is_own
from odfchain.model.sources import TemporalTable, Transform
from odfchain.spark.columns import quoted
from odfchain.sql.query import resolved_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

VALID_FROM = "__valid_from"
VALID_TO = "__valid_to"
"""Columns of a temporal table: the times between which a version of a row is in force, the end excluded."""


@dataclass(frozen=True, slots=True)
class Query:
    """The operators of a query; nothing in it depends on rows or on the time."""

    catalyst: Catalyst
    times: EventTimes
    root: Operator
    kind: QueryKind
    result: StructType
    has_subqueries: bool
    """Whether an expression holds a query, so that the plan cannot be taken apart."""
    used: frozenset[int]
    """The numbers of the attributes that are computed with or returned."""
    generators: int
    """How many generators (explode and the like) may follow each other."""
    digest: str
    """Multihash of the text and the tables: another query has another one."""

    @property
    def is_row_by_row(self) -> bool:
        """Whether each row of the result comes of one row of the only input, and they are in its order."""
        return self.kind is QueryKind.STATELESS and all(
            isinstance(op, InputScan) or (isinstance(op, RowWise) and len(op.children) == 1)
            for op in self.root.walk()
        )

    def event_time(self, vocabulary: DatasetVocabulary) -> int:
        """The number of the result's event time."""
        return next(a.id for a in self.root.node.output if a.name == vocabulary.event_time_column)

    def columns_of(self, table: str) -> frozenset[int] | None:
        """The places of the columns of an input that a step reads; None for all of them."""
        if self.has_subqueries:  # the plan does not show them
            return None
        sources = [op for op in self.root.walk() if isinstance(op, InputScan) and op.node.table == table]
        places = {i for op in sources for i, a in enumerate(op.node.output) if a.id in self.used}
        return frozenset(places)

    def notes(self, vocabulary: DatasetVocabulary) -> tuple[str, ...]:
        """What the user should know before the query is recorded."""
        notes = []
        reasons = dict.fromkeys(op.why for op in self.root.walk() if isinstance(op, Retracting))
        if reasons:
            notes.append(
                f"what this query remembers grows with its inputs ({', '.join(reasons)}): "
                "any later row may change any result"
            )
        elif self.event_time(vocabulary) not in self.root.times:
            notes.append(
                f"`{vocabulary.event_time_column}` does not follow from the inputs' event times: "
                "the dataset will have no watermark"
            )
        blind = blind_to(self.catalyst, self.root)
        if blind and self.kind is not QueryKind.STATELESS:
            names = ", ".join(f"`{name}`" for name in blind)
            notes.append(
                f"rows that correct others will be left out, and counted: the query computes with {names} "
                "before it looks at several rows, and a row and what takes it back differ in that; "
                "use it in the window itself only"
            )
        return tuple(notes)

    def check_options(self, rules: EngineRules) -> None:
        """The options of the transform mean something for the query.

        Raises:
            QueryError: they do not.
        """
        if rules.allowed_lateness_ms and not any(is_windowed(op) for op in self.root.walk()):
            raise QueryError(
                "allowedLateness is for windows, sessions and joins that bound times, and the query has none",
                hint="leave it out",
            )


def query_of(
    session: SparkSession, transform: Transform, inputs: Sequence[StepInput], *, note: Callable[[str], None]
) -> Query:
    """The operators of a transform over these inputs.

    Raises:
        QueryError: a step is not a query, asks for what a query may not do, or names what is not there.
    """
    views = {table.name: _versions(table, inputs) for table in transform.temporal_tables or ()}
    structs = {i.given.query_alias: i.struct() for i in inputs}
    plain = dataclasses.replace(transform, temporal_tables=None)
    plan = resolved_query(session, plain, structs, views=views, note=note)
    catalyst = Catalyst(session)
    node = catalyst.read(plan, structs)
    vocabularies = {i.given.query_alias: i.given.vocab for i in inputs}
    has_subqueries = any(catalyst.has_subquery(n) for n in node.walk())
    if has_subqueries and views:
        raise QueryError(
            "a query over temporal tables cannot have a query inside an expression",
            hint="join instead, or compute it in a step of its own",
        )
    times = EventTimes(catalyst)
    root = PlanReader(catalyst, times, vocabularies).read(node)
    return Query(
        catalyst,
        times,
        root,
        kind_of(root),
        catalyst.schema_of(plan),
        has_subqueries,
        used_columns(catalyst, root, rules_of(transform.version)),
        sum(n.kind == "Generate" for n in node.walk()),
        _digest(transform, inputs),
    )


def _versions(table: TemporalTable, inputs: Sequence[StepInput]) -> str:
    """SQL of a temporal table: every row with the time at which the next one of its key takes its place.

    Raises:
        QueryError: there is no such input, or it has no such column.
    """
    given = next((i for i in inputs if i.given.query_alias == table.name), None)
    if given is None:
        raise QueryError(f"temporalTables names `{table.name}`, which is no input")
    if not table.primary_key:
        raise QueryError(f"the temporal table `{table.name}` has no primary key")
    for name in table.primary_key:
        if given.schema.field(name) is None:
            raise QueryError(f"the temporal table `{table.name}` has no column `{name}`")
    vocabulary = given.given.vocab
    key = ", ".join(quoted(name) for name in table.primary_key)
    time, offset = quoted(vocabulary.event_time_column), quoted(vocabulary.offset_column)
    return (
        f"SELECT *, {time} AS {VALID_FROM}, "  # noqa: S608 - quoted names
        f"lead({time}) OVER (PARTITION BY {key} ORDER BY {time}, {offset}) AS {VALID_TO} "
        f"FROM {quoted(table.name)}"
    )


def _digest(transform: Transform, inputs: Sequence[StepInput]) -> str:
    """Of all that gives the remembered rows their meaning; by the first rules that was the query alone."""
    rules = rules_of(transform.version)
    text: dict[str, object] = {
        "engine": FORMER_NAME if is_own(transform) else transform.engine,  # one engine, whatever its name
        "inputs": [[i.given.query_alias, str(i.given.dataset_id)] for i in inputs],
        "queries": [[q.alias, q.query] for q in transform.queries or ()],
        "temporalTables": [[t.name, list(t.primary_key)] for t in transform.temporal_tables or ()],
    }
    if rules.number > 1:
        text["rules"] = [rules.number, rules.allowed_lateness_ms]
    encoded = json.dumps(text, sort_keys=True, ensure_ascii=True).encode()
    return str(Multihash.sha3_256(sha3_256(encoded).digest()))
