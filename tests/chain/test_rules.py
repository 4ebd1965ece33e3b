"""One violation for every append rule of `chain_rules.json`, and the order in which errors win."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from odfchain.chain.rules import belongs_in
from odfchain.errors import AppendError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import DatasetKind
from odfchain.odf.names import RemoteDatasetId, parse_ref_any
from odfchain.odf.sources import (
    FetchStepEthereumLogs,
    FetchStepUrl,
    MergeStrategyAppend,
    ReadStepCsv,
    SqlQueryStep,
    TransformSql,
)
from odfchain.odf.times import Timestamp
from tests.kit.support import ChainBuilder, conformance, data_slice, hash_of, memory_chain, seeded_id

T = [Timestamp.parse(f"2020-01-0{day}T12:00:00Z") for day in range(1, 10)]
FOO, BAR = seeded_id("foo"), seeded_id("bar")
COLUMN = ds.DataField(name="a", type=ds.DataTypeInt64())
SCHEMA = ds.DataSchema(fields=(COLUMN,))
RAW = ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(SCHEMA))
QUERY = SqlQueryStep(query="select 1")


def transform(**changes: Any) -> TransformSql:
    return dataclasses.replace(TransformSql(engine="spark", queries=(QUERY,)), **changes)


def set_transform(*ids: Any, **changes: Any) -> ev.SetTransform:
    inputs = tuple(
        ev.TransformInput(dataset_ref=RemoteDatasetId(None, i), alias=str(n)) for n, i in enumerate(ids)
    )
    return ev.SetTransform(**({"inputs": inputs, "transform": transform()} | changes))


def push(**changes: Any) -> ev.AddPushSource:
    fields = {"source_name": "default", "read": ReadStepCsv(), "merge": MergeStrategyAppend()}
    return ev.AddPushSource(**(fields | changes))


def polling(**changes: Any) -> ev.SetPollingSource:
    fields = {"fetch": FetchStepUrl(url="http://x"), "read": ReadStepCsv(), "merge": MergeStrategyAppend()}
    return ev.SetPollingSource(**(fields | changes))


def point(dataset_id: Any = FOO, **kwargs: Any) -> ev.ExecuteTransformInput:
    return ev.ExecuteTransformInput(dataset_id=dataset_id, **kwargs)


def execute(*inputs: Any, **kwargs: Any) -> ev.ExecuteTransform:
    return ev.ExecuteTransform(query_inputs=inputs or (point(),), **kwargs)


def checkpoint(label: str) -> ev.Checkpoint:
    return ev.Checkpoint(physical_hash=hash_of(label), size=1)


STATE = ev.SourceState(source_name="default", kind="odf/etag", value="1")
FIRST = execute(
    point(new_block_hash=hash_of("b1"), new_offset=9), new_data=data_slice(0, 9), new_watermark=T[0]
)
BOTH = ReadStepCsv(ddl_schema=("a INT",), schema=SCHEMA)
ROOT_DATA = [RAW, ev.AddData(new_data=data_slice(0, 9), new_watermark=T[1], new_checkpoint=checkpoint("c"))]


OF_ROOTS = [
    ev.AddData(new_watermark=T[1]), polling(), push(), ev.DisablePollingSource(),
    ev.DisablePushSource(source_name="default"),
]  # fmt: skip
OF_DERIVATIVES = [set_transform(FOO), execute(new_watermark=T[1])]


def raw(*fields: ds.DataField) -> ev.SetDataSchema:
    return ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(ds.DataSchema(fields=fields)))


SYSTEM = tuple(
    dataclasses.replace(COLUMN, name=name) for name in ("offset", "op", "system_time", "event_time")
)


def then(*inputs: Any, **kwargs: Any) -> list[Any]:
    """A derivative chain with one execution, and the next one."""
    fields = {"prev_offset": 9, "new_data": data_slice(10, 19), "new_watermark": T[0]} | kwargs
    return [set_transform(FOO), RAW, FIRST, execute(*inputs, **fields)]


NEXT = {"prev_block_hash": hash_of("b1"), "prev_offset": 9}

VIOLATIONS: list[tuple[str, str, list[Any]]] = [
    ("seq-plus-one", "SequenceIntegrity", [(RAW, {"sequence_number": 5})]),
    ("seq-plus-one", "SequenceIntegrity", [(RAW, {"sequence_number": 0})]),
    ("system-time-monotonic", "SystemTimeIsNotMonotonic", [(RAW, {"system_time": Timestamp(0)})]),
    ("prev-block-exists", "PrevBlockNotFound", [(RAW, {"prev_block_hash": hash_of("x")})]),
    ("watermark-kept", "WatermarkIsNotMonotonic",
     [*ROOT_DATA, ev.AddData(prev_offset=9, new_data=data_slice(10, 11), prev_checkpoint=hash_of("c"))]),
    ("watermark-monotonic", "WatermarkIsNotMonotonic",
     [*ROOT_DATA, ev.AddData(prev_offset=9, new_data=data_slice(10, 11), new_watermark=T[0], prev_checkpoint=hash_of("c"))]),
    ("offset-interval-start", "OffsetsAreNotSequential", [RAW, ev.AddData(new_data=data_slice(1, 9))]),
    ("offset-interval-start", "OffsetsAreNotSequential", [RAW, ev.AddData(prev_offset=5, new_data=data_slice(0, 9))]),
    ("offset-interval-order", "InvalidEvent", [RAW, ev.AddData(prev_offset=9, new_data=data_slice(10, 9))]),
    ("prev-offset-continues", "InvalidEvent",
     [*ROOT_DATA, ev.AddData(prev_offset=10, new_data=data_slice(11, 12), new_watermark=T[1], prev_checkpoint=hash_of("c"))]),
    ("prev-offset-continues", "InvalidEvent",
     [*ROOT_DATA, ev.AddData(new_watermark=T[2], prev_checkpoint=hash_of("c"))]),
    ("add-data-not-empty", "NoOpEvent", [ev.AddData(prev_offset=3, prev_checkpoint=hash_of("c"))]),
    ("add-data-schema-first", "InvalidEvent", [ev.AddData(new_data=data_slice(0, 9))]),
    ("add-data-checkpoint-continues", "InvalidEvent",
     [*ROOT_DATA, ev.AddData(prev_offset=9, new_data=data_slice(10, 11), new_watermark=T[1])]),
    ("add-data-checkpoint-continues", "InvalidEvent",
     [RAW, ev.AddData(new_data=data_slice(0, 9), prev_checkpoint=hash_of("c"))]),
    ("add-data-advances", "NoOpEvent",
     [RAW, ev.AddData(new_watermark=T[1], new_source_state=STATE), ev.AddData(new_watermark=T[1], new_source_state=STATE)]),
    ("execute-transform-not-empty", "NoOpEvent", [set_transform(FOO), execute()]),
    ("execute-transform-schema-first", "InvalidEvent", [set_transform(FOO), execute(new_data=data_slice(0, 1))]),
    ("execute-transform-needs-transform", "InvalidEvent", [RAW, execute(new_data=data_slice(0, 1))]),
    ("execute-transform-inputs-order", "InvalidEvent",
     [set_transform(FOO, BAR), RAW, execute(point(BAR), point(FOO), new_data=data_slice(0, 1))]),
    ("execute-transform-inputs-order", "InvalidEvent",
     [set_transform(FOO, BAR), RAW, execute(point(FOO), new_data=data_slice(0, 1))]),
    ("input-block-interval", "InvalidEvent", then(point(**NEXT, new_block_hash=hash_of("b1")))),
    ("input-offset-interval", "InvalidEvent", then(point(**NEXT, new_block_hash=hash_of("b2"), new_offset=9))),
    ("input-prev-block-continues", "InvalidEvent", then(point(prev_block_hash=hash_of("b0"), prev_offset=9))),
    ("input-prev-block-continues", "InvalidEvent", then(point(prev_offset=9))),
    ("input-prev-offset-continues", "InvalidEvent", then(point(prev_block_hash=hash_of("b1"), prev_offset=8))),
    ("input-prev-offset-continues", "InvalidEvent", then(point(prev_block_hash=hash_of("b1")))),
    ("input-offset-needs-block", "InvalidEvent", then(point(**NEXT, new_offset=12))),
    ("execute-transform-checkpoint-continues", "InvalidEvent", then(point(**NEXT), prev_checkpoint=hash_of("c"))),
    ("execute-transform-advances", "NoOpEvent", then(point(**NEXT), new_data=None)),
    ("polling-query-normalized", "InvalidEvent", [polling(preprocess=transform(query="x"))]),
    ("polling-eth-chain", "InvalidEvent", [polling(fetch=FetchStepEthereumLogs())]),
    ("polling-one-schema", "InvalidEvent", [polling(read=BOTH)]),
    ("polling-no-push", "InvalidEvent", [push(), polling()]),
    ("push-query-normalized", "InvalidEvent", [push(preprocess=transform(queries=()))]),
    ("push-one-schema", "InvalidEvent", [push(read=BOTH)]),
    ("push-no-polling", "InvalidEvent", [polling(), push()]),
    ("push-not-identical", "NoOpEvent", [push(), push(source_name="b"), push()]),
    ("disable-defined", "InvalidEvent", [push(), ev.DisablePushSource(source_name="other")]),
    ("disable-defined", "InvalidEvent", [push(), *[ev.DisablePushSource(source_name="default")] * 2]),
    ("disable-defined", "InvalidEvent", [push(), ev.DisablePollingSource()]),
    ("disable-defined", "InvalidEvent", [polling(), *[ev.DisablePollingSource()] * 2]),
    ("set-transform-has-inputs", "InvalidEvent", [set_transform()]),
    ("set-transform-unique-inputs", "InvalidEvent", [set_transform(FOO, FOO)]),
    ("set-transform-resolved", "InvalidEvent",
     [set_transform(inputs=(ev.TransformInput(dataset_ref=parse_ref_any("cities"), alias="c"),))]),
    ("set-transform-resolved", "InvalidEvent",
     [set_transform(inputs=(ev.TransformInput(dataset_ref=RemoteDatasetId(None, FOO)),))]),
    ("transform-no-short-query", "InvalidEvent", [set_transform(FOO, transform=transform(query="x"))]),
    ("transform-has-queries", "InvalidEvent", [set_transform(FOO, transform=transform(queries=None))]),
    ("transform-last-unaliased", "InvalidEvent",
     [set_transform(FOO, transform=transform(queries=(dataclasses.replace(QUERY, alias="x"),)))]),
    ("transform-others-aliased", "InvalidEvent", [set_transform(FOO, transform=transform(queries=(QUERY, QUERY)))]),
    ("schema-not-identical", "NoOpEvent", [ev.SetDataSchema(schema=SCHEMA), ev.SetDataSchema(schema=SCHEMA)]),
    ("schema-compatible", "InvalidEvent",
     [ev.SetDataSchema(schema=SCHEMA), ev.SetDataSchema(schema=ds.DataSchema(fields=(dataclasses.replace(COLUMN, type=ds.DataTypeInt32()),)))]),
    ("schema-readable", "InvalidEvent", [RAW, ev.SetDataSchema(raw_arrow_schema=b"no schema")]),
    ("schema-readable", "InvalidEvent", [RAW, ev.SetDataSchema()]),
    ("schema-compatible", "InvalidEvent", [ev.SetDataSchema(raw_arrow_schema=b"no schema"), RAW]),
    ("schema-compatible", "InvalidEvent",
     [ev.SetDataSchema(raw_arrow_schema=b"no schema"), ev.SetVocab(event_time_column="date")]),
    ("schema-names-unique", "InvalidEvent", [RAW, raw(COLUMN, COLUMN)]),
    ("schema-names-unique", "InvalidEvent",
     [RAW, raw(COLUMN, ds.DataField(name="s", type=ds.DataTypeStruct(fields=(COLUMN, COLUMN))))]),
    ("vocab-names-unique", "InvalidEvent", [ev.SetVocab(event_time_column="op")]),
    ("vocab-names-unique", "InvalidEvent", [ev.SetVocab(offset_column="x", system_time_column="x")]),
    ("vocab-before-data", "InvalidEvent", [*ROOT_DATA, ev.SetVocab(event_time_column="date")]),
    ("vocab-before-data", "InvalidEvent", [ev.SetVocab(offset_column="n"), *ROOT_DATA, ev.SetVocab()]),
    ("vocab-before-data", "InvalidEvent", [RAW, ev.SetVocab(event_time_column="date")]),
    ("vocab-before-data", "InvalidEvent",
     [set_transform(FOO), raw(*SYSTEM, dataclasses.replace(COLUMN, name="date")), FIRST, ev.SetVocab(event_time_column="date")]),
    *[("event-of-dataset-kind", "InvalidEvent", [set_transform(FOO), event]) for event in OF_ROOTS],
    *[("event-of-dataset-kind", "InvalidEvent", [polling(), event]) for event in OF_DERIVATIVES],
]  # fmt: skip

RULE_OF = {
    "polling-query-normalized": "transform-no-short-query",
    "push-query-normalized": "transform-has-queries",
}
OURS = {
    "disable-defined", "schema-readable", "schema-names-unique", "vocab-names-unique", "vocab-before-data",
    "event-of-dataset-kind",
}  # fmt: skip
ELSEWHERE = {
    "seed-first", "seed-only-once", "seq-start-zero",  # below: they are about the first block
    "hash-mismatch", "ref-cas",  # in test_scenarios.py
    "push-after-disable", "disable-unsupported",  # not implemented there, implemented here (RFC-013)
    "push-explicit-schema", "schema-system-columns", "schema-legacy-unchecked",  # the last: RFC-015
}  # fmt: skip


def run(events: list[Any]) -> ChainBuilder:
    builder = ChainBuilder(memory_chain())
    kinds = [belongs_in(step[0] if isinstance(step, tuple) else step) for step in events]
    builder.seed(next((kind for kind in kinds if kind is not None), DatasetKind.ROOT))
    for step in events[:-1]:
        builder.append(step)
    last, changes = events[-1] if isinstance(events[-1], tuple) else (events[-1], {})
    builder.chain.append(builder.block(last, **changes))
    return builder


@pytest.mark.parametrize(
    ("rule", "kind", "events"), VIOLATIONS, ids=[f"{v[0]}-{i}" for i, v in enumerate(VIOLATIONS)]
)
def test_violation(rule: str, kind: str, events: list[Any]) -> None:
    with pytest.raises(AppendError) as caught:
        run(events)
    assert caught.value.rule == RULE_OF.get(rule, rule)
    assert caught.value.kind == kind


def test_every_rule_of_the_file_is_covered_and_has_the_kind_it_says() -> None:
    rules = {r["id"]: r for r in conformance("chain_rules")["rules"]}
    covered = {rule for rule, _, _ in VIOLATIONS}
    assert set(rules) == covered - OURS | ELSEWHERE
    for rule, kind, _ in VIOLATIONS:
        if rule not in {"prev-block-exists", *OURS}:
            assert rules[rule]["error"] == kind, rule


def test_the_first_block() -> None:
    seed = ev.Seed(dataset_id=FOO, dataset_kind=DatasetKind.ROOT)
    builder = ChainBuilder(memory_chain())
    with pytest.raises(AppendError) as caught:
        builder.append(RAW)
    assert (caught.value.kind, caught.value.rule) == ("FirstBlockMustBeSeed", "seed-first")
    with pytest.raises(AppendError) as caught:
        builder.append(seed, sequence_number=1)
    assert (caught.value.kind, caught.value.rule) == ("SequenceIntegrity", "seq-start-zero")
    builder.append(seed)
    with pytest.raises(AppendError) as caught:
        builder.append(seed)
    assert (caught.value.kind, caught.value.rule) == ("AppendingSeedBlockToNonEmptyChain", "seed-only-once")


ACCEPTED: list[list[Any]] = [
    [push()],
    [push(), push(source_name="b"), push(read=ReadStepCsv(header=True))],
    [polling(), polling()],
    [push(), ev.DisablePushSource(source_name="default"), push()],
    [push(), push(source_name="b"), ev.DisablePushSource(source_name="b"), push(source_name="b")],
    [push(), ev.DisablePushSource(source_name="default"), polling(), ev.DisablePollingSource(), push()],
    [RAW, RAW],
    [RAW, ev.SetDataSchema(schema=SCHEMA)],
    [ev.SetDataSchema(schema=SCHEMA), RAW],
    [ev.AddData(new_source_state=STATE)],
    [ev.AddData(prev_offset=41, new_watermark=T[1])],
    [RAW, ev.AddData(new_data=data_slice(0, 0))],
    [*ROOT_DATA, ev.AddData(prev_offset=9, prev_checkpoint=hash_of("c"), new_watermark=T[1], new_checkpoint=checkpoint("c"),
                            new_source_state=STATE)],
    [*ROOT_DATA, ev.AddData(prev_offset=9, prev_checkpoint=hash_of("c"), new_watermark=T[1])],
    then(point(**NEXT)),
    then(point(**NEXT, new_block_hash=hash_of("b2")), new_data=None),
    then(point(**NEXT, new_block_hash=hash_of("b2"), new_offset=12)),
    [set_transform(FOO), set_transform(BAR)],
    [ev.SetInfo(), ev.SetInfo()],
    [ev.SetVocab(event_time_column="date"), *ROOT_DATA, ev.SetVocab(event_time_column="date")],
    [*ROOT_DATA, ev.SetVocab()],
    [raw(*SYSTEM, dataclasses.replace(COLUMN, name="date")), ev.SetVocab(event_time_column="date")],
]  # fmt: skip


@pytest.mark.parametrize("events", ACCEPTED, ids=range(len(ACCEPTED)))
def test_accepted(events: list[Any]) -> None:
    run(events)


def test_which_error_wins() -> None:
    """On the block alone first, then its predecessor, sequence, time, watermark, offsets, then its kind."""
    worst = ev.AddData(prev_offset=3, new_data=data_slice(9, 8))
    changes = {"prev_block_hash": hash_of("x"), "sequence_number": 77, "system_time": Timestamp(0)}
    ladder = [
        (worst, changes, "offset-interval-start"),
        (ev.AddData(prev_offset=8, new_data=data_slice(9, 8)), changes, "offset-interval-order"),
        (ev.AddData(prev_offset=8, new_data=data_slice(9, 9)), changes, "prev-block-exists"),
        (ev.AddData(prev_offset=8, new_data=data_slice(9, 9)), {k: v for k, v in changes.items() if k != "prev_block_hash"}, "seq-plus-one"),
        (ev.AddData(prev_offset=8, new_data=data_slice(9, 9)), {"system_time": Timestamp(0)}, "system-time-monotonic"),
        (ev.AddData(prev_offset=8, new_data=data_slice(9, 9)), {}, "watermark-kept"),
        (ev.AddData(prev_offset=8, new_data=data_slice(9, 9), new_watermark=T[1]), {}, "prev-offset-continues"),
        (ev.AddData(prev_offset=9, new_data=data_slice(10, 10), new_watermark=T[1]), {}, "add-data-checkpoint-continues"),
    ]  # fmt: skip
    for event, changed, rule in ladder:
        with pytest.raises(AppendError) as caught:
            run([*ROOT_DATA, (event, changed)])
        assert caught.value.rule == rule
