"""Merges by Arrow against a model, row by row: whole inputs and buckets of keys, file after file (RFC-058)."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from odfchain.ingest.merge_strategies import Fault, NewRows, Policies, RefusedInputError, first_fault
from odfchain.odf import sources as src
from odfchain.slices.ordering import order_of
from odfchain.slices.state import codes_of
from odfchain.workspace.config import DuplicateKeys, LateEdits
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

SERIES = {"ci": 5, "local": 20, "soak": 250, "deep": 2_500}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]
"""Of eight inputs each: `make soak` merges 2,000 inputs by each strategy."""
FILES = 8
EVENT_TIME = pa.scalar(NOON + dt.timedelta(minutes=30), pa.timestamp("ms", "UTC")).as_py()


Merged = tuple[pa.Table, Counter[str]]


def given_rows(scene: Scene, recorded: pa.Table | None, strategy: str) -> tuple[pa.Table, pa.Array | None]:
    """Rows of which some are recorded, some with other values, and few are wrong."""
    rng, names = scene.rng, list(scene.kinds)
    rows = scene.rows(rng.randrange(30))
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
    if op is not None and len(op) and rng.random() < 0.15:
        wrong = op.to_pylist()
        wrong[rng.randrange(len(op))] = rng.choice([7, -1, 2, 3])
        op = pa.array(wrong, pa.int32())
    return rows.combine_chunks(), op


def whole(new: NewRows, strategy: src.MergeStrategy, recorded: pa.Table | None) -> Merged:
    """What one merge of all rows appends."""
    if isinstance(strategy, src.MergeStrategyChangelogStream):
        new = new.with_times_taken_back(state_of(new, strategy, recorded)) if new.without_time() else new
    changes = new.merged(strategy, state_of(new, strategy, recorded))
    return changes.columns(["op", *new.rows.column_names], changes.in_order()), +changes.counts


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
    return rows.select(["op", *names]).take(pa.array(order_of(rows, order))), +counts


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
    for _ in range(FILES):
        rows, op = given_rows(scene, recorded, name)
        duplicates = rng.choice([DuplicateKeys.FIRST, DuplicateKeys.LAST, DuplicateKeys.REFUSE])
        edits = rng.choice(list(LateEdits))
        latest = NOON + dt.timedelta(minutes=45) if rng.random() < 0.1 else None
        model = Model(name, scene.key, compare, duplicates, edits, EVENT_TIME, latest, history)
        policies = Policies(
            int(EVENT_TIME.timestamp() * 1000), duplicates, edits,
            None if latest is None else int(latest.timestamp() * 1000), "the bound",
        )  # fmt: skip
        new = NewRows(rows, np.arange(1, len(rows) + 1), NAMES, policies, op)
        new = new.with_event_times() if "event_time" in scene.key else new
        number = rng.choice([1, 2, 3, 8])
        try:
            expected = model.merged(rows_of(rows), None if op is None else op.to_pylist())
        except RefusedByModelError as fault:
            row, words = fault.args
            ways = (
                partial(whole, new, strategy, recorded),
                partial(by_buckets, new, strategy, recorded, number),
            )
            for merge in ways:
                with pytest.raises(RefusedInputError, match=words) as refused:
                    merge()
                assert refused.value.fault.row == row
            continue
        added, counts = whole(new, strategy, recorded)
        apart, sums = by_buckets(new, strategy, recorded, number)
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
