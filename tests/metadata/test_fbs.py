"""`schemas/odf.fbs` against the facts, and the dataclasses against the schema."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from odfchain.errors import CodecError
from odfchain.odf.block_codec import dataclass_of, enum_of, field_types, wrapped_union
from odfchain.odf.flatbuffers import SCALARS, FieldKind, load_fbs, parse_fbs
from tests.kit.support import conformance

ODF = load_fbs("odf.fbs")
KINDS = {
    "scalar": {FieldKind.SCALAR},
    "enum": {FieldKind.ENUM},
    "string": {FieldKind.STRING},
    "vector": {FieldKind.VECTOR, FieldKind.BYTES},
    "table": {FieldKind.TABLE},
    "struct": {FieldKind.STRUCT},
    "union": {FieldKind.UNION},
}


def types(version: str, kind: str) -> list[Any]:
    found = [t for t in conformance(f"fbs_facts_{version}")["types"] if t["kind"] == kind]
    assert found
    return [pytest.param(t, id=t["name"]) for t in found]


def check_table(fact: dict[str, Any], *, names: bool) -> None:
    table = ODF.tables[fact["name"]]
    assert table.slots >= fact["slots"]
    by_slot = {f.slot: f for f in table.fields}
    for expected in fact["fields"]:
        found = by_slot[expected["slot"]]
        assert found.kind in KINDS[expected["field_kind"]]
        assert found.type_name == expected["type"].strip("[]")
        if names:
            assert found.name == expected["name"]
        if "type_slot" in expected:
            assert found.slot - 1 == expected["type_slot"]
        if expected["field_kind"] in ("scalar", "enum"):
            assert found.optional_scalar == bool(expected.get("optional"))
            default = expected.get("default")
            if default is not None and expected["field_kind"] == "scalar":
                assert found.default == default
            if default is not None and expected["field_kind"] == "enum":
                assert ODF.enums[expected["type"]].names[found.default] == default


@pytest.mark.parametrize("fact", types("0_39", "table"))
def test_table_of_0_39(fact: dict[str, Any]) -> None:
    check_table(fact, names=True)
    assert ODF.tables[fact["name"]].slots == fact["slots"]


@pytest.mark.parametrize("fact", types("0_34_1", "table"))
def test_table_of_0_34_1_keeps_its_slots(fact: dict[str, Any]) -> None:
    check_table(fact, names=False)


@pytest.mark.parametrize("version", ["0_34_1", "0_39"])
def test_unions_enums_and_structs(version: str) -> None:
    for fact in conformance(f"fbs_facts_{version}")["types"]:
        match fact["kind"]:
            case "union":
                members = [m["name"] for m in fact["members"] if m["value"] > 0]
                assert list(ODF.unions[fact["name"]][: len(members)]) == members
            case "enum":
                found = ODF.enums[fact["name"]]
                assert found.code == SCALARS[fact["base"]]
                names = [v["name"] for v in fact["values"]]
                assert list(found.names[: len(names)]) == names
            case "struct":
                assert list(ODF.structs[fact["name"]]) == [f["name"] for f in fact["fields"]]


def test_nothing_is_declared_twice_or_in_vain() -> None:
    facts = {t["name"] for t in conformance("fbs_facts_0_39")["types"]}
    assert set(ODF.tables) | set(ODF.unions) | set(ODF.enums) | set(ODF.structs) == facts


@pytest.mark.parametrize("name", sorted(ODF.tables))
def test_dataclass_has_the_fields_of_its_table(name: str) -> None:
    cls = dataclass_of(name)
    if cls is None:
        assert wrapped_union(ODF, name) or name == "Manifest"
        return
    assert cls.__doc__
    if name == "ExtraAttributes":
        return
    assert [f.name for f in dataclasses.fields(cls)] == [f.name for f in ODF.tables[name].fields]
    for f in ODF.tables[name].fields:
        if f.optional_scalar:
            assert field_types(cls)[f.name][1], f"{name}.{f.name} must allow None"


@pytest.mark.parametrize("name", sorted(ODF.enums))
def test_enum_has_the_values_of_its_declaration(name: str) -> None:
    assert [m.value for m in enum_of(name)] == list(ODF.enums[name].names)


def test_undeclared_type_is_refused() -> None:
    with pytest.raises(CodecError, match="Wobble"):
        parse_fbs("table A { x: Wobble; }")


def test_unreadable_field_is_refused() -> None:
    with pytest.raises(CodecError, match="cannot read"):
        parse_fbs("table A { x; }")
