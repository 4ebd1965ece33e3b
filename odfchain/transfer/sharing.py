"""Sharing as a user asks for it: references instead of URLs, remembered places, the workspace's settings.

Peers are opened and closed here, and where a dataset came from or went to is remembered after it did. A token
that is given goes to the place that is named in the same call, never to one that is only remembered: a file
in a copied workspace must not decide where it goes. Tokens that the user keeps (`odfchain login`) go to
places of their own origin, remembered or not. Source: specification "Dataset Sharing"; RFC-021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from odfchain import errors
from odfchain.chain.equivocation import EvidenceStore
from odfchain.odf import names
from odfchain.odf.identity import DID_ODF_PREFIX, DatasetId
from odfchain.storage.local import HEAD
from odfchain.storage.locations import HOST_AND_PORT, PeerUrl
from odfchain.storage.store import Store
from odfchain.transfer.credentials import Credentials, NodeAccounts
from odfchain.transfer.open_peer import PeerOptions, open_peer
from odfchain.transfer.repositories import Repositories, RepositoryEntry, list_repository
from odfchain.transfer.witnesses import Witnesses, witnesses_of
from odfchain.workspace.config import DatasetConfig, ShareConfig, change_config, read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

# Remote references that a user types, and the remembered remote aliases of a dataset.
# Aliases are in `info/config`, a private manifest of kind `DatasetConfig`, so that a plain `pull x` follows
# `pull URL --as x`. Source: specification "Aliases and References".


class AliasKind(Enum):
    """Kinds of a dataset's aliases."""

    PULL = "pull"
    PUSH = "push"

    def of(self, config: DatasetConfig) -> tuple[str, ...]:
        """Those of this kind."""
        return config.pull_aliases if self is AliasKind.PULL else config.push_aliases

    def put(self, config: DatasetConfig, texts: tuple[str, ...]) -> DatasetConfig:
        """The configuration with these of the kind."""
        if self is AliasKind.PULL:
            return replace(config, pull_aliases=texts)
        return replace(config, push_aliases=texts)

    def forget(self, dataset: DatasetFiles, text: str | None = None) -> tuple[str, ...]:
        """Forget a place, or all of them; returns what was forgotten."""
        gone: tuple[str, ...] = ()

        def change(config: DatasetConfig) -> DatasetConfig:
            nonlocal gone
            known = self.of(config)
            gone = known if text is None else tuple(a for a in known if a.lower() in _spellings(text))
            if text is not None and not gone:
                how = "pulled from" if self is AliasKind.PULL else "pushed to"
                raise errors.WorkspaceError(
                    f"{dataset.alias} is not {how} {text!r}",
                    hint=f"its {self.value} aliases are: {', '.join(known)}" if known else None,
                )
            return self.put(config, tuple(alias for alias in known if alias not in gone))

        change_config(dataset, change)
        return gone


# --- references ----------------------------------------------------------------------------------------


def read_reference(
    text: str, repositories: Repositories
) -> names.DatasetAlias | names.DatasetAliasRemote | names.RemoteDatasetId | names.DatasetUrl:
    """Parse a user's reference to any dataset: `a/b` is in repository `a` if that is registered."""
    found = names.parse_ref_any(text)
    if isinstance(found, names.AmbiguousAlias):
        known = repositories.find(names.RepoName(found.prefix)) is not None
        return found.resolve(prefix_is_repo=known)
    return found


def resolve_remote(
    text: str, repositories: Repositories, *, local: names.DatasetAlias | None = None
) -> PeerUrl:
    """The URL of a reference to a remote dataset.

    Understood are a URL, `repo/name`, `repo/account/name` and `repo/did:odf:…`, whose URL ends in the id
    (see `odfchain.transfer.repositories` for where it really is). With `local`, the dataset that is to be
    pushed, also the name of a repository alone: the dataset keeps its name there.
    """
    if local is not None and "/" not in text and not text.startswith("did:"):
        return repositories.get(names.RepoName(text)).dataset(str(local.name))
    try:
        found = names.parse_ref_remote(text)
    except errors.InvalidIdError as error:
        raise errors.InvalidIdError(str(error), hint=_intended_url(text) or error.hint) from None
    if isinstance(found, names.DatasetUrl):
        return PeerUrl.parse(found.url)
    if isinstance(found, names.RemoteDatasetId):
        if found.repo is None or local is not None:
            raise _id_alone(found)
        return repositories.get(found.repo).dataset(str(found.id))
    path = f"{found.account}/{found.name}" if found.account else str(found.name)
    return repositories.get(found.repo).dataset(path)


def _intended_url(text: str) -> str | None:
    """A hint for a text that lacks only the beginning of a URL: a path, or a host with a port or a domain."""
    if text.startswith(("/", "./", "../", "~")):
        return f"a folder is written as a URL: {Path(text).expanduser().absolute().as_uri()}"
    host, slash, _ = text.partition("/")
    if slash and HOST_AND_PORT.fullmatch(host) and (":" in host or "." in host):
        return f"if a server is meant, write the URL: http://{text}"
    return None


# --- remembered aliases --------------------------------------------------------------------------------


def aliases(dataset: DatasetFiles, kind: AliasKind) -> tuple[str, ...]:
    """Remote aliases of a dataset for pull or push; the last one added comes first."""
    return kind.of(read_config(dataset))


def add_alias(dataset: DatasetFiles, kind: AliasKind, text: str) -> str:
    """Durably remember a place, before those that are known already; returns it as it is written down."""
    alias = _normal(text)

    def change(config: DatasetConfig) -> DatasetConfig:
        others = tuple(other for other in kind.of(config) if other.lower() != alias.lower())
        return kind.put(config, (alias, *others))

    change_config(dataset, change)
    return alias


def _normal(text: str) -> str:
    found = names.parse_ref_remote(text)
    if isinstance(found, names.RemoteDatasetId) and found.repo is None:
        raise _id_alone(found)
    return PeerUrl.parse(found.url).text if isinstance(found, names.DatasetUrl) else str(found)


def _id_alone(found: names.RemoteDatasetId) -> errors.UnsupportedPeerError:
    return errors.UnsupportedPeerError(
        f"{found}: an id alone does not say where the dataset is",
        hint="write its URL, or repository/name; to read one also repository/did:odf:…",
    )


def _spellings(text: str) -> set[str]:
    try:
        return {text.lower(), _normal(text).lower()}
    except (errors.InvalidIdError, errors.UnsupportedPeerError):
        return {text.lower()}


def check_shareable(dataset: DatasetFiles) -> None:
    """Check that a dataset is on its head or on a branch."""
    if dataset.ref != HEAD and not names.is_branch_name(dataset.ref):
        raise errors.UsageError(
            f"{dataset.alias}: what is shared is the head or a branch, not a point of the past",
            hint=f"`odfchain branch create {dataset.alias} NAME --at {dataset.ref}` makes one there",
        )


@dataclass(frozen=True, slots=True)
class Sharing:
    """Pull, push and fetch of a workspace."""

    workspace: WorkspaceFiles

    @property
    def repositories(self) -> Repositories:
        """The repositories that the workspace knows by name."""
        return Repositories(self.workspace.root)

    @property
    def evidence(self) -> EvidenceStore:
        """The proofs that owners of datasets signed two histories."""
        return EvidenceStore(self.workspace.root / "evidence")

    @property
    def witnesses(self) -> Witnesses:
        """The witnesses that are asked; connections to them are kept."""
        return witnesses_of(self.workspace.root, self.workspace.config.trust)

    @property
    def config(self) -> ShareConfig:
        """The settings; read anew at each call."""
        return self.workspace.config.share

    # --- what a reference means --------------------------------------------------------------------

    def is_remote(self, text: str) -> bool:
        """True if a text is a remote reference: a URL, or `repo/name` of a repository that is known."""
        if "://" in text or text.lower().startswith("file:"):
            return True
        try:
            ref = read_reference(text, self.repositories)
        except errors.InvalidIdError as error:
            if (hint := _intended_url(text)) is not None:
                raise errors.InvalidIdError(str(error), hint=hint) from None
            return False
        return not (
            isinstance(ref, names.DatasetAlias) or (isinstance(ref, names.RemoteDatasetId) and not ref.repo)
        )

    def url_of(self, ref: str) -> PeerUrl:
        """The URL of a reference to a remote dataset."""
        return resolve_remote(ref, self.repositories)

    def place_of(self, ref: str, token: str | None = None) -> PeerUrl:
        """The URL of a remote dataset: as `url_of`, but `repo/did:odf:…` is looked up in the repository."""
        url, wanted = self.url_of(ref), id_in(ref)
        if wanted is None:
            return url
        repository = names.RepoName(ref.partition("/")[0])
        return self.repositories.find_by_id(repository, wanted, self.peer_options(token))

    def open(
        self, ref: str, token: str | None = None, parallel: int | None = None, branch: str = HEAD
    ) -> Store:
        """The peer that a reference to a remote dataset names; nothing is asked of the dataset yet."""
        return open_peer(self.place_of(ref, token), self.peer_options(token, parallel), branch)

    def local(self, ref: names.DatasetRefAny) -> DatasetFiles | None:
        """The dataset of this workspace that was pulled from, or pushed to, what a reference names."""
        try:
            if isinstance(ref, names.RemoteDatasetId):
                return self.workspace.dataset(ref.id)
            url = self.url_of(str(ref))
        except (errors.InvalidIdError, errors.UnsupportedPeerError, errors.WorkspaceError):
            return None
        return self.copy_of(url, *AliasKind)

    def named(self, ref: str) -> DatasetFiles:
        """The dataset of this workspace that a reference names; `a/b` may also have meant a repository."""
        try:
            return self.workspace.dataset(ref)
        except errors.DatasetNotFoundError as error:
            prefix, slash, _ = ref.partition("/")
            if not slash:
                raise
            raise errors.DatasetNotFoundError(
                f"{error.message}, and no repository {prefix!r}",
                hint=f"`odfchain repo add {prefix} URL` makes one known",
            ) from None

    def destination(self, dataset: DatasetFiles, target: str | None) -> tuple[PeerUrl, str]:
        """The destination of a push, and the alias to remember; `target` is as in `push`."""
        if target is None:
            hint = "name a repository, or a URL: --to file:///srv/datasets/name"
            target = known_place(dataset, AliasKind.PUSH, hint)
        url = resolve_remote(target, self.repositories, local=dataset.alias)
        return url, target if "/" in target else f"{target}/{dataset.alias.name}"

    def mirror(
        self, dataset: DatasetFiles, source: str | None, parallel: int | None = None, token: str | None = None
    ) -> Store:
        """A place that has a copy of the dataset: where it was pulled from, when none is given."""
        place = source or known_place(dataset, AliasKind.PULL, "name a copy of it: --from URL")
        return self.open(place, token if source else None, parallel)

    # --- looking -----------------------------------------------------------------------------------

    def datasets_of(self, repository: str, *, token: str | None = None) -> list[RepositoryEntry]:
        """The datasets of a repository, ordered by alias; it is named, or given by its URL."""
        return list_repository(self.repository_url(repository), self.peer_options(token))

    def repository_url(self, repository: str) -> PeerUrl:
        """The URL of a repository that is named, or given by its URL."""
        if "/" in repository:
            return PeerUrl.parse(repository)
        return self.repositories.get(names.RepoName(repository))

    # --- how ---------------------------------------------------------------------------------------

    def peer_options(self, token: str | None, parallel: int | None = None) -> PeerOptions:
        """How peers are spoken to by the workspace's settings, with the tokens that its user keeps."""
        config = self.config
        return PeerOptions(
            token=token,
            credentials=Credentials.of_user(),
            allow_private_redirects=config.allow_private_redirects,
            ipfs_gateway=config.ipfs_gateway,
            parallel=parallel or config.parallel,
            retries=config.retries,
        )

    def copy_of(self, url: PeerUrl, *kinds: AliasKind) -> DatasetFiles | None:
        """The dataset of this workspace that was pulled from (or by other `kinds` is known at) a URL."""
        for dataset in self.workspace.datasets():
            try:
                texts = [text for kind in kinds or (AliasKind.PULL,) for text in aliases(dataset, kind)]
                known = {self.url_of(text).text for text in texts}
            except errors.OdfchainError:
                continue  # a repository that was forgotten; damage that is that dataset's business
            if url.text in known:
                return dataset
        return None

    def at_account(self, ref: str, url: PeerUrl, options: PeerOptions) -> tuple[str, PeerUrl]:
        """The same, but at a node with several accounts, where none is named: the dataset of the token's."""
        if not url.is_smart:
            return ref, url
        if (account := NodeAccounts(url).account(options.token_for(url))) is None:
            return ref, url
        prefix, _, name = ref.rstrip("/").rpartition("/")
        named = f"{prefix}/{account}/{name}"
        return named, self.url_of(named)


def known_place(dataset: DatasetFiles, kind: AliasKind, hint: str) -> str:
    """The place of a dataset that was used last."""
    if not (known := aliases(dataset, kind)):
        what = "comes from" if kind is AliasKind.PULL else "is to be pushed to"
        raise errors.UsageError(f"it is not known where {dataset.alias} {what}", hint=hint)
    return known[0]


def id_in(ref: str) -> DatasetId | None:
    """The id in `repo/did:odf:…`."""
    _, slash, name = ref.partition("/")
    return DatasetId.parse(name) if slash and name.startswith(DID_ODF_PREFIX) else None
