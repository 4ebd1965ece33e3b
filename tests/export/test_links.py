"""Targets of exports that are links: files, folders, parents, dangling ones, and ones into the workspace."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain import errors
from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from tests.kit.exports import add
from tests.kit.run_length import scaled
from tests.kit.support import Run

KINDS = ("delta", "iceberg", "lode")


@pytest.fixture
def airports(workspace: Workspace) -> Dataset:
    return add(workspace, "airports")


def contents(*folders: Path) -> dict[str, str]:
    """Every file, folder and link below the folders: what is in it, or where it leads to."""

    def what(path: Path) -> str:
        if path.is_symlink():
            return f"link to {path.readlink()}"
        return "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()

    skipped = {"run", "lock", "chain-index", "file-stats", "staging"}
    found = dict[str, str]()
    for folder in folders:
        for place, inner, files in os.walk(folder):
            inner[:] = [name for name in inner if name not in skipped]  # a query may still leave its own
            paths = (Path(place, name) for name in (*inner, *files) if name not in skipped)
            found |= {str(path): what(path) for path in paths}
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_links_within_an_export_are_not_followed(
    kind: str,
    airports: Dataset,
    workspace: Workspace,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Each entry of an export by turns: what it leads to stays, whether the export goes on, or is made anew."""
    target, outside = tmp_path / "table", tmp_path / "outside"
    outside.mkdir()
    airports.export(kind, target)
    entries = sorted(path for path in target.rglob("*") if path.is_dir() or path.parent == target)
    refused = 0
    for number, path in enumerate(entries[:: scaled(3, 1, 1)]):
        for there in ("moved", "the slices", "nothing"):
            kept = outside / f"{number} {there}"
            path.rename(kept)
            aim = {"moved": kept, "the slices": airports.path / "data", "nothing": outside / "none" / "x"}[
                there
            ]
            path.symlink_to(aim)
            before = contents(outside, workspace.path)
            for options in ({}, {"force": True}, {"force": True, "rows": "state"}):
                if kind == "lode" and "rows" in options:
                    continue
                with pytest.raises(
                    errors.OdfchainError,
                    match=r"a link within an export|no export of odfchain|_odfchain\.json: ",
                ):
                    airports.export(kind, target, **options)
                refused += 1
                assert contents(outside, workspace.path) == before
            path.unlink()
            kept.rename(path)
    airports.export(kind, target)
    assert refused > 5
    record_property("links", refused)


def test_a_file_that_is_a_link(
    airports: Dataset, workspace: Workspace, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a name for what it leads to, which is replaced as a whole; nothing in a workspace is, nor made."""
    monkeypatch.chdir(workspace.path.parent)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    aims = [tmp_path / "outside" / "file", airports.path / "refs" / "head", airports.path / "refs" / "none"]
    (tmp_path / "in").symlink_to(airports.path / "refs")
    before, refused = contents(workspace.path), 0
    for command in (["export", "airports", "--to"], ["sql", "-c", "SELECT 1 AS a", "--output"]):
        for number, aim in enumerate(aims):
            out = tmp_path / f"{number} {command[0]}.csv"
            out.symlink_to(aim)
            assert run(*command, str(out)).code == (2 if number else 0)
            refused += number > 0
        assert run(*command, str(tmp_path / "in" / "head")).code == 2
        assert aims[0].read_text() != "mine"
    for folder in ("checkpoints", "data", "new/"):  # the first is empty
        assert run("export", "airports", "--to", f"{airports.path / folder}/").code != 0
    assert contents(workspace.path) == before
    assert refused == 4


def test_a_folder_that_is_a_link(airports: Dataset, workspace: Workspace, tmp_path: Path) -> None:
    """One to an empty folder is a name for it; one that dangles, or leads into the workspace, is refused."""
    (tmp_path / "empty").mkdir()
    for number, (aim, fits) in enumerate(
        ((tmp_path / "empty", True), (airports.path / "data", False), (workspace.path, False))
    ):
        link = tmp_path / f"link{number}"
        link.symlink_to(aim)
        before = contents(workspace.path)
        if fits:
            airports.export("delta", link)
            assert (aim / "_delta_log").is_dir()
        else:
            with pytest.raises(errors.UsageError, match="inside a "):
                airports.export("delta", link)
            with pytest.raises(errors.UsageError, match="inside a "):
                airports.export("delta", link / "below")
        assert contents(workspace.path) == before
