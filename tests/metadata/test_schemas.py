"""Data schemas in their four forms: logical, raw Arrow bytes, pyarrow, DDL."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.chain.rules import canonical
from odfchain.errors import CodecError, SchemaError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import (
    decode_raw_arrow,
    encode_raw_arrow,
    from_arrow,
    schema_of_event,
    to_arrow,
    with_extensions,
)
from odfchain.odf.enums import TimeUnit
from odfchain.odf.schema import format_ddl, parse_ddl
from odfchain.slices.reader import without_extensions
from tests.kit.support import conformance

SIMPLE = [
    ds.DataTypeBinary(), ds.DataTypeBool(), ds.DataTypeDate(), ds.DataTypeFloat16(), ds.DataTypeFloat32(),
    ds.DataTypeFloat64(), ds.DataTypeInt8(), ds.DataTypeInt16(), ds.DataTypeInt32(), ds.DataTypeInt64(),
    ds.DataTypeUInt8(), ds.DataTypeUInt16(), ds.DataTypeUInt32(), ds.DataTypeUInt64(), ds.DataTypeString(),
]  # fmt: skip
UNITS = st.sampled_from(list(TimeUnit))
PLAIN = st.one_of(
    st.sampled_from(SIMPLE),
    st.builds(lambda n: ds.DataTypeBinary(fixed_length=n), st.integers(1, 64)),
    st.builds(
        lambda p, s: ds.DataTypeDecimal(precision=p, scale=min(p, s)), st.integers(1, 76), st.integers(0, 76)
    ),
    st.builds(lambda u: ds.DataTypeTime(unit=u), UNITS),
    st.builds(lambda u: ds.DataTypeDuration(unit=u), UNITS),
    st.builds(
        lambda u, z: ds.DataTypeTimestamp(unit=u, timezone=z), UNITS, st.sampled_from(["", "UTC", "+02:00"])
    ),
)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    maybe = inner.flatmap(lambda t: st.sampled_from([t, ds.optional(t)]))
    return st.one_of(
        st.builds(lambda t: ds.DataTypeList(item_type=t), maybe),
        st.builds(lambda t, n: ds.DataTypeList(item_type=t, fixed_length=n), maybe, st.integers(1, 4)),
        st.builds(lambda k, v: ds.DataTypeMap(key_type=k, value_type=v, keys_sorted=False), inner, maybe),
        st.lists(st.tuples(NAMES, maybe), min_size=1, max_size=3, unique_by=lambda p: p[0]).map(
            lambda fs: ds.DataTypeStruct(fields=tuple(ds.DataField(name=n, type=t) for n, t in fs))
        ),
    )


TYPES = st.recursive(PLAIN, nested, max_leaves=4)
SCHEMAS = st.lists(
    st.tuples(NAMES, TYPES, st.booleans()), min_size=1, max_size=4, unique_by=lambda p: p[0]
).map(
    lambda fs: ds.DataSchema(
        fields=tuple(ds.DataField(name=n, type=ds.optional(t) if o else t) for n, t, o in fs)
    )
)


@given(SCHEMAS)
def test_raw_arrow_round_trip(schema: ds.DataSchema) -> None:
    data = encode_raw_arrow(schema)
    assert decode_raw_arrow(data) == schema
    assert encode_raw_arrow(decode_raw_arrow(data)) == data


@given(SCHEMAS)
def test_pyarrow_round_trip(schema: ds.DataSchema) -> None:
    assert from_arrow(to_arrow(schema)) == schema


@given(SCHEMAS)
def test_pyarrow_understands_our_raw_bytes(schema: ds.DataSchema) -> None:
    """The bare Schema table, put into an IPC message, is read by Arrow's own reader as the same schema."""
    import flatbuffers

    raw = encode_raw_arrow(schema)
    assert pa.ipc.read_schema(pa.py_buffer(ipc_message(raw, flatbuffers))).equals(to_arrow(schema))


def test_arrow_knows_our_uuids() -> None:
    """In a raw schema they are Arrow's extension type; each form of the schema keeps the mark."""
    import flatbuffers

    schema = parse_ddl(["id UUID NOT NULL, s STRUCT<id: UUID, n: INT>, b BINARY(16), l ARRAY<UUID>"])
    raw = encode_raw_arrow(schema)
    read = pa.ipc.read_schema(pa.py_buffer(ipc_message(raw, flatbuffers)))
    assert read.field("id").type == pa.uuid()
    assert read.field("s").type == pa.struct([("id", pa.uuid()), ("n", pa.int32())])
    assert read.field("b").type == pa.binary(16)
    assert decode_raw_arrow(raw) == from_arrow(read) == from_arrow(to_arrow(schema)) == schema
    assert to_arrow(schema).field("id").type == pa.binary(16)
    assert without_extensions(with_extensions(to_arrow(schema))).equals(to_arrow(schema), check_metadata=True)
    assert format_ddl(decode_raw_arrow(raw))[:2] == ["id UUID NOT NULL", "s STRUCT<id UUID, n INT>"]


def test_schemas_with_attributes_are_keys() -> None:
    twice = [parse_ddl(["id UUID"]), parse_ddl(["id UUID"])]
    assert len({*twice, parse_ddl(["id BINARY(16)"])}) == 2


def test_what_other_attributes_say_is_no_uuid() -> None:
    did = ds.ExtraAttributes({ds.LOGICAL_TYPE: {"kind": "Did"}})
    sixteen = ds.DataTypeBinary(fixed_length=16)
    assert format_ddl(ds.DataSchema(fields=(ds.DataField(name="x", type=sixteen, extra=did),))) == [
        "x BINARY(16) NOT NULL"
    ]
    text = ds.DataField(name="x", type=ds.DataTypeString(), extra=ds.UUID)
    assert decode_raw_arrow(encode_raw_arrow(ds.DataSchema(fields=(text,)))).fields[0].extra is None


def ipc_message(raw: bytes, flatbuffers: Any) -> bytes:
    """An encapsulated IPC message whose header is our Schema table, placed in it as it is."""
    b = flatbuffers.Builder(len(raw) + 128)
    # the root table of `raw` starts where its first four bytes point; the whole buffer is kept, so that all
    # relative offsets inside stay right
    root = int.from_bytes(raw[:4], "little")
    padded = raw + bytes(-len(raw) % 8)
    header = b.CreateByteVector(padded) - 4 - root
    b.StartObject(5)
    b.PrependInt16Slot(0, 4, 0)
    b.PrependUint8Slot(1, 1, 0)
    b.PrependUOffsetTRelativeSlot(2, header, 0)
    b.PrependInt64Slot(3, 0, 1)
    b.Finish(b.EndObject())
    message = bytes(b.Output())
    message += bytes(-len(message) % 8)
    return b"\xff\xff\xff\xff" + len(message).to_bytes(4, "little") + message


def test_the_reference_bytes() -> None:
    expected = conformance("flatbuffers_blocks")["raw_arrow_schema"]
    raw = base64.b64decode(expected["bytes_base64"])
    schema = decode_raw_arrow(raw)
    assert [f.name for f in schema.fields] == [f["name"] for f in expected["fields"]]
    assert [f.optional for f in schema.fields] == [f["nullable"] for f in expected["fields"]]
    assert encode_raw_arrow(schema) == raw
    assert len(raw) == expected["size"]


def test_the_legacy_blob() -> None:
    raw = bytes.fromhex(conformance("writer_cases")["legacy_arrow_schema_blob"]["hex"])
    schema = decode_raw_arrow(raw)
    assert schema.names == ("offset", "op", "system_time", "event_time", "city", "population")
    assert encode_raw_arrow(schema) == raw


def test_null_columns() -> None:
    schema = ds.DataSchema(fields=(ds.DataField(name="n", type=ds.optional(ds.DataTypeNull())),))
    assert from_arrow(to_arrow(schema)) == schema
    assert decode_raw_arrow(encode_raw_arrow(schema)) == schema


def test_encodings_are_dropped() -> None:
    plain = pa.schema(
        [("a", pa.string()), ("b", pa.binary()), ("c", pa.list_(pa.int8())), ("d", pa.string())]
    )
    other = pa.schema(
        [("a", pa.large_string()), ("b", pa.binary_view()), ("c", pa.large_list(pa.int8())),
         ("d", pa.dictionary(pa.int8(), pa.string()))]
    )  # fmt: skip
    assert from_arrow(plain) == from_arrow(other)


def test_date64_is_remembered() -> None:
    schema = pa.schema([("d", pa.date64())])
    assert to_arrow(from_arrow(schema)).equals(schema)
    assert to_arrow(decode_raw_arrow(encode_raw_arrow(from_arrow(schema)))).equals(schema)


@pytest.mark.parametrize(
    "data_type", [pa.month_day_nano_interval(), pa.dense_union([pa.field("a", pa.int8())])]
)
def test_types_without_counterpart_are_refused(data_type: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="'x'"):
        from_arrow(pa.schema([("x", data_type)]))


def test_event_without_schema_is_refused() -> None:
    with pytest.raises(CodecError):
        schema_of_event(None, None)


# --- DDL -------------------------------------------------------------------------------------------

ODF_NAMES = {
    "bool": ds.DataTypeBool(), "int32": ds.DataTypeInt32(), "uint32": ds.DataTypeUInt32(),
    "int64": ds.DataTypeInt64(), "uint64": ds.DataTypeUInt64(), "float32": ds.DataTypeFloat32(),
    "float64": ds.DataTypeFloat64(), "date": ds.DataTypeDate(), "string": ds.DataTypeString(),
    "timestamp(ms,UTC)": ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC"),
    "decimal(p,s)": ds.DataTypeDecimal(precision=10, scale=2), "list<T>": ds.DataTypeList(item_type=ds.DataTypeInt32()),
}  # fmt: skip


def test_ddl_of_the_reference() -> None:
    tested = conformance("reader_cases")["ddl_schema"]["tested"]
    schema = parse_ddl([tested["ddl"]])
    for f, expected in zip(schema.fields, tested["fields"], strict=True):
        name, type_name, *rest = expected.split()
        assert f.name == name
        assert f.value_type == ODF_NAMES[type_name]
        assert f.optional == (rest == ["optional"])


def test_ddl_type_table_of_the_reference() -> None:
    for names, odf in conformance("reader_cases")["ddl_schema"]["types"]:
        for name in names.replace("(any form)", "").split(","):
            text = name.strip().replace("DECIMAL(p", "DECIMAL(10").replace("<T>", "<INT>")
            if text == "s)":
                continue
            text = text + ",2)" if text.startswith("DECIMAL") else text
            assert parse_ddl([f"x {text}"]).fields[0].value_type == ODF_NAMES[odf], name


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [("TIMESTAMP(6)", ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
     ("timestamp(4) with time zone", ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
     ("TIMESTAMP(0)", ODF_NAMES["timestamp(ms,UTC)"]), ("TIMESTAMP_NTZ(6)", ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
     ("UUID", ds.DataTypeBinary(fixed_length=16)), ("TIME(6)", ds.DataTypeTime(unit=TimeUnit.MICROSECOND)),
     *((f"TIME({digits})", ds.DataTypeTime(unit=TimeUnit.MILLISECOND)) for digits in range(4)),
     ("TIMESTAMP(3)", ODF_NAMES["timestamp(ms,UTC)"]), ("timestamp with time zone", ODF_NAMES["timestamp(ms,UTC)"]),
     ("varchar(20)", ds.DataTypeString()), ("DECIMAL(38,10)", ds.DataTypeDecimal(precision=38, scale=10)),
     ("array<array<string>>", ds.DataTypeList(item_type=ds.DataTypeList(item_type=ds.DataTypeString()))),
     ("double precision", ds.DataTypeFloat64())],
)  # fmt: skip
def test_ddl_types_of_the_specification(ddl: str, kind: ds.DataType) -> None:
    assert parse_ddl([f"x {ddl}"]).fields[0].value_type == kind


def test_ddl_list_items_are_joined() -> None:
    assert parse_ddl(["a INT, b STRING NOT NULL,", "`c d`: DATE"]).names == ("a", "b", "c d")


@pytest.mark.parametrize("ddl", ["a", "a INT b", "a WOBBLE", "a DECIMAL", "a INT,, b INT", "a INT, a INT", "(", "",
                                 "a ARRAY<INT", "a DECIMAL(2,3)", "a DECIMAL(39,1)", "a TIME(4)", "a TIMESTAMP(9)", "a TIMESTAMP(7) WITH TIME ZONE", "a INT NOT", "a;b INT"])  # fmt: skip
def test_ddl_refused(ddl: str) -> None:
    with pytest.raises(SchemaError):
        parse_ddl([ddl])


DDL_TYPES = st.recursive(
    st.sampled_from(
        [ds.DataTypeBool(), ds.DataTypeInt8(), ds.DataTypeInt64(), ds.DataTypeUInt32(), ds.DataTypeUInt64(),
         ds.DataTypeFloat32(), ds.DataTypeDate(), ds.DataTypeString(), ds.DataTypeBinary(),
         ODF_NAMES["timestamp(ms,UTC)"], ds.DataTypeTime(unit=TimeUnit.MILLISECOND),
         ds.DataTypeDecimal(precision=12, scale=3), ds.DataTypeBinary(fixed_length=7)]
    ),
    lambda inner: st.builds(lambda t: ds.DataTypeList(item_type=t), inner),
    max_leaves=3,
)  # fmt: skip


@given(st.lists(st.tuples(st.from_regex(r"[A-Za-z_][\w .-]{0,6}", fullmatch=True), DDL_TYPES, st.booleans()),
                min_size=1, max_size=4, unique_by=lambda p: p[0]))  # fmt: skip
def test_ddl_round_trip(fields: list[tuple[str, ds.DataType, bool]]) -> None:
    schema = ds.DataSchema(
        fields=tuple(ds.DataField(name=n, type=ds.optional(t) if o else t) for n, t, o in fields)
    )
    assert parse_ddl(format_ddl(schema)) == schema


@given(st.text(max_size=40))
def test_ddl_raises_only_the_projects_error(text: str) -> None:
    with contextlib.suppress(SchemaError):
        parse_ddl([text])


def test_canonical_types_are_equal_when_they_mean_the_same() -> None:
    assert canonical(ds.DataTypeTimestamp()) == canonical(ODF_NAMES["timestamp(ms,UTC)"])
