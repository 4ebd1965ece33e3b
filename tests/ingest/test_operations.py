"""Sources whose rows say themselves what they do: what is explained by `add`, and what by the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError, ManifestError, SchemaError
from odfchain.odf.manifests import read_snapshots
from tests.kit.support import manifest, of_others, unchanged

CHANGELOG = "{kind: ChangelogStream, primaryKey: [city]}"
UPSERT = "{kind: UpsertStream, primaryKey: [city]}"
COLUMNS = '["op %s", "city STRING", "population BIGINT"]'
VOCABULARY = "    - {kind: SetVocab, operationTypeColumn: change}\n"


def test_add_explains_a_declared_schema_without_operations(workspace: Workspace) -> None:
    with pytest.raises(ManifestError) as caught:
        workspace.add(manifest(CHANGELOG))
    assert str(caught.value).startswith(
        "line 13: metadata[0].merge: merge ChangelogStream takes what each row does from the column 'op', "
        "which the declared schema does not have (it has city, population)"
    )
    assert "0 for +A, 1 for -R, 2 for -C, 3 for +C" in str(caught.value.hint)
    assert len(workspace) == 0


def test_the_column_has_the_name_that_the_vocabulary_says(workspace: Workspace) -> None:
    with pytest.raises(ManifestError, match="column 'change'"):
        workspace.add(manifest(CHANGELOG, COLUMNS % "INT") + VOCABULARY)
    changed = manifest(CHANGELOG, COLUMNS.replace("op", "change") % "INT")
    workspace.add(changed + VOCABULARY)
    (snapshot,) = read_snapshots(changed.replace("sourceName: default", "sourceName: other"))
    assert len(workspace.update(snapshot)[1]) == 1, "the vocabulary in force counts"


@pytest.mark.parametrize(
    "text",
    [
        manifest(CHANGELOG).replace("        schema:", "        #"),
        manifest(CHANGELOG)
        + "      preprocess: {kind: Sql, engine: spark, query: 'SELECT 0 AS op, * FROM input'}\n",
        manifest(UPSERT),
    ],
    ids=["no schema", "a query", "another strategy"],
)
def test_add_does_not_guess(workspace: Workspace, text: str) -> None:
    assert len(workspace.add(text, check=False)) == 1


@pytest.mark.parametrize("merge", [CHANGELOG, UPSERT])
@pytest.mark.parametrize(
    ("kind", "bad"), [("INT", "7"), ("DOUBLE", "0.5"), ("STRING", "'+A'"), ("INT", "-1")]
)
def test_an_operation_that_is_none(
    workspace: Workspace, tmp_path: Path, merge: str, kind: str, bad: str
) -> None:
    (dataset,) = workspace.add(manifest(merge, COLUMNS % kind))
    path = tmp_path / "in.csv"
    path.write_text("op,city,population\n0,A,1\n" + bad.strip("'") + ",A,2\n")
    with unchanged(dataset.path), pytest.raises(BadInputError) as caught:
        dataset.ingest([path])
    assert f"in.csv: row 2: column `op`: {bad} is not an operation (0 for +A" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "row", "message"),
    [
        ("2,A,1\n", 1, "old values (-C, 2) without the new ones"),
        ("0,A,1\n3,A,2\n", 2, "new values (+C, 3) without the old ones"),
        ("2,A,1\n3,B,2\n", 1, "old values"),
        ("2,A,1\n2,A,1\n3,A,2\n", 1, "old values"),
    ],
)
def test_a_torn_correction_is_not_recorded(
    workspace: Workspace, tmp_path: Path, rows: str, row: int, message: str
) -> None:
    """`verify` would call it a fault."""
    (dataset,) = workspace.add(manifest(CHANGELOG, COLUMNS % "INT"))
    path = tmp_path / "in.csv"
    path.write_text("op,city,population\n" + rows)
    with unchanged(dataset.path), pytest.raises(BadInputError) as caught:
        dataset.ingest([path])
    assert f"in.csv: row {row}: {message}" in str(caught.value)


def test_corrections_of_several_keys_may_be_mixed(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest(CHANGELOG, COLUMNS % "INT"))
    path = tmp_path / "in.csv"
    path.write_text("op,city,population\n0,A,1\n0,B,1\n2,A,1\n2,B,1\n3,B,2\n3,A,2\n1,B,2\n")
    dataset.ingest([path])
    assert dataset.scan(["op"]).to_arrow()["op"].to_pylist() == [0, 2, 3, 0, 2, 3, 1]
    assert dataset.verify().ok


def test_a_key_that_names_a_column_twice(workspace: Workspace, tmp_path: Path) -> None:
    dataset = of_others(workspace, manifest("{kind: Ledger, primaryKey: [city, city]}"))
    path = tmp_path / "in.csv"
    path.write_text("city,population\nA,1\n")
    with pytest.raises(SchemaError, match="primaryKey of the source names column 'city' twice"):
        dataset.ingest([path])
