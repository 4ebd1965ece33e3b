"""What a user may type for a dataset that is elsewhere, and where a dataset was pulled from or pushed to.

A dataset remembers its remote aliases in `info/config`, a private manifest of kind `DatasetConfig`. So after
`pull URL --as x` a plain `pull x` asks the same place. Source: specification "Aliases and References".
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from odfchain.errors import InvalidIdError, UnsupportedPeerError, WorkspaceError
from odfchain.ids.names import DatasetAlias, DatasetAliasRemote, RepoName
from odfchain.ids.refs import (
    AmbiguousAlias,
    DatasetUrl,
    RemoteDatasetId,
    parse_ref_any,
    parse_ref_remote,
)
from odfchain.model.enums import DatasetKind
from odfchain.repo.dataset_config import DatasetConfig, change_config, config_path, read_config
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.transfer.public_layout import PeerUrl
from odfchain.transfer.repositories import Repositories, intended_url, parse_peer_url
from odfchain.trust.signature_policy import SignaturePolicy, as_fields, from_fields


class AliasKind(Enum):
    """Which of a dataset's aliases."""

    PULL = "pull"
    PUSH = "push"


# --- references ----------------------------------------------------------------------------------------


def read_reference(
    text: str, repositories: Repositories
) -> DatasetAlias | DatasetAliasRemote | RemoteDatasetId | DatasetUrl:
    """What a user means by a reference to any dataset: `a/b` is in repository `a` if that is registered."""
    found = parse_ref_any(text)
    if isinstance(found, AmbiguousAlias):
        known = repositories.find(RepoName(found.prefix)) is not None
        return found.resolve(prefix_is_repo=known)
    return found


def resolve_remote(text: str, repositories: Repositories, *, local: DatasetAlias | None = None) -> PeerUrl:
    """The URL that a reference to a remote dataset stands for.

    Understood are a URL, `repo/name`, `repo/account/name` and `repo/did:odf:…`, whose URL ends in the id
    (see `odfchain.transfer.by_id` for where it really is). With `local`, the dataset that is to be pushed,
    also the name of a repository alone: the dataset keeps its name there.

    Raises:
        InvalidIdError: no reading fits.
        WorkspaceError: no repository has this name.
        UnsupportedPeerError: nothing here speaks the URL's protocol; an id alone, or where a name is needed.
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
        if found.repo is None or local is not None:
            raise _id_alone(found)
        return repositories.get(found.repo).dataset(str(found.id))
    path = f"{found.account}/{found.name}" if found.account else str(found.name)
    return repositories.get(found.repo).dataset(path)


# --- remembered aliases --------------------------------------------------------------------------------


def aliases(dataset: DatasetFiles, kind: AliasKind) -> tuple[str, ...]:
    """Where a dataset is pulled from or pushed to; what was added last comes first."""
    return _places(read_config(dataset), kind)


def is_copy(workspace: WorkspaceFiles, dataset: DatasetFiles) -> bool:
    """Whether a plain pull brings the dataset from a peer, not from its source or its inputs.

    It does so when the dataset was pulled from there, and was not created here or has nothing else to be
    pulled from: whoever extends a copy of somebody's dataset leaves their chain.
    """
    if not aliases(dataset, AliasKind.PULL):
        return False
    if not workspace.has_key(dataset.id):
        return True
    return dataset.kind is DatasetKind.ROOT and DatasetState.read(dataset.chain).polling_source is None


def add_alias(dataset: DatasetFiles, kind: AliasKind, text: str) -> str:
    """Durably remember a place, before those that are known already; returns it as it is written down."""
    alias = _normal(text)

    def change(config: DatasetConfig) -> DatasetConfig:
        others = tuple(other for other in _places(config, kind) if other.lower() != alias.lower())
        return _placed(config, kind, (alias, *others))

    change_config(dataset, change)
    return alias


def delete_alias(dataset: DatasetFiles, kind: AliasKind, text: str | None = None) -> tuple[str, ...]:
    """Forget a place, or all of them; returns what was forgotten.

    Raises:
        WorkspaceError: it is not one of the dataset's aliases.
    """
    gone: tuple[str, ...] = ()

    def change(config: DatasetConfig) -> DatasetConfig:
        nonlocal gone
        known = _places(config, kind)
        gone = known if text is None else tuple(a for a in known if a.lower() in _spellings(text))
        if text is not None and not gone:
            raise WorkspaceError(
                f"{dataset.alias} is not {'pulled from' if kind is AliasKind.PULL else 'pushed to'} {text!r}",
                hint=f"its {kind.value} aliases are: {', '.join(known)}" if known else None,
            )
        return _placed(config, kind, tuple(alias for alias in known if alias not in gone))

    change_config(dataset, change)
    return gone


def policy_of(dataset: DatasetFiles) -> SignaturePolicy:
    """What pulls of a dataset want of the head's signature."""
    config = read_config(dataset)
    path = config_path(dataset)
    return from_fields(config.require_signature, config.max_signature_age_seconds, source=str(path))


def set_policy(dataset: DatasetFiles, policy: SignaturePolicy) -> None:
    """Durably remember what pulls of a dataset want of the head's signature."""
    change_config(dataset, lambda config: replace(config, **as_fields(policy)))


def _normal(text: str) -> str:
    found = parse_ref_remote(text)
    if isinstance(found, RemoteDatasetId) and found.repo is None:
        raise _id_alone(found)
    return parse_peer_url(found.url).text if isinstance(found, DatasetUrl) else str(found)


def _id_alone(found: RemoteDatasetId) -> UnsupportedPeerError:
    return UnsupportedPeerError(
        f"{found}: an id alone does not say where the dataset is",
        hint="write its URL, or repository/name; to read one also repository/did:odf:…",
    )


def _spellings(text: str) -> set[str]:
    """The text, and what it would have been written down as."""
    try:
        return {text.lower(), _normal(text).lower()}
    except (InvalidIdError, UnsupportedPeerError):
        return {text.lower()}


def _places(config: DatasetConfig, kind: AliasKind) -> tuple[str, ...]:
    return config.pull_aliases if kind is AliasKind.PULL else config.push_aliases


def _placed(config: DatasetConfig, kind: AliasKind, texts: tuple[str, ...]) -> DatasetConfig:
    if kind is AliasKind.PULL:
        return replace(config, pull_aliases=texts)
    return replace(config, push_aliases=texts)
