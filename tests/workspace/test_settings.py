"""Editing the workspace's settings: what is meant is there afterwards, and everything else is as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.api.settings import all_settings, edit, parsed, setting, value_of
from odfchain.cli.main import main
from odfchain.errors import ManifestError, UsageError
from odfchain.workspace.config import OF_WORKSPACE
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import Result

DID = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return WorkspaceFiles.init(tmp_path).root


def put(root: Path, name: str, *values: str) -> None:
    item = setting(name)
    edit(root, item, lambda _: parsed(item, values))


def got(root: Path, name: str) -> Any:
    return value_of(OF_WORKSPACE.load(root), setting(name))


def test_every_setting_has_a_name_and_a_value() -> None:
    names = [str(item) for item in all_settings()]
    assert len(set(names)) == len(names) > 20
    config = OF_WORKSPACE.parse(OF_WORKSPACE.text.encode(), "config.yaml")
    for item in all_settings():
        assert setting(str(item)) == item
        value_of(config, item)


@pytest.mark.parametrize(
    ("name", "values", "value"),
    [
        ("share.parallel", ["7"], 7),
        ("ingest.maxRetractRatio", ["0.25"], 0.25),
        ("ingest.allowCommands", ["true"], True),
        ("ingest.lateEdits", ["refuse"], "refuse"),
        ("spark.driverMemory", ["010"], "010"),
        ("spark.master", ["spark://a:7077 # no comment"], "spark://a:7077 # no comment"),
        ("spark.remote", ["sc://host:15002"], "sc://host:15002"),
        ("audit.trustedAuditors", [DID], [DID]),
        ("audit.trustedAuditors", [], []),
        ("transform.compatibleVersions", ["a: b", "- c", "d # e", "'"], ["a: b", "- c", "d # e", "'"]),
        ("ingest.variables.TOKEN", ["a: 'b' # c\n\\ü"], "a: 'b' # c\n\\ü"),
        ("spark.conf.spark.sql.shuffle.partitions", ["16"], "16"),
        ("fetch.maxBytes", ["1000"], 1000),
    ],
)  # fmt: skip
def test_a_setting_is_set_and_nothing_else_changes(
    root: Path, name: str, values: list[str], value: Any
) -> None:
    before = (root / "config.yaml").read_text().splitlines()
    put(root, name, *values)
    assert got(root, name) == value
    after = (root / "config.yaml").read_text().splitlines()
    changed = [line for line in before if line not in after]
    assert len(changed) <= 1
    assert sum("#" in line for line in after) >= sum("#" in line for line in before), "comments stay"
    put(root, name, *values)
    assert (root / "config.yaml").read_text().splitlines() == after, "again changes nothing"
    assert (root / "config.yaml").stat().st_mode & 0o777 == 0o600


HEAD = "kind: WorkspaceConfig\nversion: 1\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "content: {}\n",
        HEAD + "content: {share: {parallel: 3}}\n",
        HEAD + "content:\n  share: {parallel: 3}   # few\n",
        HEAD + "content:\n  share: {}   # nothing yet\n  audit:\n    trustedAuditors: []\n",
        HEAD + "content:\n  audit:\n    trustedAuditors:\n      - " + DID + "\n",
        HEAD + "content:\n  audit:\n    trustedAuditors:\n    - " + DID + "\n\n  share:\n    retries: 5\n",
        HEAD + "content:\n    share:\n        # how often\n        retries: 5\n",
        '{"kind": "WorkspaceConfig", "version": 1, "content": {"share": {"retries": 2}}}',
        "# mine\n" + HEAD + "content:\n  share:\n    parallel: 'x'\n".replace("'x'", "5"),
    ],
)
def test_files_of_other_shapes(root: Path, text: str) -> None:
    (root / "config.yaml").write_text(text)
    put(root, "share.parallel", "9")
    assert got(root, "share.parallel") == 9
    after = (root / "config.yaml").read_text()
    assert after.count("#") == text.count("#")
    put(root, "audit.trustedAuditors", DID, DID)
    assert got(root, "audit.trustedAuditors") == [DID, DID]
    assert got(root, "share.parallel") == 9


def test_without_a_file_the_defaults_are_written(root: Path) -> None:
    (root / "config.yaml").unlink()
    put(root, "share.parallel", "9")
    assert got(root, "share.parallel") == 9


def test_comments_inside_a_value_are_not_lost(root: Path) -> None:
    text = HEAD + f"content:\n  audit:\n    trustedAuditors:\n      - {DID}  # Ann\n      - {DID}\n"
    (root / "config.yaml").write_text(text)
    with pytest.raises(ManifestError, match="comments next to this value would be lost"):
        put(root, "audit.trustedAuditors", DID)
    assert (root / "config.yaml").read_text() == text


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("share.parallel", "many", "share.parallel: must be an integer"),
        ("share.parallel", "1000", "share.parallel: 1000 is outside 1 to 100"),
        ("ingest.lateEdits", "perhaps", "ingest.lateEdits"),
        ("audit.trustedAuditors", "Ann", r"audit.trustedAuditors\[0\]"),
        ("ingest.allowCommands", "maybe", "ingest.allowCommands: must be true or false"),
    ],
)
def test_what_is_not_valid_changes_nothing(root: Path, name: str, value: str, message: str) -> None:
    before = (root / "config.yaml").read_bytes()
    with pytest.raises(ManifestError, match=message):
        put(root, name, value)
    assert (root / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "hint"),
    [("share.paralel", "did you mean share.parallel"), ("parallel", "did you mean share.parallel"), ("x", "config list")],
)  # fmt: skip
def test_unknown_settings(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match="unknown setting") as caught:
        setting(name)
    assert hint in (caught.value.hint or "")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.text(min_size=1, max_size=10))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, value: str, key: str) -> None:
    root = tmp_path_factory.mktemp("w")
    item = setting(f"ingest.variables.{key}")
    try:
        edit(root, item, lambda _: value)
    except ManifestError:
        return
    assert value_of(OF_WORKSPACE.load(root), item) == value


def test_hosts_of_a_variable_are_no_variable(root: Path) -> None:
    with pytest.raises(UsageError, match=r"ingest.variables.KEY is not set"):
        put(root, "ingest.variables.KEY.hosts", "a.example")
    put(root, "ingest.variables.KEY", "s3cret")
    put(root, "ingest.variables.KEY.hosts", "a.example", "b.example:8443")
    assert got(root, "ingest.variables") == {
        "KEY": {"value": "s3cret", "hosts": ["a.example", "b.example:8443"]}
    }
    assert got(root, "ingest.variables.KEY.hosts") == ["a.example", "b.example:8443"]
    edit(root, setting("ingest.variables.KEY.hosts"), lambda _: None)
    assert got(root, "ingest.variables.KEY") == "s3cret"


@pytest.mark.parametrize("data", [b"\xff", b"\r\n# \xc3\xa4\r\n"])
def test_bytes_of_the_file(root: Path, data: bytes) -> None:
    """What is no text is refused by name; line ends of Windows stay."""
    path = root / "config.yaml"
    before = OF_WORKSPACE.text.encode().replace(b"\n", b"\r\n") + data
    path.write_bytes(before)
    if data == b"\xff":
        with pytest.raises(ManifestError, match="not UTF-8"):
            put(root, "share.parallel", "7")
        assert path.read_bytes() == before
        return
    put(root, "share.parallel", "7")
    assert path.read_bytes() == before.replace(b"parallel: 10", b"parallel: 7")


def test_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    root = tmp_path / ".odfchain"
    changes = [("share.parallel", "7"), ("spark.remote", "sc://h:1"), ("transform.engines.flink", "h:2884"),
               ("audit.trustedAuditors", DID), ("ingest.maxFuture", "2 days")]  # fmt: skip
    for name, value in changes:
        assert main(["config", "set", name, value]) == 0
        assert main(["config", "unset", name]) == 0
    assert OF_WORKSPACE.load(root) == OF_WORKSPACE.parse(OF_WORKSPACE.text.encode(), "")
    text = (root / "config.yaml").read_text()
    assert main(["config", "unset", "fetch.maxBytes"]) == 0, "it has its default already"
    assert main(["config", "unset", "transform.engines.flink"]) == 2
    assert (root / "config.yaml").read_text() == text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init").code == 0
    config = tmp_path / ".odfchain" / "config.yaml"
    assert config.stat().st_mode & 0o777 == 0o600
    assert run("config", "add", "audit.trustedAuditors", DID).code == 0
    assert run("config", "add", "audit.trustedAuditors", DID).code == 0
    assert run("config", "get", "audit.trustedAuditors").out == f"{DID}\n"
    assert run("config", "set", "ingest.variables.PASSWORD", "hunter2").code == 0
    code, out, err = run("config", "list", "-o", "json")
    rows = {row["setting"]: row for row in json.loads(out)}
    assert "hunter2" not in out + err
    assert rows["ingest.variables"] == {
        "setting": "ingest.variables",
        "value": {"PASSWORD": "…"},
        "default": False,
    }
    assert rows["share.parallel"] == {"setting": "share.parallel", "value": 10, "default": True}
    assert "hunter2" not in run("config", "list").out
    for name in ("conf.spark.hadoop.fs.s3a.secret.key", "conf.spark.hadoop.fs.azure.account.key.a", "remote"):
        value = "sc://host:15002/;token=hunter2" if name == "remote" else "hunter2"
        assert run("config", "set", f"spark.{name}", value).code == 0
        assert "hunter2" not in "".join(run("config", "list", "-o", "json")[1:]), name
        assert run("config", "get", f"spark.{name}").out == f"{value}\n"
        assert run("config", "unset", f"spark.{name}").code == 0
    assert run("config", "get", "ingest.variables.PASSWORD").out == "hunter2\n"
    config.write_text(config.read_text().replace('"hunter2"', '{"value": "hunter2", "hosts": ["a.example"]}'))
    assert run("config", "set", "ingest.variables.PASSWORD", "hunter3").code == 0
    bound = json.loads(run("config", "get", "ingest.variables.PASSWORD").out)
    assert bound == {"value": "hunter3", "hosts": ["a.example"]}, "a new value stays bound to the hosts"
    assert run("config", "remove", "ingest.variables.PASSWORD").code == 0
    code, _, err = run("config", "remove", "ingest.variables.PASSWORD")
    assert (code, "is not set" in err) == (2, True)
    assert run("config", "remove", "audit.trustedAuditors", DID).code == 0
    for args in (["add", "share.parallel", "3"], ["set", "share.parallel"], ["set", "ingest.variables", "x"],
                 ["remove", "audit.trustedAuditors"], ["get", "nothing"], ["remove", "audit.trustedAuditors", "x"]):  # fmt: skip
        code, out, err = run("config", *args)
        assert (code, out, "Traceback" in err) == (2, "", False), args
    config.chmod(0o644)
    assert "was readable by other users" in run("list").err
    assert config.stat().st_mode & 0o777 == 0o600
    assert "could be read" not in run("list").err
