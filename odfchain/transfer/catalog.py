"""What a repository has: from the index of a server, or by looking into a folder or an object store.

The index is `datasets.json` below the repository's URL (RFC-021). Nothing of it is believed beyond its form:
a dataset that is pulled is checked by its hashes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from odfchain.errors import (
    CorruptedPeerError,
    InvalidIdError,
    ObjectNotFoundError,
    StoreError,
    TransferError,
    UnsupportedPeerError,
)
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.limits import LIMITS, SHARING
from odfchain.model.enums import DatasetKind
from odfchain.store.interfaces import parse_ref
from odfchain.text import one_line
from odfchain.transfer.open import DEFAULTS, PeerOptions, open_peer
from odfchain.transfer.public_layout import HEAD_KEY, INDEX_KEY, PeerUrl
from odfchain.transfer.repository_index import parse_index

_PARALLEL = 10
_NO_INDEX = "many nodes have no such list: name the dataset, as in `odfchain pull REPOSITORY/NAME`"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryEntry:
    """A dataset of a repository. Folders and object stores say nothing beyond alias and head."""

    alias: DatasetAlias
    head: Multihash
    id: DatasetId | None = None
    kind: DatasetKind | None = None
    blocks: int | None = None
    records: int | None = None
    size: int | None = None
    """Size of all slices [bytes]."""


def list_repository(url: PeerUrl, options: PeerOptions = DEFAULTS) -> list[RepositoryEntry]:
    """The datasets of a repository, ordered by alias.

    Raises:
        UnsupportedPeerError: this kind of place cannot be listed, or the server has no index.
    """
    if url.is_smart:
        found = _node_entries(url, options)
    elif url.scheme in ("http", "https"):
        found = list(_index_entries(url, options))
    elif url.scheme == "file":
        found = list(_folder_entries(Path(unquote(urlsplit(url.text).path)), url))
    elif url.scheme in ("ipfs", "ipns"):
        raise UnsupportedPeerError(f"{url}: a repository behind an IPFS gateway cannot be listed")
    else:
        found = _store_entries(url)
    return sorted(found, key=lambda entry: entry.alias)


def search(entries: Iterable[RepositoryEntry], text: str) -> list[RepositoryEntry]:
    """The datasets whose alias or id contains a text; case does not matter."""
    wanted = text.lower()
    return [e for e in entries if wanted in e.alias.key or (e.id is not None and wanted in str(e.id).lower())]


def _node_entries(url: PeerUrl, options: PeerOptions) -> list[RepositoryEntry]:
    """What a node has, listed as servers are; of one of its accounts what the list of the whole node says."""
    try:
        return list(_index_entries(url.plain, options))
    except UnsupportedPeerError as error:
        missing = UnsupportedPeerError(error.message, hint=_NO_INDEX)
    node, _, account = url.plain.text.rstrip("/").rpartition("/")
    if node.endswith("/"):  # the URL is that of a host
        raise missing
    try:
        listed = list(_index_entries(PeerUrl.parse(node), options))
    except UnsupportedPeerError:
        raise missing from None
    found = [
        replace(entry, alias=DatasetAlias(None, entry.alias.name))
        for entry in listed
        if str(entry.alias.account or "").lower() == unquote(account).lower()
    ]
    if not found:
        raise missing
    return found


def _index_entries(url: PeerUrl, options: PeerOptions) -> Iterator[RepositoryEntry]:
    where = f"{url}{INDEX_KEY}"
    with contextlib.closing(open_peer(url, options)) as peer:
        data = peer.index(SHARING.index_bytes)
    if data is None:
        raise UnsupportedPeerError(
            f"{where}: the server has no index of its datasets",
            hint="write the URL of a dataset; a plain web server needs this file for `list`",
        )
    listed = parse_index(data, where)
    if len(listed) > SHARING.listed_datasets:
        raise TransferError(f"{where}: lists more than {SHARING.listed_datasets:,} datasets")
    for item in listed:
        yield RepositoryEntry(
            alias=item.alias,
            head=item.head,
            id=item.id,
            kind=item.kind,
            blocks=item.blocks,
            records=item.records,
            size=item.size,
        )


# --- folders and object stores -------------------------------------------------------------------------


def _folder_entries(folder: Path, url: PeerUrl) -> Iterator[RepositoryEntry]:
    from odfchain.transfer.folder_peer import FolderPeer  # noqa: PLC0415 - most commands ask nobody

    if not folder.is_dir():
        raise TransferError(f"{url}: there is no such folder")

    def below(path: str) -> Sequence[str]:
        try:
            with os.scandir(folder / path) as found:
                return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise TransferError(f"{one_line(f'{url}{path}')}: {error.strerror}") from error

    def head(path: str) -> Multihash | None:
        peer = FolderPeer(url.dataset(path.rstrip("/")) if path else url)
        try:
            return peer.head()
        finally:
            peer.close()

    yield from _entries(url, below, head)


def _store_entries(url: PeerUrl) -> list[RepositoryEntry]:
    from odfchain.transfer.object_space import STORE_LIMITS, ObjectSpace  # noqa: PLC0415 - most commands ask nobody

    space = ObjectSpace(url, STORE_LIMITS)

    def head(path: str) -> Multihash | None:
        try:
            data = space.read(f"{path}{HEAD_KEY}", LIMITS.ref_bytes)[0]
        except ObjectNotFoundError:
            return None
        try:
            return parse_ref(data, f"{url}{path}{HEAD_KEY}")
        except StoreError as error:
            raise CorruptedPeerError(one_line(str(error))) from error

    return list(_entries(url, space.folders, head))


def _entries(
    url: PeerUrl, below: Callable[[str], Sequence[str]], head: Callable[[str], Multihash | None]
) -> Iterator[RepositoryEntry]:
    """Everything with a head in the first two levels: `name/`, and `account/name/`."""
    if head("") is not None:
        raise UnsupportedPeerError(f"{url}: this is a dataset, not a repository of datasets")
    first = _checked(url, _aliases("", below("")))
    heads = _heads(first, head)
    yield from _named(heads)
    accounts = [path for path, found in heads.items() if found is None]
    second = _checked(url, [alias for path in accounts for alias in _aliases(path, below(path))])
    yield from _named(_heads(second, head))


def _checked(url: PeerUrl, folders: list[str]) -> list[str]:
    if len(folders) > SHARING.listed_datasets:
        raise TransferError(f"{url}: has more than {SHARING.listed_datasets:,} folders")
    return folders


def _aliases(parent: str, names: Iterable[str]) -> list[str]:
    """Folders that can be the alias of a dataset or the name of an account, as paths ending in a slash."""
    found = []
    for name in names:
        try:
            DatasetAlias.parse(f"{parent}{name}")
        except InvalidIdError:
            continue
        found.append(f"{parent}{name}/")
    return found


def _heads(paths: Sequence[str], head: Callable[[str], Multihash | None]) -> dict[str, Multihash | None]:
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        return dict(zip(paths, pool.map(head, paths), strict=True))


def _named(heads: dict[str, Multihash | None]) -> Iterator[RepositoryEntry]:
    for path, head in heads.items():
        if head is not None:
            yield RepositoryEntry(alias=DatasetAlias.parse(path.rstrip("/")), head=head)
