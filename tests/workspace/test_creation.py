"""From snapshots to first blocks: `snapshot_rules` of `chain_rules.json`, and the order of creation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odfchain.cli.start import manifest_template
from odfchain.errors import ManifestError
from odfchain.odf import events as ev
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.names import DatasetAlias
from odfchain.odf.sources import SqlQueryStep
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import conformance

PUSH = """
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson}
      merge: {kind: Append}
"""
POLLING = """
    - kind: SetPollingSource
      fetch: {kind: Url, url: https://example.com}
      read: {kind: NdJson}
      merge: {kind: Append}
"""
TRANSFORM = """
    - kind: SetTransform
      inputs: [{datasetRef: input}]
      transform: {kind: Sql, engine: spark, query: SELECT 1}
"""
SLICE = "{logicalHash: f16207d1d, physicalHash: f16207d1d, offsetInterval: {start: 0, end: 1}, size: 1}"


def snapshot(metadata: str, *, kind: str = "Root", name: str = "d") -> DatasetSnapshot:
    head = f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: {name}\n  kind: {kind}\n  metadata:\n"
    return read_snapshots(head + metadata)[0]


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    files = WorkspaceFiles.init(tmp_path)
    files.create(snapshot(PUSH, name="input"))
    return files


REFUSED: dict[str, list[tuple[str, str, str]]] = {
    "snapshot-no-seed": [
        ("Root", "    - kind: Seed\n      datasetId: did:odf:fed01" + "0" * 64 + "\n      datasetKind: Root\n", r"metadata\[0\].*Seed"),
    ],
    "snapshot-root-only": [
        ("Derivative", PUSH, r"metadata\[0\]: AddPushSource belongs in Root datasets only"),
        ("Derivative", TRANSFORM + POLLING, r"metadata\[1\]: SetPollingSource belongs in Root datasets only"),
    ],
    "snapshot-derivative-only": [("Root", TRANSFORM, r"metadata\[0\]: SetTransform belongs in Derivative")],
    "snapshot-allowed-events": [
        ("Root", "    - kind: AddData\n      newWatermark: 2020-01-01T00:00:00Z\n", r"AddData cannot be listed"),
        ("Root", "    - kind: DisablePollingSource\n", r"DisablePollingSource cannot be listed"),
        ("Root", "    - kind: DisablePushSource\n      sourceName: default\n", r"DisablePushSource cannot be listed"),
        ("Derivative", "    - kind: ExecuteTransform\n      queryInputs: []\n", r"ExecuteTransform cannot be listed"),
    ],
    "snapshot-query-xor-queries": [
        ("Derivative", TRANSFORM.replace("query: SELECT 1", "query: SELECT 1, queries: [{query: SELECT 2}]"),
         r"metadata\[0\]\.transform: give 'query' or 'queries'"),
    ],
    "snapshot-one-output": [
        ("Derivative", TRANSFORM.replace("query: SELECT 1", "queries: [{query: SELECT 1}, {query: SELECT 2}]"),
         r"metadata\[0\]\.transform: more than one query has no alias"),
    ],
    "snapshot-normalise": [
        ("Derivative", TRANSFORM.replace(", query: SELECT 1", ""), r"metadata\[0\]\.transform: a transform needs"),
        ("Root", PUSH + "      preprocess: {kind: Sql, engine: spark}\n", r"metadata\[0\]\.preprocess: a transform needs"),
    ],
    "snapshot-resolve-inputs": [
        ("Derivative", TRANSFORM.replace("[{datasetRef: input}]", "[{datasetRef: gone}, {datasetRef: input}, {datasetRef: away}]"),
         r"metadata\[0\]\.inputs: unknown input datasets: gone, away"),
    ],
}  # fmt: skip


def test_every_rule_has_a_test() -> None:
    assert {rule["id"] for rule in conformance("chain_rules")["snapshot_rules"]} == set(REFUSED)


@pytest.mark.parametrize(
    ("kind", "metadata", "message"),
    [pytest.param(*case, id=f"{rule}-{i}") for rule, many in REFUSED.items() for i, case in enumerate(many)],
)
def test_refused(workspace: WorkspaceFiles, kind: str, metadata: str, message: str) -> None:
    before = list(workspace.datasets())
    with pytest.raises(ManifestError, match=message):
        workspace.create(snapshot(metadata, kind=kind))
    assert [d.folder for d in workspace.datasets()] == [d.folder for d in before]


def events(workspace: WorkspaceFiles, kind: str, metadata: str) -> list[Any]:
    dataset = workspace.create(snapshot(metadata, kind=kind))
    return [hb.block.event for hb in dataset.chain.walk()][::-1]


def test_events_that_are_allowed(workspace: WorkspaceFiles) -> None:
    found = events(
        workspace,
        "Root",
        "    - {kind: SetInfo, description: d}\n    - {kind: SetLicense, shortName: a, name: b, websiteUrl: 'https://c'}\n"
        "    - {kind: SetAttachments, attachments: {kind: Embedded, items: [{path: README.md, content: Hi}]}}\n"
        "    - {kind: SetVocab, eventTimeColumn: date}\n" + PUSH.lstrip("\n"),
    )
    assert [e.KIND for e in found] == [
        "Seed", "SetInfo", "SetLicense", "SetAttachments", "SetVocab", "AddPushSource"
    ]  # fmt: skip


@pytest.mark.parametrize("query", ["query: SELECT 1", "queries: [{query: SELECT 1}]"])
def test_queries_are_stored_normalised_and_inputs_resolved(workspace: WorkspaceFiles, query: str) -> None:
    found = events(workspace, "Derivative", TRANSFORM.replace("query: SELECT 1", query))
    stored = found[1]
    assert isinstance(stored, ev.SetTransform)
    assert stored.transform.query is None
    assert stored.transform.queries == (SqlQueryStep(query="SELECT 1"),)
    (item,) = stored.inputs
    assert str(item.dataset_ref) == str(workspace.dataset("input").id)
    assert item.alias == "input", "the reference as it was written"


def test_preprocess_is_normalised_too(workspace: WorkspaceFiles) -> None:
    found = events(
        workspace, "Root", PUSH + "      preprocess: {kind: Sql, engine: spark, query: SELECT 2}\n"
    )
    assert found[1].preprocess.queries == (SqlQueryStep(query="SELECT 2"),)


def test_an_alias_of_an_input_is_kept_and_ids_are_accepted(workspace: WorkspaceFiles) -> None:
    name = str(workspace.dataset("input").id)
    text = TRANSFORM.replace("{datasetRef: input}", f"{{datasetRef: '{name}', alias: Other}}")
    (item,) = events(workspace, "Derivative", text)[1].inputs
    assert (str(item.dataset_ref), item.alias) == (name, "Other")


@pytest.mark.parametrize("kind", ["root", "derivative", "assets"])
def test_templates_are_valid_as_they_are(kind: str) -> None:
    text = manifest_template(DatasetAlias.parse("a.b"), kind, first="for x")
    assert text.startswith("# for x\n")
    (found,) = read_snapshots(text)
    assert (str(found.name), found.kind.value) == ("a.b", "Derivative" if kind == "derivative" else "Root")
