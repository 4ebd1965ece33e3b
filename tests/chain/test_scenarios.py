"""`chain_rules.json`: the scenarios, step by step, on a chain in memory and on one with an index."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from odfchain.chain.chain import MetadataChain
from odfchain.errors import AppendError, ChainError, ObjectNotFoundError, OdfchainError, RefConflictError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import DatasetKind, TimeUnit
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import MemoryScratch
from tests.kit.support import (
    RAW_SCHEMA,
    TWO_SCHEMAS,
    ChainBuilder,
    cases,
    checkpoint,
    conformance,
    data_slice,
    execute,
    hash_of,
    kind_of,
    memory_chain,
    polling,
    push,
    seeded_id,
    set_transform,
)

MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
T = Timestamp.parse("2020-01-01T12:00:00Z")
TYPES: dict[str, ds.DataType] = {
    "Int64": ds.DataTypeInt64(), "Int32": ds.DataTypeInt32(), "String": ds.DataTypeString(), "Timestamp": MS,
    "i64": ds.DataTypeInt64(), "i32": ds.DataTypeInt32(), "utf8": ds.DataTypeString(), "ts(ms,UTC)": MS,
}  # fmt: skip


@pytest.fixture(params=["walked", "indexed"])
def chain(request: pytest.FixtureRequest) -> MetadataChain:
    return memory_chain(scratch=MemoryScratch() if request.param == "indexed" else None)


def add_data(builder: ChainBuilder, start: int, end: int, **kwargs: Any) -> ev.AddData:
    prev = start - 1 if start else None
    return ev.AddData(prev_offset=prev, new_data=data_slice(start, end), **kwargs)


def base_schema(**changes: Any) -> ds.DataSchema:
    scenarios = {scenario["id"]: scenario for scenario in conformance("chain_rules")["scenarios"]}
    given = [text.split() for text in scenarios["schema_evolution"]["base_fields"]]
    fields = [ds.DataField(name=name, type=TYPES[kind]) for name, kind in given]
    return ds.DataSchema(fields=tuple(changes["edit"](fields) if "edit" in changes else fields))


def edited(name: str, /, **changes: Any) -> ds.DataSchema:
    return base_schema(
        edit=lambda fields: [dataclasses.replace(f, **changes) if f.name == name else f for f in fields]
    )


def odf(schema: ds.DataSchema) -> ev.SetDataSchema:
    return ev.SetDataSchema(schema=schema)


def with_field(*, optional: bool) -> ds.DataSchema:
    text = ds.DataTypeString()
    new = ds.DataField(name="survey_url", type=ds.optional(text) if optional else text)
    return base_schema(edit=lambda fields: [*fields, new])


def legacy_fields(text: str) -> ds.DataSchema:
    """`raw Arrow: offset i64 req, …` as a schema."""
    fields = []
    for part in re.split(r", (?=\w+ )", text.removeprefix("raw Arrow: ")):
        name, kind, needed = part.split()
        data_type = TYPES[kind] if needed == "req" else ds.optional(TYPES[kind])
        fields.append(ds.DataField(name=name, type=data_type))
    return ds.DataSchema(fields=tuple(fields))


LEGACY = "raw Arrow: offset i64 req, op i32 req, system_time ts(ms,UTC) req, event_time ts(ms,UTC) null, city utf8 null, population i64 null"


def required(**rename: str) -> ds.DataSchema:
    fields = legacy_fields(LEGACY).fields
    return ds.DataSchema(
        fields=tuple(ds.DataField(name=rename.get(f.name, f.name), type=f.value_type) for f in fields)
    )


def optional_city() -> ds.DataSchema:
    fields = [
        dataclasses.replace(f, type=ds.optional(f.type)) if f.name == "city" else f for f in required().fields
    ]
    return ds.DataSchema(fields=tuple(fields))


EVENTS: dict[str, Any] = {
    "Seed": lambda b: ev.Seed(dataset_id=seeded_id("test"), dataset_kind=DatasetKind.ROOT),
    "Seed(Root)": lambda b: ev.Seed(dataset_id=seeded_id("test"), dataset_kind=DatasetKind.ROOT),
    "Seed(Derivative)": lambda b: ev.Seed(dataset_id=seeded_id("test"), dataset_kind=DatasetKind.DERIVATIVE),
    "Seed, without moving a reference": lambda b: ev.Seed(
        dataset_id=seeded_id("test"), dataset_kind=DatasetKind.ROOT
    ),
    "SetDataSchema": lambda b: RAW_SCHEMA,
    "SetDataSchema, caller expects head = 'does-not-exist'": lambda b: RAW_SCHEMA,
    "AddData": lambda b: ev.AddData(new_watermark=T),
    "AddData 0..9": lambda b: add_data(b, 0, 9),
    "AddData 10..19": lambda b: add_data(b, 10, 19),
    "AddData 20..29": lambda b: add_data(b, 20, 29),
    "SetTransform(foo, bar)": lambda b: set_transform(),
    "ExecuteTransform(foo, bar) with data, checkpoint, watermark, empty inputs": lambda b: execute(
        new_data=data_slice(0, 9), new_checkpoint=checkpoint("foo"), new_watermark=T
    ),
    "ExecuteTransform(foo, bar) without data, same checkpoint and watermark, empty inputs": lambda b: execute(
        prev_offset=9, prev_checkpoint=hash_of("foo"), new_checkpoint=checkpoint("foo"), new_watermark=T
    ),
    "ExecuteTransform(foo, bar) newCheckpoint 'foo' size 1, no data": lambda b: execute(
        new_checkpoint=checkpoint("foo")
    ),
    "ExecuteTransform prevCheckpoint 'foo', newCheckpoint 'bar', data 0..9": lambda b: execute(
        prev_checkpoint=hash_of("foo"), new_checkpoint=checkpoint("bar"), new_data=data_slice(0, 9)
    ),
    "same ExecuteTransform again": lambda b: execute(
        prev_checkpoint=hash_of("foo"), new_checkpoint=checkpoint("bar"), new_data=data_slice(0, 9)
    ),
    "AddPushSource NdJson without schema": lambda b: push(),
    "AddPushSource default NdJson Append": lambda b: push(),
    "same again": lambda b: push(),
    "AddPushSource another, otherwise the same": lambda b: push("another"),
    "AddPushSource default with schema [foo String]": lambda b: push(ddl_schema=("foo STRING",)),
    "SetPollingSource": lambda b: polling(),
    "AddPushSource NdJson with schema and ddlSchema": lambda b: push(**TWO_SCHEMAS),
    "SetPollingSource NdJson with schema and ddlSchema": lambda b: polling(**TWO_SCHEMAS),
    "base": lambda b: odf(base_schema()),
    "base again": lambda b: odf(base_schema()),
    "city gets attribute kamu.dev/test": lambda b: odf(
        edited("city", extra=ds.ExtraAttributes({"kamu.dev/test": "x"}))
    ),
    "attribute removed": lambda b: odf(base_schema()),
    "city renamed to pity": lambda b: odf(edited("city", name="pity")),
    "city made optional": lambda b: odf(edited("city", type=ds.optional(ds.DataTypeString()))),
    "required field survey_url added": lambda b: odf(with_field(optional=False)),
    "optional field survey_url added": lambda b: odf(with_field(optional=True)),
    LEGACY: lambda b: ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(legacy_fields(LEGACY))),
    "ODF with pity instead of city": lambda b: odf(required(city="pity")),
    "ODF, same names and types, all required": lambda b: odf(required()),
    "ODF, city optional": lambda b: odf(optional_city()),
}


def changes_of(step: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if "seq" in step:
        changes["sequence_number"] = step["seq"]
    if step.get("prev", "").startswith("multihash of utf8"):
        changes["prev_block_hash"] = hash_of(re.findall("'(.*)'", step["prev"])[0])
    if step.get("systemTime", "the present") != "the present":
        changes["system_time"] = Timestamp.parse(step["systemTime"])
    return changes


def run_event(builder: ChainBuilder, step: dict[str, Any]) -> None:
    event = EVENTS[step["event"]](builder)
    if "newWatermark" in step:
        watermark = step["newWatermark"]
        event = dataclasses.replace(event, new_watermark=Timestamp.parse(watermark) if watermark else None)
    changes = changes_of(step)
    if step.get("systemTime") == "the present":
        changes["system_time"] = Timestamp.now()
    kwargs: dict[str, Any] = {}
    if "without moving" in step["event"]:
        kwargs["publish"] = False
    if "does-not-exist" in step["event"]:
        kwargs["expected_ref"] = hash_of("does-not-exist")
    block = builder.block(event, **changes)
    if step.get("ok"):
        builder.prev = builder.chain.append(block, **kwargs)
        builder.sequence = block.sequence_number + 1
        return
    before = builder.chain.head()
    with pytest.raises(OdfchainError) as caught:
        builder.chain.append(block, **kwargs)
    assert kind_of(caught.value) == step["error"], str(caught.value)
    assert builder.chain.head() == before, "a refused block moved the head"


def run_other(builder: ChainBuilder, step: dict[str, Any]) -> None:
    chain = builder.chain
    if step.get("check") == "head still at Seed":
        assert isinstance(chain.get(chain.head()).event, ev.Seed)
    elif step.get("check") == "head not found":
        assert chain.head() is None
    elif step["op"] == "set head to an unknown hash":
        with pytest.raises(ObjectNotFoundError):
            chain.set_ref("head", hash_of("unknown"), expected=None)
    elif step["op"].startswith("set head with expected"):
        with pytest.raises(RefConflictError):
            chain.set_ref("head", builder.prev, expected=hash_of("wrong"))
    elif step["op"] == "set head":
        chain.set_ref("head", builder.prev, expected=None)
        assert chain.head() == builder.prev
    else:
        run_iteration(builder, step)


def run_iteration(builder: ChainBuilder, step: dict[str, Any]) -> None:
    chain = builder.chain
    if step["op"].startswith("blocks 1..4"):
        builder.seed()
        builder.append(RAW_SCHEMA)
        builder.append(add_data(builder, 0, 9))
        builder.append(add_data(builder, 10, 19))
    names = [hb.hash for hb in chain.walk()][::-1]

    def walked(head: int, **kwargs: Any) -> str:
        found = [names.index(hb.hash) + 1 for hb in chain.walk(names[head - 1], **kwargs)]
        return ",".join(map(str, found))

    match step["op"]:
        case op if op.startswith("blocks 1..4"):
            assert walked(4) == step["result"]
        case "from 3, tail 1":
            assert walked(3, tail=names[0]) == step["result"].split()[0]
        case "from 3, tail unknown":
            with pytest.raises(ChainError, match=step["error"]):
                walked(3, tail=hash_of("unknown"))
        case "from 3, tail unknown, missing tail ignored":
            assert walked(3, tail=hash_of("unknown"), ignore_missing_tail=True) == step["result"]
        case other:
            raise AssertionError(other)


STARTS_AFTER_SEED = ("schema_evolution", "schema_legacy_upgrade_flat")
"""Scenarios that leave the Seed out because they are about what comes later."""


@pytest.mark.parametrize("scenario", cases("chain_rules", "scenarios"))
def test_scenario(scenario: dict[str, Any], chain: MetadataChain) -> None:
    builder = ChainBuilder(chain)
    derived = any("Transform" in step.get("event", "") for step in scenario["steps"])
    if scenario["id"] in STARTS_AFTER_SEED:
        builder.seed()
    for step in scenario["steps"]:
        if step.get("event") == "Seed" and derived:  # the file does not say of which kind
            run_event(builder, step | {"event": "Seed(Derivative)"})
        elif "event" in step:
            run_event(builder, step)
        else:
            run_other(builder, step)


def test_sequence_error_says_which_numbers(chain: MetadataChain) -> None:
    builder = ChainBuilder(chain)
    builder.seed()
    with pytest.raises(AppendError, match="block 4 cannot follow block 0"):
        chain.append(builder.block(RAW_SCHEMA, sequence_number=4))


def test_hash_mismatch(chain: MetadataChain) -> None:
    builder = ChainBuilder(chain)
    block = builder.block(EVENTS["Seed"](builder))
    with pytest.raises(AppendError) as caught:
        chain.append(block, expected_hash=hash_of("other"))
    assert caught.value.kind == "HashMismatch"
    chain.append(block)
