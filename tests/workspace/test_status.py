"""`odfchain status`: what is said of each dataset, the command that it leads to, and what is remembered for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.private_notes import ASKED, VERIFIED, Reminder, keep
from tests.kit.derived_dataset import FIRST, SCHEMA, SECOND, add_rows, on_paper
from tests.kit.root_rows import MADE, add_root
from tests.kit.support import Run, manifest, polling, tree_of


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Run:
    """The command line in the workspace of the owner."""
    home = tmp_path / "owner"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.delenv("ODFCHAIN_WORKSPACE", raising=False)
    assert run("-q", "init").code == 0
    return run


@pytest.fixture
def cities(run: Run) -> DatasetFiles:
    """A dataset of four blocks, verified."""
    made = add_root(Workspace.open(), "cities", SCHEMA)
    for rows in (FIRST, SECOND):
        add_rows(made, rows)
    assert run("verify", "cities").code == 0
    return made


def said(run: Run, *args: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """What there is to do for each dataset, and the command."""
    found = run("status", *args, "-o", "json")
    assert (found.code, found.err) == (code, "")
    return {
        row["name"]: {name: value for name, value in row.items() if value is not None and name != "commands"}
        | {"commands": [command.removeprefix("odfchain ") for command in row["commands"]]}
        for row in json.loads(found.out)
    }


def copy_in(folder: Path, monkeypatch: pytest.MonkeyPatch, run: Run, *options: str) -> None:
    """From now on the command line is in another workspace, which has a copy of what was published."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert run("-q", "init").code == 0
    published = (folder.parent / "published").as_uri()
    assert run("pull", f"{published}", "--as", "copy", *options).code == 0


def test_without_datasets_it_says_how_to_start(run: Run) -> None:
    found = run("status")
    assert (found.code, found.out) == (0, "")
    assert "odfchain import FILE" in found.err
    assert run("status", "-o", "json").out == "[]\n"


def test_a_dataset_that_was_verified_is_up_to_date_until_there_are_new_blocks(
    run: Run, cities: DatasetFiles
) -> None:
    assert run("status").out.splitlines()[1].split() == ["cities", "up", "to", "date"]
    add_rows(cities, SECOND)
    row = {"name": "cities", "status": "1 unverified", "unverified": 1, "next": "odfchain verify cities"}
    assert said(run) == {"cities": {**row, "commands": ["verify cities"]}}
    assert run("status").out.splitlines()[1].split() == [
        "cities",
        "1",
        "unverified",
        "odfchain",
        "verify",
        "cities",
    ]
    assert run("verify", "cities", "--last", "1").code == 0
    assert said(run)["cities"]["status"] == "up to date"


@pytest.mark.parametrize(
    "way", ["missing", "damaged", "of another chain", "too few of the newest", "a branch"]
)
def test_blocks_are_unverified_without_a_verification_that_holds(
    run: Run, cities: DatasetFiles, way: str
) -> None:
    path = cities.folder / "info" / VERIFIED
    add_rows(cities, SECOND)
    number = 5
    match way:
        case "missing":
            path.unlink()
        case "damaged":
            path.write_bytes(path.read_bytes().replace(b"3", b"4"))
        case "of another chain":
            other = Reminder(Timestamp.now(), cities.chain.head(), 2, (1,))
            keep(cities, VERIFIED, other)
        case "too few of the newest":
            path.unlink()
            assert run("verify", "cities", "--last", "1").code == 0
        case _:
            number = 1
            assert run("branch", "create", "cities", "fix").code == 0
            assert run("verify", "cities@fix").code == 0
    assert said(run)["cities"]["unverified"] == number


def test_a_verification_that_finds_a_fault_ends_what_was_verified(run: Run, cities: DatasetFiles) -> None:
    data = next((cities.folder / "data").iterdir())
    content = data.read_bytes()
    data.write_bytes(content[:-1] + b"?")
    found = run("verify", "cities")
    assert (found.code, "--from URL names a copy" in found.err) == (6, True)
    row = said(run, code=6)["cities"]
    assert row["status"].startswith("faulty: 1 fault at block ")
    assert row["fault"].startswith(f"{row['status']}, verified 2")
    assert (row["commands"], "unverified" in row) == (["fsck cities"], False)
    assert run("fsck", "cities").code == 6
    assert said(run, code=6)["cities"]["status"] == row["status"]
    data.write_bytes(content)
    assert run("fsck", "cities").code == 0
    assert said(run)["cities"]["unverified"] == 4


def test_slices_that_are_lost_are_a_fault_until_they_are_back(run: Run, cities: DatasetFiles) -> None:
    assert said(run)["cities"]["status"] == "up to date"
    lost = next((cities.folder / "data").iterdir())
    content = lost.read_bytes()
    lost.unlink()
    found = said(run, code=6)["cities"]
    assert (found["status"], found["commands"]) == ("1 of 2 slices missing", ["fsck cities"])
    lost.write_bytes(content)
    assert said(run)["cities"]["status"] == "up to date"


def test_blocks_are_new_until_they_are_pushed(run: Run, cities: DatasetFiles, tmp_path: Path) -> None:
    assert "new" not in said(run)["cities"], "it is published nowhere"
    assert run("push", "cities", "--to", (tmp_path / "published").as_uri()).code == 0
    assert said(run)["cities"]["status"] == "up to date"
    add_rows(cities, SECOND)
    found = said(run)["cities"]
    assert (found["new"], found["commands"]) == (1, ["verify cities", "push cities"])
    assert run("push", "cities").code == 0
    assert "new" not in said(run)["cities"]


def test_a_history_that_was_rewritten_after_a_push_has_diverged(
    run: Run, cities: DatasetFiles, tmp_path: Path
) -> None:
    assert run("push", "cities", "--to", (tmp_path / "published").as_uri()).code == 0
    assert run("reset", "cities", "2", "-y").code == 0
    add_rows(Workspace.open()["cities"]._files, FIRST)
    assert run("verify", "cities").code == 0
    found = said(run)["cities"]
    assert (found["status"], found["commands"]) == ("diverged from where it is pushed to", ["push cities"])
    assert "diverged" in run("push", "cities").err
    assert run("push", "cities", "--force", "-y").code == 0
    assert said(run)["cities"]["status"] == "up to date"


def test_what_no_owner_signed_is_said_and_who_has_the_key_may_sign(
    run: Run, cities: DatasetFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = Path(".odfchain/keys").iterdir()
    key.rename("key.pem")
    found = run("pull", "cities", "--set-watermark", "2024-01-05")
    assert found.err.splitlines()[1:] == ["note: not signed here: no key: cities"]
    assert run("-q", "pull", "cities", "--set-watermark", "2024-01-06") == (0, "", "")
    assert run("push", "cities", "--to", (tmp_path / "published").as_uri()).code == 0
    found = said(run)["cities"]
    assert (found["unsigned"], found["commands"]) == (4, ["verify cities"])
    Path("key.pem").rename(key)
    assert said(run)["cities"]["commands"] == ["sign cities", "verify cities"]

    copy_in(tmp_path / "peer", monkeypatch, run)
    assert said(run)["copy"]["unsigned"] == 4
    assert run("list").out.splitlines()[1].split()[-1] == "4"
    assert "unsigned commits since block 4" in run("log", "copy").err
    found = run("verify", "copy")
    assert (found.code, "unsigned commits since block 4" in found.out) == (0, True)


def test_a_pull_of_unsigned_commits_is_no_warning(
    run: Run, cities: DatasetFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = (tmp_path / "published").as_uri()
    assert run("push", "cities", "--to", published).code == 0
    owner = Path.cwd()
    copy_in(tmp_path / "peer", monkeypatch, run)
    (owner / ".odfchain" / "keys").rename(owner / "elsewhere")
    add_rows(Workspace.open(owner)["cities"]._files, SECOND)
    assert run("-w", str(owner), "push", "cities").code == 0
    found = run("pull", "copy")
    assert (found.code, found.err) == (
        0, "note: copy: unsigned commits since block 4: the owner signed block 3 last\n"
    )  # fmt: skip
    assert run("pull", "copy", "--require-signature").code == 6


def test_a_copy_is_due_when_its_place_was_not_asked_for_a_while(
    run: Run, cities: DatasetFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("push", "cities", "--to", (tmp_path / "published").as_uri()).code == 0
    copy_in(tmp_path / "peer", monkeypatch, run)
    (copy,) = Workspace.open()
    two_days_ago = Timestamp(Timestamp.now().epoch_ns - 2 * 86_400 * 10**9)
    keep(copy._files, ASKED, Reminder(two_days_ago))
    found = said(run)["copy"]
    assert (found["due"], found["next"]) == (str(two_days_ago), "odfchain pull copy")
    assert found["status"] == "due (2 days), 4 unverified"
    assert run("config", "set", "status.dueAfter", "3 days").code == 0
    assert "due" not in said(run)["copy"]
    assert run("config", "unset", "status.dueAfter").code == 0
    assert run("pull", "copy").code == 0
    assert "due" not in said(run)["copy"], "it was asked, and had nothing new"


def test_a_source_that_was_never_asked_is_due(run: Run, cities: DatasetFiles) -> None:
    commit(cities, DatasetState.read(cities.chain), [polling()], [], system_time=MADE)
    assert said(run)["cities"]["due"] == "never"


def test_a_partial_copy_leads_to_fetch(
    run: Run, cities: DatasetFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("push", "cities", "--to", (tmp_path / "published").as_uri()).code == 0
    copy_in(tmp_path / "peer", monkeypatch, run, "--last", "1")
    found = said(run)["copy"]
    assert (found["partial"], found["commands"]) == (1, ["fetch copy", "verify copy"])
    assert run("fetch", "copy").code == 0
    assert "partial" not in said(run)["copy"]


def test_a_derivative_is_behind_its_inputs(run: Run) -> None:
    root, copied = on_paper(Workspace.open(), FIRST)
    assert "behind" not in said(run)["copied"]
    add_rows(root, SECOND)
    found = said(run)["copied"]
    assert (found["behind"], found["next"]) == (1, "odfchain pull copied")
    assert run("delete", "readings", "--force", "-y").code == 0
    found = said(run)["copied"]
    assert "is not in this workspace" in found["behind"]
    assert copied.chain.head() is not None


@pytest.mark.parametrize("damage", ["refs/head", "info/alias", "info/config", "refs/head.jws"])
def test_a_dataset_that_cannot_be_read_is_one_line_among_the_others(
    run: Run, cities: DatasetFiles, damage: str
) -> None:
    Workspace.open().add(manifest(name="others"), check=False)
    (cities.folder / damage).write_bytes(b"\x1b[2J damaged")
    if damage == "info/alias":
        (cities.folder / damage).unlink()
    found = said(run, code=6)
    others = found.pop("others")
    assert others["status"] == "2 unverified"
    (row,) = found.values()
    assert row["fault"]
    assert row["next"].startswith("odfchain verify" if damage == "refs/head.jws" else "odfchain fsck")
    table = run("status")
    assert (table.code, len(table.out.splitlines()), "\x1b" in table.out) == (6, 4, False), (
        "the last line says that a text is cut"
    )


def test_it_changes_nothing_and_names_the_datasets_that_are_meant(run: Run, cities: DatasetFiles) -> None:
    (others,) = Workspace.open().add(manifest(name="others"), check=False)
    for folder in (cities.folder, others.path):
        os.utime(folder / "data", (0, 0))  # counts of slices are kept when the folder has been left alone
    said(run)
    before = tree_of(Path())
    assert list(said(run, "ci%", "cities")) == ["cities"]
    assert [each.name for each in Workspace.open().status("others")] == ["others"]
    assert tree_of(Path()) == before
    assert run("status", "nothing").code == 4


@pytest.mark.parametrize("typed", ["st", "stat"])
def test_what_users_of_git_type_leads_to_it(run: Run, typed: str) -> None:
    assert "status" in run(typed).err
