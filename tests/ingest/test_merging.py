"""Merge strategies: their cases, a slow model, kernels and plans (RFC-009)."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError, OdfchainError, SchemaError
from odfchain.ingest import merge_input, merge_task
from odfchain.ingest.merge_strategies import (
    Fault,
    NewRows,
    Policies,
    RefusedInputError,
    first_fault,
)
from odfchain.ingest.schema_fit import check_strategy
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.enums import TAKES_BACK
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.tree import from_tree
from odfchain.slices.ordering import order_of
from odfchain.slices.state import codes_of, newest_of
from odfchain.spark.plans import map_in_arrow
from odfchain.workspace.config import DuplicateKeys, LateEdits
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.keyed_inputs import COLUMNS, MERGES, inputs, schema_of
from tests.kit.merge_model import Model, Record, RefusedByModelError, rows_of
from tests.kit.merge_scenes import (
    NAMES,
    NOON,
    OPERATIONS,
    STRATEGIES,
    Scene,
    operations,
    state_of,
    strategy_of,
)
from tests.kit.pushed_files import push
from tests.kit.support import ROOT, cases, conformance, manifest

REFUSED = {
    "snapshot.duplicate_keys_first_input": "occurs twice",
    "snapshot.duplicate_keys_one_equal_one_changed": "occurs twice",
    "snapshot.duplicate_new_key": "occurs twice",
    "snapshot.null_key_in_new": "is null",
    "upsert.null_key_collapsed_then_always_appended": "is null",
}
"""What the error says. Keys of nulls alone and keys of rows that differ stop the run, where the reference writes rows that it cannot keep
apart."""

DIFFERENT: dict[str, list[list[Any]]] = {
    "ledger.duplicates_in_first_input": [[0, 2020, "v", 1]],
    "ledger.null_key_never_matches": [],
    "upsert.correct_from_treated_as_upsert": [[2, 2020, "seattle", 2], [3, 2020, "seattle", 9]],
}
"""Copies of a row are one row; a null in a key is equal to a null; `-C` in an upsert stream states an old value and
does not undo the `+C` beside it."""


def case_strategy(case: dict[str, Any]) -> src.MergeStrategy:
    return from_tree(src.MergeStrategy, {"kind": case["strategy"]} | case["params"])  # type: ignore[arg-type]


NO_TIME = -1
"""Stands for event times that are filled in, which the cases leave open."""


def type_of(name: str) -> pa.DataType:
    return pa.string() if name in ("city", "note", "date", "event_time") else pa.int64()


def table(names: list[str], rows: list[list[Any]]) -> pa.Table:
    types = {"op": pa.uint8(), "offset": pa.uint64()}
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    arrays = [pa.array(values, types.get(n) or type_of(n)) for n, values in zip(names, columns, strict=True)]
    return pa.table(arrays, names=names)


def history_of(case: dict[str, Any], rows: list[list[Any]] | None) -> pa.Table | None:
    if not rows:
        return None
    columns = ["offset", "op", *case["columns"]]
    return timed(case, table(columns, [[offset, *row] for offset, row in enumerate(rows)]))


def timed(case: dict[str, Any], rows: pa.Table) -> pa.Table:
    """The rows with years, or texts, as event times."""
    name = case["event_time_column"]
    numbers = [
        None if v is None else int("".join(filter(str.isdigit, str(v)))) for v in rows[name].to_pylist()
    ]
    times = pa.array(numbers, pa.int64()).cast(pa.timestamp("ms", "UTC"))
    return rows.set_column(rows.column_names.index(name), name, times)


def input_of(case: dict[str, Any]) -> NewRows:
    columns, given = case["columns"], case.get("new_columns", case["columns"])
    operations, rows = [], []
    for values in case["new"]:
        op = values[:1] if case["new_has_op"] else []
        row = dict(zip(given, values[len(op) :], strict=True))
        operations += op
        rows.append([row.get(name) for name in columns])
    vocabulary = DatasetVocabulary(event_time_column=case["event_time_column"])
    op = pa.array(operations, pa.int32()) if case["new_has_op"] else None
    new = timed(case, table(columns, rows))
    return NewRows(new, np.arange(len(new)) + 1, vocabulary, Policies(NO_TIME), op)


def case_rows(case: dict[str, Any], rows: pa.Table, known: list[list[Any]]) -> list[list[Any]]:
    """The rows as the cases have them: event times as they were written."""
    name = case["event_time_column"]
    place = case["columns"].index(name)
    spelled = {int("".join(filter(str.isdigit, str(v)))): v for row in known if (v := row[place]) is not None}
    numbers = rows[name].cast(pa.int64()).to_pylist()
    values = [None if number == NO_TIME else spelled[number] for number in numbers]
    found = [list(row.values()) for row in rows.to_pylist()]
    at = rows.column_names.index(name)
    return [[*row[:at], value, *row[at + 1 :]] for row, value in zip(found, values, strict=True)]


@pytest.mark.parametrize("case", cases("merge_cases", "cases"))
def test_case(case: dict[str, Any]) -> None:
    columns, strategy = case["columns"], case_strategy(case)
    if "expected_error" in case:
        fields = tuple(ds.DataField(name=n, type=ds.DataTypeString()) for n in columns)
        with pytest.raises(SchemaError, match=r"foo|empty"):
            check_strategy(strategy, ds.DataSchema(fields=fields), "input.csv")
        return
    history = history_of(case, case["prior"])
    new = input_of(case)
    recorded = state_of(new, strategy, history)
    if case["id"] in REFUSED:
        with pytest.raises(RefusedInputError, match=REFUSED[case["id"]]):
            new.merged(strategy, recorded)
        return
    changes = new.merged(strategy, recorded)
    expected = DIFFERENT.get(case["id"], case.get("correct_expected", case["expected"]))
    found = changes.columns(["op", *columns], changes.in_order())
    known = [row[len(row) - len(columns) :] for row in [*(case["prior"] or []), *expected]]
    assert case_rows(case, found, known) == expected


@pytest.mark.parametrize("case", cases("merge_cases", "projection_cases"))
def test_projection(case: dict[str, Any]) -> None:
    vocabulary = DatasetVocabulary(event_time_column=case["event_time_column"])
    history = history_of(case, case["ledger"])
    found = newest_of(history.to_batches(), case["primaryKey"], vocabulary)
    known = [row[1:] for row in case["ledger"]]
    rows = [] if found is None else case_rows(case, found[0].select(case["columns"]), known)
    assert sorted(map(repr, rows)) == sorted(repr(row[1:]) for row in case["expected_state_unordered"])


def test_where_we_differ_stands_in_an_rfc() -> None:
    text = (ROOT / "rfcs" / "009-merge-and-writer-rules.md").read_text(encoding="utf-8")
    bugs = [c["id"] for c in conformance("merge_cases")["cases"] if c.get("known_bug")]
    for case_id in [*REFUSED, *DIFFERENT, *bugs]:
        assert f"`{case_id}`" in text, f"{case_id} is not explained"


# --- Merges by Arrow against a model, row by row: whole inputs and buckets of keys, file after file (RFC-058) ---


SERIES = {"ci": 5, "local": 20, "soak": 250, "deep": 2_500}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]
"""Of eight inputs each: `make soak` merges 2,000 inputs by each strategy."""
FILES = 8
LATER = 3
"""The file before which the last column came."""
EVENT_TIME = pa.scalar(NOON + dt.timedelta(minutes=30), pa.timestamp("ms", "UTC")).as_py()


def given_rows(scene: Scene, recorded: pa.Table | None, strategy: str) -> tuple[pa.Table, pa.Array | None]:
    """Rows of which some are recorded, some with other values, and few are wrong."""
    rng, names = scene.rng, list(scene.kinds)
    rows = scene.rows(rng.randrange(rng.choice([30, 30, 30, 300])))
    if recorded is not None and len(recorded) and rng.random() < 0.9:
        again = recorded.select(names).take(
            pa.array(rng.choices(range(len(recorded)), k=rng.randrange(25)), pa.int64())
        )
        if rng.random() < 0.5:
            field = scene.schema.field("v0")
            again = again.set_column(names.index("v0"), field, scene.column("v0", len(again), field))
        rows = pa.concat_tables([rows, again.cast(scene.schema)])
        rows = rows.take(pa.array(rng.sample(range(len(rows)), len(rows)), pa.int64()))
    if len(rows) and rng.random() < 0.1:
        keyless = [pa.nulls(1, f.type) if f.name in scene.key else rows[f.name][:1] for f in scene.schema]
        bad = pa.table([pa.chunked_array([each]) if isinstance(each, pa.Array) else each for each in keyless],
                       schema=scene.schema)  # fmt: skip
        rows = pa.concat_tables([rows, bad, scene.rows(3)])
    op = operations(scene, strategy, rows) if strategy in OPERATIONS else None
    if strategy == "upsert" and rng.random() < 0.3:
        op = None  # rows that say nothing are those in force
    if op is not None and len(op) and rng.random() < 0.15:
        wrong = op.to_pylist()
        wrong[rng.randrange(len(op))] = rng.choice([7, -1, 2, 3])
        op = pa.array(wrong, pa.int32())
    return rows.combine_chunks(), op


Merged = tuple[pa.Table, Counter[str]]


def whole(new: NewRows, strategy: src.MergeStrategy, recorded: pa.Table | None) -> Merged:
    """What one merge of all rows appends and counts."""
    if isinstance(strategy, src.MergeStrategyChangelogStream):
        new = new.with_times_taken_back(state_of(new, strategy, recorded)) if new.without_time() else new
    changes = new.merged(strategy, state_of(new, strategy, recorded))
    return changes.columns(["op", *new.rows.column_names], changes.in_order()), changes.counts


def by_buckets(new: NewRows, strategy: src.MergeStrategy, recorded: pa.Table | None, number: int) -> Merged:
    """What merges of buckets of keys append, or the first fault of all."""
    names, key = new.rows.column_names, strategy.primary_key
    total = len(new.rows) + (0 if recorded is None else len(recorded))
    buckets = np.arange(total) % number
    if key and total:
        both = [new.rows.select(key), *([] if recorded is None else [recorded.select(key)])]
        buckets = codes_of(pa.concat_tables(both), key)[0] % number
    found, faults, counts = list[pa.Table](), list[Fault](), Counter[str]()
    order: tuple[str, ...] = ()
    for bucket in range(number):
        mine = np.flatnonzero(buckets[: len(new.rows)] == bucket)
        some = NewRows(
            new.rows.take(pa.array(mine)).combine_chunks(), new.numbers[mine], new.vocabulary, new.policies,
            None if new.operations is None else new.operations.take(pa.array(mine)),
        )  # fmt: skip
        theirs = np.flatnonzero(buckets[len(new.rows) :] == bucket)
        old = None if recorded is None else recorded.take(pa.array(theirs))
        if isinstance(strategy, src.MergeStrategyChangelogStream):
            some = some.with_times_taken_back(state_of(some, strategy, old))
        try:
            changes = some.merged(strategy, state_of(some, strategy, old))
        except RefusedInputError as refused:
            faults.append(refused.fault)
        else:
            order = changes.order
            counts.update(changes.counts)
            found.append(changes.columns(list(dict.fromkeys(["op", *names, *order]))))
    if faults:
        raise RefusedInputError(first_fault(faults))
    rows = pa.concat_tables(found).combine_chunks()
    return rows.select(["op", *names]).take(pa.array(order_of(rows, order))), counts


def texts_of(rows: pa.Table) -> list[str]:
    """The rows as texts, in which NaN are equal, and zeros are not."""
    return [repr(tuple(row.values())) for row in rows_of(rows)]


@pytest.mark.hypothesis  # properties, though not by that library: `make soak` tries more of them
@pytest.mark.parametrize("seed", range(SERIES))
@pytest.mark.parametrize("name", STRATEGIES)
def test_merges_are_those_of_the_model(name: str, seed: int) -> None:
    scene = Scene(name, seed)
    rng, names = scene.rng, list(scene.kinds)
    compare = ("v0", "event_time") if name == "snapshot" and seed % 3 == 2 else None
    strategy = strategy_of(name, scene.key, compare)
    recorded: pa.Table | None = None
    history: list[Record] = []
    for file in range(FILES):
        rows, op = given_rows(scene, recorded, name)
        duplicates = rng.choice([DuplicateKeys.FIRST, DuplicateKeys.LAST, DuplicateKeys.REFUSE])
        edits = rng.choice(list(LateEdits))
        latest = NOON + dt.timedelta(minutes=45) if rng.random() < 0.1 else None
        policies = Policies(
            int(EVENT_TIME.timestamp() * 1000), duplicates, edits,
            None if latest is None else int(latest.timestamp() * 1000), "the bound",
        )  # fmt: skip
        new = NewRows(rows, np.arange(1, len(rows) + 1), NAMES, policies, op)
        new = new.with_event_times() if "event_time" in scene.key else new
        number = rng.choice([1, 2, 3, 8])
        known = recorded
        if name == "changelog":
            pairs = zip(rows["event_time"].to_pylist(), op.to_pylist(), strict=True)
            assert new.without_time() == sum(time is None and code in TAKES_BACK for time, code in pairs)
        elif recorded is not None and file == LATER:
            field, at = scene.schema.field("v3"), recorded.column_names.index("v3")
            recorded = recorded.set_column(at, field, pa.nulls(len(recorded), field.type))
            history = [(code, row | {"v3": None}) for code, row in history]
            known = recorded.drop_columns(["v3"])
        model = Model(name, scene.key, compare, duplicates, edits, EVENT_TIME, latest, history)
        try:
            expected = model.merged(rows_of(rows), [None] * len(rows) if op is None else op.to_pylist())
        except RefusedByModelError as fault:
            row, words = fault.args
            ways = (partial(whole, new, strategy, known), partial(by_buckets, new, strategy, known, number))
            for merge in ways:
                with pytest.raises(RefusedInputError, match=words) as refused:
                    merge()
                assert refused.value.fault.row == row
            continue
        added, counts = whole(new, strategy, known)
        apart, sums = by_buckets(new, strategy, known, number)
        shown = [repr((o, *r.values())) for o, r in expected]
        assert shown == texts_of(added) == texts_of(apart)
        assert counts == sums == model.counts
        if not expected:
            continue
        history = history + expected
        start = 0 if recorded is None else len(recorded)
        offsets = pa.array(range(start, start + len(added)), pa.uint64())
        added = pa.table([offsets, *added.columns], names=["offset", "op", *names])
        recorded = added if recorded is None else pa.concat_tables([recorded.cast(added.schema), added])


# --- operations that are none ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "bad"),
    [
        (["0", " +1 ", "x"], "'x' is not"),
        (["0", "1.0"], "'1.0' is not"),
        ([0.0, 1.5], "1.5 is not"),
        ([True, None], "None is not"),
        ([0, -1], "-1 is not"),
        ([Decimal("1.0"), Decimal("1.5")], r"Decimal\('1.5'\) is not"),
        ([b"0"], "b'0' is not"),
    ],
)
def test_the_first_operation_that_is_none(op: list[Any], bad: str) -> None:
    columns = {"k": pa.array(range(len(op))), "event_time": pa.nulls(len(op), pa.timestamp("ms", "UTC"))}
    rows = NewRows(pa.table(columns), np.arange(len(op)) * 10 + 3, NAMES, Policies(0), pa.array(op))
    with pytest.raises(RefusedInputError, match=f"column `op`: {bad}") as refused:
        rows.merged(src.MergeStrategyChangelogStream(primary_key=("k",)), None)
    assert refused.value.fault.row == 3 + 10 * (len(op) - 1)


# --- Rows that fit in one task and rows in buckets of keys are recorded as the same bytes (RFC-058) ---


def slices(dataset: Dataset) -> list[bytes]:
    state = DatasetState.read(dataset._files.chain)
    return [dataset._files.data.verified_path(r.slice.physical_hash).read_bytes() for r in state.slices()]


def ingest(dataset: Dataset, path: Path) -> tuple[Any, ...]:
    """What a run said of itself, or its error."""
    try:
        outcome = dataset.ingest(
            [path], system_time="2050-01-01T00:00:00Z", event_time="2049-01-01T00:00:00Z", allow_retract=True
        )
    except OdfchainError as error:
        return (type(error), str(error), error.hint)
    (found,) = outcome.inputs
    return (found.input_rows, found.operations, found.offsets, outcome.watermark)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 10))])
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.soak) if k in {"changelog", "upsert"} else k for k in MERGES]
)
def test_the_bytes_are_the_same(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    """Slices, counts and watermarks are the same, whichever way they were made."""
    one, parts = (
        workspace.add(manifest(MERGES[kind], schema_of(kind), name=name, kind="NdJson"))[0]
        for name in ("one", "parts")
    )
    path = tmp_path / "input.ndjson"
    for text in inputs(kind, random.Random(f"{kind} {seed}"), 2):
        path.write_text(text)
        said = ingest(one, path)
        with monkeypatch.context() as patched:
            patched.setattr(merge_input, "task_bytes", lambda _: 400)
            assert ingest(parts, path) == said
        assert isinstance(said[0], int), said
    assert slices(one) == slices(parts) != []
    report = one.verify()
    assert report.ok, report.faults


BAD = {
    "a null deep inside": '{"key": 1}\n{"key": 2, "place": {"names": [null]}}\n',
    "a value": '{"key": 1, "price": "1"}\n{"key": 2, "price": "x"}\n',
    "no key": '{"key": 1}\n{"price": "1"}\n',
    "a key twice": '{"key": 1, "price": "1"}\n{"key": 1, "price": "2"}\n',
    "no JSON": '{"key": 1}\n{"key"\n',
    "the far future": '{"key": 1}\n{"key": 2, "event_time": "9000-01-01T00:00:00Z"}\n',
}


@pytest.mark.parametrize(
    "text",
    [
        t if name in {"a key twice", "the far future"} else pytest.param(t, marks=pytest.mark.soak)
        for name, t in BAD.items()
    ],
    ids=list(BAD),
)
def test_refusals_have_the_same_words(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    merge = "{kind: Snapshot, primaryKey: [key]}"
    (dataset,) = workspace.add(manifest(merge, json.dumps(COLUMNS), kind="NdJson"))
    path = tmp_path / "input.ndjson"
    path.write_text(text)
    refused = ingest(dataset, path)
    assert issubclass(refused[0], OdfchainError)
    assert any(where in refused[1] for where in ("row 2", "line 2", "`place.names`"))
    monkeypatch.setattr(merge_input, "task_bytes", lambda _: 1)
    assert ingest(dataset, path) == refused


# --- A worker that dies while it merges: nothing half-done is seen, the next command works (RFC-058) ---


KEPT = '{"k": 1, "v": 1}\n{"k": 2, "v": 1}\n'
LOST = '{"k": 1, "v": 2}\n{"k": 3, "v": 1}\n'


def dies(function: Callable[..., Any], when: str) -> Callable[..., Any]:
    # sent by value, so that no worker has to find this module
    def killed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        made = list(function(batches))
        os.kill(os.getpid(), signal.SIGKILL)
        yield from made

    return killed


@pytest.mark.parametrize("plan", ["one task", "buckets"])
@pytest.mark.parametrize("when", ["before", "after its slice is written"])
def test_a_worker_that_is_killed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, plan: str, when: str
) -> None:
    merge = "{kind: Snapshot, primaryKey: [k]}" if plan == "one task" else "{kind: Append}"
    (dataset,) = workspace.add(manifest(merge, '["k INT", "v INT"]', kind="NdJson"))
    push(dataset, KEPT, "in.ndjson")
    if plan == "buckets":
        monkeypatch.setattr(merge_input, "task_bytes", lambda _: 1)
    head, files = dataset.head, {p for p in dataset._files.folder.rglob("*") if p.is_file()}
    with monkeypatch.context() as patched:
        patched.setattr(
            merge_task, "map_in_arrow", lambda frame, f, *a: map_in_arrow(frame, dies(f, when), *a)
        )
        with pytest.raises(EngineError, match="a worker of Spark's has ended") as failed:
            push(dataset, LOST, "in.ndjson")
    assert str(failed.value.hint).endswith("a smaller merge.taskBytes")
    assert dataset.head == head
    assert {p for p in dataset._files.folder.rglob("*") if p.is_file()} == files
    push(dataset, LOST, "in.ndjson", allow_retract=True)
    assert dataset.head != head
    report = dataset.verify()
    assert report.ok, report.faults
