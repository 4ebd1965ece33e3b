"""Sharing as a user asks for it: references instead of URLs, remembered places, the workspace's settings.

Peers are opened and closed here, and where a dataset came from or went to is remembered after it did. A token
that is given goes to the place that is named in the same call, never to one that is only remembered: a file
in a copied workspace must not decide where it goes. Tokens that the user keeps (`odfchain login`) go to
places of their own origin, remembered or not. Source: specification "Dataset Sharing"; RFC-021.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from odfchain import errors
from odfchain.chain.equivocation import EvidenceStore
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.chain.statements import parse_did
from odfchain.odf.identity import DID_ODF_PREFIX, DatasetId, Multihash
from odfchain.odf.names import (
    AmbiguousAlias,
    DatasetAlias,
    DatasetAliasRemote,
    DatasetRefAny,
    DatasetUrl,
    RemoteDatasetId,
    RepoName,
    is_branch_name,
    parse_ref_any,
    parse_ref_remote,
)
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.storage.local import HEAD
from odfchain.storage.locations import HOST_AND_PORT
from odfchain.transfer.branch_fetch import FetchedSources, bring_merged, pull_branch
from odfchain.transfer.open_peer import PeerOptions, open_peer, open_writable, options_of
from odfchain.transfer.peer import Peer, WritablePeer
from odfchain.transfer.public_layout import PeerUrl
from odfchain.transfer.pulling import SyncOptions, SyncOutcome, present, pull_dataset
from odfchain.transfer.pushing import (
    PushOptions,
    PushOutcome,
    PushPlan,
    plan_push,
    push_dataset,
)
from odfchain.transfer.receive import shortened
from odfchain.transfer.repositories import (
    Repositories,
    RepositoryEntry,
    find_by_id,
    list_repository,
)
from odfchain.transfer.signed_statements import (
    NO_POLICY,
    Seen,
    SeenHeads,
    SignaturePolicy,
    as_fields,
    from_fields,
)
from odfchain.transfer.slice_files import FetchOutcome, fetch_missing
from odfchain.workspace.config import DatasetConfig, change_config, config_path, read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import fetched_branch
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.workspace.config import ShareConfig


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


# --- references ----------------------------------------------------------------------------------------


def read_reference(
    text: str, repositories: Repositories
) -> DatasetAlias | DatasetAliasRemote | RemoteDatasetId | DatasetUrl:
    """Parse a user's reference to any dataset: `a/b` is in repository `a` if that is registered."""
    found = parse_ref_any(text)
    if isinstance(found, AmbiguousAlias):
        known = repositories.find(RepoName(found.prefix)) is not None
        return found.resolve(prefix_is_repo=known)
    return found


def resolve_remote(text: str, repositories: Repositories, *, local: DatasetAlias | None = None) -> PeerUrl:
    """The URL of a reference to a remote dataset.

    Understood are a URL, `repo/name`, `repo/account/name` and `repo/did:odf:…`, whose URL ends in the id
    (see `odfchain.transfer.repositories` for where it really is). With `local`, the dataset that is to be
    pushed, also the name of a repository alone: the dataset keeps its name there.
    """
    if local is not None and "/" not in text and not text.startswith("did:"):
        return repositories.get(RepoName(text)).dataset(str(local.name))
    try:
        found = parse_ref_remote(text)
    except errors.InvalidIdError as error:
        raise errors.InvalidIdError(str(error), hint=_intended_url(text) or error.hint) from None
    if isinstance(found, DatasetUrl):
        return PeerUrl.parse(found.url)
    if isinstance(found, RemoteDatasetId):
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


def delete_alias(dataset: DatasetFiles, kind: AliasKind, text: str | None = None) -> tuple[str, ...]:
    """Forget a place, or all of them; returns what was forgotten."""
    gone: tuple[str, ...] = ()

    def change(config: DatasetConfig) -> DatasetConfig:
        nonlocal gone
        known = kind.of(config)
        gone = known if text is None else tuple(a for a in known if a.lower() in _spellings(text))
        if text is not None and not gone:
            raise errors.WorkspaceError(
                f"{dataset.alias} is not {'pulled from' if kind is AliasKind.PULL else 'pushed to'} {text!r}",
                hint=f"its {kind.value} aliases are: {', '.join(known)}" if known else None,
            )
        return kind.put(config, tuple(alias for alias in known if alias not in gone))

    change_config(dataset, change)
    return gone


def policy_of(dataset: DatasetFiles) -> SignaturePolicy:
    """The signature policy for pulls of a dataset."""
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
    return PeerUrl.parse(found.url).text if isinstance(found, DatasetUrl) else str(found)


def _id_alone(found: RemoteDatasetId) -> errors.UnsupportedPeerError:
    return errors.UnsupportedPeerError(
        f"{found}: an id alone does not say where the dataset is",
        hint="write its URL, or repository/name; to read one also repository/did:odf:…",
    )


def _spellings(text: str) -> set[str]:
    try:
        return {text.lower(), _normal(text).lower()}
    except (errors.InvalidIdError, errors.UnsupportedPeerError):
        return {text.lower()}


_T = TypeVar("_T")


Ref = str | DatasetId | DatasetAlias
"""A dataset of this workspace."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A dataset that was pulled: its name here, where it came from, and what was done."""

    alias: DatasetAlias
    where: str
    outcome: SyncOutcome


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
    def config(self) -> ShareConfig:
        """The settings; read anew at each call."""
        return self.workspace.config.share

    # --- what a reference means --------------------------------------------------------------------

    def is_remote(self, text: str) -> bool:
        """True if a text is a remote reference: a URL, or `repo/name` of a repository that is known."""
        if "://" in text or text.lower().startswith("file:"):
            return True
        try:
            found = read_reference(text, self.repositories)
        except errors.InvalidIdError as error:
            if (hint := _intended_url(text)) is not None:
                raise errors.InvalidIdError(str(error), hint=hint) from None
            return False
        return not (
            isinstance(found, DatasetAlias) or (isinstance(found, RemoteDatasetId) and not found.repo)
        )

    def url_of(self, ref: str) -> PeerUrl:
        """The URL of a reference to a remote dataset."""
        return resolve_remote(ref, self.repositories)

    def place_of(self, ref: str, token: str | None = None) -> PeerUrl:
        """The URL of a remote dataset: as `url_of`, but `repo/did:odf:…` is looked up in the repository."""
        url, wanted = self.url_of(ref), _id_in(ref)
        if wanted is None:
            return url
        prefix, _, _ = ref.partition("/")
        repository = self.repositories.get(RepoName(prefix))
        return find_by_id(repository, wanted, self._options(self.config.parallel, token))

    def open(self, ref: str, token: str | None = None, parallel: int | None = None) -> Peer:
        """The peer that a reference to a remote dataset names; nothing is asked of the dataset yet."""
        return open_peer(self.place_of(ref, token), self._options(parallel or self.config.parallel, token))

    def local(self, ref: DatasetRefAny) -> DatasetFiles | None:
        """The dataset of this workspace that was pulled from, or pushed to, what a reference names."""
        try:
            if isinstance(ref, RemoteDatasetId):
                return self.workspace.dataset(ref.id)
            url = self.url_of(str(ref))
        except (
            errors.DatasetNotFoundError,
            errors.InvalidIdError,
            errors.UnsupportedPeerError,
            errors.WorkspaceError,
        ):
            return None
        return self._from(url, *AliasKind)

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

    # --- carrying datasets -------------------------------------------------------------------------

    def pull(
        self,
        ref: str,
        alias: str | DatasetAlias | None = None,
        options: SyncOptions | None = None,
        *,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> Pulled:
        """A dataset elsewhere is here, complete and checked, or everything is as it was.

        `ref` is a URL or `repo/name`, or a copy in this workspace, which comes from where it came before.
        Without `alias` the dataset that was pulled from there before is continued, else a new one gets the
        last part of the URL as its name. A signature that was required once is required from then on, until
        `options` say that none is.

        Raises:
            UsageError: a copy cannot be given another name, or it is not known where it comes from.
        """
        options = options or SyncOptions(parallel=self.config.parallel)
        if self.is_remote(ref):
            target = DatasetAlias.parse(alias) if isinstance(alias, str) else alias
            url, wanted = self.place_of(ref, token), _id_in(ref)
            options = replace(options, dataset_id=wanted or options.dataset_id)
            if target is None:
                remembered = present(self.workspace, wanted) if wanted else None
                remembered = remembered or self._from(url)
                target = remembered.alias if remembered else DatasetAlias(None, url.name())
            try:
                return self._pull(url, ref, target, options, token, progress)
            except errors.DatasetNotFoundError:
                ref, found = self._at_account(ref, url, self._options(options.parallel, token))
                if wanted is not None or found == url:
                    raise
            if alias is None:
                known_copy = self._from(found)
                target = known_copy.alias if known_copy else target
            return self._pull(found, ref, target, options, token, progress)
        dataset = self.named(ref)
        if alias is not None:
            raise errors.UsageError(f"{dataset.alias} already exists; `rename` gives it another name")
        known = _known(dataset, AliasKind.PULL, f"name it: odfchain pull URL --as {dataset.alias}")
        # no token: the place is remembered only, and the workspace may be a copy from elsewhere
        return self._pull(self.place_of(known), known, dataset.alias, options, None, progress)

    def pull_branch(
        self,
        dataset: DatasetFiles,
        source: str | None = None,
        options: SyncOptions | None = None,
        *,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> Pulled:
        """The branch that a dataset of this workspace is opened on is that of a place, or as it was.

        `source` is a URL or `repo/name`; None is where the branch came from before. What repositories and
        copies require of the head's signature they do not require of a branch; `options` may.
        """
        dataset, options = self._dataset(dataset), options or SyncOptions(parallel=self.config.parallel)
        dataset.shared.branch(dataset.folder, dataset.ref)
        known = fetched_branch(dataset, dataset.ref)
        place = source or (known.where if known is not None else None)
        if place is None or place == dataset.shared.place(dataset.folder):
            raise errors.UsageError(
                f"it is not known where {dataset.alias}@{dataset.ref} comes from",
                hint=f"name it: odfchain pull {dataset.alias}@{dataset.ref} --from URL",
            )
        where = str(self.url_of(place)) if "://" in place else place
        with closing(self.open(place, token if source else None, options.parallel)) as peer:
            outcome = pull_branch(dataset, peer, where, options, progress)
        dataset.shared.signed(dataset.folder, dataset.ref)
        return Pulled(dataset.alias, where, outcome)

    def push(
        self,
        ref: Ref | DatasetFiles,
        target: str | None = None,
        options: PushOptions | None = None,
        *,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> PushOutcome:
        """The destination has the dataset's head and everything it refers to, or readers see what it had.

        `target` is a URL, `repo/name`, or a repository's name; None is where it was pushed to before. The
        `token` is for a target that is given.
        """
        dataset = self._dataset(ref)
        options = options or PushOptions(parallel=self.config.parallel)
        trusted = tuple(parse_did(text) for text in self.workspace.config.audit.trusted_auditors)

        def push(peer: WritablePeer, options: PushOptions) -> PushOutcome:
            return push_dataset(dataset, peer, replace(options, trusted=trusted), progress)

        outcome, remember = self._at_destination(dataset, target, options, token, push)
        if dataset.ref == HEAD:
            add_alias(dataset, AliasKind.PUSH, remember)
            self._published(dataset, outcome.plan.new_head)
        return outcome

    def plan_push(
        self,
        ref: Ref | DatasetFiles,
        target: str | None = None,
        options: PushOptions | None = None,
        *,
        token: str | None = None,
    ) -> PushPlan:
        """Plan `push`; nothing is written or remembered."""
        dataset = self._dataset(ref)
        options = options or PushOptions(parallel=self.config.parallel)

        def plan(peer: WritablePeer, options: PushOptions) -> PushPlan:
            return plan_push(dataset, peer, options)

        return self._at_destination(dataset, target, options, token, plan)[0]

    def destination(self, dataset: DatasetFiles, target: str | None) -> tuple[PeerUrl, str]:
        """The destination of a push, and the alias to remember; `target` is as in `push`."""
        if target is None:
            hint = "name a repository, or a URL: --to file:///srv/datasets/name"
            target = _known(dataset, AliasKind.PUSH, hint)
        url = resolve_remote(target, self.repositories, local=dataset.alias)
        return url, target if "/" in target else f"{target}/{dataset.alias.name}"

    def fetch(
        self,
        ref: Ref | DatasetFiles,
        source: str | None = None,
        *,
        since: Timestamp | None = None,
        last: int | None = None,
        where: str | None = None,
        parallel: int | None = None,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> FetchOutcome:
        """Slices and checkpoints that are missing here are brought from any mirror, trusted by hash alone.

        `source` is a URL or `repo/name`; None is where the dataset was pulled from. A mirror is not
        remembered. `where` is an SQL condition: slices that can hold no such record are left out.
        """
        dataset = self._dataset(ref)
        parallel = parallel or self.config.parallel
        asked = None
        if where is not None:
            from odfchain.slices.conditions import parse_where  # noqa: PLC0415 - few commands need it
            from odfchain.workspace.read_slices import columns_of  # noqa: PLC0415

            asked = parse_where(where, columns_of(DatasetState.read(dataset.chain), None))
        with closing(self.mirror(dataset, source, parallel, token)) as peer:
            return fetch_missing(
                dataset, peer, since=since, last=last, where=asked, parallel=parallel, progress=progress
            )

    def fetch_merged(
        self,
        dataset: DatasetFiles,
        source: str | None = None,
        *,
        parallel: int | None = None,
        token: str | None = None,
        progress: Progress = SILENT,
    ) -> FetchedSources:
        """Fetch merged blocks from any mirror, trusted by hash alone; `source` is as in `fetch`."""
        parallel = parallel or self.config.parallel
        with closing(self.mirror(dataset, source, parallel, token)) as peer:
            found, lacking = bring_merged(dataset, peer, parallel=parallel, progress=progress)
        if lacking:
            raise errors.TransferError(
                f"{peer.where}: {len(lacking):,} of the branches that were merged into {dataset.alias} are "
                f"not there: {', '.join(map(shortened, lacking[:3]))}; what is there was brought",
                hint="try another copy of the dataset: --from URL",
            )
        return found

    def mirror(
        self,
        dataset: DatasetFiles,
        source: str | None,
        parallel: int | None = None,
        token: str | None = None,
    ) -> Peer:
        """A place that has a copy of the dataset: where it was pulled from, when none is given."""
        place = source or _known(dataset, AliasKind.PULL, "name a copy of it: --from URL")
        return self.open(place, token if source else None, parallel)

    def _dataset(self, ref: Ref | DatasetFiles) -> DatasetFiles:
        dataset = ref if isinstance(ref, DatasetFiles) else self.workspace.dataset(ref)
        if dataset.ref != HEAD and not is_branch_name(dataset.ref):
            raise errors.UsageError(
                f"{dataset.alias}: what is shared is the head or a branch, not a point of the past",
                hint=f"`odfchain branch create {dataset.alias} NAME --at {dataset.ref}` makes one there",
            )
        return dataset

    # --- looking -----------------------------------------------------------------------------------

    def datasets_of(self, repository: str, *, token: str | None = None) -> list[RepositoryEntry]:
        """The datasets of a repository, ordered by alias; it is named, or given by its URL."""
        return list_repository(self.repository_url(repository), self._options(self.config.parallel, token))

    def repository_url(self, repository: str) -> PeerUrl:
        """The URL of a repository that is named, or given by its URL."""
        if "/" in repository:
            return PeerUrl.parse(repository)
        return self.repositories.get(RepoName(repository))

    # --- how ---------------------------------------------------------------------------------------

    def _pull(
        self,
        url: PeerUrl,
        remember: str,
        alias: DatasetAlias,
        options: SyncOptions,
        token: str | None,
        progress: Progress,
    ) -> Pulled:
        policy = self._policy(url, alias, options.signature)
        with closing(open_peer(url, self._options(options.parallel, token))) as peer:
            chosen = replace(options, signature=policy)
            outcome = pull_dataset(self.workspace, peer, alias, chosen, progress)
        dataset = self.workspace.dataset(alias)
        self._remember_policy(dataset, policy, options.signature)
        add_alias(dataset, AliasKind.PULL, remember)
        return Pulled(dataset.alias, str(url), outcome)

    def _policy(self, url: PeerUrl, alias: DatasetAlias, given: SignaturePolicy | None) -> SignaturePolicy:
        if given is not None and not given.required:
            return given
        try:
            own = policy_of(self.workspace.dataset(alias))
        except errors.DatasetNotFoundError:
            own = NO_POLICY
        return (given or NO_POLICY).and_also(own).and_also(self.repositories.policy(url))

    @staticmethod
    def _remember_policy(
        dataset: DatasetFiles, policy: SignaturePolicy, given: SignaturePolicy | None
    ) -> None:
        """A requirement on a copy's signature holds at every place, until the caller changes it.

        The longest age that a repository sets stays the repository's.
        """
        if policy.required:
            wanted = policy_of(dataset).and_also(given or NO_POLICY)
            set_policy(dataset, wanted.and_also(SignaturePolicy(require=True)))
        elif given is not None:
            set_policy(dataset, NO_POLICY)

    def _options(self, parallel: int, token: str | None) -> PeerOptions:
        return options_of(self.config, token=token, parallel=parallel)

    def _from(self, url: PeerUrl, *kinds: AliasKind) -> DatasetFiles | None:
        for dataset in self.workspace.datasets():
            try:
                texts = [text for kind in kinds or (AliasKind.PULL,) for text in aliases(dataset, kind)]
                known = {self.url_of(text).text for text in texts}
            except (
                errors.OdfchainError
            ):  # a repository that was forgotten; damage that is that dataset's business
                continue
            if url.text in known:
                return dataset
        return None

    def _published(self, dataset: DatasetFiles, head: Multihash) -> None:
        """Remember the pushed head: no later pull may go behind it, also once the dataset was deleted."""
        number = dataset.chain.get(head).sequence_number
        text = None
        with suppress(
            errors.StoreError
        ):  # something else in the signature's place: the push is done all the same
            found = dataset.head_signature()
            if found.status is SignatureStatus.SIGNED and found.signed and found.signed.head == head:
                text = found.text
        SeenHeads(self.workspace.root / "seen").remember(dataset.id, Seen(number, head, text))

    def _at_account(self, ref: str, url: PeerUrl, options: PeerOptions) -> tuple[str, PeerUrl]:
        """The same, but where a node has several accounts, and the URL names none: that of the token."""
        if not url.is_smart:
            return ref, url
        from odfchain.transfer.credentials import account_at  # noqa: PLC0415 - for few nodes

        account = account_at(url, options.token_for(url))
        if account is None:
            return ref, url
        prefix, _, name = ref.rstrip("/").rpartition("/")
        named = f"{prefix}/{account}/{name}"
        return named, self.url_of(named)

    def _at_destination(
        self,
        dataset: DatasetFiles,
        target: str | None,
        options: PushOptions,
        token: str | None,
        run: Callable[[WritablePeer, PushOptions], _T],
    ) -> tuple[_T, str]:
        url, remember = self.destination(dataset, target)
        chosen = self._options(options.parallel, token if target else None)

        def at(url: PeerUrl, options: PushOptions) -> _T:
            with closing(open_writable(url, chosen)) as peer:
                peer.ref = dataset.ref
                return run(peer, options)

        if url.is_smart and options.create and dataset.ref == HEAD:
            try:
                return at(url, replace(options, create=False)), remember
            except errors.DatasetNotFoundError:
                remember, url = self._at_account(remember, url, chosen)
        return at(url, options), remember


def _known(dataset: DatasetFiles, kind: AliasKind, hint: str) -> str:
    known = aliases(dataset, kind)
    if not known:
        what = "comes from" if kind is AliasKind.PULL else "is to be pushed to"
        raise errors.UsageError(f"it is not known where {dataset.alias} {what}", hint=hint)
    return known[0]


def _id_in(ref: str) -> DatasetId | None:
    _, slash, name = ref.partition("/")
    return DatasetId.parse(name) if slash and name.startswith(DID_ODF_PREFIX) else None
