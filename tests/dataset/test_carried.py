"""Manifests of ODF 0.37 and later become events of 0.34.1, or are refused by the path of what cannot."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.chain.rules import canonical
from odfchain.errors import ManifestError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.manifests import DATASET_SNAPSHOT, read_manifest, snapshot_document
from odfchain.odf.schema import parse_ddl
from odfchain.odf.sources import ReadStepCsv
from odfchain.odf.tree import from_tree
from odfchain.odf.yaml import Document
from odfchain.workspace.creation import events_of
from tests.kit.support import conformance, snapshot


def manifest(read: dict[str, Any], *, kind: str = "AddPushSource") -> dict[str, Any]:
    source: dict[str, Any] = {"kind": kind}
    if kind == "SetPollingSource":
        source["fetch"] = {"kind": "Url", "url": "https://example.com"}
    else:
        source["sourceName"] = "default"
    return document_of({**source, "read": read, "merge": {"kind": "Append"}})


def document_of(event: dict[str, Any]) -> dict[str, Any]:
    return json.loads(snapshot("d", event))


def recorded(document: dict[str, Any]) -> Any:
    """The first event that is made of a manifest."""
    (event,) = events_of(read_manifest(Document(document), DATASET_SNAPSHOT, None), lambda _: None)
    return event


def fields(*types: Any) -> dict[str, Any]:
    return {"fields": [{"name": f"c{i}", "type": t} for i, t in enumerate(types)]}


def option(inner: Any) -> dict[str, Any]:
    return {"kind": "Option", "inner": inner}


CARRIED: list[tuple[Any, str]] = [
    ("String", "STRING NOT NULL"),
    ("string", "STRING NOT NULL"),
    ({"kind": "string"}, "STRING NOT NULL"),
    (option("int64"), "BIGINT"),
    ({"kind": "option", "inner": {"kind": "Int32"}}, "INT"),
    ("bool", "BOOLEAN NOT NULL"),
    (option("uInt8"), "TINYINT UNSIGNED"),
    (option("UInt64"), "BIGINT UNSIGNED"),
    (option("float32"), "FLOAT"),
    (option("Float64"), "DOUBLE"),
    (option("date"), "DATE"),
    ("timestamp", "TIMESTAMP(3) NOT NULL"),
    (option({"kind": "Timestamp", "unit": "Millisecond", "timezone": "UTC"}), "TIMESTAMP(3)"),
    (option({"kind": "Decimal", "precision": 10, "scale": 2}), "DECIMAL(10,2)"),
    (option({"kind": "Time", "unit": "Microsecond"}), "TIME(6)"),
    (option({"kind": "Binary", "fixedLength": 16}), "BINARY(16)"),
    (option({"kind": "List", "itemType": "string"}), "ARRAY<STRING>"),
    (
        option({"kind": "Struct", "fields": [{"name": "a", "type": "int64"}, {"name": "b", "type": option("string")}]}),
        "STRUCT<a BIGINT NOT NULL, b STRING>",
    ),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["AddPushSource", "SetPollingSource"])
@pytest.mark.parametrize(
    "read", ["Csv", "NdJson", "Json", "GeoJson", "NdGeoJson", "EsriShapefile", "Parquet"]
)
def test_every_read_step_is_recorded_with_ddl(kind: str, read: str) -> None:
    event = recorded(manifest({"kind": read, "schema": fields(*(t for t, _ in CARRIED))}, kind=kind))
    assert event.read.schema is None
    assert event.read.ddl_schema == tuple(f"c{i} {ddl}" for i, (_, ddl) in enumerate(CARRIED))
    same = recorded(manifest({"kind": read, "ddlSchema": list(event.read.ddl_schema)}, kind=kind))
    assert same == event
    assert recorded(manifest({"kind": read, "schema": list(event.read.ddl_schema)}, kind=kind)) == event


def test_the_manifest_itself_is_printed_as_it_was() -> None:
    document = manifest({"kind": "Csv", "schema": fields({"kind": "Option", "inner": {"kind": "Int64"}})})
    assert snapshot_document(read_manifest(Document(document), DATASET_SNAPSHOT, None)) == document


HERE = "metadata[0].read.schema"
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (fields("string", "Duration"), f"{HERE}.fields[1].type", "Duration"),
    (fields("Null"), f"{HERE}.fields[0].type", "Null"),
    (fields(option("Float16")), f"{HERE}.fields[0].type", "Float16"),
    (fields({"kind": "Decimal", "precision": 60, "scale": 2}), f"{HERE}.fields[0]", "DECIMAL(60,2)"),
    (fields({"kind": "Timestamp", "timezone": "Europe/Paris"}), f"{HERE}.fields[0].type", "'Europe/Paris'"),
    (fields({"kind": "Timestamp", "timezone": ""}), f"{HERE}.fields[0].type", "without a time zone"),
    (fields({"kind": "List", "itemType": "string", "fixedLength": 3}), f"{HERE}.fields[0].type", "3 items"),
    (fields({"kind": "List", "itemType": option("string")}), f"{HERE}.fields[0].type.itemType", "optional STRING"),
    (
        fields({"kind": "Map", "keyType": "string", "valueType": "string", "keysSorted": True}),
        f"{HERE}.fields[0].type", "sorted keys",
    ),
    (
        fields({"kind": "Struct", "fields": [{"name": "x", "type": {"kind": "List", "itemType": option("int8")}}]}),
        f"{HERE}.fields[0].type.fields[0].type.itemType", "optional TINYINT",
    ),
    ({"fields": [{"name": "a", "type": "string", "extra": {"x.org/y": 1}}]}, f"{HERE}.fields[0].extra", "x.org/y"),
    (
        fields({"kind": "List", "itemType": {"kind": "Struct", "fields": [{"name": "a", "type": "string", "extra": {"x.org/y": 1}}]}}),
        f"{HERE}.fields[0].type.itemType.fields[0].extra", "x.org/y",
    ),
    ({"fields": [{"name": "a", "type": "string"}], "extra": {"x.org/y": 1}}, f"{HERE}.extra", "x.org/y"),
    ({"fields": []}, HERE, "empty"),
    ({"fields": [{"name": "a", "type": "string"}, {"name": "a", "type": "string"}]}, HERE, "declared twice"),
    ({"fields": [{"name": 'a`b"', "type": "string"}]}, f"{HERE}.fields[0]", "cannot read the schema"),
    ({"fields": [{"name": "", "type": "string"}]}, f"{HERE}.fields[0]", "schema"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "path", "message"), REFUSED)
def test_what_ddl_cannot_say_is_refused_by_its_path(schema: Any, path: str, message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)) as caught:
        recorded(manifest({"kind": "NdJson", "schema": schema}))
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("read", "path", "message"),
    [
        ({"schema": fields("string"), "ddlSchema": ["a STRING"]}, "metadata[0].read", "twice"),
        ({"schema": ["a FROB"]}, "metadata[0].read.schema", "type FROB is not supported"),
        ({"timestampFormat": "%Q"}, "metadata[0].read.timestampFormat", "'%Q' is not known"),
        ({"dateFormat": "YYYY"}, "metadata[0].read.dateFormat", "'YYYY'"),
        ({"dateFormat": "yyyy-mm-dd"}, "metadata[0].read.dateFormat", "does not read the month"),
        ({"timestampFormat": "%H:%M"}, "metadata[0].read.timestampFormat", "does not read the year"),
        ({"schema": {"fields": [{"name": "a", "type": "string", "nullable": True}]}}, f"{HERE}.fields[0]", "nullable"),
        ({"schema": {"fields": [{"name": "a", "type": {"kind": "int64", "width": 8}}]}}, f"{HERE}.fields[0].type", "width"),
        ({"schema": {"fields": [{"name": "a", "type": "bigint"}]}}, f"{HERE}.fields[0].type", "bigint"),
        ({"skipRows": 3}, "metadata[0].read", "skipRows"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_its_path(read: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        recorded(manifest({"kind": "Csv", **read}))
    assert caught.value.path.startswith(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["%Y-%m-%d", "yyyy-MM-dd", "rfc3339"])
def test_a_format_is_recorded_as_it_was_written(text: str) -> None:
    event = recorded(manifest({"kind": "Csv", "timestampFormat": text, "dateFormat": text}))
    assert (event.read.timestamp_format, event.read.date_format) == (text, text)


# --- SetDataSchema ---------------------------------------------------------------------------------


def declared(schema: Any) -> dict[str, Any]:
    return document_of({"kind": "SetDataSchema", "schema": schema})


def test_a_declared_schema_is_recorded_as_raw_arrow() -> None:
    types = ["UInt64", "Int32", {"kind": "Timestamp"}, option("timestamp"), option("float32")]
    event = recorded(declared(fields(*types)))
    assert event.schema is None
    back = schema_of_event(event.raw_arrow_schema, None)
    given_types = [from_tree(ds.DataType, t) for t in types]  # type: ignore[arg-type]
    assert [canonical(f.type) for f in back.fields] == [canonical(t) for t in given_types]


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"fields": [{"name": "a", "type": "string", "extra": {"x.org/y": 1}}]}, "metadata[0].schema.fields[0].extra"),
        ({"fields": [{"name": "a", "type": "string"}], "extra": {"x.org/y": 1}}, "metadata[0].schema.extra"),
    ],
)  # fmt: skip
def test_attributes_of_a_declared_schema_are_refused(schema: Any, path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        recorded(declared(schema))
    assert caught.value.path == path


def test_blocks_of_others_keep_the_newer_form() -> None:
    cases = {case["id"]: case for case in conformance("yaml_manifests")["test_cases"]}
    case = cases["block_set_data_schema_odf"]
    event = from_tree(ev.MetadataEvent, case["input"]["content"]["event"])  # type: ignore[arg-type]
    assert isinstance(event, ev.SetDataSchema)
    assert event.schema is not None


# --- any schema ------------------------------------------------------------------------------------

SIMPLE = st.sampled_from(
    [ds.DataTypeBool(), ds.DataTypeInt8(), ds.DataTypeUInt64(), ds.DataTypeFloat64(), ds.DataTypeString(),
     ds.DataTypeDate(), ds.DataTypeNull(), ds.DataTypeFloat16(), ds.DataTypeBinary(), ds.DataTypeBinary(fixed_length=16),
     ds.DataTypeTimestamp(), ds.DataTypeTime(), ds.DataTypeDuration()]
)  # fmt: skip
NAMES = st.text(min_size=1, max_size=5)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    column = st.builds(ds.DataField, name=NAMES, type=inner)
    return (
        st.builds(ds.optional, inner)
        | st.builds(ds.DataTypeList, item_type=inner, fixed_length=st.none() | st.integers(1, 3))
        | st.builds(ds.DataTypeMap, key_type=inner, value_type=inner, keys_sorted=st.none() | st.booleans())
        | st.builds(ds.DataTypeStruct, fields=st.lists(column, min_size=1, max_size=2).map(tuple))
    )


@given(
    st.lists(
        st.builds(ds.DataField, name=NAMES, type=st.recursive(SIMPLE, _nested, max_leaves=4)), max_size=3
    )
)
def test_a_schema_means_the_same_afterwards_or_is_refused(columns: list[ds.DataField]) -> None:
    schema = ds.DataSchema(fields=tuple(columns))
    snapshot = read_manifest(Document(manifest({"kind": "Csv"})), DATASET_SNAPSHOT, None)
    source = dataclasses.replace(snapshot.metadata[0], read=ReadStepCsv(schema=schema))
    try:
        (event,) = events_of(dataclasses.replace(snapshot, metadata=(source,)), lambda _: None)
    except ManifestError as error:
        assert error.path.startswith(HERE)
        return
    assert isinstance(event, ev.AddPushSource)
    back = parse_ddl(event.read.ddl_schema or ())
    assert [(f.name, canonical(f.type)) for f in back.fields] == [
        (f.name, canonical(f.type)) for f in schema.fields
    ]
