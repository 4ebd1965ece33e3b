"""Names and aliases: the human-friendly, case-insensitive half of dataset identity.

Source: specification "Aliases and References" (PEG grammar). Names keep the letter case they were written
in and compare, hash and sort by their ASCII lower case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Self

from odfchain.errors import InvalidIdError
from odfchain.limits import LIMITS

_SUBDOMAIN = r"[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*"
HOSTNAME = rf"{_SUBDOMAIN}(?:\.{_SUBDOMAIN})*"
"""The grammar rule `Hostname` as a regular expression (ASCII, no underscore)."""

_HOSTNAME = re.compile(HOSTNAME)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class _Name:
    text: str

    def __post_init__(self) -> None:
        if not _HOSTNAME.fullmatch(self.text):
            raise InvalidIdError(
                f"{self.text!r} is not a valid {self._what()}",
                hint="use letters and digits, separated by single dots or hyphens, like 'org.example.cities'",
            )
        if len(self.text) > LIMITS.name_bytes:
            raise InvalidIdError(f"{self._what()} of {len(self.text)} bytes (at most {LIMITS.name_bytes})")

    @classmethod
    def _what(cls) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__).lower()

    @property
    def key(self) -> str:
        """The form that comparisons use."""
        return self.text.lower()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.key == other.key

    def __lt__(self, other: Self) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash((type(self), self.key))

    def __str__(self) -> str:
        return self.text


class DatasetName(_Name):
    """Name of a dataset: grammar rule `DatasetName`."""

    __slots__ = ()


class AccountName(_Name):
    """Name of an account: grammar rule `AccountName`."""

    __slots__ = ()


class RepoName(_Name):
    """Name of a repository: grammar rule `RepoName`."""

    __slots__ = ()


def _split(text: str, most: int, what: str) -> list[str]:
    parts = text.split("/")
    if not 1 <= len(parts) <= most:
        raise InvalidIdError(f"{text!r} is not a valid {what}")
    return parts


@total_ordering
@dataclass(frozen=True, slots=True)
class DatasetAlias:
    """`name` or `account/name`: grammar rule `DatasetAlias`."""

    account: AccountName | None
    name: DatasetName

    @classmethod
    def parse(cls, text: str) -> DatasetAlias:
        """Parse an alias; all of the text must be one."""
        parts = _split(text, 2, "dataset alias")
        account = AccountName(parts[0]) if len(parts) == 2 else None
        return cls(account, DatasetName(parts[-1]))

    @property
    def key(self) -> str:
        """The form that look-ups and uniqueness checks use."""
        return str(self).lower()

    def __lt__(self, other: DatasetAlias) -> bool:
        return self.key < other.key

    def __str__(self) -> str:
        return f"{self.account}/{self.name}" if self.account else str(self.name)


@total_ordering
@dataclass(frozen=True, slots=True)
class DatasetAliasRemote:
    """`repo/name` or `repo/account/name`: grammar rule `DatasetAliasRemote`."""

    repo: RepoName
    account: AccountName | None
    name: DatasetName

    @classmethod
    def parse(cls, text: str) -> DatasetAliasRemote:
        """Parse a remote alias; a bare name is not one.

        Raises:
            InvalidIdError: a component breaks the grammar, or their number is not two or three.
        """
        parts = _split(text, 3, "remote dataset alias")
        if len(parts) < 2:
            raise InvalidIdError(f"{text!r} names no repository", hint="write 'repository/dataset'")
        account = AccountName(parts[1]) if len(parts) == 3 else None
        return cls(RepoName(parts[0]), account, DatasetName(parts[-1]))

    def __lt__(self, other: DatasetAliasRemote) -> bool:
        return str(self).lower() < str(other).lower()

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.repo, self.account, self.name) if part)
