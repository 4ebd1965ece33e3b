"""A workspace that another user could have written is not taken unasked, whichever way leads to it (RFC-053)."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import odfchain as odf
from odfchain.api.scan import native_frame
from odfchain.cli.parameters import DATASET
from odfchain.transfer.reading import Origin
from odfchain.workspace import workspace_files
from tests.kit.root_rows import add_root, schema_with
from tests.kit.support import Result

MALLORY = 424_242
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("SUDO_UID", raising=False)
    return tmp_path / "settings" / "odfchain" / "config.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with a dataset, and a folder in it."""
    with odf.init(tmp_path / "ws") as workspace:
        add_root(workspace, "cities", schema_with())
    (tmp_path / "ws" / "a" / "b").mkdir(parents=True)
    return tmp_path / "ws"


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes paths another user's; who is not root becomes a user who owns nothing else."""

    def give(*paths: Path) -> None:
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, MALLORY, -1, follow_symlinks=False)
            return
        given = {(found.st_dev, found.st_ino) for found in (path.lstat() for path in paths)}
        real = workspace_files.owner_of

        def owner_of(found: os.stat_result) -> int:
            return MALLORY if (found.st_dev, found.st_ino) in given else real(found)

        monkeypatch.setattr(workspace_files, "owner_of", owner_of)

    return give


# --- every way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "list", "ls", "log cities", "tail cities", "sql -c 'select 1'", "pull --all",
        "push --all", "verify cities", "config list", "config get spark.master", "config set share.parallel 3",
        "init --exists-ok", "serve --port 0", "gc", "fsck", "repo list", "-y delete cities",
        "token list", "export cities", "inspect schema cities",
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["below", "option", "variable"])
def test_no_command_takes_it(
    command: str, way: str, folder: Path, run: Run, give: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    give(folder / ".odfchain")
    arguments = shlex.split(command)
    if "init" in arguments or way == "option":
        arguments = ["-w", str(folder), *arguments]
    elif way == "variable":
        monkeypatch.setenv("ODFCHAIN_WORKSPACE", str(folder))
    else:
        monkeypatch.chdir(folder / "a" / "b")
    found = run(*arguments)
    assert (found.code, found.out) == (4, ""), found.err
    assert f"{folder}/.odfchain belongs to uid {MALLORY}" in found.err
    assert f"odfchain config --global safe.workspace {folder}" in found.err


def test_nothing_in_python_takes_it(
    folder: Path, give: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = next(iter(odf.open(folder))).path
    give(folder / ".odfchain" / "config.yaml")
    ways: list[Callable[[], object]] = [
        lambda: odf.open(folder / "a"),
        lambda: odf.init(folder, exists_ok=True),
        lambda: odf.open_dataset(folder, dataset="cities"),
        lambda: Origin.of(str(folder), "cities"),  # what PySpark's data source does
        lambda: native_frame(None, str(folder / "cities"), state=False, at=None, columns=None),  # type: ignore[arg-type]
    ]
    for way in ways:
        with pytest.raises(odf.errors.WorkspaceError, match=r"config.yaml belongs to"):
            way()
    monkeypatch.chdir(folder)
    assert DATASET.shell_complete(click.Context(click.Command("list")), None, "") == []  # type: ignore[arg-type]
    # a dataset of it can be read on purpose: every byte of that is checked, and no setting is read
    assert odf.open_dataset(dataset.as_uri()).id == odf.open_dataset(dataset).id


def test_a_dataset_of_it_can_be_pulled(folder: Path, tmp_path: Path, give: Callable[..., None]) -> None:
    dataset = next(iter(odf.open(folder))).path
    give(folder / ".odfchain", folder / ".odfchain" / "config.yaml")
    with odf.init(tmp_path / "mine") as mine:
        assert str(mine.pull(dataset.as_uri(), name="copy").dataset.alias) == "copy"


# --- what decides ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "config.yaml", "datasets", "keys", "run", "trash", "store", "lock"])
def test_whatever_lies_in_it_is_the_users(name: str, folder: Path, give: Callable[..., None]) -> None:
    path = folder / ".odfchain" / name
    if not path.exists():
        path.touch()
    give(path)
    with pytest.raises(odf.errors.WorkspaceError, match="belongs to"):
        odf.open(folder)


@pytest.mark.parametrize("name", [".", "config.yaml", "datasets", "run"])
def test_others_may_write_there(name: str, folder: Path, run: Run) -> None:
    path = folder / ".odfchain" / name
    path.chmod(path.stat().st_mode | 0o002)
    found = run("-w", folder, "list")
    assert found.code == 4
    assert "can be written by everybody" in found.err
    assert f"chmod go-w {path}" in found.err.replace("/.,", ",")
    assert run(*shlex.split(found.err.split("hint: ")[1].split(", or ")[0])).code == 2  # no command of ours
    path.chmod(path.stat().st_mode & ~0o022)
    assert run("-w", folder, "list").code == 0


def users(monkeypatch: pytest.MonkeyPatch, primary: dict[str, tuple[int, int]], members: list[str]) -> None:
    """What the system says of users (uid, gid), and of the members of every group."""
    entries = [SimpleNamespace(pw_name=n, pw_uid=u, pw_gid=g) for n, (u, g) in primary.items()]
    monkeypatch.setattr(pwd, "getpwall", lambda: entries)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name="g", gr_mem=members, gr_gid=gid))


@pytest.mark.parametrize(
    ("primary", "members", "taken"),
    [
        (["me"], [], True),
        (["me"], ["me"], True),
        (["me"], ["root"], True),
        ([], ["me"], True),
        ([], [], False),
        (["me"], ["mallory"], False),
        (["me", "mallory"], [], False),
        (["mallory"], ["me"], False),
    ],
)
def test_a_group_of_the_user_alone_may_write(
    primary: list[str], members: list[str], taken: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As umask 002 leaves folders where every user has a group of his own."""
    root = folder / ".odfchain"
    root.chmod(0o775)
    gid, uid = root.stat().st_gid, os.geteuid()
    uids = {"me": uid, "root": 0, "mallory": MALLORY}
    known = {name: (number, gid if name in primary else gid + 1) for name, number in uids.items()}
    users(monkeypatch, known, members)
    if taken:
        odf.open(folder)
        return
    with pytest.raises(odf.errors.WorkspaceError, match=r"can be written by the group g"):
        odf.open(folder)


def test_a_group_that_nobody_knows_may_not_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    (folder / ".odfchain" / "config.yaml").chmod(0o660)
    monkeypatch.setattr(grp, "getgrgid", unknown)
    with pytest.raises(odf.errors.WorkspaceError, match="written by the group"):
        odf.open(folder)


def test_an_access_list_gives_others_the_right(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mask is what the group's bits show."""
    (folder / ".odfchain").chmod(0o775)
    users(monkeypatch, {"me": (os.geteuid(), (folder / ".odfchain").stat().st_gid)}, [])
    odf.open(folder)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"\2\0\0\0", raising=False)
    with pytest.raises(odf.errors.WorkspaceError, match="access list"):
        odf.open(folder)


def test_links_are_followed(folder: Path, tmp_path: Path, give: Callable[..., None]) -> None:
    """Neither the link nor what it leads to is another user's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".odfchain").symlink_to(folder / ".odfchain")
    assert len(odf.open(elsewhere)) == 1
    settings = tmp_path / "c.yaml"
    (folder / ".odfchain" / "config.yaml").rename(settings)
    (folder / ".odfchain" / "config.yaml").symlink_to(settings)
    odf.open(elsewhere)
    give(settings)
    with pytest.raises(odf.errors.WorkspaceError, match=r"config.yaml belongs to"):
        odf.open(elsewhere)
    (folder / ".odfchain" / "config.yaml").unlink()
    odf.open(elsewhere)
    give(elsewhere / ".odfchain")
    with pytest.raises(odf.errors.WorkspaceError, match=r"elsewhere/.odfchain belongs to"):
        odf.open(elsewhere)


def test_folders_above_are_not_asked(folder: Path, give: Callable[..., None]) -> None:
    folder.chmod(0o777)
    give(folder)
    odf.open(folder)


def test_what_was_put_there_meanwhile_is_seen(folder: Path, give: Callable[..., None]) -> None:
    workspace = odf.open(folder)
    give(folder / ".odfchain")
    with pytest.raises(odf.errors.WorkspaceError, match="belongs to"):
        _ = workspace.ingest_config


@pytest.mark.parametrize(
    ("user", "sudo", "trusted"),
    [
        (1000, None, {0, 1000}),
        (1000, "1001", {0, 1000}),
        (0, None, {0}),
        (0, "1000", {0, 1000}),
        (0, "", {0}),
        (0, "-1", {0}),
        (0, "mallory", {0}),
        (0, "١٢", {0}),
        (0, "9" * 5_000, {0}),
    ],
)
def test_root_by_sudo_is_also_who_asked(
    user: int, sudo: str | None, trusted: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if sudo is not None:
        monkeypatch.setenv("SUDO_UID", sudo)
    assert workspace_files.trusted_users() == trusted


# --- trusting it ----------------------------------------------------------------------------------------


def test_the_command_that_is_named_is_enough(folder: Path, run: Run, give: Callable[..., None]) -> None:
    strange = folder.rename(folder.parent / "it's a $(workspace)")
    give(strange / ".odfchain", strange / ".odfchain" / "config.yaml")
    refused = run("-w", strange, "list")
    command = shlex.split(refused.err.split("if you trust it: ")[1])
    assert command[0] == "odfchain"
    assert run(*command[1:]).code == 0
    assert run("-w", strange, "list").code == 0
    assert run("config", "--global", "get", "safe.workspace").out == f"{strange}\n"
    assert run("config", "--global", "safe.workspace").out == f"{strange}\n"
    assert run("config", "remove", "--global", "safe.workspace", strange).code == 0
    assert run("-w", strange, "list").code == 4


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("*", True),
        ("{folder}", True),
        ("{folder}/", True),
        ("{folder}/.odfchain", True),
        ("{folder}/a/..", True),
        ("{link}", True),
        ("{folder.parent}/*", True),
        ("{folder}/*", True),
        ("{folder.parent}", False),
        ("{folder}/a", False),
        ("{folder}x", False),
        ("{folder.parent}/w*", False),
        ("/", False),
        ("**", False),
    ],
)
def test_what_a_value_means(
    value: str, taken: bool, folder: Path, run: Run, give: Callable[..., None], own_settings: Path
) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    give(folder / ".odfchain")
    set_ = run("config", "--global", "set", "safe.workspace", value.format(folder=folder, link=link))
    assert set_.code == 0, set_.err
    assert own_settings.stat().st_mode & 0o777 == 0o600
    assert (run("-w", folder, "list").code == 0) is taken


def test_a_path_is_kept_absolute(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert run("config", "--global", "safe.workspace", ".", "a").code == 0
    assert run("config", "--global", "safe.workspace").out == f"{folder}\n{folder}/a\n"
    assert run("config", "--global", "safe.workspace", "").code == 2


@pytest.mark.parametrize("value", [".", "", "ws"])
def test_a_path_that_is_relative_in_the_file_means_nothing(
    value: str, folder: Path, own_settings: Path, give: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_settings.parent.mkdir(parents=True)
    own_settings.write_text(f"kind: UserConfig\nversion: 1\ncontent: {{safe: {{workspace: ['{value}']}}}}\n")
    give(folder / ".odfchain")
    for here in (folder, folder.parent):
        monkeypatch.chdir(here)
        with pytest.raises(odf.errors.WorkspaceError):
            odf.open(folder)


def test_a_workspace_cannot_trust_itself(folder: Path, run: Run, give: Callable[..., None]) -> None:
    refused = run("-w", folder, "config", "set", "safe.workspace", "*")
    assert refused.code == 2
    assert "--global" in refused.err
    config = folder / ".odfchain" / "config.yaml"
    config.write_text(config.read_text() + "  safe: {workspace: ['*']}\n")
    give(config)
    assert run("-w", folder, "list").code == 4


def test_settings_of_the_user_are_listed_and_unset(run: Run, own_settings: Path) -> None:
    assert (
        run("config", "--global", "list", "-o", "csv").out
        == "setting,value,default\nsafe.workspace,[],true\n"
    )
    assert run("config", "--global", "safe.workspace", "/x").code == 0
    assert run("config", "--global", "unset", "safe.workspace").code == 0
    assert run("config", "--global", "safe.workspace").out == ""
    assert run("config", "--global", "set", "spark.master", "local").code == 2
    assert run("config", "--global", "--dataset", "x", "list").code == 2
    assert run("config", "list", "--global", "--dataset", "x").code == 2
    assert own_settings.exists()


def test_a_group_of_commands_is_as_before(folder: Path, run: Run) -> None:
    assert run("-w", folder, "config", "share.parallel", "3").code == 2
    assert run("-w", folder, "config", "get", "share.parallel").out == "10\n"
