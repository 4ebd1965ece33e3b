"""A user and a password for a token, and tokens that a node knows: as recorded, refused, and never shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odfchain.odf.times import Timestamp
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.kept_tokens import PASSWORD, TOKEN, User
from tests.kit.servers import Reply, Request, Server, closed_port

RECORDED = Path("fixtures/conformance/smart_live.json")
INFO = (200, {"isMultiTenant": True})


class Node(Server):
    """It answers to each request, by method and path, a status and a document."""

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        super().__init__(self._answer)
        self._answers = answers
        self.place = self.url("/")

    def _answer(self, request: Request) -> Reply:
        status, content = self._answers.get(f"{request.method} {request.target}", (404, {}))
        to = {"Location": content} if 300 <= status <= 399 else {}
        return Reply(
            status, to, json.dumps(content).encode() if isinstance(content, dict) else b"no document"
        )

    @property
    def asked(self) -> list[tuple[str, bytes, str | None]]:
        """Method and path, body, and `Authorization`."""
        return [(f"{r.method} {r.target}", r.body, r.headers.get("authorization")) for r in self.requests]


def recorded(name: str) -> tuple[bytes, int, Any]:
    """Body of the request, status and document of the answer, between two reference nodes."""
    (flow,) = (each for each in json.loads(RECORDED.read_text())["flows"] if each["id"] == name)
    request, answer = (each["text"] for each in flow["http"])
    head, _, body = answer.partition("\r\n\r\n")
    return request.partition("\r\n\r\n")[2].encode(), int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(("flow", "code"), [("login", 0), ("login_rejected", 8)])
def test_a_login_is_as_recorded(user: User, flow: str, code: int) -> None:
    body, status, document = recorded(flow)
    sent = json.loads(json.loads(body)["loginCredentialsJson"])
    with Node({"GET /info": INFO, "POST /platform/login": (status, document)}) as there:
        url = f"odf+{there.place}"
        password = ("--user", sent["login"], "--password-stdin")
        found, said = user.login(url, *password, piped=f"{sent['password']}\n")
        assert (found, user.kept(url)) == (code, document.get("accessToken"))
        assert [each[0] for each in there.asked] == ["GET /info", "POST /platform/login"]
        assert there.asked[1][1:] == (body, None)
        if code:
            assert document["message"] in said
            assert "check the user and the password" in said
            assert not user.credentials.path.exists()
        else:
            assert user.credentials.path.stat().st_mode & 0o777 == 0o600
            assert sent["password"] not in user.credentials.path.read_text()


def test_the_node_is_found_below_a_prefix(user: User) -> None:
    answers = {"GET /odf/info": INFO, "POST /odf/platform/login": (200, {"accessToken": TOKEN})}
    with Node(answers) as there:
        url = f"odf+{there.place}odf/alice/airports"
        assert user.login(url, "--user", "alice", "--password-stdin", piped=f"{PASSWORD}\r\n")[0] == 0
        assert user.kept(there.place) == TOKEN
        credentials = json.loads(json.loads(there.asked[-1][1])["loginCredentialsJson"])
        assert credentials == {"login": "alice", "password": PASSWORD}
        assert {body for request, body, _ in there.asked if request.startswith("GET")} == {b""}


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ({}, 2, "no node of Open Data Fabric answers here"),
        ({"GET /info": (200, {"other": 1})}, 2, "named without 'odf+'"),
        ({"GET /info": INFO}, 8, "the node takes no passwords"),
        ({"GET /info": INFO, "POST /platform/login": (400, {"message": "Unsupported login method"})}, 8,
         "Unsupported login method"),
        ({"GET /info": INFO, "POST /platform/login": (500, {"message": f"bad {PASSWORD}\x1b"})}, 8, "bad ***"),
        ({"GET /info": INFO, "POST /platform/login": (307, "http://other.example/")}, 8, "sends elsewhere"),
        ({"GET /info": (301, "https://other.example/")}, 8, "other.example"),
        ({"GET /info": INFO, "POST /platform/login": (200, {"token": TOKEN})}, 6, "without an access token"),
        ({"GET /info": INFO, "POST /platform/login": (200, {"accessToken": f"{TOKEN} x"})}, 8,
         "this is not a token"),
        ({"GET /info": INFO, "POST /platform/login": (200, "text")}, 6, "without an access token"),
    ],
)  # fmt: skip
def test_what_is_no_login_keeps_nothing(
    user: User, answers: dict[str, tuple[int, Any]], code: int, said: str
) -> None:
    with Node(answers) as there:
        password = ("--user", "me", "--password-stdin")
        found, err = user.login(f"odf+{there.place}x", *password, piped=f"{PASSWORD}\n")
    assert (found, said in err, "\x1b" in err) == (code, True, False), err
    if "takes no passwords" in err:
        assert "odfchain token create" in err
    assert not user.credentials.path.exists()
    posts = [request for request, *_ in there.asked if request.startswith("POST")]
    assert len(posts) <= 1  # and none to where a redirect leads


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["odf+http://node.example", "--user", "me", "--password-stdin"], 8, "--plain-http"),
        (["https://web.example", "--user", "me", "--password-stdin"], 2, "odf+https://web.example"),
        (["odf+https://node.example", "--password-stdin"], 2, "--user NAME"),
        (["odf+https://node.example", "--user", "me", "--token-stdin"], 2, "contradict"),
        (["odf+https://node.example", "--user", "me"], 2, "use --password-stdin"),
        (["odf+http://127.0.0.1:1", "--user", "me", "--password-stdin"], 8, "a password 1 to"),
    ],
)
def test_passwords_are_asked_for_where_they_can_be_given(
    user: User, args: list[str], code: int, said: str
) -> None:
    found, err = user.login(*args)
    assert (found, said in err) == (code, True), err


def test_who_sits_at_a_terminal_is_asked(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def prompt(text: str, *, hide_input: bool = False, **_: Any) -> str:
        asked.append((text, hide_input))
        return PASSWORD if hide_input else "alice"

    monkeypatch.setattr("odfchain.cli.screen.is_interactive", lambda: True)
    monkeypatch.setattr("click.prompt", prompt)
    with Node({"GET /info": INFO, "POST /platform/login": (200, {"accessToken": TOKEN})}) as there:
        assert user.login(f"odf+{there.place}")[0] == 0
        assert user.kept(there.place) == TOKEN
    assert [hidden for _, hidden in asked] == [False, True]
    assert "Password of alice" in asked[1][0]


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (200, 0, "is kept in"),
        (401, 8, "does not know this token"),
        (400, 8, "does not know this token"),
        (404, 0, "is kept in"),
        (502, 0, "could not be checked"),
    ],
)
def test_a_token_is_checked_at_the_node(user: User, status: int, code: int, said: str) -> None:
    with Node({"GET /info": INFO, "GET /platform/token/validate": (status, {})}) as there:
        found, err = user.login(f"odf+{there.place}", "--token-stdin", piped=f"{TOKEN}\n")
        assert (found, said in err) == (code, True), err
        assert user.kept(there.place) == (None if code else TOKEN)
        assert [each[2] for each in there.asked] == [None, f"Bearer {TOKEN}"]


def test_a_node_that_is_away_does_not_keep_a_token_from_being_kept(user: User) -> None:
    with closed_port() as port:
        found, err = user.login(f"odf+http://127.0.0.1:{port}/", "--token-stdin", piped=f"{TOKEN}\n")
        assert (found, "could not be checked" in err) == (0, True), err
        assert user.kept(f"http://127.0.0.1:{port}/") == TOKEN


def test_our_own_server_knows_its_tokens_and_no_passwords(user: User, tmp_path: Path) -> None:
    home = WorkspaceFiles.init(tmp_path / "node")
    tokens = TokenFile(home.root)
    made = tokens.create("laptop", ["push:%"], Timestamp.now())
    with RepositoryServer(home, write=True) as server:
        url = f"odf+{server.url}"
        assert user.login(url, "--token-stdin", piped=f"{made.text}\n")[0] == 0
        assert user.kept(url) == made.text
        code, err = user.login(url, "--user", "me", "--password-stdin", piped=f"{PASSWORD}\n")
        assert (code, "There are no passwords here" in err, "--token-stdin" in err) == (8, True, True), err
        tokens.revoke("laptop")
        code, err = user.login(url, "--token-stdin", piped=f"{made.text}\n")
        assert (code, "does not know this token" in err) == (8, True), err
