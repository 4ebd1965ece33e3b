"""The repositories that a workspace knows by name: places below whose URL datasets are.

    .odfchain/repos/NAME        a manifest of kind `Repository` with the URL

Names are compared without regard to case, as all names are. Source: specification "Repository Contract".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from odfchain import errors
from odfchain.limits import SHARING
from odfchain.odf.block_codec import decode_block, decode_header
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import Seed
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.manifests import ManifestKind, read_manifest
from odfchain.odf.names import DatasetAlias, RepoName
from odfchain.odf.tree import COUNT, Form, read_json, to_tree
from odfchain.odf.yaml import dump_yaml, read_document
from odfchain.storage import fsio
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import INDEX_KEY
from odfchain.storage.store import Store
from odfchain.text import one_line
from odfchain.transfer.open_peer import DEFAULTS, KINDS, Listing, PeerOptions, open_peer
from odfchain.transfer.signed_statements import NO_POLICY, SignaturePolicy
from odfchain.transfer.sync import with_answers
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A place that has datasets."""

    url: str
    """Its URL; a dataset's alias is appended to it."""
    require_signature: bool | None = None
    """True if copies from here need the owner's signature of the head."""
    max_signature_age_seconds: Annotated[int, range(1, 1 << 63)] | None = None
    """How old that signature may be [s]."""


REPOSITORY = ManifestKind("Repository", Repository, range(1, 2))


@dataclass(frozen=True, slots=True)
class KnownRepository:
    """A repository and the name that this workspace gives it."""

    name: RepoName
    url: PeerUrl
    policy: SignaturePolicy = NO_POLICY


@dataclass(frozen=True, slots=True)
class Repositories:
    """The registry of one workspace; `root` is its `.odfchain` folder."""

    root: Path

    @property
    def _folder(self) -> Path:
        return self.root / "repos"

    def add(self, name: RepoName, url: str, policy: SignaturePolicy = NO_POLICY) -> KnownRepository:
        """Durably remember a repository; its URL gets a slash at its end."""
        found = PeerUrl.parse(url)
        fsio.make_folder(self._folder)
        with fsio.locked(self.root / "lock"):
            if (path := self._find(name)) is not None:
                raise errors.NameCollisionError(
                    f"a repository called {path.name!r} already exists: {self._read(path).url}",
                    hint=f"choose another name, or `odfchain repo delete {path.name}` first",
                )
            document = {
                "kind": REPOSITORY.name,
                "version": REPOSITORY.versions[-1],
                "content": to_tree(Repository(url=found.text, **policy.as_fields())),
            }
            # not for everybody: a URL may have a password in it
            fsio.create_file(self._folder / str(name), dump_yaml(document).encode(), mode=0o600)
        return KnownRepository(name, found, policy)

    def delete(self, name: RepoName) -> None:
        """Forget a repository; datasets and their aliases stay as they are."""
        with fsio.locked(self.root / "lock"):
            if (path := self._find(name)) is None:
                raise self._unknown(name)
            with fsio.storage_errors(path):
                path.unlink()
            fsio.sync_folder(self._folder)

    def list(self) -> list[KnownRepository]:
        """All repositories, ordered by name."""
        return [self._read(path) for _, path in sorted(self._paths().items())]

    def find(self, name: RepoName) -> PeerUrl | None:
        """The URL of a repository; None when there is none of this name."""
        path = self._find(name)
        return None if path is None else self._read(path).url

    def get(self, name: RepoName) -> PeerUrl:
        """The URL of a repository."""
        if (found := self.find(name)) is None:
            raise self._unknown(name)
        return found

    def find_by_id(self, name: RepoName, dataset_id: DatasetId, options: PeerOptions = DEFAULTS) -> PeerUrl:
        """The URL of the dataset of this id in a repository."""
        repository = self.get(name)
        try:
            entries = list_repository(repository, options)
        except errors.UnsupportedPeerError:
            return repository.dataset(str(dataset_id))
        for entry in entries:
            url = repository.dataset(str(entry.alias))
            if (entry.id or _id_at(url, entry.head, options)) == dataset_id:
                return url
        raise errors.DatasetNotFoundError(
            f"{repository}: has no dataset with the id {dataset_id}",
            hint=f"`odfchain search --repo {repository}` lists what it has",
        )

    def policy(self, url: PeerUrl) -> SignaturePolicy:
        """The repositories' signature policy for a dataset below their URL, however it is spelled."""
        found = NO_POLICY
        for known in self.list():
            if url.is_below(known.url):
                found = found.and_also(known.policy)
        return found

    def _unknown(self, name: RepoName) -> errors.WorkspaceError:
        known = ", ".join(str(found) for found in sorted(self._paths()))
        return errors.WorkspaceError(
            f"no repository is called {str(name)!r}",
            hint=f"{f'known are: {known}' if known else '`odfchain repo add NAME URL` makes one known'}; "
            "a folder is written as a URL: file:///…",
        )

    def _paths(self) -> dict[RepoName, Path]:
        paths = {}
        with fsio.storage_errors(self._folder), contextlib.suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                if (name := _name_of(path)) is not None:
                    paths[name] = path
        return paths

    def _find(self, name: RepoName) -> Path | None:
        return self._paths().get(name)

    @staticmethod
    def _read(path: Path) -> KnownRepository:
        with fsio.storage_errors(path), path.open("rb") as stream:
            data = stream.read(_READ_BYTES + 1)
        if len(data) > _READ_BYTES:
            raise errors.ManifestError(f"larger than {_READ_BYTES:,} bytes", source=str(path))
        repository: Repository = read_manifest(read_document(data, source=str(path)), REPOSITORY, str(path))
        policy = SignaturePolicy.from_fields(
            repository.require_signature, repository.max_signature_age_seconds
        )
        return KnownRepository(RepoName(path.name), PeerUrl.parse(repository.url), policy)


def _name_of(path: Path) -> RepoName | None:
    try:
        return RepoName(path.name)
    except errors.InvalidIdError:
        return None


# The index of a repository: `datasets.json` next to its datasets, ordered by alias.
#
#     {"version": 1,
#      "datasets": [
#       {"alias": "org/cities", "id": "did:odf:fed01…", "kind": "Root", "head": "f1620…",
#        "blocks": 12, "records": 3400, "size": 81234}
#      ]}
#
# `size` is that of the slices in bytes. The index is optional and untrusted, and no part of the transfer
# protocol. Readers ignore unknown fields. Source: RFC-021.

INDEX_VERSION = 1
_Count = Annotated[int, COUNT]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryEntry:
    """A dataset of a repository. Folders and object stores say nothing beyond alias and head."""

    FORM: ClassVar = Form(others=True, whole=True)
    alias: DatasetAlias
    id: DatasetId | None = None
    kind: DatasetKind | None = None
    head: Multihash
    blocks: _Count | None = None
    records: _Count | None = None
    size: _Count | None = None
    """Size of all slices [bytes]."""

    def matches(self, text: str) -> bool:
        """True if its alias or id contains a text; case does not matter."""
        wanted = text.lower()
        return wanted in self.alias.key or (self.id is not None and wanted in str(self.id).lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    FORM: ClassVar = Form(others=True)
    version: Literal[1]
    datasets: tuple[RepositoryEntry, ...]


def parse_index(data: bytes, where: str) -> list[RepositoryEntry]:
    """Parse the index of a peer at `where`; every value is of its declared type."""
    if len(data) > SHARING.index_bytes:
        raise errors.CorruptedPeerError(
            f"{where}: an index of {len(data):,} bytes (at most {SHARING.index_bytes:,})"
        )
    if sum(map(data.count, (b",", b"[", b"{"))) > SHARING.index_values:  # `[],[]` is twenty times its size
        raise errors.CorruptedPeerError(f"{where}: an index of more than {SHARING.index_values:,} values")
    try:
        return [*read_json(_Index, data, SHARING.index_bytes).datasets]
    except errors.ManifestError as error:
        raise errors.CorruptedPeerError(
            f"{where}: not the index of a repository: {one_line(str(error))}"
        ) from None


class RepositoryIndex:
    """Entries of local datasets, made anew only for those whose head or slices changed.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._made: dict[Path, tuple[tuple[Multihash, int], RepositoryEntry]] = {}

    def entries(self, datasets: Sequence[DatasetFiles]) -> list[RepositoryEntry]:
        """One for each dataset that has a head and can be read; the others are left out."""
        made = {}
        for dataset in datasets:
            try:
                if (head := dataset.chain.head()) is None:
                    continue
                stamp = (head, os.stat(dataset.folder / "data").st_mtime_ns)  # noqa: PTH116 - as cheap as can be
                before = self._made.get(dataset.folder)
                if before is None or before[0] != stamp or before[1].alias != dataset.alias:
                    before = (stamp, _entry_of(dataset, head))
                made[dataset.folder] = before
            except (errors.OdfchainError, OSError):
                continue
        self._made = made
        return [entry for _, entry in made.values()]


def _entry_of(dataset: DatasetFiles, head: Multihash) -> RepositoryEntry:
    state = DatasetState.read(dataset.chain, head)
    return RepositoryEntry(
        alias=dataset.alias,
        head=head,
        id=state.seed.dataset_id,
        kind=state.seed.dataset_kind,
        blocks=state.head_block.sequence_number + 1,
        records=state.record_count,
        size=sum(dataset.data.size(name) for name in dataset.data.names()),
    )


# Datasets of a repository: from the index of a server (RFC-021), or by listing a folder or an object store.
# Of an index only the form is trusted: a pulled dataset is checked by its hashes.

_NO_INDEX = "many nodes have no such list: name the dataset, as in `odfchain pull REPOSITORY/NAME`"


def list_repository(url: PeerUrl, options: PeerOptions = DEFAULTS) -> list[RepositoryEntry]:
    """The datasets of a repository, ordered by alias."""
    match KINDS[url.scheme].listing:
        case Listing.ACCOUNTS:
            found = _node_entries(url, options)
        case Listing.INDEX:
            found = _index_entries(url, options)
        case Listing.FOLDERS:
            with closing(open_peer(url, options)) as store:
                found = list(_entries(url, store))
        case None:
            raise errors.UnsupportedPeerError(f"{url}: a repository behind an IPFS gateway cannot be listed")
    return sorted(found, key=lambda entry: entry.alias)


def _node_entries(url: PeerUrl, options: PeerOptions) -> list[RepositoryEntry]:
    try:
        return _index_entries(url.plain, options)
    except errors.UnsupportedPeerError as error:
        missing = errors.UnsupportedPeerError(error.message, hint=_NO_INDEX)
    node = url.plain.text.rstrip("/").rpartition("/")[0]
    if node.endswith("/"):  # the URL is that of a host
        raise missing
    try:
        # a node lists all of its accounts at its root only
        listed = _index_entries(PeerUrl.parse(node), options)
    except errors.UnsupportedPeerError:
        raise missing from None
    found = [
        replace(entry, alias=DatasetAlias(None, entry.alias.name))
        for entry in listed
        if str(entry.alias.account or "").lower() == url.segments[-1].lower()
    ]
    if not found:
        raise missing
    return found


def _index_entries(url: PeerUrl, options: PeerOptions) -> list[RepositoryEntry]:
    where = f"{url}{INDEX_KEY}"
    with closing(open_peer(url, options)) as peer:
        data = peer.index(SHARING.index_bytes)
    if data is None:
        raise errors.UnsupportedPeerError(
            f"{where}: the server has no index of its datasets",
            hint="write the URL of a dataset; a plain web server needs this file for `list`",
        )
    listed = parse_index(data, where)
    if len(listed) > SHARING.listed_datasets:
        raise errors.TransferError(f"{where}: lists more than {SHARING.listed_datasets:,} datasets")
    return listed


# --- folders and object stores -------------------------------------------------------------------------


def _entries(url: PeerUrl, store: Store) -> Iterator[RepositoryEntry]:
    # otherwise the parts of a dataset would be listed as datasets
    if store.head() is not None:
        raise errors.UnsupportedPeerError(f"{url}: this is a dataset, not a repository of datasets")
    accounts = [""]
    for _ in range(2):  # datasets, and those of accounts
        paths = [path for account in accounts for path in _aliases(account, store.transport.folders(account))]
        if len(paths) > SHARING.listed_datasets:
            raise errors.TransferError(f"{url}: has more than {SHARING.listed_datasets:,} folders")
        heads = with_answers(lambda path: store.head(below=path), paths)
        for path, found in heads:
            if found is not None:
                yield RepositoryEntry(alias=DatasetAlias.parse(path.rstrip("/")), head=found)
        accounts = [path for path, found in heads if found is None]


def _aliases(parent: str, names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        try:
            DatasetAlias.parse(f"{parent}{name}")
        # foreign folders may be there as well
        except errors.InvalidIdError:
            continue
        found.append(f"{parent}{name}/")
    return found


# A dataset of a repository by its id, as a URL.
# A server has it in its index; without one it is requested under the id itself, as nodes and `odfchain
# serve` support. In folders and stores each dataset's seed is read, by the hint or the chain. The id is
# checked by the pull.


def _id_at(url: PeerUrl, head: Multihash, options: PeerOptions) -> DatasetId | None:
    # a damaged dataset is listed without its id
    with contextlib.suppress(errors.OdfchainError), closing(open_peer(url, options)) as peer:
        hint = peer.hint(SHARING.hinted_blocks)
        name: Multihash | None = hint[0] if hint else head
        for _ in range(SHARING.hinted_blocks):
            assert name is not None  # noqa: S101 - what has no previous block ends the loop
            data = peer.block(name)
            if (name := decode_header(data).prev_block_hash) is None:
                event = decode_block(data).event
                return event.dataset_id if isinstance(event, Seed) else None
    return None
