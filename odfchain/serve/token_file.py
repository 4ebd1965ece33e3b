"""The tokens of a workspace on the disk: `.odfchain/tokens.yaml`, mode 0600, replaced as a whole."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from odfchain.codec.tree import from_tree
from odfchain.codec.yaml_reader import read_document
from odfchain.codec.yaml_writer import dump_yaml
from odfchain.errors import (
    AccessError,
    ManifestError,
    NameCollisionError,
    UsageError,
    WorkspaceError,
)
from odfchain.model.timestamp import Timestamp
from odfchain.serve.access_tokens import AccessToken, Grant, NewToken, checked_name, made_token
from odfchain.store import fsio

_FILE_BYTES = 1 << 20
_MOST = 1_000
"""Tokens of a workspace [count]."""
_SHA3 = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)
_T = TypeVar("_T")


@dataclass(slots=True)
class TokenFile:
    """The tokens that a workspace has given out; what was read is used until the file is another one."""

    root: Path
    """The folder of the workspace."""
    _stamp: tuple[int, int, int] | None = field(default=None, init=False)
    _known: tuple[AccessToken, ...] = field(default=(), init=False)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.root / "tokens.yaml"

    def tokens(self) -> tuple[AccessToken, ...]:
        """All tokens, ordered by name.

        Raises:
            AccessError: the file is malformed, or others may read it.
        """
        try:
            with self.path.open("rb") as stream:
                found = os.fstat(stream.fileno())
                stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
                if found.st_mode & 0o077:
                    raise AccessError(
                        f"{self.path}: mode {found.st_mode & 0o777:04o} lets others read your tokens",
                        hint=f"chmod 600 {self.path}",
                    )
                if stamp == self._stamp:
                    return self._known
                data = stream.read(_FILE_BYTES + 1)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise AccessError(f"{self.path}: {error.strerror}") from None
        self._known, self._stamp = self._parsed(data), stamp
        return self._known

    def create(self, name: str, allow: Iterable[str], now: Timestamp) -> NewToken:
        """Durably keep a new token; its text is in what is returned, and nowhere else.

        Raises:
            UsageError: a name or a right is none, or there are too many tokens.
            NameCollisionError: there is a token of this name.
        """
        made = made_token(name, allow, now)
        with fsio.locked(self._lock):
            known = self.tokens()
            if any(token.name == name for token in known):
                raise NameCollisionError(
                    f"there is a token {name!r}", hint=f"`odfchain token revoke {name}` ends it"
                )
            if len(known) >= _MOST:
                raise UsageError(f"there are {_MOST:,} tokens already", hint="revoke some of them")
            self._write([*known, made.token])
        return made

    def revoke(self, name: str) -> None:
        """Durably forget a token; from now on nobody gets in with it.

        Raises:
            UsageError, WorkspaceError: there is no such token.
        """
        checked_name(name)
        with fsio.locked(self._lock):
            known = self.tokens()
            rest = [token for token in known if token.name != name]
            if len(rest) == len(known):
                raise WorkspaceError(f"there is no token {name!r}", hint="`odfchain token list` shows them")
            self._write(rest)

    @property
    def _lock(self) -> Path:
        return self.root / ".tokens.lock"

    def _write(self, tokens: Iterable[AccessToken]) -> None:
        documents = [
            {
                "name": token.name,
                "sha3": token.digest.hex(),
                "allow": [str(grant) for grant in token.allow],
                "created": str(token.created),
            }
            for token in sorted(tokens, key=lambda each: each.name)
        ]
        text = dump_yaml({"version": 1, "tokens": documents})
        fsio.replace_file(self.path, text.encode(), mode=0o600)

    def _parsed(self, data: bytes) -> tuple[AccessToken, ...]:
        try:
            return _tokens(data, str(self.path))
        except ManifestError as error:
            raise AccessError(
                str(error), hint=f"mend {self.path}, or remove it, which ends all tokens"
            ) from None


@dataclass(frozen=True, slots=True)
class _Kept:
    name: str
    sha3: str
    allow: tuple[str, ...]
    created: Timestamp


@dataclass(frozen=True, slots=True)
class _File:
    version: int
    tokens: tuple[_Kept, ...]


def _tokens(data: bytes, source: str) -> tuple[AccessToken, ...]:
    if len(data) > _FILE_BYTES:
        raise ManifestError(f"larger than {_FILE_BYTES:,} bytes", source=source)
    document = read_document(data, source=source)
    try:
        file = from_tree(_File, document.value)
        if file.version != 1:
            raise ManifestError(f"must be 1, not {file.version}", path="version")  # noqa: TRY301 - is located
        return tuple(_token(kept, f"tokens[{n}]") for n, kept in enumerate(file.tokens))
    except ManifestError as error:
        raise error.located(source=source, line=document.line_of(error.path)) from None


def _token(kept: _Kept, path: str) -> AccessToken:
    if not _SHA3.fullmatch(kept.sha3):
        raise ManifestError("must be the sha3-256 of a token, 64 digits of base16", path=f"{path}.sha3")
    return AccessToken(
        _at(f"{path}.name", checked_name, kept.name),
        bytes.fromhex(kept.sha3),
        tuple(_at(f"{path}.allow[{n}]", Grant.parse, text) for n, text in enumerate(kept.allow)),
        kept.created,
    )


def _at(path: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except UsageError as error:
        raise ManifestError(
            f"{error.message} ({error.hint})" if error.hint else error.message, path=path
        ) from None
