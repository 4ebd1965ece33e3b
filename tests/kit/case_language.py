"""How `protocol_cases.json` writes chains, blocks to be appended, and what is expected.

Labels of blocks and the structured parts are read by their grammar, sentences by a table. What is in neither
is an error, so that no case passes without having been understood.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from odfchain.chain.chain import MetadataChain
from odfchain.errors import AppendError, OdfchainError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from tests.kit.support import (
    T0,
    TWO_SCHEMAS,
    ChainBuilder,
    checkpoint,
    data_slice,
    execute,
    hash_of,
    kind_of,
    polling,
    push,
    seeded_id,
    set_transform,
)

CITIES = ds.DataSchema(
    fields=(
        ds.DataField(name="city", type=ds.DataTypeString()),
        ds.DataField(name="population", type=ds.DataTypeInt64()),
    )
)


class Given:
    """The chain that labels like `seed`, `SetTransform(foo,bar)` and `d1(0..9, wm none)` stand for.

    `d1` … are AddData and `t1` … ExecuteTransform: ten records after the last ones, unless something else
    is said, with the links that the chain so far asks for.
    """

    def __init__(self, chain: MetadataChain, labels: Sequence[str]) -> None:
        self.builder = ChainBuilder(chain)
        self.derived = any(label.startswith("SetTransform") for label in labels)
        self.blocks: list[Multihash] = []
        self._named: dict[str, Multihash] = {}
        for label in labels:
            name, _, arguments = label.removesuffix(")").partition("(")
            added = self.builder.append(self._event(name, [a.strip() for a in arguments.split(",") if a]))
            self.blocks.append(added)
            self._named[name] = added

    def hash(self, value: str | int | None) -> Multihash | None:
        """A block by its label or position, or any hash: `hash of "…"`."""
        if value is None or isinstance(value, int):
            return None if value is None else self.blocks[value]
        found = re.fullmatch(r'hash of "(.*)"', value)
        return hash_of(found[1]) if found else self._named[value]

    def _event(self, name: str, arguments: list[str]) -> ev.MetadataEvent:
        if re.fullmatch(r"[dt]\d+", name):
            kind = ev.AddData if name[0] == "d" else ev.ExecuteTransform
            said = [_data_argument(a) for a in arguments if a != "data"]  # which there is anyway
            return self.following(kind, **dict(said))
        match name, arguments:
            case "seed", []:
                kind = DatasetKind.DERIVATIVE if self.derived else DatasetKind.ROOT
                return ev.Seed(dataset_id=seeded_id("test"), dataset_kind=kind)
            case "schema", []:
                return ev.SetDataSchema(schema=CITIES)
            case "SetTransform", inputs:
                return set_transform(*inputs)
            case "SetPollingSource", []:
                return polling()
            case "AddPushSource", ([] | [_]) as source:
                return push(*source)
        raise AssertionError(f"not understood: {name}({', '.join(arguments)})")

    def following(
        self,
        kind: type[ev.AddData | ev.ExecuteTransform] | None = None,
        after: Multihash | None = None,
        **changes: Any,
    ) -> ev.AddData | ev.ExecuteTransform:
        """The data event that continues the chain; with changes it may break any rule."""
        kind = kind or (ev.ExecuteTransform if self.derived else ev.AddData)
        after = after or self.builder.prev
        last = self._nearest("AddData", "ExecuteTransform", after=after)
        same = self._nearest(kind.KIND, after=after)
        offset = last.last_offset if last else None
        start = 0 if offset is None else offset + 1
        state = same.new_checkpoint if same else None
        fields = {
            "prev_offset": offset,
            "prev_checkpoint": state.physical_hash if state else None,
            "new_data": data_slice(start, start + 9),
            "new_watermark": last.new_watermark if last else None,
        } | changes
        if kind is ev.AddData:
            return ev.AddData(**fields)
        transform = self._nearest("SetTransform", after=after)
        return execute(*(i.alias for i in transform.inputs) if transform else (), **fields)

    def _nearest(self, *kinds: str, after: Multihash | None) -> Any:
        found = self.builder.chain.nearest(*kinds, head=after) if after in self.blocks else None
        return found.block.event if found else None

    @property
    def newest(self) -> ev.MetadataEvent:
        """The event of the last block."""
        return self.builder.chain.get(self.blocks[-1]).event


def _data_argument(text: str) -> tuple[str, Any]:
    """What `0..9`, `wm none`, `checkpoint c1` … say of a data event."""
    match text.split():
        case ["no", "data"]:
            return "new_data", None
        case ["checkpoint"]:
            return "new_checkpoint", checkpoint("c")
        case ["checkpoint", label]:
            return "new_checkpoint", checkpoint(label)
        case ["watermark"]:
            return "new_watermark", T0
        case ["wm", "none"]:
            return "new_watermark", None
        case ["wm", time]:
            return "new_watermark", Timestamp.parse(time)
        case [interval] if found := re.fullmatch(r"(\d+)\.\.(\d+)", interval):
            return "new_data", data_slice(int(found[1]), int(found[2]))
    raise AssertionError(f"not understood: {text!r}")


def no_news(given: Given) -> ev.MetadataEvent:
    """A data event that repeats the one before it, without its records."""
    earlier = given.newest
    assert isinstance(earlier, ev.AddData | ev.ExecuteTransform)
    return given.following(type(earlier), new_data=None, new_checkpoint=earlier.new_checkpoint)


def with_columns(*fields: ds.DataField) -> ev.SetDataSchema:
    return ev.SetDataSchema(schema=ds.DataSchema(fields=fields))


TEXT = ds.DataTypeString()
CITY, POPULATION = CITIES.fields
SENTENCES: dict[str, Callable[[Given], Sequence[ev.MetadataEvent]]] = {
    "valid block with expected_hash of other bytes": lambda _: [ev.SetInfo(description="next")],
    "SetDataSchema": lambda _: [ev.SetDataSchema(schema=CITIES)],
    "AddData without data, same checkpoint, watermark and source state": lambda g: [no_news(g)],
    "AddData with nothing set": lambda _: [ev.AddData()],
    "ExecuteTransform: no data, no advanced input, same checkpoint and watermark": lambda g: [no_news(g)],
    "AddData with data": lambda g: [g.following(ev.AddData)],
    "ExecuteTransform with data": lambda g: [g.following(ev.ExecuteTransform)],
    "AddPushSource": lambda _: [push()],
    "the identical AddPushSource": lambda g: [g.newest],
    "source read step that has both a DDL schema and an ODF schema": lambda _: [
        push(**TWO_SCHEMAS),
        polling(**TWO_SCHEMAS),
    ],
    "same SetDataSchema": lambda g: [g.newest],
    "column renamed": lambda _: [with_columns(dataclasses.replace(CITY, name="town"), POPULATION)],
    "new required column": lambda _: [with_columns(*CITIES.fields, ds.DataField(name="x", type=TEXT))],
    "new optional column": lambda _: [
        with_columns(*CITIES.fields, ds.DataField(name="x", type=ds.optional(TEXT)))
    ],
}
DATA_KEYS = {"offsets", "prev_offset", "new_watermark", "prev_checkpoint"}
LINK_KEYS = {"prev", "seq", "system_time", "check_ref_is"}


class Attempt(NamedTuple):
    """An event to append, the fields of its block, and what is asked of the chain."""

    event: ev.MetadataEvent
    fields: dict[str, Any]
    options: dict[str, Any]


def attempts(given: Given, wanted: str | dict[str, Any]) -> list[Attempt]:
    """What `append` of a case says."""
    if isinstance(wanted, str):
        assert wanted in SENTENCES, f"not understood: {wanted!r}"
        options = {"expected_hash": hash_of("other")} if "expected_hash" in wanted else {}
        return [Attempt(event, {}, options) for event in SENTENCES[wanted](given)]
    unknown = wanted.keys() - DATA_KEYS - LINK_KEYS
    assert not unknown, f"not understood: {sorted(unknown)}"
    fields: dict[str, Any] = {}
    prev = given.builder.prev
    if "prev" in wanted:
        prev = fields["prev_block_hash"] = given.hash(wanted["prev"])
        fields["sequence_number"] = given.blocks.index(prev) + 1 if prev in given.blocks else 0
    if "seq" in wanted:
        fields["sequence_number"] = wanted["seq"]
    if "system_time" in wanted:
        fields["system_time"] = time_near(given, wanted["system_time"])
    options = {"expected_ref": given.hash(wanted["check_ref_is"])} if "check_ref_is" in wanted else {}
    if not wanted.keys() & DATA_KEYS:
        return [Attempt(ev.SetInfo(description="next"), fields, options)]
    return [Attempt(given.following(after=prev, **data_changes(wanted)), fields, options)]


def data_changes(wanted: dict[str, Any]) -> dict[str, Any]:
    """What the keys about data change in the event that would continue the chain."""
    changes: dict[str, Any] = {}
    for key in wanted.keys() & DATA_KEYS:
        value = wanted[key]
        match key:
            case "offsets":
                changes["new_data"] = data_slice(*value) if value else None
            case "prev_offset":
                changes[key] = value
            case "new_watermark":
                changes[key] = Timestamp.parse(value) if value else None
            case "prev_checkpoint":
                changes[key] = hash_of(value) if value else None
    return changes


def time_near(given: Given, text: str) -> Timestamp:
    """A time, or one beside that of the previous block."""
    steps = {"equal to": 0, "before": -1, "after": 1}
    previous = given.builder.chain.get(given.blocks[-1]).system_time
    relation = text.removesuffix(" the previous block")
    if relation in steps:
        return Timestamp.from_epoch_ms(previous.epoch_ms + steps[relation])
    return Timestamp.parse(text)


class Expected(NamedTuple):
    """`name (detail); after`."""

    name: str
    detail: str | None
    after: str | None

    @classmethod
    def parse(cls, text: str) -> Expected:
        found = re.fullmatch(r"(\w+) ?(?:\(([^()]*)\))?(?:; (.+))?", text)
        assert found, f"not understood: {text!r}"
        return cls(*found.groups())


def check_refusal(error: OdfchainError, expected: Expected) -> None:
    """The error is the expected one in all that a case says of it."""
    assert kind_of(error) == expected.name, str(error)
    match expected.detail and expected.detail.split():
        case None:
            pass
        case ["prev", prev, "next", following]:
            assert f"block {following.rstrip(',')} cannot follow block {prev.rstrip(',')}" in str(error)
        case ["empty", "event"]:
            assert isinstance(error, AppendError)
            assert error.rule.endswith("-not-empty")
        case other:
            raise AssertionError(f"not understood: {other}")
    assert expected.after in (None, "head unchanged"), f"not understood: {expected.after}"
