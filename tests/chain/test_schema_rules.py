"""`writer_cases.json`, `set_data_schema_migration`: which schema may follow which. Every row of the table."""

from __future__ import annotations

from typing import Any

import pytest
from support import ChainBuilder, conformance, memory_chain

from odfchain.errors import AppendError
from odfchain.metadata import data_schema as ds
from odfchain.metadata import events as ev
from odfchain.metadata.enums import TimeUnit
from odfchain.metadata.raw_arrow import encode_raw_arrow

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


def test_the_first_odf_schema_after_a_raw_one() -> None:
    """legacy raw-arrow -> ODF schema"""
    raw = ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(schema(A, B)))
    same = ev.SetDataSchema(schema=schema(A, B))
    other = ev.SetDataSchema(schema=schema(field("a", ds.optional(INT)), field("b", TEXT)))
    renamed = ev.SetDataSchema(schema=schema(A, field("c", B.type)))
    assert TABLE["legacy raw-arrow -> ODF schema"].startswith("optionality differences ignored once")
    assert result_of(raw, same) == "ok"
    assert result_of(raw, other) == "ok"
    assert result_of(raw, renamed) == "InvalidEvent"
    assert result_of(same, other) == "InvalidEvent", "once only"


def test_every_row_of_the_table_is_run() -> None:
    assert {*CASES, "legacy raw-arrow -> ODF schema"} == set(TABLE)
