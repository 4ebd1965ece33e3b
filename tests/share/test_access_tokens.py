"""Tokens that a workspace gives out: what they allow, what is kept of them, and what a bad file is."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from odfchain.cli.main import cli
from odfchain.errors import AccessError, NameCollisionError, UsageError, WorkspaceError
from odfchain.ids.names import DatasetAlias
from odfchain.model.timestamp import Timestamp
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.serve.access_tokens import Right, digest_of, holder, made_token
from odfchain.serve.token_file import TokenFile

NOW = Timestamp.parse("2026-01-01T00:00:00Z")


def test_a_token_is_random_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    made, other = file.create("a", ["push:%"], NOW), file.create("b", ["push:%"], NOW)
    assert made.text.startswith("ka_")
    assert len(base64.b32decode(made.text[3:].upper())) == 20
    assert made.text != other.text
    assert made.text not in file.path.read_text()
    assert made.token.digest.hex() in file.path.read_text()
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert TokenFile(tmp_path).tokens() == (made.token, other.token)


@pytest.mark.parametrize(
    ("allow", "alias", "may"),
    [
        ("push:cities", "cities", True),
        ("push:cities", "CITIES", True),
        ("push:cities", "towns", False),
        ("push:org.%", "org.cities", True),
        ("push:%", "alice/cities", True),
        ("push:alice/%", "alice/cities", True),
        ("push:alice/%", "bob/cities", False),
        ("push:alice/%", "cities", False),
        ("force:%", "cities", False),
    ],
)
def test_what_a_token_allows(allow: str, alias: str, *, may: bool) -> None:
    token = made_token("a", [allow], NOW).token
    assert token.may(Right.PUSH, DatasetAlias.parse(alias)) is may


def test_who_shows_a_token() -> None:
    made = made_token("a", ["push:%"], NOW)
    tokens = [made_token("b", ["push:%"], NOW).token, made.token]
    for shown in (f"Bearer {made.text}", f"bearer {made.text}"):
        assert holder(shown, tokens) == made.token
    for wrong in (
        None,
        "",
        made.text,
        f"Basic {made.text}",
        f"Bearer {made.text}x",
        f"Bearer {digest_of('x').hex()}",
    ):
        assert holder(wrong, tokens) is None


@pytest.mark.parametrize(
    "allow", [[], ["push"], ["push:"], ["write:%"], ["push:a b"], ["push:a/b/c"], [":%"]]
)
def test_what_is_no_right(allow: list[str]) -> None:
    with pytest.raises(UsageError):
        made_token("a", allow, NOW)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 65, "ä", "a\n"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError):
        made_token(name, ["push:%"], NOW)


def test_names_are_taken_once_and_given_back(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    file.create("a", ["push:%"], NOW)
    with pytest.raises(NameCollisionError):
        file.create("a", ["push:x"], NOW)
    file.revoke("a")
    assert file.tokens() == ()
    with pytest.raises(WorkspaceError, match="no token 'a'") as refused:
        file.revoke("a")
    assert refused.value.exit_code == 4


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "version: 2\ntokens: []\n",
        "tokens: []\n",
        "version: 1\ntokens: [x]\n",
        "version: 1\ntokens: [{name: a, sha3: zz, allow: [], created: x}]\n",
        "version: 1\n" + "# " + "x" * (2 << 20) + "\ntokens: []\n",
    ],
)
def test_a_file_that_is_none_lets_nobody_in(text: str, tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    file.path.write_text(text)
    file.path.chmod(0o600)
    with pytest.raises(AccessError, match=r"tokens\.yaml"):
        file.tokens()


def test_a_file_that_others_read_lets_nobody_in(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    file.create("a", ["push:%"], NOW)
    file.path.chmod(0o640)
    with pytest.raises(AccessError, match="0640"):
        file.tokens()


def test_tokens_from_the_command_line(tmp_path: Path) -> None:
    WorkspaceFiles.init(tmp_path)
    run = lambda *args: CliRunner().invoke(cli, ["-w", str(tmp_path), "token", *args])  # noqa: E731 - short
    made = run("create", "alice", "--allow", "push:org.%", "--allow", "force:x")
    assert (made.exit_code, made.stdout[:3], made.stdout.count("\n")) == (0, "ka_", 1)
    (listed,) = json.loads(run("list", "-o", "json").stdout)
    assert (listed["name"], listed["allow"]) == ("alice", ["push:org.%", "force:x"])
    assert made.stdout.strip() not in run("list").output
    assert run("revoke", "alice").exit_code == 0
    assert json.loads(run("list", "-o", "json").stdout) == []
