"""A user who keeps tokens, and types them."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest

from odfchain.storage.locations import PeerUrl
from odfchain.transfer.credentials import Credentials
from tests.kit.support import Result, Run

PASSWORD = "pass word-ß"  # noqa: S105 - for the test's own servers
TOKEN = "s3cret-Token.1~+/=="  # noqa: S105 - as above


@dataclass
class User:
    """A command line whose standard input is a pipe, and which never shows a secret."""

    monkeypatch: pytest.MonkeyPatch
    command: Run
    credentials: Credentials

    def run(self, *args: object, piped: str = "") -> Result:
        self.monkeypatch.setattr("sys.stdin", io.StringIO(piped))
        found = self.command(*args)
        for secret in (PASSWORD, TOKEN):
            assert secret not in found.out + found.err
        return found

    def kept(self, url: str) -> str | None:
        return self.credentials.get(PeerUrl.parse(url))

    def login(self, *args: object, piped: str = "") -> tuple[int, str]:
        """The exit code, and what is said."""
        found = self.run("login", *args, piped=piped)
        return found.code, found.err
