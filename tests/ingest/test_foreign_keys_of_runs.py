"""Foreign keys of what Spark writes: slices are read back before they are committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from tests.kit.foreign_key_cases import manifest
from tests.kit.support import Result, derivative

TO_PARENT = "foreignKeys: [{columns: [p], references: {dataset: parent}}]"


def test_ingestion_is_checked_and_says_what_is_missing(
    workspace: Workspace, run_cli: Callable[..., Result], tmp_path: Path
) -> None:
    workspace.add(manifest("parent", {"key": ["p"]}), check=False)
    workspace.add(manifest("child", {"key": ["c"], "constraints": TO_PARENT}), check=False)
    files = {"parent": "p\np1\np2\n", "child": "c,p\nc1,p1\nc2,p9\nc3,\n", "good": "c,p\nc1,p1\n"}
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    listed = tmp_path / "broken.ndjson"

    def ingest(dataset: str, file: str, *more: object) -> Result:
        return run_cli("-w", workspace.path, "ingest", dataset, tmp_path / f"{file}.csv", *more)

    assert ingest("parent", "parent").code == 0
    before = workspace["child"].head
    refused = ingest("child", "child", "--violations", listed)
    assert (refused.code, workspace["child"].head) == (3, before)
    assert "error: 1 row of child refers by p to what parent does not have as p" in refused.err
    assert '  p = p9, in {"c": "c2"}\n' in refused.err
    assert "hint: record them in parent first" in refused.err
    (line,) = map(json.loads, listed.read_text().splitlines())
    assert (line["value"], line["columns"]) == ("p9", '["p"]')
    assert ingest("child", "good").code == 0
    (tmp_path / "gone.csv").write_text("op,p\n1,p1\n")
    gone = ingest("parent", "gone")
    assert (gone.code, "of child first" in gone.err) == (3, True)
    assert workspace["child"].verify().state(18) == "passed"


@pytest.mark.soak
def test_derivatives_report_and_commit(workspace: Workspace, tmp_path: Path) -> None:
    text = json.loads(manifest("parent", {"key": ["p"]}))
    workspace.add(json.dumps(text), check=False)
    query = "SELECT event_time, p || '!' AS p FROM parent"
    made = derivative(query, name="shouted", inputs="[{datasetRef: parent}]")
    more = f"""    - kind: SetAttachments
      attachments: {{kind: Embedded, items: [{{path: CONSTRAINTS.yaml, content: "{TO_PARENT}"}}]}}
"""
    workspace.add(made.rstrip() + "\n" + more, check=False)
    (tmp_path / "parent.csv").write_text("p\np1\np2\n")
    workspace["parent"].ingest(tmp_path / "parent.csv")
    notes: list[str] = []

    class Noted:
        def phase(self, name: str, total: int | None = None) -> None: ...
        def advance(self, steps: int = 1) -> None: ...
        def note(self, text: str) -> None:
            notes.append(text)

    path = tmp_path / "broken.csv"
    outcome = workspace["shouted"].pull(progress=Noted(), violations=path)
    assert outcome.blocks
    assert any("2 rows of shouted refer by p" in note and "reported only" in note for note in notes), notes
    assert len(path.read_text().splitlines()) == 3
    report = workspace["shouted"].verify()
    assert (report.faults, any("2 rows of shouted" in note for note in report.notes)) == ([], True)
