"""`add -r` of folders, and of several files: what is taken, in which order, and what is passed over (RFC-054)."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

import odfchain.api.definitions
from odfchain.api.workspace import Workspace
from odfchain.cli.main import main
from odfchain.errors import ManifestError, NameCollisionError
from odfchain.limits import LIMITS, Limits
from tests.kit.support import Notes, feed

DATASET = "$schema: https://opendatafabric.org/schemas/dataset/v1alpha1/Dataset\n"
FLOW = "$schema: https://opendatafabric.org/schemas/flow/v1alpha1/Flow\nheaders: {name: f}\nspec: {}\n"
Add = Callable[..., tuple[int, list[str]]]


def root(name: str) -> str:
    return f"kind: DatasetSnapshot\nversion: 1\ncontent: {{name: {name}, kind: Root, metadata: []}}\n"


def derived(name: str, *inputs: str) -> str:
    """As a resource of ODF 0.39."""
    refs = ", ".join(f"{{datasetRef: {item}}}" for item in inputs)
    transform = "{kind: Sql, engine: odfchain-spark, query: SELECT 1}"
    event = f"{{kind: SetTransform, inputs: [{refs}], transform: {transform}}}"
    return f"{DATASET}headers: {{name: {name}}}\nspec:\n  kind: Derivative\n  metadata: [{event}]\n"


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Add:
    """Write files below a folder and add; without Spark."""
    Workspace.init(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(*args: str, **files: str) -> tuple[int, list[str]]:
        for name, text in files.items():
            path = tmp_path / "m" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".yaml").write_text(text, encoding="utf-8")
        code = main(["--no-color", "add", "--no-check", *(args or ("-r", "m"))])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err.splitlines()

    return run


def names(folder: Path) -> list[str]:
    return [str(dataset.alias) for dataset in Workspace.open(folder)]


def test_a_folder_is_one_command_whatever_its_files_are_called(add: Add) -> None:
    code, said = add(a=derived("last", "mid", "first"), b__b=derived("mid", "first"), b__c__z=root("first"))
    assert (code, said) == (0, ["added first (root)", "added mid (derivative)", "added last (derivative)"])
    code, said = add("-r", "m", "--update")
    assert (code, said) == (0, [f"{name} is up to date" for name in ("first", "mid", "last")])


def test_files_that_are_named_are_ordered_and_a_file_counts_once(add: Add) -> None:
    add("-r", "nothing", a=derived("a", "b"), b=root("b"))
    code, said = add("m/a.yaml", "-r", "m", "m/b.yaml", "./m/a.yaml")
    assert (code, said) == (0, ["added b (root)", "added a (derivative)"])


def test_what_defines_no_dataset_is_named_and_passed_over(add: Add, tmp_path: Path) -> None:
    add("nothing", a=root("a") + "---\n" + FLOW, flow=FLOW, compose="x: &a {y: 1}\nz: *a\n",
        config="kind: CLIConfig\nversion: 1\ncontent: {}\n", helm="{{ x }}: [\n")  # fmt: skip
    os.mkfifo(tmp_path / "m" / "pipe.yaml")
    (tmp_path / "m" / "broken.yaml").symlink_to("nowhere")
    code, said = add()
    assert code == 0
    assert [line.removeprefix("note: passed over: m/").split(": ")[0] for line in said] == [
        "a.yaml:5", "broken.yaml", "compose.yaml:1", "config.yaml:1", "flow.yaml:1", "helm.yaml:1", "pipe.yaml",
        "added a (root)",
    ]  # fmt: skip
    assert "a resource of the kind Flow (flow/v1alpha1), not a dataset" in said[0]
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["a", "flow"])
def test_a_file_that_is_named_defines_datasets_and_nothing_else(add: Add, tmp_path: Path, name: str) -> None:
    code, said = add(f"m/{name}.yaml", a=root("a") + "---\n" + FLOW, flow=FLOW)
    assert (code, names(tmp_path)) == (3, [])
    assert "a resource of the kind Flow (flow/v1alpha1), not a dataset" in said[0]


def test_a_folder_without_a_dataset_is_no_success(add: Add) -> None:
    code, said = add(flow=FLOW)
    assert (code, said[1]) == (3, "error: no manifest of a dataset is there")
    assert "Flow" in said[0]


def test_hidden_names_and_links_to_folders_are_not_looked_at(add: Add, tmp_path: Path) -> None:
    add("nothing", a=root("a"), sub__b=root("b"), **{".git__c": root("c")})
    (tmp_path / "m" / ".d.yaml").write_text(root("d"))
    (tmp_path / "m" / "notes.txt").write_text(root("e"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f.yaml").write_text(root("f"))
    (tmp_path / "m" / "loop").symlink_to("..")
    (tmp_path / "m" / "again.yml").symlink_to("a.yaml")
    (tmp_path / "m" / "UP.YML").write_text(root("up"))
    assert add() == (0, ["added up (root)", "added a (root)", "added b (root)"])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a": root("a"), "x": derived("x", "y"), "y": derived("y", "x")},
         "error: datasets refer to each other, none can be made first: x (m/x.yaml) → y (m/y.yaml) → x (m/x.yaml)"),
        ({"a": root("a"), "x": derived("x", "X")},
         "error: m/x.yaml:5: spec.metadata[0].inputs: a dataset cannot be an input of itself"),
        ({"a": root("a"), "b": root("A")}, "error: two manifests define a (m/a.yaml) and A (m/b.yaml)"),
        ({"a": root("a"), "x": derived("x", "a", "gone", "b/c")},
         "error: m/x.yaml:5: spec.metadata[0].inputs: unknown input datasets: gone, b/c"),
        ({"a": root("a"), "b": root("b_")}, "error: m/b.yaml:3: name: 'b_' is not a valid dataset name"),
        ({"a": root("a"), "b": root("b").replace("metadata: []", "metadata: [")}, "error: m/b.yaml:3: not valid YAML"),
        ({"a": root("a"), "b": f"{DATASET}# {'x' * LIMITS.manifest_bytes}"}, "error: m/b.yaml: larger than"),
        ({"a": root("a"), "b": root("b").replace("[]", "[{kind: SetVocab, offsetColumn: op}]")},
         "error: m/b.yaml: metadata[0].offsetColumn: 'op' is the name that operationTypeColumn has"),
    ],
    ids=["circle", "own input", "one name twice", "missing inputs", "bad name", "no YAML", "too large", "append rule"],
)  # fmt: skip
def test_one_that_is_wrong_among_many_and_nothing_is_made(
    add: Add, tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    code, said = add(**files)
    assert code == 3
    assert said[0].startswith(expected)
    assert names(tmp_path) == []


def test_a_name_that_is_taken_and_nothing_is_made(add: Add, tmp_path: Path) -> None:
    add(b=root("b"))
    code, said = add(a=root("a"))
    assert code == 5
    assert said[0] == "error: a dataset called 'b' already exists; nothing was made"
    assert "--update" in said[1]
    assert names(tmp_path) == ["b"]
    assert add("-r", "m", "--update") == (0, ["added a (root)", "b is up to date"])


def test_what_is_not_kept_is_said_and_escaped(add: Add) -> None:
    labels = '{env: prod, "\\e[31m\\u202e": x}'
    code, said = add(
        a=f"{DATASET}headers: {{name: a, account: acme, labels: {labels}}}\nspec: {{kind: Root, metadata: []}}\n"
    )
    assert code == 0
    assert said[0].startswith(
        "note: m/a.yaml: not kept, because ODF 0.34.1 has no place for it: headers.labels (env, "
    )
    assert not {c for line in said for c in line if unicodedata.category(c) in ("Cc", "Cf")}
    assert said[1] == "added acme/a (root)"


def test_manifests_come_by_standard_input(add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, (root("a") + "---\n" + root("b")).encode())
    assert add("-") == (0, ["added a (root)", "added b (root)"])
    feed(monkeypatch, root("x").encode())
    assert add("--stdin", "--name", "c")[0] == 0
    feed(monkeypatch, b"#" * (LIMITS.manifest_bytes + 2))
    assert add("--stdin") == (3, [f"error: <stdin>: larger than {LIMITS.manifest_bytes:,} bytes"])
    assert names(tmp_path) == ["a", "b", "c"]


def test_a_url_a_file_that_is_not_there_and_a_folder(add: Add) -> None:
    code, said = add("https://example.com/a.yaml")
    assert (code, len(said)) == (2, 2)
    assert said[1] == "hint: the command reads files: download it, and name the file"
    assert add("m/none.yaml") == (2, ["error: m/none.yaml: no such file"])
    code, said = add("m", a=root("a"))
    assert (code, "use -r" in "".join(said)) == (2, True)


def test_a_folder_with_too_many_files(add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odfchain.api.definitions, "LIMITS", Limits(manifest_files=2))
    code, said = add(a=root("a"), b=root("b"), sub__c=root("c"))
    assert (code, said[0]) == (3, "error: m: more than 2 YAML files are below it")


def test_from_python_a_folder_is_one_call(tmp_path: Path) -> None:
    workspace, notes, folder = Workspace.init(tmp_path / "w"), Notes(), tmp_path / "m"
    folder.mkdir()
    for name, text in (("a", derived("a", "b")), ("b", root("b")), ("flow", FLOW)):
        (folder / f"{name}.yaml").write_text(text)
    made = workspace.add(folder, check=False, progress=notes)
    assert [str(dataset.alias) for dataset in made] == ["b", "a"]
    assert [note.split(": $schema")[0] for note in notes.texts] == [f"passed over: {folder}/flow.yaml:1"]
    with pytest.raises(NameCollisionError, match="datasets called 'b', 'a' already exist; nothing was made"):
        workspace.add([folder / "a.yaml", folder / "b.yaml"], check=False)
    with pytest.raises(ManifestError, match="Flow"):
        workspace.add(folder / "flow.yaml")
    with pytest.raises(
        ManifestError, match=r"^line 9: spec\.metadata\[0\]\.inputs: unknown input datasets: z"
    ):
        workspace.add(root("c") + "---\n" + derived("d", "z"), check=False)
    assert len(workspace) == 2
