"""CONSTRAINTS.yaml: what may stand in it, what `add` makes of it, and how commands tell what breaks it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.branching import foreign_keys
from odfchain.api.workspace import Workspace
from odfchain.errors import IngestError, ManifestError, UsageError
from odfchain.odf import events as ev
from odfchain.odf.identity import DatasetId
from odfchain.odf.manifests import read_snapshots
from odfchain.progress import SILENT
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.declared_constraints import ConstraintsFile, OnViolation, parse_constraints
from tests.kit.branch_cases import read_lines, run_here
from tests.kit.foreign_key_cases import Scene, manifest
from tests.kit.support import Result

SOME = DatasetId(bytes(range(32)))
GOOD = "foreignKeys: [{columns: [a], references: {dataset: x}}]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "one was expected"),
        ("[]", "must be an object, not a list"),
        ("{}", "neither primaryKey nor foreignKeys"),
        ("primaryKey: a", "must be a list, not the text"),
        ("primaryKey: []", "a list of columns, of 1 to 32"),
        ("primaryKey: [a, a]", "different columns"),
        ("primaryKey: [1]", "primaryKey[0]: must be text"),
        ("primaryKey: [a]\nunique: [b]", "unknown property 'unique'"),
        ("primaryKey: [a]\nprimaryKey: [b]", "duplicate key"),
        ("foreignKeys: {}", "must be a list"),
        ("foreignKeys: [{columns: [a]}]", "the property 'references' is missing"),
        ("foreignKeys: [{columns: [a], references: x}]", "references: must be an object"),
        ("foreignKeys: [{columns: [a], references: {}}]", "either 'dataset' or 'changesOf'"),
        ("foreignKeys: [{columns: [a], references: {dataset: x, changesOf: x}}]", "either 'dataset'"),
        ("foreignKeys: [{columns: [a], references: {dataset: 'no name!'}}]", "foreignKeys[0].references.dataset"),
        ("foreignKeys: [{columns: [a], references: {dataset: 1}}]", "references.dataset: must be text"),
        ("foreignKeys: [{columns: [a, b], references: {changesOf: x}}]", "named by one column"),
        (GOOD.replace("}}]", "}, onViolation: cascade}]"), "unknown value 'cascade' (known: refuse, report)"),
        (GOOD.replace("}}]", "}, onDelete: cascade}]"), "unknown property 'onDelete'"),
        ("foreignKeys:\n" + "  - {columns: [a], references: {dataset: x}}\n" * 2, "line 3: foreignKeys[1]: is declared"),
        ("foreignKeys:\n" + "  - {columns: [a], references: {dataset: x}}\n" * 101, "a list of 0 to 100"),
        ("a: &x 1\nprimaryKey: [*x]", "anchors"),
        (GOOD + "#" * 70_000, "larger than"),
        ("primaryKey: [a]\n---\nprimaryKey: [b]", "2 documents"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(text: str, says: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_constraints(text, lambda _: SOME)
    found = str(caught.value).replace("CONSTRAINTS.yaml:3:", "line 3:")
    assert says in found
    assert caught.value.source == "CONSTRAINTS.yaml"


NAME = "CONSTRAINTS.yaml"


def attached(*files: tuple[str, str]) -> ev.SetAttachments:
    """Files by name, and their texts."""
    items = tuple(ev.AttachmentEmbedded(path=name, content=text) for name, text in files)
    return ev.SetAttachments(attachments=ev.AttachmentsEmbedded(items=items))


def test_names_become_ids_and_all_else_of_the_text_stays() -> None:
    text = (
        "\ufeff# why ü\nforeignKeys:\n- references: {dataset: 'x'}  # the x\n  columns: [a]\n  onViolation: report\n"
        f"- {{columns: [b], references: {{changesOf: {SOME}}}}}\n"
        "- columns: [c]\n  references:\n    dataset:\n      y\n"
    )  # fmt: skip
    given = attached(("README.md", "hello"), (NAME, text))
    recorded = ConstraintsFile(given).resolved(lambda _: SOME)
    readme, file = recorded.attachments.items
    expected = text.removeprefix("\ufeff").replace("'x'", str(SOME)).replace("      y\n", f"      {SOME}\n")
    assert (readme.content, file.content) == ("hello", expected)
    assert ConstraintsFile(recorded).resolved(lambda _: SOME) == recorded
    found = parse_constraints(file.content, lambda _: SOME).foreign_keys
    assert [(key.columns, key.changes, key.on_violation) for key in found] == [
        (("a",), False, OnViolation.REPORT), (("b",), True, OnViolation.REFUSE), (("c",), False, OnViolation.REFUSE),
    ]  # fmt: skip


def test_a_name_in_a_block_of_text_cannot_be_replaced(tmp_path: Path) -> None:
    constraints = (
        "foreignKeys:\n- columns: [a]\n  references:\n    dataset: >-\n      parent\n  onViolation: report\n"
    )
    with Workspace.init(tmp_path) as workspace:
        workspace.add(manifest("parent", {"key": ["p"]}), check=False)
        with pytest.raises(ManifestError, match=r"CONSTRAINTS\.yaml"):
            workspace.add(manifest("child", {"key": ["a"], "constraints": constraints}), check=False)


CASE: dict[str, Any] = {
    "id": "cli",
    "datasets": {
        "parent": {"columns": ["p"], "key": ["p"]},
        "child": {"columns": ["c", "p"], "key": ["c"], "constraints": GOOD.replace("[a]", "[p]").replace("x}", "parent}")},
    },
}  # fmt: skip


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(CASE, tmp_path)
    for name, spec in CASE["datasets"].items():
        scene.add(name, spec)
    return scene


def test_all_datasets_are_named_also_where_equal_columns_refer_to_two() -> None:
    text = "foreignKeys:\n" + "".join(
        f"  - {{columns: [a], references: {{dataset: {name}}}}}\n" for name in ("x", "y")
    )
    assert [str(ref) for ref in ConstraintsFile(attached((NAME, text))).referenced()] == ["x", "y"]


def test_attachments_that_would_drop_the_file_need_consent(scene: Scene, tmp_path: Path) -> None:
    run = run_here(scene.workspace)
    path = tmp_path / "child.yaml"
    whole, bare = manifest("child", CASE["datasets"]["child"]), manifest("child", {"key": ["c"]})
    readme = {"kind": "Embedded", "items": [{"path": "README.md", "content": "hello"}]}
    event = {"kind": "SetAttachments", "attachments": readme}
    other = manifest("child", {"key": ["c"], "events": [event]})

    def update(text: str, *options: str) -> Result:
        path.write_text(text)
        return run("add", "--update", *options, str(path))

    assert update(whole).err == "child is up to date\n"
    assert update(bare).err == "child is up to date\n"  # what is not mentioned stays
    refused = update(other)
    assert (refused.code, "--drop-constraints" in refused.err) == (3, True)
    assert scene.workspace["child"].summary.constraints.foreign_keys
    assert update(other, "--drop-constraints").code == 0
    assert not scene.workspace["child"].summary.constraints.foreign_keys
    assert update(whole).err == "updated child (SetAttachments)\n"
    assert run("add", "--drop-constraints", str(path)).code == 2


def test_python_refuses_as_the_command_line_does(scene: Scene) -> None:
    none = attached()
    (snapshot,) = read_snapshots(manifest("child", {"key": ["c"]}))
    snapshot = dataclasses.replace(snapshot, metadata=(none,))
    with pytest.raises(IngestError, match=r"CONSTRAINTS\.yaml"):
        scene.workspace.update(snapshot)
    _, events = scene.workspace.update(snapshot, drop_constraints=True)
    assert events == [none]


def test_definitions_are_made_in_the_order_of_their_references(tmp_path: Path) -> None:
    specs = CASE["datasets"]
    text = "\n---\n".join(manifest(name, specs[name]) for name in ("child", "parent"))
    with Workspace.init(tmp_path) as workspace:
        made = workspace.add(text, check=True)
        assert [str(dataset.alias) for dataset in made] == ["parent", "child"]
        (key,) = workspace["child"].summary.constraints.foreign_keys
        assert key.dataset == workspace["parent"].id


def test_columns_and_types_are_judged_where_a_source_declares_them(tmp_path: Path) -> None:
    def with_schema(name: str, ddl: list[str], constraints: str | None = None) -> str:
        tree = json.loads(
            manifest(name, {"key": ["k"]} | ({"constraints": constraints} if constraints else {}))
        )
        tree["content"]["metadata"][0]["read"]["schema"] = ddl
        return json.dumps(tree)

    def refers(column: str) -> str:
        return f"foreignKeys: [{{columns: [{column}], references: {{dataset: parent}}}}]"

    with Workspace.init(tmp_path) as workspace:
        workspace.add(with_schema("parent", ["k BIGINT"]), check=False)
        with pytest.raises(ManifestError, match="there is no column `x`"):
            workspace.add(with_schema("child", ["k STRING", "n BIGINT"], refers("x")), check=False)
        with pytest.raises(ManifestError, match="`k` is STRING, `k` of parent is BIGINT"):
            workspace.add(with_schema("child", ["k STRING", "n BIGINT"], refers("k")), check=False)
        workspace.add(with_schema("child", ["k STRING", "n BIGINT"], refers("n")), check=False)
        assert [str(dataset.alias) for dataset in workspace] == ["child", "parent"]


def rows(count: int) -> list[list[Any]]:
    return [["+A", f"c{index:02}", f"ü{index}"] for index in range(count)]


@pytest.mark.parametrize("ending", ["csv", "ndjson"])
def test_a_refusal_shows_the_first_rows_and_a_file_has_all(scene: Scene, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"broken.{ending}"
    with (
        pytest.raises(IngestError, match="nothing was committed") as caught,
        foreign_keys(scene.workspace, SILENT, path) as check,
    ):
        scene.append(scene.at("child"), [rows(25)], check)
    assert str(caught.value).startswith("25 rows of child refer by p to what parent does not have as p;")
    first, *more, last = caught.value.excerpt
    assert (first, len(more), last) == ('p = ü0, in {"c": "c00"}', 19, "… and 5 more")
    listed = read_lines(path)
    assert len(listed) == 25
    assert listed[7] == {
        "dataset": "child", "key": '{"c": "c07"}', "columns": '["p"]', "value": "ü7",
        "missing in": "parent does not have as p", "origin": "",
    }  # fmt: skip
    with foreign_keys(scene.workspace, SILENT, path) as check:
        scene.append(scene.at("parent"), [[["+A", "p"]]], check)
    assert path.read_text() == (",".join(listed[7]) + "\n" if ending == "csv" else "")


def test_corrections_and_reverts_are_checked(scene: Scene, tmp_path: Path) -> None:
    run = run_here(scene.workspace)
    scene.take({"on": "parent", "rows": [["+A", "p1"]]})
    scene.take({"on": "child", "rows": [["+A", "c1", "p1"]]})
    (tmp_path / "fix.csv").write_text("c,p\nc1,p7\n")
    (tmp_path / "gone.csv").write_text("p\np1\n")
    broken = run("correct", "child", str(tmp_path / "fix.csv"), "--violations", str(tmp_path / "broken.csv"))
    assert (broken.code, "p = p7" in broken.err) == (3, True)
    assert len((tmp_path / "broken.csv").read_text().splitlines()) == 2
    gone = run("correct", "parent", "--remove", str(tmp_path / "gone.csv"))
    assert (gone.code, "of child first" in gone.err) == (3, True)
    head = scene.at("parent").chain.head()
    reverted = run("revert", "parent", str(head))
    assert (reverted.code, "of child first" in reverted.err) == (3, True)
    assert scene.at("parent").chain.head() == head


def test_another_ending_is_refused_before_anything_is_done(scene: Scene) -> None:
    with (
        pytest.raises(UsageError, match=r"\.csv or \.ndjson"),
        foreign_keys(scene.workspace, SILENT, "x.xlsx"),
    ):
        raise AssertionError("it began")


def test_a_file_of_others_that_is_not_understood_stops_commits_and_is_no_fault(scene: Scene) -> None:
    files = scene.at("parent")
    state = DatasetState.read(files.chain)
    commit(files, state, [attached((NAME, "what: ever"))], [], system_time=state.head_block.system_time)
    scene.take({"on": "parent", "rows": [["+A", "p"]], "refused": ["unknown property 'what'"], "exit": 3})
    report = scene.workspace["parent"].verify()
    assert (report.faults, report.state(18)) == ([], "notChecked")
    assert "unknown property 'what'" in report.reasons[18]


def test_a_reference_into_the_same_dataset_that_finds_nothing_is_a_fault(tmp_path: Path) -> None:
    constraints = "foreignKeys: [{columns: [up], references: {dataset: tree}}]"
    case = {"datasets": {"tree": {"columns": ["k", "up"], "key": ["k"], "constraints": constraints}}}
    scene = Scene(case, tmp_path)
    scene.add("tree", case["datasets"]["tree"])
    scene.append(scene.at("tree"), [[["+A", "a", "b"], ["+A", "c", None]]], None)
    report = scene.workspace["tree"].verify()
    (fault,) = report.faults
    expected = 'row of tree refers by up to what tree does not have as k: up = b, in {"k": "a"}'
    assert (fault.check, fault.message) == (18, f"1 {expected}")
    earlier = scene.workspace["tree"].verify(upto=1)
    assert (earlier.faults, earlier.state(18)) == ([], "notApplicable")


def test_a_copy_under_another_id_refers_to_itself() -> None:
    old, new = SOME, DatasetId(bytes(reversed(range(32))))
    text = f"foreignKeys:\n- {{columns: [a], references: {{dataset: {old}}}}}  # itself\n- {{columns: [b], references: {{changesOf: {old}}}}}\n"
    moved = ConstraintsFile(attached((NAME, text))).moved(old, new).attachments.items[0].content
    assert moved == text.replace(f"dataset: {old}", f"dataset: {new}")


def test_what_is_referred_to_must_be_here(scene: Scene) -> None:
    scene.workspace.delete("parent", force=True)
    child = {"on": "child", "rows": [["+A", "c1", "p1"]]}
    scene.take(child | {"refused": ["which is not here", "pull it"], "exit": 4})
    report = scene.workspace["child"].verify()
    assert (report.faults, report.state(18)) == ([], "notChecked")
    assert "which is not here" in report.reasons[18]
