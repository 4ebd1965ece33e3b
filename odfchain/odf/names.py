"""Names and aliases: the human-friendly, case-insensitive half of dataset identity.

Source: specification "Aliases and References" (PEG grammar). Names keep the letter case they were written
in and compare, hash and sort by their ASCII lower case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Self, TypeAlias

from odfchain.errors import InvalidIdError
from odfchain.limits import LIMITS
from odfchain.odf.identity import DID_ODF_PREFIX, DatasetId
from odfchain.text import one_line

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
            hint = "use letters and digits, separated by single dots or hyphens, like 'org.example.cities'"
            raise InvalidIdError(f"{self.text!r} is not a valid {self._what()}", hint=hint)
        if len(self.text) > LIMITS.name_bytes:
            raise InvalidIdError(f"{self._what()} of {len(self.text)} bytes (at most {LIMITS.name_bytes})")

    @classmethod
    def _what(cls) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__).lower()

    @property
    def key(self) -> str:
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
    if "" in parts or not 1 <= len(parts) <= most:
        hint = "a URL has a host or a path, like https://host/dataset or s3://bucket/dataset"
        raise InvalidIdError(f"{text!r} is not a valid {what}", hint=hint if "//" in text else None)
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
        """Parse a remote alias of two or three components; a bare name is not one."""
        parts = _split(text, 3, "remote dataset alias")
        if len(parts) < 2:
            raise InvalidIdError(f"{text!r} names no repository", hint="write 'repository/dataset'")
        account = AccountName(parts[1]) if len(parts) == 3 else None
        return cls(RepoName(parts[0]), account, DatasetName(parts[-1]))

    def __lt__(self, other: DatasetAliasRemote) -> bool:
        return str(self).lower() < str(other).lower()

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.repo, self.account, self.name) if part)


# References to datasets, as users type them.
#
# The order in which readings are tried follows the specification's grammar: `DatasetRef` is an id or a
# local alias, `DatasetRefRemote` an id (perhaps behind a repository), a remote alias or a URL, and
# `DatasetRefAny` is either, where `a/b` stays ambiguous until it is known whether `a` is a repository.

_REMOTE_ID = re.compile(rf"(?:({HOSTNAME})/)?(did:odf:[a-zA-Z0-9+/=_-]+)")
_URL = re.compile(r"[a-zA-Z0-9]+(?:\+[a-zA-Z0-9]+)*://[^\n?#][^\n]*")


@dataclass(frozen=True, slots=True)
class RemoteDatasetId:
    """A dataset id, perhaps behind the repository that has it."""

    repo: RepoName | None
    id: DatasetId

    def __str__(self) -> str:
        return f"{self.repo}/{self.id}" if self.repo else str(self.id)


@dataclass(frozen=True, slots=True)
class AmbiguousAlias:
    """`prefix/name`, where the prefix may be an account or a repository."""

    prefix: str
    name: DatasetName

    def resolve(self, *, prefix_is_repo: bool) -> DatasetAlias | DatasetAliasRemote:
        """The remote alias when the prefix is a known repository, else the local one."""
        if prefix_is_repo:
            return DatasetAliasRemote(RepoName(self.prefix), None, self.name)
        return DatasetAlias(AccountName(self.prefix), self.name)

    def __str__(self) -> str:
        return f"{self.prefix}/{self.name}"


@dataclass(frozen=True, slots=True)
class DatasetUrl:
    """A URL of any scheme, kept as it was written; who goes there takes it apart."""

    url: str

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise InvalidIdError(f"{self.url!r} is not a URL")

    def __str__(self) -> str:
        return self.url


DatasetRef: TypeAlias = DatasetId | DatasetAlias
DatasetRefRemote: TypeAlias = RemoteDatasetId | DatasetAliasRemote | DatasetUrl
DatasetRefAny: TypeAlias = RemoteDatasetId | DatasetAlias | AmbiguousAlias | DatasetAliasRemote | DatasetUrl


def parse_ref(text: str) -> DatasetRef:
    """Grammar rule `DatasetRef`: a `did:odf` id or a local alias."""
    return DatasetId.parse(text) if text.startswith(DID_ODF_PREFIX) else DatasetAlias.parse(text)


def parse_ref_remote(text: str) -> DatasetRefRemote:
    """Grammar rule `DatasetRefRemote`: an id, a remote alias or a URL; a bare name is none of them."""
    if match := _REMOTE_ID.fullmatch(text):
        repo, did = match.groups()
        return RemoteDatasetId(RepoName(repo) if repo else None, DatasetId.parse(did))
    return DatasetUrl(text) if _URL.fullmatch(text) else DatasetAliasRemote.parse(text)


def parse_ref_any(text: str) -> DatasetRefAny:
    """Grammar rule `DatasetRefAny`: everything that may name a dataset."""
    if "/" not in text and not _REMOTE_ID.fullmatch(text):
        return DatasetAlias(None, DatasetName(text))
    found = parse_ref_remote(text)
    if isinstance(found, DatasetAliasRemote) and found.account is None:
        return AmbiguousAlias(str(found.repo), found.name)
    return found


def local_alias(ref: DatasetRefAny) -> DatasetAlias | None:
    """The local alias that a reference may mean, None for ids, remote aliases and URLs."""
    match ref:
        case DatasetAlias():
            return ref
        case AmbiguousAlias():
            alias = ref.resolve(prefix_is_repo=False)
            return alias if isinstance(alias, DatasetAlias) else None
    return None


# Name patterns: `%` matches any run of characters, as in SQL LIKE.
#
# A text with a `%` is a pattern, any other text a reference. Matching ignores ASCII case; an account in the
# pattern must equal the dataset's account, and a pattern without one matches in any account.

# Grammar of a pattern: Start? ('%'+ Middle)* '%'+ End?, where the pieces around '%' may begin or end in the
# middle of a host name, so a single '.' or '-' may be next to a '%'.
_PATTERN = re.compile(rf"(?:{HOSTNAME}[.-]?)?(?:%+(?:[.-]?{HOSTNAME}[.-]?|[.-])(?=%))*%+(?:[.-]?{HOSTNAME})?")


@dataclass(frozen=True, slots=True)
class DatasetNamePattern:
    """A dataset name in which `%` matches any run of characters, the empty one included."""

    text: str

    def __post_init__(self) -> None:
        if len(self.text) > LIMITS.name_bytes:
            raise InvalidIdError(f"a pattern of {len(self.text)} bytes (at most {LIMITS.name_bytes})")
        if "%" in self.text:
            if not _PATTERN.fullmatch(self.text):
                raise InvalidIdError(f"{self.text!r} is not a valid dataset name pattern")
        else:
            DatasetName(self.text)

    def matches(self, name: DatasetName) -> bool:
        """True if the name fits, ignoring ASCII case."""
        regex = ".*".join(re.escape(part) for part in self.text.lower().split("%"))
        return re.fullmatch(regex, name.key) is not None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class DatasetPattern:
    """A name pattern with an optional account."""

    account: AccountName | None
    pattern: DatasetNamePattern

    @classmethod
    def parse(cls, text: str) -> DatasetPattern:
        """The pattern that a text with a `%` is."""
        account, slash, rest = text.rpartition("/")
        return cls(AccountName(account) if slash else None, DatasetNamePattern(rest))

    def matches(self, alias: DatasetAlias) -> bool:
        """True if a local dataset of this alias is meant."""
        return (self.account is None or self.account == alias.account) and self.pattern.matches(alias.name)


# Names of branches.
#
#     [a-z][a-z0-9]*(-[a-z0-9]+)*      at most 64 characters; not `head`, not `overwritten-…`
#
# A name begins with a letter and has no dot, so it is never a number, a time, or one of the names with dots
# that are kept free for other kinds of references. Nor may it begin like a block hash, in an encoding that
# has no capital letters: all hashes in the others have some. Source: RFC-035.

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", re.ASCII)
# how SHA3-256 of 32 bytes begins: in base16, base32, and the draft base36, which is not read but is written
_LIKE_A_HASH = re.compile(r"f1620[0-9a-f]*|bcyq[a-p][a-z2-7]*|kr[vw][0-9a-z]{50}", re.ASCII)
_MOST_CHARACTERS = 64


def is_branch_name(text: str) -> bool:
    """True if a text may name a branch."""
    return (
        len(text) <= _MOST_CHARACTERS
        and _NAME.fullmatch(text) is not None
        and text != "head"
        and not text.startswith("overwritten-")
        and _LIKE_A_HASH.fullmatch(text) is None
    )


def check_branch_name(text: str) -> str:
    """The text, which may name a branch; else an `InvalidIdError` says why not."""
    if is_branch_name(text):
        return text
    shown = one_line(text)
    if text == "head" or text.startswith("overwritten-"):
        reason = "that name is used for something else"
    elif _LIKE_A_HASH.fullmatch(text):
        reason = "it looks like a block hash"
    elif len(text) > _MOST_CHARACTERS:
        reason = f"it has {len(text)} characters, at most {_MOST_CHARACTERS} are allowed"
    else:
        reason = "it is not lower-case letters and digits, in words joined by '-', that begin with a letter"
    hint = "a name is like fix-names or review-2"
    raise InvalidIdError(f"{shown!r} cannot name a branch: {reason}", hint=hint)
