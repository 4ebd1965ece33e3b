"""Tokens that a workspace gives out: what they allow, what is kept of them, and what a bad file is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import AccessError, NameCollisionError, UsageError, WorkspaceError
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.transfer.access_tokens import Right, TokenFile, digest_of, holder, made_token
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.support import Run

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
    assert TokenFile(tmp_path).list() == (made.token, other.token)


@pytest.mark.parametrize(
    ("allow", "alias", "may"),
    [
        ("push:cities", "cities", True),
        ("push:cities", "CITIES", True),
        ("push:cities", "towns", False),
        ("push:org.%", "org.cities", True),
        ("push:%", "alice/cities", False),
        ("push:cities", "alice/cities", False),
        ("push:%/cities", "alice/cities", True),
        ("push:%/cities", "cities", True),
        ("push:%/cities", "bob/towns", False),
        ("push:%/%", "alice/cities", True),
        ("push:%/%", "cities", True),
        ("push:ALICE/cit%", "alice/Cities", True),
        ("push:alice/%", "alice/cities", True),
        ("push:alice/%", "bob/cities", False),
        ("push:alice/%", "cities", False),
        ("force:%", "cities", False),
    ],
)
def test_what_a_token_allows(allow: str, alias: str, *, may: bool) -> None:
    token = made_token("a", [allow], NOW).token
    assert token.may(Right.PUSH, DatasetAlias.parse(alias)) is may


@pytest.mark.parametrize("right", list(Right))
def test_a_right_allows_itself_and_reading(right: Right) -> None:
    token, alias = made_token("a", [f"{right.value}:org.%"], NOW).token, DatasetAlias.parse("org.x")
    allowed = {each for each in Right if token.may(each, alias)}
    assert allowed == {right} | ({Right.READ} if right is not Right.FORCE else set())
    assert not any(token.may(each, DatasetAlias.parse("x")) for each in Right)


def test_who_shows_a_token() -> None:
    made = made_token("a", ["push:%"], NOW)
    tokens = [made_token("b", ["push:%"], NOW).token, made.token]
    for shown in (f"Bearer {made.text}", f"bearer {made.text}"):
        assert holder(shown, tokens) == made.token
    others = (f"Basic {made.text}", f"Bearer {made.text}x", f"Bearer {digest_of('x').hex()}")
    for wrong in (None, "", made.text, *others):
        assert holder(wrong, tokens) is None


@pytest.mark.parametrize(
    "allow",
    [[], ["push"], ["push:"], ["write:%"], ["push:a b"], ["push:a/b/c"], [":%"], ["push:/a"], ["push:al%/a"],
     ["push:%/"]],
)  # fmt: skip
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
    assert file.list() == ()
    with pytest.raises(WorkspaceError, match="no token 'a'") as refused:
        file.revoke("a")
    assert refused.value.exit_code == 4


GOOD = {"name": "a", "sha3": "0" * 64, "allow": ["push:%"], "created": "2026-01-01T00:00:00Z"}


def kept(**changed: Any) -> str:
    return json.dumps({"version": 1, "tokens": [GOOD, GOOD | changed]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not valid YAML"),
        ("", "0 documents"),
        ("[]", "must be an object, not a list"),
        ("x", "must be an object, not the text 'x'"),
        ("version: 2\ntokens: []\n", "version: must be 1, not the number 2"),
        ("version: true\ntokens: []\n", "version: must be 1, not true"),
        ("version: '1'\ntokens: []\n", "version: must be 1, not the text '1'"),
        ("tokens: []\n", "the property 'version' is missing"),
        ("version: 1\ntokens: {}\n", "tokens: must be a list, not an object"),
        ("version: 1\ntokens:\n", "tokens: must be a list, not null"),
        ("version: 1\ntokens: [x]\n", ":2: tokens[0]: must be an object, not the text 'x'"),
        ("version: 1\nmore: 1\ntokens: []\n", "unknown property 'more'"),
        ("version: 1\n" + "# " + "x" * (2 << 20) + "\ntokens: []\n", "larger than 1,048,576 bytes"),
        (kept(allow=[{"push": "x"}]), "tokens[1].allow[0]: must be text, not an object"),
        (kept(allow=["push:%", ["push:x"]]), "tokens[1].allow[1]: must be text, not a list"),
        (kept(allow=[None]), "tokens[1].allow[0]: must be text, not null"),
        (kept(allow="push:x"), "tokens[1].allow: must be a list, not the text 'push:x'"),
        (kept(allow={"push": "x"}), "tokens[1].allow: must be a list, not an object"),
        (kept(allow=["write:x"]), "tokens[1].allow[0]: 'write:x' is not a right (rights are"),
        (kept(name=1), "tokens[1].name: must be text, not the number 1"),
        (kept(name=None), "tokens[1].name: must be text, not null"),
        (kept(name="a b"), "tokens[1].name: must be what can be the name"),
        (kept(sha3=12), "tokens[1].sha3: must be text, not the number 12"),
        (kept(sha3="zz"), "tokens[1].sha3: must be the sha3-256 of a token"),
        (kept(sha3="00"), "tokens[1].sha3: must be the sha3-256 of a token"),
        (kept(created=1.5), "tokens[1].created: must be text, not the number 1.5"),
        (kept(created="x"), "tokens[1].created: "),
        (kept(created=True), "tokens[1].created: must be text, not true"),
        (kept(more=1), "tokens[1]: unknown property 'more'"),
    ],
)
def test_a_file_that_is_none_lets_nobody_in(text: str, said: str, tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    file.path.write_text(text)
    file.path.chmod(0o600)
    with pytest.raises(AccessError) as refused:
        file.list()
    assert str(refused.value).startswith(f"{file.path}:")
    assert said in str(refused.value)
    assert str(file.path) in (refused.value.hint or "")


@pytest.mark.parametrize("words", [["list"], ["create", "b", "--allow", "push:x"], ["revoke", "a"]])
def test_a_file_that_was_edited_by_hand_is_no_traceback(words: list[str], tmp_path: Path, run: Run) -> None:
    WorkspaceFiles.init(tmp_path)
    path = tmp_path / ".odfchain" / "tokens.yaml"
    path.write_text(kept(allow=[{"push": "x"}]))
    path.chmod(0o600)
    found = run("-w", tmp_path, "token", *words)
    assert (found.code, "tokens[1].allow[0]: must be text, not an object" in found.err) == (8, True)
    assert path.read_text() == kept(allow=[{"push": "x"}])


def test_a_file_that_others_read_lets_nobody_in(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    file.create("a", ["push:%"], NOW)
    file.path.chmod(0o640)
    with pytest.raises(AccessError, match="0640"):
        file.list()


def test_tokens_from_the_command_line(tmp_path: Path, run: Run) -> None:
    WorkspaceFiles.init(tmp_path)
    token = ("-w", tmp_path, "token")
    made = run(*token, "create", "alice", "--allow", "push:org.%", "--allow", "force:x")
    assert (made.code, made.out[:3], made.out.count("\n")) == (0, "ka_", 1)
    (listed,) = run(*token, "list", "-o", "json").rows
    assert (listed["name"], listed["allow"]) == ("alice", ["push:org.%", "force:x"])
    shown = run(*token, "list")
    assert made.out.strip() not in shown.out + shown.err
    assert run(*token, "revoke", "alice").code == 0
    assert run(*token, "list", "-o", "json").rows == []
