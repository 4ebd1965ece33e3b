"""Attachments: brought by `add --attach`, listed, and written to a folder out of which no path leads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import odfchain as odf
from odfchain.odf import events as ev
from odfchain.workspace.attachments import write_files
from tests.kit.support import Run, manifest

OWN = "    - {kind: SetAttachments, attachments: {kind: Embedded, items: [{path: docs/a.md, content: Hi}]}}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> odf.Workspace:
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("# Cities é\n", encoding="utf-8")
    Path("own.yaml").write_text(manifest(name="own") + OWN, encoding="utf-8")
    Path("bare.yaml").write_text(manifest(name="bare"), encoding="utf-8")
    return odf.init(tmp_path)


def test_files_come_beside_those_of_the_manifest_and_change_with_update(
    home: odf.Workspace, run: Run
) -> None:
    assert run("add", "own.yaml", "bare.yaml", "--attach", "README.md").code == 0
    listed = json.loads(run("inspect", "attachments", "own", "-o", "json").out)
    assert listed == [{"path": "docs/a.md", "size": 2}, {"path": "README.md", "size": 12}]
    assert home["bare"].attachments() == {"README.md": "# Cities é\n"}
    Path("README.md").write_text("new", encoding="utf-8")
    update = ("add", "--update", "bare.yaml", "--attach")
    assert run(*update, "docs/b.md=README.md").code == 0
    assert home["bare"].attachments() == {"README.md": "# Cities é\n", "docs/b.md": "new"}
    assert run(*update, "README.md").code == 0
    assert home["bare"].attachments() == {"docs/b.md": "new", "README.md": "new"}
    assert "up to date" in run(*update, "README.md").err
    at = f"bare@{home['bare'].summary.head_block.sequence_number - 2}"
    assert run("inspect", "attachments", at, "-o", "csv").out == "path,size\nREADME.md,12\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["README.md", "README.md"], "'README.md' is attached twice"),
        (["docs/a.md=README.md"], "'docs/a.md' is attached twice"),
        (["../a=README.md"], "'../a' is not the path of a file below a folder"),
        (["READ.md"], "did you mean README.md?"),
        (["bytes"], "bytes: not UTF-8 (byte 1)"),
        (["long"], "long: an attachment has at most 1,048,576 bytes"),
    ],
)
def test_what_cannot_be_attached_is_said_and_nothing_is_made(
    home: odf.Workspace, run: Run, given: list[str], says: str
) -> None:
    Path("bytes").write_bytes(b"a\xff")
    Path("long").write_bytes(b"a" * ((1 << 20) + 1))
    code, _, err = run("add", "own.yaml", *[word for each in given for word in ("--attach", each)])
    assert (code, says in err) == (2, True), err
    assert list(home) == []


def test_export_writes_them_and_replaces_nothing(home: odf.Workspace, run: Run) -> None:
    run("add", "own.yaml", "--attach", "README.md")
    export = ("export", "own", "--attachments", "--to")
    assert "2 attachments in out" in run(*export, "out").err
    assert Path("out/README.md").read_text(encoding="utf-8") == "# Cities é\n"
    code, _, err = run(*export, "out")
    assert (code, "already exists" in err, "hint: name a new folder" in err) == (5, True, True)
    Path("linked").mkdir()
    Path("linked/docs").symlink_to("..")
    assert (run(*export, "linked").code, Path("a.md").exists()) == (5, False)
    Path("file").mkdir()
    Path("file/docs").touch()
    assert (run(*export, "file").code, [*Path("file").iterdir()]) == (5, [Path("file/docs")])
    assert run("export", "own", "--attachments").code == 2


HOSTILE = [
    ["../out"], ["/etc/x"], ["a/../../b"], ["a//b"], ["a/."], ["nul\0"], ["\u202egpj.exe"], ["line\nbreak"], [""],
    ["a" * 256], ["a/" * 40 + "b"], ["a/" * 500_000 + "b"], ["a", "a"], ["a", "a/b"], ["\ud800"],
]  # fmt: skip


@pytest.mark.parametrize("paths", HOSTILE, ids=lambda paths: ascii(paths[0][:9]))
def test_paths_of_strangers_lead_nowhere(tmp_path: Path, paths: list[str]) -> None:
    items = [ev.AttachmentEmbedded(path=path, content="x") for path in ["good", *paths]]
    with pytest.raises(odf.errors.StoreError, match="nothing was written: ") as caught:
        write_files(items, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []
    assert len(str(caught.value)) < 700
    assert str(caught.value).isprintable()


def test_a_name_of_the_longest_kind_is_written(tmp_path: Path) -> None:
    path = f"é/{'a' * 255}"
    assert write_files([ev.AttachmentEmbedded(path=path, content="x")], tmp_path) == [tmp_path / path]
