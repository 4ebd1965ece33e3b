"""However a stream is cut into steps, what is emitted in all is what one query over all rows gives.

Streams are made from a seed: several keys, ties, nulls, rows out of order but not older than their watermark
promises, steps without rows, without watermarks, with idle inputs, before and after 1970.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from odfchain.odf.engine_messages import TransformRequest
from odfchain.odf.sources import SqlQueryStep, TemporalTable, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT
from odfchain.slices.reader import hash_parquet
from odfchain.spark.session import SparkEngine
from odfchain.transform.archive import Manifest
from odfchain.transform.engines import EngineRules, Executed
from odfchain.transform.spark_engine import SparkTransformEngine
from tests.kit.root_rows import records
from tests.kit.support import fixture
from tests.kit.transform_cases import SIGNED, InputSlice, input_schema, request_of

EXAMPLES = {"ci": 1, "local": 6, "soak": 20, "deep": 60}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]
SCHEMA = input_schema({"k": pa.string(), "v": pa.int64()}, SIGNED)
HOUR = 3_600_000
NEVER = 1_000 * 24 * HOUR
"""Longer after the first row than any row that is made here."""

Row = tuple[int, str | None, int | None]
"""Event time [ms], key, value."""

# a slice costs a second, and a smaller stream is no easier to read: examples are not shrunk
seeded = given(seed=st.integers(0, 1 << 32))
few = settings(
    max_examples=EXAMPLES, derandomize=EXAMPLES == 1, database=None, deadline=None,
    phases=[Phase.generate], suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.fixture(scope="module")
def compiling(engine: SparkEngine) -> SparkTransformEngine:
    """An engine that compiles every plan, as large steps need it."""
    return SparkTransformEngine(lambda: engine.session, small_rows=-1)


@dataclass(frozen=True, slots=True)
class Stateful:
    """A query, and what is to be seen of it."""

    sql: str
    inputs: Sequence[str] = ("a",)
    before: Mapping[str, str] = field(default_factory=dict)
    """Steps that come before the last one."""
    once: bool = True
    """Whether it is bounded: what it emits is final."""
    promises: bool = True
    """Whether its event time follows from those of the inputs."""
    versions: str | None = None
    """The input that is a temporal table with the key `k`."""
    mixed: bool = False
    """Whether it is unbounded above a window, which waits for the watermark."""

    def transform(self, rules: EngineRules | None = None) -> TransformSql:
        steps = [SqlQueryStep(alias=name, query=sql) for name, sql in self.before.items()]
        tables = (TemporalTable(name=self.versions, primary_key=("k",)),) if self.versions else None
        version, queries = (rules or EngineRules()).version, (*steps, SqlQueryStep(query=self.sql))
        return TransformSql(engine="spark", version=version, queries=queries, temporal_tables=tables)


TABLE = fixture("queries/stateful.yaml")
LATENESS = {name: entry.pop("lateness") for name, entry in TABLE.items() if "lateness" in entry}
"""The lateness [h] with which corrections of a query are tried where time matters."""
ALWAYS = {name for name, entry in TABLE.items() if entry.pop("always", False)}
"""The others are near to one of these: they are tried with `HYPOTHESIS_PROFILE=local`, where time does not matter."""
QUERIES = {name: Stateful(**entry) for name, entry in TABLE.items()}


@dataclass(slots=True)
class Part:
    """What a step brings of an input."""

    rows: list[Row] = field(default_factory=list)
    mark: int | None = None
    ops: list[int] | None = None


def drawn(seed: str, inputs: Sequence[str]) -> list[dict[str, Part]]:
    """A stream that keeps its promises; the last watermark is beyond everything."""
    chance = random.Random(seed)
    begin = chance.choice([-9 * HOUR, 1_709_190_000_000, -2_208_990_000_000])
    marks: dict[str, int | None] = dict.fromkeys(inputs)
    steps = []
    for _ in range(2 if EXAMPLES == 1 else chance.randint(2, 3)):
        step = {}
        for name in inputs:
            part, low = Part(), marks[name]
            if chance.random() < 0.8:
                part.rows = _rows(chance, begin if low is None else low)
            if chance.random() < 0.75:
                part.mark = (begin if low is None else low) + chance.randint(0, 24) * HOUR // 2
                marks[name] = part.mark
            step[name] = part
        steps.append(step)
    last = {}
    for name in inputs:
        known = marks[name]
        last[name] = Part(_rows(chance, begin if known is None else known), begin + NEVER)
    return [*steps, last]


def _rows(chance: random.Random, low: int) -> list[Row]:
    def time() -> int:
        return low + chance.randint(0, 18) * HOUR // 2 + chance.choice([0, 0, 0, 1, HOUR // 2 - 1])

    return [
        (time(), chance.choice(["x", "x", "y", "z", None]), chance.choice([None, *range(-2, 5)]))
        for _ in range(chance.randint(3, 14))
    ]


def moment(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


def table_of(part: Part, start: int) -> pa.Table:
    count = len(part.rows)
    times, keys, values = zip(*part.rows, strict=True) if count else ((), (), ())
    return records(
        SCHEMA, start, part.ops or [0] * count, [*map(moment, times)], keys, values, at=Timestamp(0)
    )


@dataclass(frozen=True, slots=True)
class Step:
    request: TransformRequest
    executed: Executed
    output: pa.Table
    manifest: Manifest


def run(
    engine: SparkTransformEngine, transform: TransformSql, stream: list[dict[str, Part]], folder: Path
) -> Iterator[Step]:
    starts = dict.fromkeys(stream[0], 0)
    next_offset = 0
    for number, step in enumerate(stream):
        slices = []
        for name, part in step.items():
            table, start = table_of(part, starts[name]), starts[name]
            starts[name] += table.num_rows
            half = table.num_rows // 2
            files = [t for t in (table[:half], table[half:]) if t.num_rows]
            offsets = (start, starts[name] - 1) if table.num_rows else None
            marks = [] if part.mark is None else [Timestamp.from_epoch_ms(part.mark)]
            slices.append(InputSlice(name, SCHEMA, files, offsets, marks))
        request = request_of(
            folder, number, transform, slices,
            system_time=Timestamp.from_epoch_ms(number), next_offset=next_offset,
        )  # fmt: skip
        executed = engine.execute(request, schema=None, progress=SILENT)
        output = pq.read_table(request.new_data_path)
        assert output["offset"].to_pylist() == list(range(next_offset, next_offset + output.num_rows))
        next_offset += output.num_rows
        yield Step(request, executed, output, Manifest.read(Path(request.new_checkpoint_path)))


def net_of(steps: Sequence[Step]) -> Counter[tuple[Any, ...]]:
    """How often each row was emitted, less how often it was taken back; never less than nothing."""
    net: Counter[tuple[Any, ...]] = Counter()
    for step in steps:
        check_pairs(step.output["op"].to_pylist())
        for row in step.output.drop_columns(["offset", "system_time"]).to_pylist():
            values = tuple(value for name, value in row.items() if name != "op")
            net[values] += {0: 1, 1: -1, 2: -1, 3: 1}[row["op"]]
            assert net[values] >= 0, f"{values} was taken back before it was emitted"
    return +net


def check_pairs(operations: list[int]) -> None:
    for one, other in zip([0, *operations], [*operations, 0], strict=True):
        assert (one == 2) == (other == 3), operations


def expected(
    engine: SparkTransformEngine, query: Stateful, rows: Mapping[str, pa.Table], folder: Path
) -> Counter[tuple[Any, ...]]:
    """What one query over these rows gives, by Spark alone."""
    session = engine.session().newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    for name, table in rows.items():
        path = folder / f"all-{name}.parquet"
        pq.write_table(table, path)
        frame = session.read.parquet(str(path))
        if name == query.versions:
            frame.createOrReplaceTempView("versions")
            frame = session.sql(
                "SELECT *, event_time AS __valid_from, lead(event_time) OVER "
                "(PARTITION BY k ORDER BY event_time, offset) AS __valid_to FROM versions"
            )
        frame.createOrReplaceTempView(name)
    for name, sql in query.before.items():
        session.sql(sql).createOrReplaceTempView(name)
    found = session.sql(query.sql).toArrow().to_pylist()
    first = "event_time"
    return Counter((row[first], *(v for name, v in row.items() if name != first)) for row in found)


def everything(stream: list[dict[str, Part]], until: int | None = None) -> dict[str, pa.Table]:
    found = {}
    for name in stream[0]:
        whole = table_of(Part([row for step in stream for row in step[name].rows]), 0)
        times = [t for step in stream for t, _, _ in step[name].rows]
        kept = [until is None or t < until for t in times]
        found[name] = whole.filter(pa.array(kept, pa.bool_()))
    return found


def replayed(engine: SparkTransformEngine, step: Step, folder: Path) -> None:
    """Repeating a step gives the same records and the same bytes of the checkpoint."""
    folder.mkdir()
    again = dataclasses.replace(
        step.request, new_data_path=str(folder / "data"), new_checkpoint_path=str(folder / "checkpoint")
    )
    executed = engine.execute(again, schema=None, progress=SILENT)
    assert hash_parquet(folder / "data") == hash_parquet(Path(step.request.new_data_path))
    assert (folder / "checkpoint").read_bytes() == Path(step.request.new_checkpoint_path).read_bytes()
    said, before = executed, step.executed
    assert (said.watermark, said.offset_interval) == (before.watermark, before.offset_interval)


TRIED = [name for name in QUERIES if EXAMPLES > 1 or name in ALWAYS]


@pytest.mark.parametrize("name", TRIED)
@few
@seeded
def test_steps_give_in_all_what_one_query_over_all_rows_gives(
    transforms: SparkTransformEngine, compiling: SparkTransformEngine,
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int,
) -> None:  # fmt: skip
    query, folder = QUERIES[name], tmp_path_factory.mktemp("steps")
    stream = drawn(f"{name} {seed}", query.inputs)
    steps = list(run(transforms, query.transform(), stream, folder))
    chosen = len(name) % len(steps)
    replayed(compiling, steps[chosen], folder / "again")

    assert net_of(steps) == expected(transforms, query, everything(stream), folder)
    assert all(not s.manifest.late for s in steps), "no row was late"
    if query.once:
        check_final(query, steps)
    elif not query.mixed:
        recorded = everything(stream[: chosen + 1])
        assert net_of(steps[: chosen + 1]) == expected(transforms, query, recorded, folder)


def check_final(query: Stateful, steps: list[Step]) -> None:
    """Rows are emitted once, not before they are promised, and nothing is remembered in the end."""
    promised: Timestamp | None = None
    for step in steps:
        assert set(step.output["op"].to_pylist()) <= {0}
        times = [_instant(t) for t in step.output["event_time"].to_pylist()]
        if promised is not None:
            assert all(_instant(moment(promised.epoch_ms)) <= t for t in times), "older than was promised"
            assert step.executed.watermark >= promised
        promised = step.executed.watermark
    assert (promised is not None) == query.promises
    if promised is not None:
        latest = max(_instant(t) for s in steps for t in s.output["event_time"].to_pylist())
        assert latest < _instant(moment(promised.epoch_ms))
    assert {part.name: part.rows for part in steps[-1].manifest.parts if part.rows} == {}


def _instant(value: dt.date) -> dt.datetime:
    if isinstance(value, dt.datetime):
        return value
    return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)


@few
@seeded
def test_by_the_first_rules_only_what_is_older_than_the_watermark_counts(
    transforms: SparkTransformEngine, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    query, folder = QUERIES["running total"], tmp_path_factory.mktemp("steps")
    stream = drawn(f"first {seed}", query.inputs)
    steps = list(run(transforms, query.transform(EngineRules(1)), stream, folder))
    for number, step in enumerate(steps):
        if (now := step.manifest.watermark_ms) is not None:
            final = everything(stream[: number + 1], now)
            assert net_of(steps[: number + 1]) == expected(transforms, query, final, folder)


def changing(
    seed: str, inputs: Sequence[str], lateness: int
) -> tuple[list[dict[str, Part]], dict[str, Part]]:
    """A stream with retractions and corrections that are not too late, and what it leaves of each input."""
    chance = random.Random(seed)
    begin = chance.choice([-5 * HOUR, 1_709_190_000_000])
    live: dict[str, list[Row]] = {name: [] for name in inputs}
    marks, floor, stream = dict.fromkeys(inputs, begin), dict.fromkeys(inputs, begin), []
    for _ in range(3):
        step = {}
        for name, rows in live.items():
            part = Part(ops=[])
            for row in _rows(chance, floor[name]):
                changes = _change(chance, rows, row, floor[name])
                part.rows += [r for _, r in changes]
                part.ops = [*(part.ops or ()), *(op for op, _ in changes)]
            if chance.random() < 0.75:
                marks[name] = part.mark = marks[name] + chance.randint(0, 12) * HOUR
                floor[name] = max(begin, part.mark - lateness)
            step[name] = part
        stream.append(step)
    last = {name: Part(mark=begin + NEVER) for name in inputs}
    return [*stream, last], {name: Part(rows) for name, rows in live.items()}


def _change(
    chance: random.Random,
    live: list[Row],
    row: Row,
    floor: int,
) -> list[tuple[int, Row]]:
    """What happens when a row comes: it is new, corrects a live one, or a live one is retracted instead."""
    candidates = [r for r in live if r[0] >= floor]
    if not candidates or chance.random() < 0.5:
        live.append(row)
        return [(0, row)]
    old = chance.choice(candidates)
    live.remove(old)  # the oldest of its like
    if chance.random() < 0.4:
        return [(1, old)]
    # most corrections keep the time
    row = row if chance.random() < 0.3 else (old[0], old[1], row[2])
    live.append(row)
    return [(2, old), (3, row)]


BRIEFLY = frozenset({"plain groups"})


@pytest.mark.parametrize(
    ("name", "lateness"),
    [
        (name, lateness * HOUR)
        for name, usual in LATENESS.items()
        for lateness in sorted({usual} if EXAMPLES == 1 else {usual, 0, 7})
        if EXAMPLES > 1 or name in BRIEFLY
    ],
)
@few
@seeded
def test_corrections_of_inputs_change_the_result_as_if_it_had_never_been_otherwise(
    transforms: SparkTransformEngine, compiling: SparkTransformEngine,
    tmp_path_factory: pytest.TempPathFactory, name: str, lateness: int, seed: int,
) -> None:  # fmt: skip
    query, folder = QUERIES[name], tmp_path_factory.mktemp("changes")
    windowed = query.once or query.mixed
    rules = EngineRules(allowed_lateness_ms=lateness if windowed else 0)
    stream, left = changing(f"{name} {lateness} {seed}", query.inputs, rules.allowed_lateness_ms)
    steps = list(run(transforms, query.transform(rules), stream, folder))
    rows = {alias: table_of(part, 0) for alias, part in left.items()}
    assert net_of(steps) == expected(transforms, query, rows, folder)
    assert [(s.manifest.late, s.manifest.unmatched) for s in steps] == [({}, {})] * len(steps)
    replayed(compiling, steps[len(name) % len(steps)], folder / "again")


def at_hours(query: Stateful, hours: Sequence[int], mark: int, late: Sequence[int] = ()) -> dict[str, Part]:
    """Rows of the first input, and a watermark of all."""
    rows: list[Row] = [(hour * HOUR, "x", 1) for hour in (*late, *hours)]
    return {"a": Part(rows, mark * HOUR)} | {other: Part([], mark * HOUR) for other in query.inputs[1:]}


@pytest.mark.parametrize(
    "name",
    [
        "tumbling",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("session", "left join", "plain groups")),
    ],
)
def test_rows_that_come_too_late_are_counted_and_change_nothing_that_is_final(
    transforms: SparkTransformEngine, tmp_path: Path, name: str
) -> None:
    query = QUERIES[name]
    first, last = at_hours(query, [1, 5], 12), at_hours(query, [], 1_000)
    stream = [first, at_hours(query, [12, 13], 13, late=[5, 3]), last]
    steps = list(run(transforms, query.transform(), stream, tmp_path))
    counted = [first, at_hours(query, [12, 13], 13), last] if query.once else stream
    assert net_of(steps) == expected(transforms, query, everything(counted), tmp_path)
    assert [s.manifest.late for s in steps] == [{}, {"a": 2} if query.once else {}, {}]


def test_what_is_late_counts_while_lateness_allows(transforms: SparkTransformEngine, tmp_path: Path) -> None:
    query = QUERIES["tumbling"]
    late = at_hours(query, [14], 14, late=[5, 8])
    stream = [at_hours(query, [1, 5, 7], 13), late, at_hours(query, [], 1_000)]
    rules = EngineRules(allowed_lateness_ms=6 * HOUR)
    steps = list(run(transforms, query.transform(rules), stream, tmp_path))
    # hours 6 to 12 are kept until the watermark is at 18, hours 0 to 6 only until it is at 12
    assert [s.manifest.late for s in steps] == [{}, {"a": 1}, {}]
    rows = [(o["op"], o["n"]) for o in steps[1].output.to_pylist()]
    assert rows == [(2, 1), (3, 2)], "a correction of the count"
    assert steps[1].manifest.waiting == {"a": 1}


def test_corrections_of_what_is_closed_are_counted_and_those_of_an_open_window_are_taken(
    transforms: SparkTransformEngine, tmp_path: Path
) -> None:
    query = QUERIES["tumbling"]
    first = Part([(1 * HOUR, "x", 1), (7 * HOUR, "x", 2), (8 * HOUR, "y", 3)], 8 * HOUR)
    changes: list[tuple[int, Row]] = [
        (2, (1 * HOUR, "x", 1)), (3, (1 * HOUR, "x", 9)), (2, (7 * HOUR, "x", 2)), (3, (7 * HOUR, "x", 5)),
        (1, (8 * HOUR, "y", 3)), (1, (9 * HOUR, "z", 3)),
    ]  # fmt: skip
    second = Part([row for _, row in changes], 8 * HOUR, [op for op, _ in changes])
    stream = [{"a": first}, {"a": second}, {"a": Part([], 24 * HOUR)}]
    steps = list(run(transforms, query.transform(), stream, tmp_path))
    assert [[(o["op"], o["k"], o["total"]) for o in s.output.to_pylist()] for s in steps] == [
        [(0, "x", 1)], [], [(0, "x", 5)],
    ]  # fmt: skip
    assert [s.manifest.late for s in steps] == [{}, {"a": 2}, {}], "both halves of the first correction"
    assert [s.manifest.unmatched for s in steps] == [{}, {"a": 1}, {}], "nothing was there at nine"
    assert [s.manifest.waiting for s in steps] == [{"a": 2}, {"a": 1}, {}]


def test_a_row_within_an_open_session_is_not_late(transforms: SparkTransformEngine, tmp_path: Path) -> None:
    query = QUERIES["session"]
    open_session = Part([(hour * HOUR, "x", hour) for hour in (1, 2, 4, 6, 8)], 9 * HOUR)
    changes: list[Row] = [(2 * HOUR, "x", 2), (2 * HOUR, "x", 20), (0, "x", 0), (3 * HOUR, "y", 0)]
    correction = Part(changes, 9 * HOUR, [2, 3, 0, 0])
    stream = [{"a": open_session}, {"a": correction}, {"a": Part([], 99 * HOUR)}]
    steps = list(run(transforms, query.transform(), stream, tmp_path))
    assert [[(o["k"], o["n"], o["total"]) for o in s.output.to_pylist()] for s in steps] == [
        [], [], [("x", 5, 39)],
    ]  # fmt: skip
    assert [s.manifest.late for s in steps] == [{}, {"a": 2}, {}]


@pytest.mark.parametrize("name", ["tumbling", pytest.param("left join", marks=pytest.mark.soak)])
def test_an_endless_stream_does_not_make_a_bounded_query_remember_more_and_more(
    transforms: SparkTransformEngine, tmp_path: Path, name: str
) -> None:
    query = QUERIES[name]
    stream = []
    for number in range(5):
        rows: list[Row] = [((24 * number + hour) * HOUR, "x", hour) for hour in (0, 5, 10, 15, 20)]
        stream.append({alias: Part(rows, (24 * number + 21) * HOUR) for alias in query.inputs})
    steps = run(transforms, query.transform(), stream, tmp_path)
    remembered = [sum(part.rows for part in step.manifest.parts) for step in steps]
    assert remembered[1:] == [remembered[1]] * 4
    assert 0 < remembered[1] <= 10


def test_what_corrects_a_row_of_a_temporal_table_is_its_next_version(
    transforms: SparkTransformEngine, tmp_path: Path
) -> None:
    query = QUERIES["temporal join"]
    first = {"a": Part([(HOUR, "x", 1)], HOUR), "b": Part([(0, "x", 10)], HOUR)}
    corrected = Part([(0, "x", 10), (5 * HOUR, "x", 11)], 5 * HOUR, [2, 3])
    second = {"a": Part([(6 * HOUR, "x", 2)], 6 * HOUR), "b": corrected}
    steps = list(run(transforms, query.transform(), [first, second], tmp_path))
    assert [[(o["op"], o["v"], o["w"]) for o in s.output.to_pylist()] for s in steps] == [
        [(0, 1, 10)], [(0, 2, 11)],
    ]  # fmt: skip
