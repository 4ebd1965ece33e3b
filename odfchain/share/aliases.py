"""What a user may type for a dataset that is elsewhere, and where a dataset was pulled from or pushed to.

A dataset remembers its remote aliases in `info/config`, a private manifest of kind `DatasetConfig`. So after
`pull URL --as x` a plain `pull x` asks the same place. Source: specification "Aliases and References".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from odfchain.dataset.files import DatasetFiles
from odfchain.errors import InvalidIdError, ManifestError, UnsupportedPeerError, WorkspaceError
from odfchain.ids.names import DatasetAlias, DatasetAliasRemote, RepoName
from odfchain.ids.refs import (
    AmbiguousAlias,
    DatasetUrl,
    RemoteDatasetId,
    parse_ref_any,
    parse_ref_remote,
)
from odfchain.metadata.manifest import ManifestKind, read_manifest
from odfchain.metadata.tree import to_tree
from odfchain.metadata.yaml_reader import read_document
from odfchain.metadata.yaml_writer import dump_yaml
from odfchain.share.layout import PeerUrl
from odfchain.share.policy import SignaturePolicy, as_fields, from_fields
from odfchain.share.repositories import Repositories, intended_url, parse_peer_url
from odfchain.store import fsio

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """What the owner of a copy has set for it."""

    pull_aliases: tuple[str, ...] = ()
    """Where the dataset is pulled from: remote aliases or URLs, the preferred one first."""
    push_aliases: tuple[str, ...] = ()
    """Where the dataset is pushed to: remote aliases or URLs."""
    require_signature: bool | None = None
    """Whether pulls need the owner's signature of the head."""
    max_signature_age_seconds: int | None = None
    """How old that signature may be [s]."""


DATASET_CONFIG = ManifestKind("DatasetConfig", DatasetConfig, range(1, 2))


class AliasKind(Enum):
    """Which of a dataset's aliases."""

    PULL = "pull"
    PUSH = "push"


# --- references ----------------------------------------------------------------------------------------


def read_reference(
    text: str, repositories: Repositories
) -> DatasetAlias | DatasetAliasRemote | RemoteDatasetId | DatasetUrl:
    """What a user means by a reference to any dataset: `a/b` is in repository `a` if that is registered.

    Raises:
        InvalidIdError: no reading fits.
        ManifestError: the registry is damaged.
    """
    found = parse_ref_any(text)
    if isinstance(found, AmbiguousAlias):
        known = repositories.find(RepoName(found.prefix)) is not None
        return found.resolve(prefix_is_repo=known)
    return found


def resolve_remote(text: str, repositories: Repositories, *, local: DatasetAlias | None = None) -> PeerUrl:
    """The URL that a reference to a remote dataset stands for.

    Understood are a URL, `repo/name` and `repo/account/name`. With `local`, the dataset that is to be pushed,
    also the name of a repository alone: the dataset keeps its name there.

    Raises:
        InvalidIdError: no reading fits.
        WorkspaceError: no repository has this name.
        UnsupportedPeerError: nothing here speaks the URL's protocol, or an id stands where a name is needed.
        ManifestError: the registry is damaged.
    """
    if local is not None and "/" not in text and not text.startswith("did:"):
        return repositories.get(RepoName(text)).dataset(str(local.name))
    try:
        found = parse_ref_remote(text)
    except InvalidIdError as error:
        raise InvalidIdError(str(error), hint=intended_url(text) or error.hint) from None
    if isinstance(found, DatasetUrl):
        return parse_peer_url(found.url)
    if isinstance(found, RemoteDatasetId):
        raise UnsupportedPeerError(
            f"{found}: a dataset elsewhere is not found by its id",
            hint="write its URL, or repository/name",
        )
    path = f"{found.account}/{found.name}" if found.account else str(found.name)
    return repositories.get(found.repo).dataset(path)


# --- remembered aliases --------------------------------------------------------------------------------


def read_config(dataset: DatasetFiles) -> DatasetConfig:
    """What is set for a dataset; nothing when it has no such file.

    Raises:
        ManifestError: the file is malformed; the message names it.
        StoreError: it cannot be read.
    """
    path = dataset.folder / "info" / "config"
    try:
        with path.open("rb") as stream:
            data = stream.read(_READ_BYTES + 1)
    except FileNotFoundError:
        return DatasetConfig()
    except OSError as error:
        raise fsio.storage_error(error, path) from error
    if len(data) > _READ_BYTES:
        raise ManifestError(f"larger than {_READ_BYTES:,} bytes", source=str(path))
    config: DatasetConfig = read_manifest(read_document(data, source=str(path)), DATASET_CONFIG, str(path))
    return config


def aliases(dataset: DatasetFiles, kind: AliasKind) -> tuple[str, ...]:
    """Where a dataset is pulled from or pushed to; what was added last comes first.

    Raises:
        ManifestError, StoreError: as `read_config`.
    """
    config = read_config(dataset)
    return config.pull_aliases if kind is AliasKind.PULL else config.push_aliases


def add_alias(dataset: DatasetFiles, kind: AliasKind, text: str) -> str:
    """Durably remember a place, before those that are known already; returns it as it is written down.

    Raises:
        InvalidIdError: neither a remote alias nor a URL.
        UnsupportedPeerError: a URL of a protocol that is not spoken, or an id.
        ManifestError, StoreError: the file is malformed, or cannot be written.
    """
    alias = _normal(text)
    with fsio.locked(dataset.folder / "info" / "lock"):
        known = aliases(dataset, kind)
        others = tuple(other for other in known if other.lower() != alias.lower())
        if known != (alias, *others):
            _write(dataset, kind, (alias, *others))
    return alias


def delete_alias(dataset: DatasetFiles, kind: AliasKind, text: str | None = None) -> tuple[str, ...]:
    """Forget a place, or all of them; returns what was forgotten.

    Raises:
        WorkspaceError: it is not one of the dataset's aliases.
        ManifestError, StoreError: the file is malformed, or cannot be written.
    """
    with fsio.locked(dataset.folder / "info" / "lock"):
        known = aliases(dataset, kind)
        gone = known if text is None else tuple(a for a in known if a.lower() in _spellings(text))
        if text is not None and not gone:
            raise WorkspaceError(
                f"{dataset.alias} is not {'pulled from' if kind is AliasKind.PULL else 'pushed to'} {text!r}",
                hint=f"its {kind.value} aliases are: {', '.join(known)}" if known else None,
            )
        if gone:
            _write(dataset, kind, tuple(alias for alias in known if alias not in gone))
    return gone


def policy_of(dataset: DatasetFiles) -> SignaturePolicy:
    """What pulls of a dataset want of the head's signature.

    Raises:
        ManifestError, StoreError: as `read_config`.
    """
    config = read_config(dataset)
    path = dataset.folder / "info" / "config"
    return from_fields(config.require_signature, config.max_signature_age_seconds, source=str(path))


def set_policy(dataset: DatasetFiles, policy: SignaturePolicy) -> None:
    """Durably remember what pulls of a dataset want of the head's signature.

    Raises:
        ManifestError, StoreError: the file is malformed, or cannot be written.
    """
    with fsio.locked(dataset.folder / "info" / "lock"):
        config = read_config(dataset)
        changed = replace(config, **as_fields(policy))
        if changed != config:
            _write_config(dataset, changed)


def _normal(text: str) -> str:
    found = parse_ref_remote(text)
    if isinstance(found, RemoteDatasetId):
        raise UnsupportedPeerError(
            f"{found}: a dataset elsewhere is not found by its id", hint="write its URL, or repository/name"
        )
    return parse_peer_url(found.url).text if isinstance(found, DatasetUrl) else str(found)


def _spellings(text: str) -> set[str]:
    """The text, and what it would have been written down as."""
    try:
        return {text.lower(), _normal(text).lower()}
    except (InvalidIdError, UnsupportedPeerError):
        return {text.lower()}


def _write(dataset: DatasetFiles, kind: AliasKind, texts: tuple[str, ...]) -> None:
    config = read_config(dataset)
    if kind is AliasKind.PULL:
        config = replace(config, pull_aliases=texts)
    else:
        config = replace(config, push_aliases=texts)
    _write_config(dataset, config)


def _write_config(dataset: DatasetFiles, config: DatasetConfig) -> None:
    document = {
        "kind": DATASET_CONFIG.name,
        "version": DATASET_CONFIG.versions[-1],
        "content": to_tree(config),
    }
    # not for everybody: a URL may have a password in it
    fsio.replace_file(dataset.folder / "info" / "config", dump_yaml(document).encode(), mode=0o600)
