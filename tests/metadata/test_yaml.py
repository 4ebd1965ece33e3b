"""`yaml_manifests.json`, and attacks on the document reader."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import ManifestError
from odfchain.limits import Limits
from odfchain.odf import engine_messages, enums, events, schema, sources
from odfchain.odf.block_codec import dump_attributes, load_attributes
from odfchain.odf.manifests import (
    DATASET_SNAPSHOT,
    METADATA_BLOCK,
    ManifestKind,
    block_document,
    read_manifest,
    read_snapshots,
    snapshot_document,
)
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import from_tree, to_tree, union_variants
from odfchain.odf.yaml import Document, dump_json, dump_yaml, read_document, read_documents
from tests.kit.support import FIXTURES, cases, conformance

METADATA_EVENT = ManifestKind("MetadataEvent", events.MetadataEvent, range(1, 2))
FRAGMENTS: dict[str, Any] = {
    "ReadStep": sources.ReadStep,
    "SourceOrdering": enums.SourceOrdering,
    "FetchStep": sources.FetchStep,
    "DataSchema": schema.DataSchema,
    "ExtraAttributes": schema.ExtraAttributes,
    "AddData": events.AddData,
    "date-time": Timestamp,
    "any object type": sources.ReadStep,
}
NOT_IN_0_34_1 = {"secrets_short", "resource_input", "resource_input_refs", "resource_canonical"}
"""Resource types of ODF 0.39: no counterpart in the specification implemented here (RFC-005)."""


def round_trip(case: dict[str, Any]) -> Any:
    """Read the input as its type and print it again."""
    kind, tree = case["type"], case["input"]
    match kind:
        case "Manifest<DatasetSnapshot>":
            return snapshot_document(read_manifest(Document(tree), DATASET_SNAPSHOT, None))
        case "Manifest<MetadataBlock>":
            block = read_manifest(Document(tree), METADATA_BLOCK, None)
            # the era of 0.34.1 writes version 2 and its spelling, everything later version 3
            version = 2 if case.get("era") == "v0.166.0" else 3
            return block_document(block, version)
        case "Manifest<MetadataEvent>":
            event = read_manifest(Document(tree), METADATA_EVENT, None)
            return {"kind": "MetadataEvent", "version": 1, "content": to_tree(event)}
    return to_tree(from_tree(FRAGMENTS[kind], tree))


@pytest.mark.parametrize(
    "case", cases("yaml_manifests", "test_cases") + cases("yaml_manifests", "source_cases")
)
def test_case(case: dict[str, Any]) -> None:
    if case["id"] in NOT_IN_0_34_1:
        with pytest.raises(ManifestError):
            read_snapshots(json.dumps(case["input"]))
        return
    if not case["parses"]:
        with pytest.raises(ManifestError):
            round_trip(case)
        return
    found = round_trip(case)
    if case["id"] == "kind_not_first":
        assert next(iter(found)) == "kind"
    if "normalised" not in case:
        return
    expected = case["input"] if case["normalised"] == "same as input" else case["normalised"]
    assert found == expected
    if isinstance(found, dict):
        assert json.dumps(found) == json.dumps(expected), "printed in another order"


def test_every_listed_spelling_is_read_and_pascal_case_printed() -> None:
    unions = {
        "MetadataEvent": events.MetadataEvent, "ReadStep": sources.ReadStep, "FetchStep": sources.FetchStep,
        "PrepStep": sources.PrepStep, "MergeStrategy": sources.MergeStrategy,
        "EventTimeSource": sources.EventTimeSource, "SourceCaching": sources.SourceCaching,
        "Transform": sources.Transform, "Attachments": events.Attachments, "DataType": schema.DataType,
    }  # fmt: skip
    for name, entry in conformance("yaml_manifests")["enum_spellings"].items():
        if name in ("RawQueryResponse", "TransformResponse"):
            unions[name] = getattr(engine_messages, name)
        for value, spelled in entry["spellings"].items():
            for text in spelled:
                if name in unions:
                    assert value == union_variants(unions[name])[text].KIND
                else:
                    assert from_tree(getattr(enums, name), text).value == value
            wrong = value[0].lower() + value[1:-1] + value[-1].upper()
            if wrong not in spelled:
                if name in unions:
                    assert wrong not in (union_variants(unions[name]) or {})
                else:
                    with pytest.raises(ManifestError):
                        from_tree(getattr(enums, name), wrong)


# --- errors name the place -------------------------------------------------------------------------

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: org.example.cities
  kind: Root
  metadata:
    - kind: SetInfo
      description: Cities
    - kind: SetLicense
      shortName: CC0
      name: CC0 1.0
      websiteUrl: https://creativecommons.org/publicdomain/zero/1.0/
    - kind: AddPushSource
      sourceName: default
      read:
        kind: Csv
        header: true
      merge:
        kind: Ledger
        primaryKey: [city]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("primaryKey: [city]", "primaryKey: city", "m.yaml:20: metadata[2].merge.primaryKey: must be a list"),
        ("primaryKey: [city]", "primaryKey: [city, 3]", "m.yaml:20: metadata[2].merge.primaryKey[1]: must be text"),
        ("        primaryKey: [city]\n", "", "m.yaml:19: metadata[2].merge: the property 'primaryKey' is missing"),
        ("kind: Ledger", "kind: Ledgre", "m.yaml:19: metadata[2].merge.kind: unknown kind 'Ledgre' (did you mean 'Ledger'?)"),
        ("header: true", "headr: true", "m.yaml:16: metadata[2].read: unknown property 'headr' (did you mean 'header'?)"),
        ("header: true", "header: yes", "m.yaml:17: metadata[2].read.header: must be true or false, not the text 'yes'"),
        ("name: org.example.cities", "name: a_b", "m.yaml:4: name: 'a_b' is not a valid dataset name"),
        ("version: 1", "version: 7", "m.yaml:1: DatasetSnapshot version 7 is not supported"),
        ("content:", "kontent:", "m.yaml:1: the manifest has no 'content'"),
        ("kind: Root", "kind: Root\n  kind: Root", "m.yaml:6: content: duplicate key 'kind'"),
        ("description: Cities", "description: *x", "m.yaml:8: anchors and aliases are not allowed"),
        ("description: Cities", "description: !!python/name:os.system x", "m.yaml:8: tags are not allowed"),
        ("description: Cities", "description: [", "m.yaml:9: not valid YAML"),
    ],
)  # fmt: skip
def test_error_names_file_line_and_path(old: str, new: str, message: str) -> None:
    assert old in MANIFEST
    with pytest.raises(ManifestError) as caught:
        read_snapshots(MANIFEST.replace(old, new, 1), source="m.yaml")
    assert str(caught.value).startswith(message), str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_documents_are_several_datasets() -> None:
    text = MANIFEST + "---\n" + MANIFEST.replace("org.example.cities", "b")
    assert [str(s.name) for s in read_snapshots(text)] == ["org.example.cities", "b"]


def test_json_is_read_too() -> None:
    tree = read_document(MANIFEST).value
    assert read_snapshots(json.dumps(tree)) == read_snapshots(MANIFEST)


def test_byte_order_mark_is_passed_over() -> None:
    assert read_snapshots(b"\xef\xbb\xbf" + MANIFEST.encode()) == read_snapshots(MANIFEST)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"\x00", b"- 1\n- 2\n"])
def test_not_a_manifest(data: bytes) -> None:
    with pytest.raises(ManifestError):
        read_snapshots(data)


# --- attacks ---------------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [BOMB, "[" * 5_000, "{a: " * 5_000, "a: " + "x" * (1 << 20), "- a\n" * 20_000, "a: 1\na: 2", "? {x: 1}\n: y",
     "a: !!timestamp 2020-01-01", "<<: {a: 1}\nb: 2\n? [1]\n: 3", "a: " + "9" * 100, 'a: "\\ud800"'],
    ids=["alias bomb", "brackets", "braces", "huge scalar", "many nodes", "duplicate key", "complex key", "tag",
         "sequence key", "long number", "surrogate"],
)  # fmt: skip
def test_attack_on_the_reader(text: str) -> None:
    began = time.process_time()
    with contextlib.suppress(ManifestError):
        read_documents(text)
    assert time.process_time() - began < 2


def test_merge_keys_mean_nothing() -> None:
    assert read_document("<<: {a: 1}\nb: 2").value == {"<<": {"a": 1}, "b": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [("no", "no"), ("on", "on"), ("2020-01-01", "2020-01-01"), ("1:30", "1:30"), ("010", "010"), ("0x10", "0x10"),
     ("1_000", "1_000"), ("12", 12), ("-3", -3), ("1.5e3", 1500.0), ("true", True), ("~", None), ("'1'", "1"),
     (".inf", ".inf"), ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z"), ("", None), ("=", "=")],
)  # fmt: skip
def test_scalars_mean_what_yaml_1_2_says(text: str, value: Any) -> None:
    assert read_document(f"a: {text}").value == {"a": value}


@pytest.mark.parametrize(
    ("text", "limit", "most", "says"),
    [
        ("[1, 2]", "manifest_nodes", 3, "more than 2"),
        ("[[1]]", "manifest_depth", 2, "deeper than 1"),
        ("abc", "manifest_bytes", 3, "larger than 2"),
    ],
)
def test_limits_are_inclusive(text: str, limit: str, most: int, says: str) -> None:
    read_document(text, limits=Limits(**{limit: most}))
    with pytest.raises(ManifestError, match=says):
        read_document(text, limits=Limits(**{limit: most - 1}))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_what_is_printed_is_read_back(tree: Any) -> None:
    assert read_document(dump_yaml(tree)).value == tree
    assert read_document(dump_json(tree)).value == tree


@given(st.text(max_size=200))
def test_reading_raises_only_the_projects_error(text: str) -> None:
    with contextlib.suppress(ManifestError):
        read_snapshots(text)


# --- JSON Schemas ----------------------------------------------------------------------------------


def test_shipped_schemas_are_what_the_dataclasses_give() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", FIXTURES.parent / "schemas" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.render().items():
        assert (FIXTURES.parent / "schemas" / name).read_text() == text, f"run `make schemas` for {name}"


def test_schemas_are_valid_json_schema() -> None:
    import jsonschema

    for path in sorted((FIXTURES.parent / "schemas").glob("*.json")):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize("case", cases("yaml_manifests", "test_cases"))
def test_schema_agrees_with_the_reader(case: dict[str, Any]) -> None:
    import jsonschema

    if not case["type"].startswith("Manifest<"):
        return
    kind = case["type"][9:-1]
    schema = json.loads((FIXTURES.parent / "schemas" / f"{kind}.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(case["input"]) == case["parses"]
    # manifests are read without the schema, so the reader takes nothing that the schema refuses
    kinds = (DATASET_SNAPSHOT, METADATA_BLOCK, METADATA_EVENT)
    (reader,) = [each for each in kinds if each.name == kind]
    for tree in _changed(case["input"]):
        with contextlib.suppress(ManifestError):
            read_manifest(Document(tree), reader, None)
            assert validator.is_valid(tree), tree


def _changed(tree: Any) -> Iterator[Any]:
    """The tree with something else in each place, or without it."""
    places = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))
    for key, value in places:
        for other in (None, 1, 1.5, True, "x", "", "a/b", [], ["a INT"], {}, {"kind": "Forever"}, 2**64):
            yield tree | {key: other} if isinstance(tree, dict) else [*tree[:key], other, *tree[key + 1 :]]
        if isinstance(tree, dict):
            yield {name: inner for name, inner in tree.items() if name != key}
        for inner in _changed(value) if isinstance(value, dict | list) else ():
            yield tree | {key: inner} if isinstance(tree, dict) else [*tree[:key], inner, *tree[key + 1 :]]


# --- attributes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e16, "1e16"), (1e15, "1000000000000000.0"), (1.5, "1.5"), (0.1, "0.1"), (1e-5, "0.00001"), (1e-6, "1e-6"),
     (1.25e-7, "1.25e-7"), (123456789.125, "123456789.125"), (1e300, "1e300"), (-2.5e-10, "-2.5e-10"), (0.0, "0.0"),
     (-0.0, "-0.0"), (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e308"), (12.0, "12.0")],
)  # fmt: skip
def test_floats_are_printed_like_the_reference_library(value: float, text: str) -> None:
    assert dump_attributes({"x": value}) == f'{{"x":{text}}}'


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive(value: float) -> None:
    assert load_attributes(dump_attributes({"x": value})) == {"x": value}


def test_attribute_keys_are_sorted_at_every_level() -> None:
    assert dump_attributes({"b": {"z": 1, "a": [{"y": 1, "x": 2}]}, "a": "é/"}) == (
        '{"a":"é/","b":{"a":[{"x":2,"y":1}],"z":1}}'
    )
