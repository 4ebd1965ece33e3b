"""A query that has passed the gate, and what is known of it before any row is read."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, EngineError, QueryError
from odfchain.lazy import t
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow, slice_schema
from odfchain.odf.engine_messages import TransformRequest, TransformRequestInput
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.sources import TemporalTable, Transform
from odfchain.odf.transform_options import FORMER_NAME, is_own
from odfchain.slices.reader import check_parquet, open_parquet
from odfchain.spark.executor_files import copy_put
from odfchain.spark.query import resolved_query
from odfchain.spark.stage import WrittenFile, write_rows
from odfchain.spark.types import col, physical_struct, physical_type, quoted
from odfchain.transform import archive
from odfchain.transform import operators as ops
from odfchain.transform.engine_check import Cut, row_facts
from odfchain.transform.engine_result import StepFiles
from odfchain.transform.engines import EngineRules, rules_of
from odfchain.transform.retracting import TableColumns
from odfchain.transform.stream_flow import StepMemory, blind_to, used_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# Inputs of a step and their new rows.

_SHORT_ROW = 2_048
"""Bytes of a row up to which Arrow batches may be cut by rows alone."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """The new rows of an input: columns `c0`, `c1`, … in the order of its schema, rows by offset."""

    alias: str
    frame: DataFrame
    columns: TableColumns
    has_changes: bool
    """True if some rows retract or correct others."""
    short: bool
    oldest_ms: int | None
    """The oldest event time; None when there is none."""
    empty: bool

    def may_have_before(self, ms: int) -> bool:
        """True if some row may be older than this."""
        return not self.empty and (self.oldest_ms is None or self.oldest_ms < ms)


@dataclass(frozen=True, slots=True)
class StepInput:
    """An input as the request describes it."""

    given: TransformRequestInput
    schema: ds.DataSchema

    @classmethod
    def of(cls, given: TransformRequestInput) -> StepInput:
        """The input of a request.

        Raises:
            EngineError: the schema file cannot be read, or lacks a system column.
        """
        try:
            with open_parquet(Path(given.schema_file)) as file:
                schema = from_arrow(file.schema_arrow.remove_metadata())
        except BadInputError as error:
            raise EngineError(f"{given.query_alias}: the schema file cannot be read: {error}") from None
        for name in given.vocab.columns:
            if schema.field(name) is None:
                raise EngineError(f"{given.query_alias}: the schema has no column `{name}`")
        return cls(given, schema)

    @property
    def identity(self) -> tuple[str, str, DatasetVocabulary, ds.DataSchema]:
        """The parts that a plan and its digest depend on."""
        return str(self.given.dataset_id), self.given.query_alias, self.given.vocab, self.schema

    @property
    def columns(self) -> TableColumns:
        """Positions of the system columns."""
        names = self.schema.names
        return TableColumns(tuple(names), *map(names.index, self.given.vocab.columns))

    def struct(self) -> StructType:
        """The table as queries see it: offsets and operations are signed integers."""
        signed = {
            self.given.vocab.offset_column: t.LongType(),
            self.given.vocab.operation_type_column: t.IntegerType(),
        }
        return t.StructType(
            [
                t.StructField(f.name, signed.get(f.name) or physical_type(f.type), f.optional)
                for f in self.schema.fields
            ]
        )

    def watermark(self, known: int | None) -> int | None:
        """The last watermark of the input [ms], those of earlier steps included."""
        given = [w.event_time.epoch_ms for w in self.given.explicit_watermarks]
        return max([*given, *([] if known is None else [known])], default=None)

    def rows(self, session: SparkSession, files: StepFiles, wanted: Collection[int] | None) -> InputRows:
        """The new rows, with the system columns and those at the places `wanted` (None: all)."""
        given, struct, folder = self.given, self.struct(), files.folder
        slices = tuple(map(Path, given.data_paths))
        made_of = Cut(slices, given.offset_interval, slice_schema(self.schema), given.vocab)
        path = made_of.into(folder, f"input-{len(list(folder.iterdir()))}")
        names = [f"c{index}" for index in range(len(struct.fields))]
        if path is None:
            return InputRows(
                given.query_alias, session.createDataFrame([], struct).toDF(*names).coalesce(1),
                self.columns, False, True, None, True,
            )  # fmt: skip
        stored = physical_struct(self.schema.fields)
        check_parquet(path)
        frame = files.rows(session, path, stored, made_of)
        system = self.columns
        kept = {system.offset, system.operation, system.event_time}
        kept.update(range(len(names)) if wanted is None else wanted)
        columns = [
            (col(f.name) if f.dataType == s.dataType else col(f.name).cast(f.dataType)).alias(n)
            for i, (f, s, n) in enumerate(zip(struct.fields, stored.fields, names, strict=True))
            if i in kept
        ]
        typed = frame.select(*columns)
        known = row_facts(path, given.vocab)
        return InputRows(
            given.query_alias, typed.coalesce(1), self.columns, known.has_changes, _has_short_rows(path),
            known.oldest_ms, False,
        )  # fmt: skip


def _has_short_rows(path: Path) -> bool:
    with open_parquet(path) as file:
        metadata = file.metadata
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return bool(size < _SHORT_ROW * max(1, metadata.num_rows))


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
    digest: str
    """Multihash of the text and the tables: another query has another one."""

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
        blind = blind_to(self.root)
        if blind and self.kind is not ops.QueryKind.STATELESS:
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
        if rules.allowed_lateness_ms and not any(ops.is_windowed(op) for op in self.root.walk()):
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
    catalyst = ops.Catalyst(session)
    node = catalyst.read(plan, structs)
    vocabularies = {i.given.query_alias: i.given.vocab for i in inputs}
    has_subqueries = any(catalyst.has_subquery(n) for n in node.walk())
    if has_subqueries and views:
        raise QueryError(
            "a query over temporal tables cannot have a query inside an expression",
            hint="join instead, or compute it in a step of its own",
        )
    times = ops.EventTimes(catalyst)
    root = ops.PlanReader(catalyst, times, vocabularies).read(node)
    return Query(
        catalyst,
        times,
        root,
        ops.kind_of(root),
        catalyst.schema_of(plan),
        has_subqueries,
        used_columns(root, rules_of(transform.version)),
        sum(n.kind == "Generate" for n in node.walk()),
        _digest(transform, inputs),
    )


def _versions(table: TemporalTable, inputs: Sequence[StepInput]) -> str:
    # each row is valid until the next version of its key
    given = next((i for i in inputs if i.given.query_alias == table.name), None)
    if given is None:
        raise QueryError(f"temporalTables names `{table.name}`, which is not an input")
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
    return str(Multihash.sha3_256(sha3_256(encoded).digest()))


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
    def vocabulary(self) -> DatasetVocabulary:
        """That of the output."""
        return self.request.vocab

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
        previous, restarted = None, False
        parts: dict[str, Path] = {}
        if request.prev_checkpoint_path is not None:
            unpacked = folder / "before"
            unpacked.mkdir()
            previous, parts = archive.open_checkpoint(Path(request.prev_checkpoint_path), unpacked)
            same = previous.query_hash == query.digest and previous.kind == query.kind.value
            if not same:
                restarted = bool(parts)
                parts = {}
        known = {m.dataset_id: m.watermark_ms for m in previous.inputs} if previous else {}
        marks = tuple(i.watermark(known.get(str(i.given.dataset_id))) for i in inputs)
        before = previous.watermark_ms if previous and not restarted else None
        return cls(
            request, query, inputs, previous, parts, restarted, marks, before, watermark_of(marks, before)
        )

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
        """Write the checkpoint that the next step begins with; `few` as in `write_rows`."""
        parts = {name: _written(frame, files, few) for name, frame in memory.after.items()}
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
                archive.InputMark(str(i.given.dataset_id), mark)
                for i, mark in zip(self.inputs, self.marks, strict=True)
            ),
            watermark_ms=self.now,
            output_watermark_ms=watermark,
            parts=tuple(archive.StateTable(name, facts.rows) for name, facts in sorted(parts.items())),
            waiting=waiting,
            **left_out,
        )
        archive.write_checkpoint(
            Path(self.request.new_checkpoint_path),
            manifest,
            {name: Path(facts.path) for name, facts in parts.items()},
        )
        return manifest


def _written(frame: DataFrame, files: StepFiles, few: int) -> WrittenFile:
    place = files.place()
    facts = write_rows(frame, files.folder, few=few, place=place)
    if facts.path or place is None:
        return facts
    target = files.folder / f"rows-{uuid.uuid4().hex}.parquet"
    copy_put(place(), facts.physical_hash, facts.size, target)
    return dataclasses.replace(facts, path=str(target))


def _point(ms: int | None, late: int = 0) -> ops.TimePoint | None:
    return None if ms is None else ops.TimePoint((ms - late) * 1_000)
