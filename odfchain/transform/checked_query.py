"""A query that has passed the gate, and what is known of it before any row is read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import QueryError
from odfchain.odf.engine_messages import TransformRequest
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.sources import TemporalTable, Transform
from odfchain.odf.transform_options import FORMER_NAME, is_own
from odfchain.spark.plans import class_name, items
from odfchain.spark.query import Queries
from odfchain.spark.types import quoted
from odfchain.transform import archive
from odfchain.transform import operators as ops
from odfchain.transform.engines import EngineRules, rules_of
from odfchain.transform.step_files import StepFiles, StepInput
from odfchain.transform.stream_flow import StepMemory, made_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def watermark_of(marks: Sequence[int | None], before: int | None) -> int | None:
    """The watermark of all inputs together: the least, none until every input has one, never going back."""
    known = [mark for mark in marks if mark is not None]
    if len(known) < len(marks):
        return before
    least = min(known)
    return least if before is None else max(least, before)


VALID_FROM = "__valid_from"
VALID_TO = "__valid_to"
"""Columns of a temporal table: the times between which a version of a row is in force, the end excluded."""


@dataclass(frozen=True, slots=True)
class Query:
    """The operators of a query; nothing in it depends on rows or on the time."""

    catalyst: ops.Catalyst
    times: ops.EventTimes
    root: ops.Operator
    kind: ops.QueryKind
    result: StructType
    has_subqueries: bool
    """True if an expression holds a query, so that the plan cannot be taken apart."""
    used: frozenset[int]
    """The numbers of the attributes that are computed with or returned."""
    generators: int
    """Number of generators (explode and the like) in a chain."""
    digest: Multihash
    """Multihash of the text and the tables: another query has another one."""

    @classmethod
    def of(
        cls,
        session: SparkSession,
        transform: Transform,
        inputs: Sequence[StepInput],
        *,
        note: Callable[[str], None],
    ) -> Query:
        """The operators of a transform; QueryError where a step may not do so, or names what is not there."""
        views = {table.name: _versions(table, inputs) for table in transform.temporal_tables or ()}
        structs = {i.given.query_alias: i.struct() for i in inputs}
        plain = dataclasses.replace(transform, temporal_tables=None)
        plan = Queries(session, plain, note).resolved(structs, views=views)
        catalyst = ops.Catalyst(session)
        node = catalyst.read(plan, structs)
        vocabularies = {i.given.query_alias: i.given.vocab for i in inputs}
        has_subqueries = any(catalyst.has_subquery(n) for n in node.walk())
        if has_subqueries and views:
            message = "a query over temporal tables cannot have a query inside an expression"
            raise QueryError(message, hint="join instead, or compute it in a step of its own")
        times = ops.EventTimes(catalyst)
        root = ops.PlanReader(times, vocabularies).read(node)
        return cls(
            catalyst,
            times,
            root,
            ops.kind_of(root),
            catalyst.schema_of(plan),
            has_subqueries,
            _used_columns(root, rules_of(transform.version)),
            sum(n.kind == "Generate" for n in node.walk()),
            _digest(transform, inputs),
        )

    @property
    def is_row_by_row(self) -> bool:
        """True if each row of the result comes of one row of the only input, in its order."""
        return self.kind is ops.QueryKind.STATELESS and all(
            isinstance(op, ops.InputScan) or (isinstance(op, ops.RowWise) and len(op.children) == 1)
            for op in self.root.walk()
        )

    def event_time(self, vocabulary: DatasetVocabulary) -> int:
        """The number of the result's event time."""
        return next(a.id for a in self.root.node.output if a.name == vocabulary.event_time_column)

    def columns_of(self, table: str) -> frozenset[int] | None:
        """The places of the columns of an input that a step reads; None for all of them."""
        if self.has_subqueries:  # the plan does not show them
            return None
        sources = [op for op in self.root.walk() if isinstance(op, ops.InputScan) and op.node.table == table]
        places = {i for op in sources for i, a in enumerate(op.node.output) if a.id in self.used}
        return frozenset(places)

    def identity(self) -> list[int] | None:
        """The columns that tell groups of the result apart; None where there are none or they do not show."""
        found = _keys(self.root)
        if found is None:
            return None
        shown, keys = found
        places = [index for index, a in enumerate(self.root.node.output) if a.id in shown]
        covered = {key for index in places for key in shown[self.root.node.output[index].id]}
        return places if covered == keys else None

    def notes(self, vocabulary: DatasetVocabulary) -> tuple[str, ...]:
        """Notes for the user before the query is recorded."""
        notes = []
        reasons = dict.fromkeys(op.why for op in self.root.walk() if isinstance(op, ops.Retracting))
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
        blind = _blind_to(self.root)
        if blind and self.kind is not ops.QueryKind.STATELESS:
            names = ", ".join(f"`{name}`" for name in blind)
            notes.append(
                f"rows that correct others will be left out, and counted: the query computes with {names} "
                "before it looks at several rows, and a row and what takes it back differ in that; "
                "use it in the window itself only"
            )
        return tuple(notes)

    def check_options(self, rules: EngineRules) -> None:
        """The options of the transform mean something for the query."""
        if rules.allowed_lateness_ms and not any(ops.is_windowed(op) for op in self.root.walk()):
            raise QueryError(
                "allowedLateness is for windows, sessions and joins that bound times, and the query has none",
                hint="leave it out",
            )


_ALL_USED = frozenset({"Distinct", "Except", "Intersect", "LateralJoin", "Union"})


def _used_columns(root: ops.Operator, rules: EngineRules) -> frozenset[int]:
    """The attributes that a query computes with or returns; the others need not be remembered."""
    used: set[int] = set()
    waiting = [(root, {a.id for a in root.node.output})]
    while waiting:
        op, wanted = waiting.pop()
        used |= wanted
        below = _needed(op, wanted, rules)
        used |= below
        waiting += [(child, below & {a.id for a in child.node.output}) for child in op.children]
    return frozenset(used)


def _needed(op: ops.Operator, wanted: set[int], rules: EngineRules) -> set[int]:
    found = {time.source for number, time in op.times.items() if number in wanted}
    match op:
        case ops.TimeGroup(key=key):
            found.add(key.source)
        case ops.SessionWindow(session=session, time=time):
            found |= {session, time}
        case ops.IntervalJoin(left_time=left, right_time=right):
            found |= {left, right}
    node = op.node
    if node.kind in _ALL_USED:
        return found | {a.id for child in node.children for a in child.output}
    if node.kind == "Project":
        return found | ops.used_by(*(e for e in items(node.plan.projectList()) if e.exprId().id() in wanted))
    if node.kind == "Expand":
        if not rules.reads_grouping_sets:
            return found | wanted
        places = [index for index, a in enumerate(node.output) if a.id in wanted]
        rows = [items(row) for row in items(node.plan.projections())]
        return found | wanted | ops.used_by(*(row[place] for row in rows for place in places))
    return found | wanted | ops.used_by(node.plan)


def _blind_to(root: ops.Operator) -> tuple[str, ...]:
    """The made columns that a query uses below windows, so that corrections do not find their rows."""
    # below any other operator rows are remembered as they came, so they are found again
    found: dict[str, None] = {}
    waiting = [child for op in root.walk() if ops.is_windowed(op) for child in op.children]
    while waiting:
        op = waiting.pop()
        if not isinstance(op, ops.RowWise | ops.UnionAll):
            continue
        waiting += op.children
        made = {n for child in op.children for n in made_columns(child)}
        used = frozenset() if isinstance(op, ops.UnionAll) else ops.used_by(op.node.plan)
        if op.node.kind == "Project":
            named = map(ops.unaliased, items(op.node.plan.projectList()))
            used = ops.used_by(*(e for e in named if ops.number_of(e) is None))
        names = {a.id: a.name for child in op.children for a in child.node.output}
        found |= dict.fromkeys(sorted(names[n] for n in made & used))
    return tuple(found)


def _keys(op: ops.Operator) -> tuple[dict[int, frozenset[int]], set[int]] | None:
    """(for each column that follows from keys alone the numbers of those, all numbers)."""
    if isinstance(op, ops.TimeGroup | ops.SessionWindow) and op.node.kind == "Aggregate":
        grouping = items(op.node.plan.groupingExpressions())
        numbers = {number: n for n, g in enumerate(grouping) if (number := ops.number_of(g)) is not None}
        found = {}
        for named in items(op.node.plan.aggregateExpressions()):
            value = ops.unaliased(named)
            same = frozenset(n for n, g in enumerate(grouping) if value.semanticEquals(g))
            if from_keys := same or _of_keys(value, numbers):
                found[named.exprId().id()] = from_keys
        return found, set(range(len(grouping)))
    if not isinstance(op, ops.RowWise) or len(op.children) != 1:
        return None
    below = _keys(op.children[0])
    if below is None or op.node.kind in ("Filter", "View"):
        return below
    if op.node.kind != "Project":
        return None
    shown, keys = below
    found = {}
    for named in items(op.node.plan.projectList()):
        used = ops.used_by(named)
        if used and used <= set(shown):
            found[named.exprId().id()] = frozenset(key for number in used for key in shown[number])
    return found, keys


def _of_keys(value: Any, numbers: dict[int, int]) -> frozenset[int]:
    # none when the expression depends on anything else
    used = ops.used_by(value)
    follows = used <= set(numbers) and not _aggregates(value)
    return frozenset(numbers[n] for n in used) if follows else frozenset()


def _aggregates(value: Any) -> bool:
    return class_name(value) == "AggregateExpression" or any(
        _aggregates(child) for child in items(value.children())
    )


def check_temporal(table: TemporalTable, aliases: Collection[str]) -> None:
    """A temporal table is an input with a key; whether the key's columns exist is not looked at."""
    if table.name not in aliases:
        raise QueryError(f"temporalTables names `{table.name}`, which is not an input")
    if not table.primary_key:
        raise QueryError(f"the temporal table `{table.name}` has no primary key")


def _versions(table: TemporalTable, inputs: Sequence[StepInput]) -> str:
    # each row is valid until the next version of its key
    named = {i.given.query_alias: i for i in inputs}
    check_temporal(table, named)
    given = named[table.name]
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


def _digest(transform: Transform, inputs: Sequence[StepInput]) -> Multihash:
    # the first rules digested the query alone; later ones all that gives the rows their meaning
    rules = rules_of(transform.version)
    text: dict[str, object] = {
        "engine": FORMER_NAME if is_own(transform) else transform.engine,  # one engine under two names
        "inputs": [[i.given.query_alias, str(i.given.dataset_id)] for i in inputs],
        "queries": [[q.alias, q.query] for q in transform.queries or ()],
        "temporalTables": [[t.name, list(t.primary_key)] for t in transform.temporal_tables or ()],
    }
    if rules.number > 1:
        text["rules"] = [rules.number, rules.allowed_lateness_ms]
    encoded = json.dumps(text, sort_keys=True, ensure_ascii=True).encode()
    return Multihash.sha3_256(sha3_256(encoded).digest())


# Context of a step: the step before it, the watermarks, the memory for the next one.


@dataclass(frozen=True, slots=True)
class StepContext:
    """A request, its query, and what the step before left."""

    request: TransformRequest
    query: Query
    inputs: list[StepInput]
    previous: archive.Manifest | None
    parts: Mapping[str, Path]
    restarted: bool
    marks: tuple[int | None, ...]
    """Of every input, the last known watermark [ms]."""
    before: int | None
    now: int | None

    @property
    def rules(self) -> EngineRules:
        """Those of the version that the transform names."""
        return rules_of(self.request.transform.version)

    @property
    def watermark(self) -> ops.TimeMark:
        """The mark of the inputs' event times."""
        late = self.rules.allowed_lateness_ms
        before, now = _point(self.before), _point(self.now)
        return ops.TimeMark(before, now, now, _point(self.before, late), _point(self.now, late))

    @classmethod
    def begin(
        cls, request: TransformRequest, query: Query, inputs: list[StepInput], folder: Path
    ) -> StepContext:
        """The step of a request; rows that are remembered are unpacked in the folder."""
        previous, anew = None, False
        parts: dict[str, Path] = {}
        if request.prev_checkpoint_path is not None:
            unpacked = folder / "before"
            unpacked.mkdir()
            previous, parts = archive.Manifest.unpack(Path(request.prev_checkpoint_path), unpacked)
            same = previous.query_hash == query.digest and previous.kind == query.kind.value
            if not same:
                anew = bool(parts)
                parts = {}
        known = {m.dataset_id: m.watermark_ms for m in previous.inputs} if previous else {}
        marks = tuple(i.watermark(known.get(i.given.dataset_id)) for i in inputs)
        before = previous.watermark_ms if previous and not anew else None
        return cls(request, query, inputs, previous, parts, anew, marks, before, watermark_of(marks, before))

    def output_watermark(self, promise: int | None) -> int | None:
        """The output's watermark [ms], never less than before."""
        last = self.previous.output_watermark_ms if self.previous else None
        # nothing is promised beyond what the inputs promise, even where that would hold
        bounded = promise if promise is None or self.now is None else min(promise, self.now)
        known = [w for w in (bounded, last) if w is not None]
        return max(known, default=None)

    def finish(
        self,
        memory: StepMemory,
        watermark: int | None,
        left_out: Mapping[str, Mapping[str, int]],
        files: StepFiles,
        few: int,
    ) -> archive.Manifest:
        """Write the checkpoint that the next step begins with; `few` as in `write_ordered`."""
        parts = {name: files.write(frame, few=few) for name, frame in memory.after.items()}
        waiting: dict[str, int] = {}
        for table, rows in memory.waiting:
            if number := parts[rows].rows if isinstance(rows, str) else rows.count():
                waiting[table] = waiting.get(table, 0) + number
        manifest = archive.Manifest(
            format=archive.FORMAT if self.rules.number > 1 else 1,
            engine_version=self.rules.version,
            kind=self.query.kind.value,
            query_hash=self.query.digest,
            step=1 if self.previous is None or self.restarted else self.previous.step + 1,
            inputs=tuple(
                archive.InputMark(i.given.dataset_id, mark)
                for i, mark in zip(self.inputs, self.marks, strict=True)
            ),
            watermark_ms=self.now,
            output_watermark_ms=watermark,
            parts=tuple(archive.StateTable(name, facts.rows) for name, facts in sorted(parts.items())),
            waiting=waiting,
            **left_out,
        )
        paths = {name: Path(facts.path) for name, facts in parts.items()}
        manifest.write(Path(self.request.new_checkpoint_path), paths)
        return manifest


def _point(ms: int | None, late: int = 0) -> ops.TimePoint | None:
    return None if ms is None else ops.TimePoint((ms - late) * 1_000)
