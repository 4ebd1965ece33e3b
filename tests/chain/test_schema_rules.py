"""`writer_cases.json`, `set_data_schema_migration`: which schema may follow which. Every row of the table."""

from __future__ import annotations

from typing import Any

import pytest

from odfchain.errors import AppendError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import DATE_UNIT, encode_raw_arrow
from odfchain.odf.enums import TimeUnit
from tests.kit.support import ChainBuilder, conformance, memory_chain

TABLE = {row["change"]: row["result"] for row in conformance("writer_cases")["set_data_schema_migration"]}
INT, TEXT = ds.DataTypeInt64(), ds.DataTypeString()
MS = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")


def field(name: str, data_type: ds.DataType, **extra: Any) -> ds.DataField:
    note = ds.ExtraAttributes({"opendatafabric.org/description": extra["note"]}) if "note" in extra else None
    return ds.DataField(name=name, type=data_type, extra=note)


SYSTEM = (
    field("offset", ds.DataTypeUInt64()),
    field("op", ds.DataTypeUInt8()),
    field("system_time", MS),
    field("event_time", MS),
)


def schema(*fields: ds.DataField, system: tuple[ds.DataField, ...] = SYSTEM) -> ds.DataSchema:
    return ds.DataSchema(fields=(*system, *fields))


A, B = field("a", INT), field("b", ds.optional(TEXT))
STRUCT = ds.DataTypeStruct(fields=(A,))
Case = tuple[ds.DataSchema, ds.DataSchema]
CASES: dict[str, list[Case]] = {
    "identical schema": [(schema(A, B), schema(A, B))],
    "attributes/description added, changed or removed": [
        (schema(A), schema(field("a", INT, note="x"))),
        (schema(field("a", INT, note="x")), schema(field("a", INT, note="y"))),
        (schema(field("a", INT, note="x")), schema(A)),
    ],
    "column renamed": [(schema(A), schema(field("A", INT))), (schema(A, B), schema(A, field("c", B.type)))],
    "column removed": [(schema(A, B), schema(A)), (schema(A, B), schema(B))],
    "new REQUIRED column": [(schema(A), schema(A, field("c", INT))), (schema(field("s", STRUCT)), schema(field("s", ds.DataTypeStruct(fields=(A, field("c", INT))))))],
    "new OPTIONAL column": [(schema(A), schema(A, B)), (schema(A), schema(B, A)), (schema(field("s", STRUCT)), schema(field("s", ds.DataTypeStruct(fields=(A, B)))))],
    "columns reordered": [(schema(A, B), schema(B, A))],
    "required -> optional": [(schema(A), schema(field("a", ds.optional(INT))))],
    "optional -> required": [(schema(B), schema(field("b", TEXT)))],
    "type changed": [
        (schema(A), schema(field("a", ds.DataTypeInt32()))),
        (schema(field("t", MS)), schema(field("t", ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")))),
        (schema(field("t", MS)), schema(field("t", ds.DataTypeDate()))),
        (schema(field("l", ds.DataTypeList(item_type=INT))), schema(field("l", ds.DataTypeList(item_type=TEXT)))),
        (schema(field("s", STRUCT)), schema(field("s", ds.DataTypeStruct(fields=(field("a", TEXT),))))),
        (schema(A), schema(field("a", STRUCT))),
    ],
    "system columns missing/wrong type": [
        (schema(A, system=()), schema(A, B, system=())),
        (schema(A), schema(A, B, system=(*SYSTEM[:3], field("event_time", MS, note="x")))),
    ],
}  # fmt: skip


def raw(schema: ds.DataSchema) -> ev.SetDataSchema:
    return ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(schema))


def odf(schema: ds.DataSchema) -> ev.SetDataSchema:
    return ev.SetDataSchema(schema=schema)


def result_of(first: ev.SetDataSchema, second: ev.SetDataSchema) -> str:
    """How the chain answers to the second schema: ok, or the kind of the error."""
    builder = ChainBuilder(memory_chain())
    builder.seed()
    builder.append(first)
    try:
        builder.append(second)
    except AppendError as error:
        return error.kind
    return "ok"


@pytest.mark.parametrize(
    ("change", "case"), [(change, case) for change, found in CASES.items() for case in found]
)
def test_migration(change: str, case: Case) -> None:
    expected = TABLE[change].split()[0]
    old, new = (ev.SetDataSchema(schema=s) for s in case)
    assert result_of(old, new) == {"only": "ok"}.get(expected, expected)


IN_BOTH_FORMS = {
    "identical schema",
    "attributes/description added, changed or removed",
    "system columns missing/wrong type",
}


@pytest.mark.parametrize(
    ("change", "case"),
    [(change, case) for change, found in CASES.items() if change not in IN_BOTH_FORMS for case in found],
)
@pytest.mark.parametrize("before", [raw, odf])
def test_migration_to_a_raw_schema(change: str, case: Case, before: Any) -> None:
    """The raw form follows the same rules; only `schema-legacy-unchecked` of the file says otherwise."""
    expected = TABLE[change].split()[0]
    old, new = case
    assert result_of(before(old), raw(new)) == {"only": "ok"}.get(expected, expected)


@pytest.mark.parametrize("first", [raw, odf])
def test_a_raw_schema_that_changes_nothing(first: Any) -> None:
    """It is of no use and harmless: old chains may have it."""
    same = schema(A, B)
    assert result_of(first(same), raw(same)) == "ok"


DAYS, MILLISECONDS = (
    field("d", ds.DataTypeDate()),
    ds.DataField(name="d", type=ds.DataTypeDate(), extra=ds.ExtraAttributes({DATE_UNIT: "Millisecond"})),
)


@pytest.mark.parametrize("first", [raw, odf])
@pytest.mark.parametrize("second", [raw, odf])
def test_the_unit_of_a_date_is_part_of_its_type(first: Any, second: Any) -> None:
    for old, new in ((DAYS, MILLISECONDS), (MILLISECONDS, DAYS)):
        assert result_of(first(schema(old)), second(schema(new))) == "InvalidEvent"


def test_maps_are_looked_into() -> None:
    def mapped(value: ds.DataType) -> ds.DataSchema:
        return schema(field("m", ds.DataTypeMap(key_type=TEXT, value_type=value)))

    wider = ds.DataTypeStruct(fields=(A, B))
    assert result_of(raw(mapped(STRUCT)), raw(mapped(wider))) == "ok"
    assert result_of(raw(mapped(wider)), raw(mapped(STRUCT))) == "InvalidEvent"
    assert result_of(raw(mapped(INT)), odf(mapped(ds.optional(INT)))) == "ok", "optionality, this once"
    assert result_of(raw(mapped(INT)), raw(mapped(ds.optional(INT)))) == "InvalidEvent"


def test_optionality_is_ignored_once_even_with_a_raw_schema_in_between() -> None:
    builder = ChainBuilder(memory_chain())
    builder.seed()
    for event in (raw(schema(A, B)), odf(schema(A, B)), raw(schema(A, B))):
        builder.append(event)
    with pytest.raises(AppendError, match="'a' was required and would be optional"):
        builder.append(odf(schema(field("a", ds.optional(INT)), B)))


def test_the_first_odf_schema_after_a_raw_one() -> None:
    """legacy raw-arrow -> ODF schema"""
    legacy = raw(schema(A, B))
    same = ev.SetDataSchema(schema=schema(A, B))
    other = ev.SetDataSchema(schema=schema(field("a", ds.optional(INT)), field("b", TEXT)))
    renamed = ev.SetDataSchema(schema=schema(A, field("c", B.type)))
    assert TABLE["legacy raw-arrow -> ODF schema"].startswith("optionality differences ignored once")
    assert result_of(legacy, same) == "ok"
    assert result_of(legacy, other) == "ok"
    assert result_of(legacy, renamed) == "InvalidEvent"
    assert result_of(same, other) == "InvalidEvent", "once only"


def test_every_row_of_the_table_is_run() -> None:
    assert {*CASES, "legacy raw-arrow -> ODF schema"} == set(TABLE)
