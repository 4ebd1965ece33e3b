"""References: what a user may type where a dataset is meant.

The order in which readings are tried follows the specification's grammar: `DatasetRef` is an id or a local
alias, `DatasetRefRemote` an id (perhaps behind a repository), a remote alias or a URL, and `DatasetRefAny`
is either, where `a/b` stays ambiguous until somebody says whether `a` is a repository.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from odfchain.errors import InvalidIdError
from odfchain.ids.did import DID_ODF_PREFIX, DatasetId
from odfchain.ids.names import HOSTNAME, AccountName, DatasetAlias, DatasetAliasRemote, DatasetName, RepoName

_REMOTE_ID = re.compile(rf"(?:({HOSTNAME})/)?(did:odf:[a-zA-Z0-9+/=_-]+)")
_URL = re.compile(r"[a-zA-Z0-9]+(?:\+[a-zA-Z0-9]+)*://[^\n]+")


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
    """A URL of any scheme, kept as it was written."""

    url: str

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise InvalidIdError(f"{self.url!r} is not a URL")
        try:
            parts = urlsplit(self.url)
        except ValueError:
            raise InvalidIdError(f"{self.url!r} is not a URL") from None
        if not (parts.netloc or parts.path):
            raise InvalidIdError(f"{self.url!r} is not a URL")

    def __str__(self) -> str:
        return self.url


DatasetRef: TypeAlias = DatasetId | DatasetAlias
DatasetRefRemote: TypeAlias = RemoteDatasetId | DatasetAliasRemote | DatasetUrl
DatasetRefAny: TypeAlias = RemoteDatasetId | DatasetAlias | AmbiguousAlias | DatasetAliasRemote | DatasetUrl


def parse_ref(text: str) -> DatasetRef:
    """Grammar rule `DatasetRef`: a `did:odf` id or a local alias."""
    if text.startswith(DID_ODF_PREFIX):
        return DatasetId.parse(text)
    return DatasetAlias.parse(text)


def _remote_id(text: str) -> RemoteDatasetId | None:
    match = _REMOTE_ID.fullmatch(text)
    if match is None:
        return None
    repo, did = match.groups()
    return RemoteDatasetId(RepoName(repo) if repo else None, DatasetId.parse(did))


def parse_ref_remote(text: str) -> DatasetRefRemote:
    """Grammar rule `DatasetRefRemote`: an id, a remote alias or a URL; a bare name is none of them."""
    if remote_id := _remote_id(text):
        return remote_id
    if _URL.fullmatch(text):
        return DatasetUrl(text)
    return DatasetAliasRemote.parse(text)


def parse_ref_any(text: str) -> DatasetRefAny:
    """Grammar rule `DatasetRefAny`: everything that may name a dataset."""
    if remote_id := _remote_id(text):
        return remote_id
    if _URL.fullmatch(text):
        return DatasetUrl(text)
    if "/" not in text:
        return DatasetAlias(None, DatasetName(text))
    alias = DatasetAliasRemote.parse(text)
    if alias.account is None:
        return AmbiguousAlias(str(alias.repo), alias.name)
    return alias


def local_alias(ref: DatasetRefAny) -> DatasetAlias | None:
    """The local alias that a reference may mean, None for ids, remote aliases and URLs."""
    match ref:
        case DatasetAlias():
            return ref
        case AmbiguousAlias():
            alias = ref.resolve(prefix_is_repo=False)
            return alias if isinstance(alias, DatasetAlias) else None
    return None
