"""What clients ask about who they are: `/platform/token/validate`, `/accounts/me`, `/platform/login`.

Tokens are all that is known here: there are no users and no passwords, which clients are told in words.
Source: the protocol as the reference node speaks it; RFC-050.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

from odfchain.serve.access_tokens import holder
from odfchain.serve.token_file import TokenFile

_LOGIN, _VALIDATE, _ACCOUNT = "platform/login", "platform/token/validate", "accounts/me"
PLATFORM = frozenset({_LOGIN, _VALIDATE, _ACCOUNT})
"""The paths that are answered here."""

UNKNOWN = "The token is not known here."
_NO_PASSWORDS = "There are no passwords here: those who run this node make tokens (odfchain token create)."


def answer_platform(path: str, scope: MutableMapping[str, Any], tokens: TokenFile) -> tuple[int, bytes]:
    """Status and document of the answer to one of these paths."""
    method = scope["method"]
    if path == _LOGIN:
        return _said(400, _NO_PASSWORDS) if method == "POST" else _said(405, "This is asked by POST.")
    if method not in ("GET", "HEAD"):
        return _said(405, "This is asked by GET.")
    shown = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), None)
    if shown is None:
        return _said(401, "No token was shown.")
    token = holder(shown.decode("latin-1"), tokens.tokens())
    if token is None:
        return _said(401, UNKNOWN)
    found = {"id": token.account_id, "accountName": token.account} if path == _ACCOUNT else {}
    return 200, json.dumps(found).encode()


def _said(status: int, message: str) -> tuple[int, bytes]:
    return status, json.dumps({"message": message}).encode()
