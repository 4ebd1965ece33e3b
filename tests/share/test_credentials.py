"""Tokens that a user keeps: for which URLs, in which file, and where they never go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import AccessError, UnsupportedPeerError
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.credentials import Credentials, checked_token
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.kept_tokens import TOKEN, User
from tests.kit.served_workspace import make_dataset
from tests.kit.servers import Reply, Request, Server
from tests.kit.sharing import Sharing


def test_a_token_is_for_its_origin_alone(credentials: Credentials) -> None:
    credentials.put(PeerUrl.parse("https://a.example/x"), TOKEN)
    assert credentials.get(PeerUrl.parse("https://A.example:443/y/z")) == TOKEN
    for other in ("http://a.example/x", "https://a.example:444/", "https://b.a.example/", "https://a.example.b/",
                  "file:///a.example"):  # fmt: skip
        assert credentials.get(PeerUrl.parse(other)) is None
    assert credentials.path.stat().st_mode & 0o777 == 0o600
    assert credentials.path.parent.stat().st_mode & 0o777 == 0o700
    credentials.put(PeerUrl.parse("https://b.example/"), "other")
    assert credentials.origins() == ["https://a.example", "https://b.example"]
    assert credentials.remove(PeerUrl.parse("https://a.example")) == ["https://a.example"]
    assert credentials.remove(None) == ["https://b.example"]
    assert credentials.origins() == []
    with pytest.raises(UnsupportedPeerError, match="a token is for a server"):
        credentials.put(PeerUrl.parse("file:///srv/x"), TOKEN)


@pytest.mark.parametrize("text", ["", "a b", "a\nb", "tök", "a" * 9_000, "=a"])
def test_what_cannot_be_sent_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(AccessError, match="this is not a token") as caught:
        checked_token(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 2, "tokens": {}}', '{"version": 1, "tokens": {"a": 1}}',
                                     " " * (1 << 20) + "{}"])  # fmt: skip
def test_a_damaged_file_is_said(credentials: Credentials, content: str) -> None:
    credentials.path.parent.mkdir()
    credentials.path.write_text(content)
    credentials.path.chmod(0o600)
    with pytest.raises(AccessError, match="not a file of tokens"):
        credentials.origins()


def test_a_file_that_others_can_read_is_refused(credentials: Credentials) -> None:
    credentials.put(PeerUrl.parse("https://a.example"), TOKEN)
    credentials.path.chmod(0o644)
    with pytest.raises(AccessError, match="mode 0644 lets others read your tokens") as caught:
        credentials.get(PeerUrl.parse("https://a.example"))
    assert caught.value.hint == f"chmod 600 {credentials.path}"


@given(st.text(max_size=40))
def test_any_url_has_an_origin_or_none(text: str) -> None:
    try:
        url = PeerUrl.parse(f"https://{text}")
    except UnsupportedPeerError:
        return
    found = url.origin
    assert found is None or found.startswith("https://")


# --- over the wire ---------------------------------------------------------------------------------


@contextmanager
def private(folder: Path, seen: list[str | None], redirect: str | None = None) -> Iterator[str]:
    """A static server that wants the token; or one that sends everybody elsewhere."""

    def answer(request: Request) -> Reply:
        seen.append(request.headers.get("authorization"))
        path = request.target.lstrip("/")
        if redirect is not None:
            return Reply(302, {"Location": redirect + path})
        if seen[-1] != f"Bearer {TOKEN}":
            return Reply(401)
        return Reply(body=(folder / path).read_bytes()) if (folder / path).is_file() else Reply(404)

    with Server(answer) as server:
        yield server.url("/")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with a dataset, to be handed out by a web server."""
    theirs = WorkspaceFiles.init(tmp_path / "theirs")
    make_dataset(theirs, "cities", 100)
    Sharing(theirs).push("cities", f"{tmp_path.as_uri()}/shelf/cities")
    return tmp_path / "shelf"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkspaceFiles:
    """The workspace of the current folder."""
    monkeypatch.chdir(tmp_path)
    return WorkspaceFiles.init(tmp_path)


def test_private_datasets_are_pulled_without_a_terminal(
    user: User, shelf: Path, mine: WorkspaceFiles
) -> None:
    seen: list[str | None] = []
    with private(shelf, seen) as url:
        refused = user.run("pull", f"{url}cities")
        assert (refused.code, f"`odfchain login {url.rstrip('/')}`" in refused.err) == (8, True)
        refused = user.run("login", url)
        assert refused.code == 2
        assert "standard input is not a terminal: no token can be asked for" in refused.err
        assert user.run("login", url, "--token-stdin", piped=f"{TOKEN}\n").code == 0
        assert user.run("pull", f"{url}cities").code == 0
        assert user.run("pull", "--all").code == 0
        assert set(seen[1:]) == {f"Bearer {TOKEN}"}
        assert user.run("login", "-o", "json").rows == [{"origin": url.rstrip("/")}]
        assert TOKEN not in "".join(p.read_text() for p in mine.root.rglob("*.y*ml"))
        assert user.run("logout", url).code == 0
        assert user.run("pull", "--all").code == 8
        assert user.run("logout", url).code == 2


@pytest.mark.parametrize("scheme", ["", "odf+"])
def test_a_token_that_the_server_does_not_know_any_more_is_told_from_none(
    user: User, shelf: Path, mine: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with private(shelf, []) as url:
        user.credentials.put(PeerUrl.parse(url), "revoked")
        login = f"`odfchain login {url.rstrip('/')}`"
        refused = user.run("pull", f"{scheme}{url}cities")
        said = "HTTP status 401: the token kept for this server is not valid any more\n"
        assert (refused.code, said in refused.err, login in refused.err) == (8, True, True), refused.err
        monkeypatch.setenv("ODFCHAIN_TOKEN", "wrong")
        assert "the token given is not valid\n" in user.run("pull", f"{url}cities").err
        monkeypatch.delenv("ODFCHAIN_TOKEN")
        user.credentials.remove(None)
        refused = user.run("pull", f"{scheme}{url}cities")
        said = "HTTP status 401: authentication is required\n"
        assert (refused.code, said in refused.err, login in refused.err) == (8, True, True), refused.err


def test_a_redirect_to_another_origin_takes_no_token_along(
    user: User, shelf: Path, mine: WorkspaceFiles
) -> None:
    config = Path(".odfchain/config.yaml")  # both servers are on this machine
    config.write_text(config.read_text().replace("PrivateRedirects: false", "PrivateRedirects: true"))
    there: list[str | None] = []
    here: list[str | None] = []
    with private(shelf, there) as other, private(shelf, here, redirect=other) as url:
        user.credentials.put(PeerUrl.parse(url), TOKEN)
        refused = user.run("pull", f"{url}cities")
        assert (refused.code, "401: authentication is required" in refused.err) == (8, True), refused.err
    assert set(here) == {f"Bearer {TOKEN}"}
    assert set(there) == {None}


def test_plain_http_to_another_machine_has_to_be_accepted(user: User) -> None:
    refused = user.run("login", "http://a.example", "--token-stdin", piped=f"{TOKEN}\n")
    assert (refused.code, "--plain-http" in refused.err) == (8, True)
    assert not user.credentials.path.exists()
    warned = user.run("login", "http://a.example", "--token-stdin", "--plain-http", piped=f"{TOKEN}\n")
    assert (warned.code, "over plain http" in warned.err) == (0, True)
    assert user.run("logout", "--all").code == 0
    assert user.run("logout").code == 2
