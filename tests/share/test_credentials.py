"""Tokens that a user keeps: for which URLs, in which file, and where they never go."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.cli.main import main
from odfchain.errors import AccessError, UnsupportedPeerError
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.credentials import Credentials, checked_token
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.served_workspace import make_dataset
from tests.kit.servers import Reply, Request, Server

SECRET = "s3cret-Token.1~+/=="  # noqa: S105 - for the test's own servers


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    monkeypatch.setenv("ODFCHAIN_CREDENTIALS", str(tmp_path / "home" / "credentials.json"))
    return Credentials.of_user()


def test_a_token_is_for_its_origin_alone(credentials: Credentials) -> None:
    credentials.put(PeerUrl.parse("https://a.example/x"), SECRET)
    assert credentials.get(PeerUrl.parse("https://A.example:443/y/z")) == SECRET
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
        credentials.put(PeerUrl.parse("file:///srv/x"), SECRET)


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
    credentials.put(PeerUrl.parse("https://a.example"), SECRET)
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
        if seen[-1] != f"Bearer {SECRET}":
            return Reply(401)
        return Reply(body=(folder / path).read_bytes()) if (folder / path).is_file() else Reply(404)

    with Server(answer) as server:
        yield server.url("/")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with a dataset, to be handed out by a web server."""
    theirs = WorkspaceFiles.init(tmp_path / "theirs")
    make_dataset(theirs, "cities", 100)
    assert (
        main(["-w", str(tmp_path / "theirs"), "push", "cities", "--to", f"{tmp_path.as_uri()}/shelf/cities"])
        == 0
    )
    return tmp_path / "shelf"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(args))
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    return code, said.out, said.err


def test_private_datasets_are_pulled_without_a_terminal(
    credentials: Credentials,
    shelf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.chdir(mine)
    assert main(["init"]) == 0
    seen: list[str | None] = []
    with private(shelf, seen) as url:
        code, _, err = run(capsys, "pull", f"{url}cities")
        assert (code, "odfchain login URL" in err) == (8, True)
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        code, _, err = run(capsys, "login", url)
        assert (code, "standard input is not a terminal: no token can be asked for" in err) == (2, True)
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{SECRET}\n"))
        assert run(capsys, "login", url, "--stdin")[0] == 0
        assert run(capsys, "pull", f"{url}cities")[0] == 0
        assert run(capsys, "pull", "--all")[0] == 0
        assert set(seen[1:]) == {f"Bearer {SECRET}"}
        code, out, _ = run(capsys, "login", "-o", "json")
        assert json.loads(out) == [{"origin": url.rstrip("/")}]
        assert SECRET not in "".join(p.read_text() for p in (mine / ".odfchain").rglob("*.y*ml"))
        assert run(capsys, "logout", url)[0] == 0
        assert run(capsys, "pull", "--all")[0] == 8
        assert run(capsys, "logout", url)[0] == 2


def test_a_redirect_to_another_origin_takes_no_token_along(
    credentials: Credentials,
    shelf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    config = Path(".odfchain/config.yaml")  # both servers are on this machine
    config.write_text(config.read_text().replace("PrivateRedirects: false", "PrivateRedirects: true"))
    there: list[str | None] = []
    here: list[str | None] = []
    with private(shelf, there) as other, private(shelf, here, redirect=other) as url:
        credentials.put(PeerUrl.parse(url), SECRET)
        code, _, err = run(capsys, "pull", f"{url}cities")
        assert (code, "HTTP status 401" in err) == (8, True), err
    assert set(here) == {f"Bearer {SECRET}"}
    assert set(there) == {None}


def test_plain_http_to_another_machine_has_to_be_accepted(
    credentials: Credentials, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SECRET}\n"))
    code, _, err = run(capsys, "login", "http://a.example", "--stdin")
    assert (code, "--plain-http" in err, credentials.path.exists()) == (8, True, False)
    code, _, err = run(capsys, "login", "http://a.example", "--stdin", "--plain-http")
    assert (code, "over plain http" in err) == (0, True)
    assert run(capsys, "logout", "--all")[0] == 0
    assert run(capsys, "logout")[0] == 2
    assert os.environ.get("ODFCHAIN_TOKEN") is None
