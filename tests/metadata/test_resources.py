"""`fixtures/resources.json`: resources of ODF 0.39, read as snapshots or refused by name (RFC-054)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import ManifestError
from odfchain.odf.manifests import _LEFT_OUT, _REFUSED, read_definitions, read_snapshots
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import FIXTURES

CASES: list[dict[str, Any]] = json.loads((FIXTURES / "resources.json").read_text(encoding="utf-8"))["cases"]
DATASET = "$schema: https://opendatafabric.org/schemas/dataset/v1alpha1/Dataset\n"


def named(case: dict[str, Any]) -> str:
    return str(case["id"])


@pytest.mark.parametrize("case", [c for c in CASES if "gives" in c], ids=named)
def test_a_dataset_is_what_its_resource_says(case: dict[str, Any], tmp_path: Path) -> None:
    found = read_snapshots(case["text"], source="m.yaml")
    workspace = WorkspaceFiles.init(tmp_path)
    for snapshot, expected in zip(found, case["gives"], strict=True):
        assert (str(snapshot.name), snapshot.kind.value) == (expected["name"], expected["kind"])
        assert [event.KIND for event in snapshot.metadata] == expected["events"]
        assert list(snapshot.watermarks) == expected.get("watermarks", [])
        said = " ".join(snapshot.origin.notes)
        assert bool(said) == bool(expected["notes"])
        for text in expected["notes"]:
            assert text in said
        made = workspace.create(snapshot)
        assert str(made.alias) == expected["name"]
        recorded = [hashed.block.event.KIND for hashed in made.chain.walk()]
        assert recorded[::-1] == ["Seed", *expected["events"]]


@pytest.mark.parametrize("case", [c for c in CASES if "refused" in c], ids=named)
def test_what_is_no_dataset_is_refused_by_name(case: dict[str, Any]) -> None:
    with pytest.raises(ManifestError) as caught:
        read_snapshots(case["text"], source="m.yaml")
    first, *rest = case["refused"]
    assert str(caught.value).startswith(first)
    assert all(text in str(caught.value) for text in rest)
    assert case.get("hint", "") in (caught.value.hint or "")


def test_documents_of_other_kinds_are_given_apart() -> None:
    texts = {case["id"]: case["text"] for case in CASES}
    found, others = read_definitions(
        "\n---\n".join(texts[i] for i in ("flow", "json", "schema_of_something_else")) + "\n---\nports: [1]\n"
    )
    assert [str(snapshot.name) for snapshot in found] == ["a"]
    assert [str(error)[:40] for error in others] == [
        "line 1: $schema: a resource of the kind ",
        "line 8: $schema: a document of the type ",
        "line 12: the manifest has no 'kind'",
    ]


@pytest.mark.parametrize(
    "case",
    ["volume", "dataset_of_a_later_version", "no_kind", "header_that_is_unknown", "identity_of_its_own"],
)
def test_a_dataset_that_is_wrong_is_no_other_kind(case: str) -> None:
    (text,) = (c["text"] for c in CASES if c["id"] == case)
    with pytest.raises(ManifestError):
        read_definitions(text)


def test_a_fault_that_creation_finds_is_located_in_the_resource(tmp_path: Path) -> None:
    text = (
        f"{DATASET}headers: {{name: d}}\nspec:\n  kind: Derivative\n  metadata:\n"
        "    - kind: SetInfo\n      description: d\n"
        "    - kind: SetTransform\n      inputs: [{datasetRef: gone}]\n"
        "      transform: {kind: Sql, engine: spark, query: SELECT 1}\n"
    )
    (snapshot,) = read_snapshots(text, source="m.yaml")
    with pytest.raises(ManifestError, match="unknown input datasets: gone") as caught:
        WorkspaceFiles.init(tmp_path).create(snapshot)
    assert str(caught.value).startswith("m.yaml:9: spec.metadata[1].inputs: ")


def test_every_member_of_the_tables_has_a_case() -> None:
    given = " ".join(case["text"] for case in CASES)
    members = [name for names in _LEFT_OUT.values() for name in names] + [p.split(".")[1] for p in _REFUSED]
    assert [name for name in members if f"{name}:" not in given] == []
