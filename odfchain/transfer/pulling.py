"""Pulling: a dataset of a store becomes, or continues, a dataset of this workspace, by the order of `sync`.

    incoming/<alias>/       a new dataset on its way; it appears by one rename when it is complete
    <dataset>/info/incoming/    what arrives for a dataset that is here already
        beside-<branch>/    and for one of its branches

Branches, and what was merged, are fetched while the head stays: their blocks lead to one of the dataset's own
chains, so they have its Seed, and keep the append rules. Source: specification "Dataset Sharing"; RFC-021,
RFC-038.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain import errors
from odfchain.chain.checkpoints import WitnessPolicy, note_in
from odfchain.chain.compare import Behind, Comparison, Diverged, Equal
from odfchain.chain.index import ChainIndex, Link
from odfchain.chain.signed_heads import HeadSignature, SignatureStatus, check_branch, read_head_signature
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, conflict
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import SignedFile, signature_key
from odfchain.storage.store import Store
from odfchain.transfer import sync
from odfchain.transfer.branch_fetch import BranchFetch, fetching
from odfchain.transfer.open_peer import open_peer
from odfchain.transfer.sharing import AliasKind, Sharing, add_alias, check_shareable, id_in, known_place
from odfchain.transfer.signed_statements import (
    NO_POLICY,
    Examination,
    Offer,
    Seen,
    SeenHeads,
    SignaturePolicy,
    read_offer,
    refuse_unsigned,
)
from odfchain.transfer.slice_files import (
    EVERYTHING,
    DataObject,
    Selection,
    absent,
    data_objects,
    incoming_folder,
    missing_objects,
    missing_slices,
    unmark,
)
from odfchain.transfer.snapshot_objects import bring_newest, object_from
from odfchain.workspace.config import change_config, read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import FetchedBranch, FetchedBranches
from odfchain.workspace.points import branch_names, keep_reachable, lock_path
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.slices.conditions import Where

_WAYS_OUT = (
    "pull the other one under a new name with --as to compare them; --force replaces what is here by the "
    "peer's chain (push it first to keep it)"
)

# Options and results of a pull.


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How to pull.

    Without a selection (`metadata_only`, `since`, `last`) a partial copy keeps the one it has.
    """

    force: bool = False
    """Overwrite a dataset that is ahead or diverged, and accept an older head than was seen before."""
    metadata_only: bool = False
    since: Timestamp | None = None
    last: int | None = None
    parallel: int = 10
    """Objects received at the same time."""
    accept_successor: bool = False
    """Believe a succession whose commitment was not seen before."""
    signature: SignaturePolicy | None = None
    """Required signature of the head; None is nothing more than the settings require."""
    witnesses: tuple[WitnessPolicy, ...] = ()
    """What is wanted of witnesses; of the caller of `pull`, from now on and beside the workspace's."""
    dataset_id: DatasetId | None = None
    """The expected dataset; None is any."""
    onto: Multihash | None = None
    """The expected head of the copy here; None is any."""
    only: Multihash | None = None
    """The expected head of the peer; None is any."""
    on_demand: bool = False
    """Slices come when they are read: none is brought, and the copy is not marked for that."""
    progress: Progress = SILENT

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.parallel < 1:
            raise errors.UsageError(f"the number of parallel transfers is at least 1, not {self.parallel}")
        _ = self.selection

    @property
    def selection(self) -> Selection:
        """The objects that are asked for."""
        return Selection(self.metadata_only or self.on_demand, self.since, self.last)


DEFAULTS = SyncOptions()


class SyncStatus(Enum):
    """Result kinds of a pull."""

    UP_TO_DATE = "up-to-date"
    CREATED = "created"
    UPDATED = "updated"
    OVERWRITTEN = "overwritten"


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """Result of a pull: the heads, the blocks written, and the objects and bytes (blocks' too) received."""

    status: SyncStatus
    old: Multihash | None
    new: Multihash
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    missing_slices: int = 0
    """Slices that are not here, because the copy is partial."""
    signature: HeadSignature | None = None
    """The verdict on the peer's signature of the head."""
    attestations: int = 0
    """Received attestations of auditors."""
    snapshots: int = 0
    """Manifests and profiles received, not counting the objects of the chain."""
    warnings: tuple[str, ...] = ()


def pull_dataset(
    workspace: WorkspaceFiles, peer: Store, alias: DatasetAlias, options: SyncOptions = DEFAULTS
) -> SyncOutcome:
    """The dataset called `alias` has the peer's head and everything it refers to, or is as it was."""
    with begin_pull(workspace, peer, alias, options) as pull:
        return pull.run()


def arrival_folder(workspace: WorkspaceFiles, alias: DatasetAlias) -> Path:
    """The incoming folder of the dataset called `alias`: hidden, until it is complete."""
    here = workspace.present(alias)
    return incoming_folder(here) if here else workspace.root / "incoming" / _file_key(alias)


def _file_key(alias: DatasetAlias) -> str:
    return alias.key.replace("/", "+")


@contextmanager
def begin_pull(
    workspace: WorkspaceFiles, peer: Store, alias: DatasetAlias, options: SyncOptions
) -> Iterator[sync.Sync[Arrived, SyncOutcome]]:
    """A pull that has the locks it needs; to be run, or only planned."""
    if (offer := read_offer(peer, options.signature or NO_POLICY)) is None:
        raise errors.DatasetNotFoundError(
            f"{peer.where}: there is no dataset (no refs/head)",
            hint="check the URL: it ends in the dataset's name; "
            "`odfchain search --repo URL` lists what a repository has; a server may show it only with a "
            "token: `odfchain login URL`",
        )
    # `only` this head was chosen: another one is a conflict
    if options.only not in (None, offer.head):
        raise conflict(HEAD, options.only, offer.head)
    incoming = workspace.root / "incoming"
    fsio.make_folder(incoming)
    # a pull from elsewhere may find on the way that the store has moved on
    key = _file_key(alias) + ("=" if options.on_demand else "")
    with fsio.locked(incoming / f".lock-{key}"):
        if (here := workspace.present(alias)) is None:
            download = sync.Download(peer, incoming / key, options.parallel, options.progress)
            folder = download.area / "dataset"
            DatasetFiles.create_folders(folder, alias)
            # an attempt that died may have left a head: nothing is believed of it
            fetch = sync.ChainFetch(
                DatasetFiles.open(folder), download, sync.BlockSpool(folder / "blocks"), ()
            )
            yield _NewCopy(fetch, offer.head, options, workspace, offer)
            return
        if options.dataset_id not in (None, here.id):
            raise errors.NameCollisionError(
                f"{here.alias} is {here.id}, and {options.dataset_id} was asked for",
                hint="choose another name: --as NAME",
            )
        shutil.rmtree(incoming / key, ignore_errors=True)  # of a pull that died as the dataset appeared
        with fsio.locked(lock_path(here)):
            download = sync.Download(peer, incoming_folder(here), options.parallel, options.progress)
            fetch = sync.ChainFetch(here, download, sync.BlockSpool(download.area / "blocks"), [HEAD])
            yield _Copy(fetch, offer.head, options, workspace, offer)


@dataclass(frozen=True, slots=True)
class Arrived:
    """Blocks were received and judged, which refer to these objects; nothing of the dataset is changed."""

    status: SyncStatus
    old: Multihash | None
    objects: list[DataObject]

    @property
    def up_to_date(self) -> bool:
        """True if the head, or the branch, is the peer's."""
        return self.status is SyncStatus.UP_TO_DATE


@dataclass
class _Pull(sync.Sync[Arrived, SyncOutcome]):
    """A pull of the head or of a branch into a dataset's folder."""

    fetch: sync.ChainFetch
    head: Multihash
    options: SyncOptions

    def __post_init__(self) -> None:
        self.dataset, self.download = self.fetch.dataset, self.fetch.download
        self.peer = self.download.peer

    def carry_blocks(self, plan: Arrived) -> None:  # noqa: ARG002 - those that were read
        self.fetch.store()

    def move(self, plan: Arrived) -> None:
        if plan.status is SyncStatus.OVERWRITTEN and plan.old is not None:
            keep_reachable(self.dataset, plan.old)
        self.dataset.chain.set_ref(self.dataset.ref, self.head, expected=plan.old)

    def _outcome(self, plan: Arrived, dataset: DatasetFiles, head: HeadSignature, *notes: str) -> SyncOutcome:
        counts = len(self.fetch.new), self.download.objects, self.download.bytes, missing_slices(dataset)
        return SyncOutcome(plan.status, plan.old, self.head, *counts, head, warnings=notes)


@dataclass
class _HeadPull(_Pull):
    """A pull of the head."""

    workspace: WorkspaceFiles
    offer: Offer

    def __post_init__(self) -> None:
        super().__post_init__()
        policy = self.options.signature or NO_POLICY
        force, wanted = self.options.force, self.options.witnesses
        heir = self.options.accept_successor
        self.statements = Examination(self.workspace, self.peer, self.offer, policy, force, wanted, heir)

    @contextmanager
    def _reading(self, known: int = -1, newest: Multihash | None = None) -> Iterator[sync.PeerLinks]:
        """The peer's chain, of which the blocks were received that are not here; `newest` is."""
        try:
            with self.fetch.links() as links:
                links.prepare(self.head, known, newest)
                self.fetch.descend(links, self.head)
                yield links
        except (
            errors.CorruptedPeerError,
            errors.ChainsDifferError,
            errors.NameCollisionError,
            errors.SignatureError,
        ):
            # what a refused peer has sent is useless to the next attempt
            shutil.rmtree(self.download.area, ignore_errors=True)
            raise

    def carry_objects(self, plan: Arrived) -> None:
        given = self.options.selection
        selection = Selection.marked(self.dataset) if given.everything else given
        self.download.bring(self.dataset, selection.of(plan.objects))
        if not (given.everything or self.options.on_demand):
            given.mark(self.dataset)

    def _refuse_rollback(self, seen: Seen) -> None:
        number = self.fetch.number
        lower = number < seen.sequence_number
        if not lower and self.fetch.at(seen.sequence_number) == seen.head:
            return
        # counts are from the remembered block's height where its chain is not here
        above = max(0, number - seen.sequence_number), max(0, seen.sequence_number - number)
        counted: Behind | Diverged = Diverged(*above, None)
        if self.fetch.common is not None and self.dataset.chain.contains(seen.head):
            found = self.fetch.compared(self.head, seen.head)
            counted = found if isinstance(found, Behind | Diverged) else counted
        raise sync.differ(
            (self.head, seen.head, counted),
            f"{self.peer.where} offers {'an older' if lower else 'another'} chain than was seen before: its "
            f"head is block {number:,} {sync.shortened(self.head)}, the newest block seen is "
            f"{seen.sequence_number:,} {sync.shortened(seen.head)}"
            + ("" if lower else ", which it does not contain"),
            "the peer may be out of date or forged: ask its owner, try another; --force accepts its chain",
        )

    def _done(self, plan: Arrived, dataset: DatasetFiles) -> SyncOutcome:
        lines, believed = self.statements.snapshot_lines, self.statements.believed
        snapshots, problems = bring_newest(dataset, self.download, lines, believed)
        shutil.rmtree(self.download.area, ignore_errors=True)
        seen = Seen(self.fetch.number, self.head, self.statements.text)
        SeenHeads(self.workspace.root / "seen").remember(dataset.id, seen, lower=self.statements.forgets)
        warnings = (*self.statements.warnings, *problems)
        outcome = self._outcome(plan, dataset, self.statements.signature, *warnings)
        return replace(outcome, attestations=self.statements.attestations, snapshots=snapshots)


@dataclass
class _NewCopy(_HeadPull):
    """A dataset that is not here yet: built in a hidden folder, whose `blocks/` are the spool."""

    def plan(self) -> Arrived:
        alias = self.dataset.alias
        with self._reading() as links:
            objects, seed = self.fetch.check(links), self.fetch.seed
            assert seed is not None  # noqa: S101 - the rules want it first
            dataset_id, wanted = seed.dataset_id, self.options.dataset_id
            if wanted not in (None, dataset_id):
                raise errors.CorruptedPeerError(
                    f"{self.peer.where}: the dataset there is {dataset_id}, and {wanted} was asked for"
                )
            with self.statements.proving():
                here = self.workspace.present(dataset_id)  # under another name
                seen = self.statements.examine(
                    dataset_id, here, self.fetch.number, self.fetch.at, links.bytes_of, str(alias)
                )
                try:
                    self.workspace.check_new(dataset_id, alias)
                except errors.NameCollisionError as error:
                    raise errors.NameCollisionError(f"{self.peer.where}: {error}", hint=error.hint) from None
                if seen is not None:
                    self._refuse_rollback(seen)
        return Arrived(SyncStatus.CREATED, None, objects)

    def carry_objects(self, plan: Arrived) -> None:
        unmark(self.dataset)  # an earlier attempt may have had other options
        super().carry_objects(plan)

    def carry_blocks(self, plan: Arrived) -> None:  # noqa: ARG002 - those that were read
        blocks, spool, progress = self.fetch.new, self.fetch.spool, self.download.progress
        progress.phase("Publishing", len(blocks))
        spool.keep_only(blocks)
        # of a pull that died; no other process writes here
        for path in self.dataset.folder.glob(f"*/{fsio.TEMP_PREFIX}*"):
            fsio.remove_quietly(path)
        for _ in fsio.sync_files([spool.path(name) for name in reversed(blocks)]):
            progress.advance()
        fsio.sync_folder(spool.folder)

    def move(self, plan: Arrived) -> None:  # noqa: ARG002 - as above
        dataset, blocks, kinds = self.dataset, self.fetch.new, self.fetch.kinds
        dataset.chain.set_ref(HEAD, self.head, expected=dataset.chain.head())
        # the index is a cache: filled now, so that no block is read again for it
        top = len(blocks) - 1
        links = (Link(name, top - n, kinds[top - n]) for n, name in enumerate(blocks))
        index = ChainIndex(fsio.LocalScratch(dataset.index_path), lambda _: links)
        index.sync(Link(blocks[0], top, kinds[top]))

    def finish(self, plan: Arrived) -> SyncOutcome:
        self.statements.keep(self.dataset)
        return self._done(plan, self.workspace.adopt(self.dataset))


@dataclass
class _Copy(_HeadPull):
    """A dataset that is here."""

    def plan(self) -> Arrived:
        dataset = self.dataset
        old = dataset.chain.head()
        assert old is not None  # noqa: S101 - it has a seed
        if self.options.onto not in (None, old):
            raise conflict(HEAD, self.options.onto, old)
        with self._reading(dataset.chain.get(old).sequence_number, old) as links:
            found = self.fetch.compared(self.head, old)
            self._guard(links, old, found)
            status = SyncStatus.UP_TO_DATE if isinstance(found, Equal) else SyncStatus.UPDATED
            if isinstance(found, Behind | Diverged):
                status = SyncStatus.OVERWRITTEN
                self.fetch.descend(links, self.head, whole=True)
            return Arrived(status, old, self.fetch.check(links))

    def finish(self, plan: Arrived) -> SyncOutcome:
        dataset, before = self.dataset, None

        def signed() -> object:
            return read_head_signature(dataset.folder), note_in(dataset.folder, dataset.id)

        keys = dataset.keys_history()
        with contextlib.suppress(errors.StoreError):  # something else has its place; it is replaced
            before = signed()
        self.statements.keep(dataset)
        if dataset.keys_history() != keys:
            dataset.shared.publish_statements(dataset.folder)
        elif signed() != before:
            dataset.shared.signed(dataset.folder, HEAD)
        return self._done(plan, dataset)

    def _guard(self, links: sync.PeerLinks, old: Multihash, found: Comparison) -> None:
        dataset, name = self.dataset, str(self.dataset.alias)
        if isinstance(found, Diverged) and found.common is None:
            sync.refuse_another(
                (self.head, old, found),
                self.peer.where,
                links.seed(),
                name,
                dataset.seed,
                force=self.options.force,
                hint="pull it under another name with --as",
            )
        with self.statements.proving():
            seen = self.statements.examine(
                dataset.id, dataset, self.fetch.number, self.fetch.at, links.bytes_of, name
            )
            if seen is not None:
                self._refuse_rollback(seen)
            if isinstance(found, Behind | Diverged) and not self.options.force:
                raise sync.not_ahead(
                    (self.head, old, found), self.peer.where, name, pull=True, hint=_WAYS_OUT
                )


# Branches: nothing is remembered of them, and nothing but their head is signed.


def pull_branch_from(
    dataset: DatasetFiles, peer: Store, where: str, options: SyncOptions = DEFAULTS
) -> SyncOutcome:
    """The branch that dataset and peer are opened on is the peer's, or is as it was.

    `where` is remembered as the place that it came from. A branch that has nothing of its own follows the
    peer's also where that was rewound; what is given up stays under a reference.
    """
    if (head := peer.head()) is None:
        others = peer.branches()
        raise errors.PointNotFoundError(
            f"{peer.where}: no branch {peer.ref!r}",
            hint=f"its branches: {', '.join(others[:20])}"
            if others
            else "branches are there where they were pushed (`odfchain push DATASET@BRANCH`), or are served "
            "(`odfchain serve --branches`)",
        )
    keys = dataset.keys_history()
    signature = check_branch(peer.signed(SignedFile.HEAD), keys.dataset_id, dataset.ref, head, keys)
    about = f"{dataset.alias}@{dataset.ref}"
    refuse_unsigned(signature, options.signature or NO_POLICY, name=about, where=peer.where)
    fetched = fetching(dataset, peer, options.parallel, options.progress)
    with fsio.locked(lock_path(dataset)), fetched as fetch:
        return _BranchPull(fetch, head, options, where, signature).run()


@dataclass
class _BranchPull(_Pull):
    fetch: BranchFetch
    where: str
    signature: HeadSignature

    def plan(self) -> Arrived:
        dataset, fetch, head = self.dataset, self.fetch, self.head
        old, objects = dataset.chain.head(), fetch.read(head)
        if old is None:
            return Arrived(SyncStatus.CREATED, old, objects)
        if fetch.has(old):
            return Arrived(SyncStatus.UP_TO_DATE if old == head else SyncStatus.UPDATED, old, objects)
        known = {each.block for each in FetchedBranches(dataset).entries()}
        own = old not in known or dataset.shared.where is not None  # other machines have added to it
        if own and not self.options.force:
            raise self._refusal(old)
        return Arrived(SyncStatus.OVERWRITTEN, old, objects)

    def carry_objects(self, plan: Arrived) -> None:
        if not self.options.on_demand:
            self.download.bring(self.dataset, Selection.marked(self.dataset).of(plan.objects))

    def move(self, plan: Arrived) -> None:
        dataset = self.dataset
        trusted = self._trusted(plan.old, FetchedBranches(dataset).find(dataset.ref))
        FetchedBranches(dataset).remember(FetchedBranch(dataset.ref, self.where, self.head, trusted))
        super().move(plan)

    def finish(self, plan: Arrived) -> SyncOutcome:
        dataset, found = self.dataset, self.signature
        path = dataset.folder / signature_key(dataset.ref)
        with fsio.locked(dataset.folder / "info" / "lock"):
            if dataset.chain.head() == self.head and found.status is SignatureStatus.SIGNED:
                fsio.replace_file(path, f"{found.text}\n".encode())
            elif dataset.chain.head() == self.head:
                fsio.remove_quietly(path)
        about = f"{dataset.alias}@{dataset.ref} at {self.peer.where}"
        wrong = found.status is SignatureStatus.INVALID
        warnings = [f"{about}: {found.message}; it is not kept"] if wrong else []
        return self._outcome(plan, dataset, found, *warnings)

    def _trusted(self, old: Multihash | None, entry: FetchedBranch | None) -> Multihash:
        if entry is not None and self.fetch.has(entry.verified):
            return entry.verified
        # no record of a fetch: the branch was made here
        if entry is None and old is not None:
            return self.fetch.fork_with(old)
        return self.fetch.fork_with(DatasetState.read(self.dataset.on(HEAD).chain).head)

    def _refusal(self, old: Multihash) -> errors.ChainsDifferError:
        name, branch = f"{self.dataset.alias}@{self.dataset.ref}", self.dataset.ref
        found = self.fetch.compared(self.head, old)
        assert isinstance(found, Behind | Diverged)  # noqa: S101 - the peer's has not all that is here
        if isinstance(found, Behind):
            hint = f"push them (`odfchain push {name}`), or give its blocks up with --force"
        else:
            rename = f"`odfchain branch rename {self.dataset.alias} {branch} my-{branch}`"
            hint = f"{rename}, then pull again and merge the two; or give its blocks up with --force"
        return sync.not_ahead((self.head, old, found), self.peer.where, name, pull=True, hint=hint)


# A fetch: slices of a chain that is here, from any mirror.


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """The fetched slices, and the number that are still missing."""

    objects: int
    bytes: int
    missing_slices: int
    skipped: int = 0
    """Missing slices that have no row of which the condition is true."""
    unknown: int = 0
    """Slices that were fetched because no trusted manifest describes them."""
    understood: bool = True
    """True if a part of the condition can exclude a slice."""


def fetch_missing(
    dataset: DatasetFiles,
    peer: Store,
    selection: Selection = EVERYTHING,
    *,
    where: Where | None = None,
    parallel: int = 10,
    progress: Progress = SILENT,
) -> FetchOutcome:
    """The selected slices and checkpoints that are missing come from a peer, whose head is not asked for.

    With `where` slices alone come, and none that has no row of which it is true, by what was found in its
    verified bytes here, or the owner signed (`OwnersManifests`).

    None is stored before all were received. When nothing is missing any more, on branches neither, the copy
    is whole, and later pulls keep it so.
    """
    download = sync.Download(peer, incoming_folder(dataset), parallel, progress)
    with fsio.locked(lock_path(dataset)):
        wanted = absent(dataset, selection.of(data_objects(dataset)))
        skipped = unknown = 0
        if where is not None:
            wanted, skipped, unknown = _that_may_match(dataset, peer, wanted, where)
        download.receive(dataset, wanted)
        shutil.rmtree(download.folder, ignore_errors=True)
        rest = missing_objects(dataset)
        others = [dataset.on(ref) for ref in (HEAD, *branch_names(dataset)) if ref != dataset.ref]
        if not rest and not any(missing_objects(other) for other in others):
            unmark(dataset)
        left = sum(found.offsets is not None for found in rest)
        understood = where is None or where.understood
        return FetchOutcome(download.objects, download.bytes, left, skipped, unknown, understood)


def _that_may_match(
    dataset: DatasetFiles, peer: Store, objects: Sequence[DataObject], where: Where
) -> tuple[list[DataObject], int, int]:
    """Slices that may have a row of which a condition is true; counts of the others, and of unknown ones."""
    from odfchain.profiles.manifests import OwnersManifests  # noqa: PLC0415 - few commands need it
    from odfchain.slices.skipping import may_match  # noqa: PLC0415

    signed = OwnersManifests(dataset, DatasetState.read(dataset.chain))
    stats = signed.trusted_stats(lambda line: object_from(dataset, peer, line))
    slices = [(item, stats.get(item.key.name)) for item in objects if item.offsets is not None]
    wanted = [item for item, its in slices if its is None or may_match(its, where.condition)]
    return wanted, len(slices) - len(wanted), sum(its is None for _, its in slices)


# A pull as a user asks for it.


@dataclass(frozen=True, slots=True)
class Pulled:
    """A dataset that was pulled: its name here, where it came from, and what was done."""

    alias: DatasetAlias
    where: str
    outcome: SyncOutcome


def policy_of(dataset: DatasetFiles) -> SignaturePolicy:
    """The signature policy for pulls of a dataset."""
    config = read_config(dataset)
    return SignaturePolicy.from_fields(config.require_signature, config.max_signature_age_seconds)


def pull(
    sharing: Sharing,
    ref: str,
    alias: str | DatasetAlias | None = None,
    options: SyncOptions | None = None,
    *,
    token: str | None = None,
) -> Pulled:
    """A dataset elsewhere is here, complete and checked, or everything is as it was.

    `ref` is a URL or `repo/name`, or a copy in this workspace, which comes from where it came before.
    Without `alias` the dataset that was pulled from there before is continued, else a new one gets the
    last part of the URL as its name. A signature that was required once is required from then on, until
    `options` say that none is.
    """
    options = options or SyncOptions(parallel=sharing.config.parallel)
    if not sharing.is_remote(ref):
        dataset = sharing.named(ref)
        if alias is not None:
            raise errors.UsageError(f"{dataset.alias} already exists; `rename` gives it another name")
        known = known_place(dataset, AliasKind.PULL, f"name it: odfchain pull URL --as {dataset.alias}")
        # no token: the place is remembered only, and the workspace may be a copy from elsewhere
        return _pull(sharing, sharing.place_of(known), known, dataset.alias, options, None)
    target = DatasetAlias.parse(alias) if isinstance(alias, str) else alias
    url, wanted = sharing.place_of(ref, token), id_in(ref)
    options = replace(options, dataset_id=wanted or options.dataset_id)
    if target is None:
        remembered = sharing.workspace.present(wanted) if wanted else None
        remembered = remembered or sharing.copy_of(url)
        target = remembered.alias if remembered else DatasetAlias(None, url.name())
    try:
        return _pull(sharing, url, ref, target, options, token)
    except errors.DatasetNotFoundError:
        ref, found = sharing.at_account(ref, url, sharing.peer_options(token, options.parallel))
        if wanted is not None or found == url:
            raise
    if alias is None:
        target = copy.alias if (copy := sharing.copy_of(found)) else target
    return _pull(sharing, found, ref, target, options, token)


def _pull(
    sharing: Sharing,
    url: PeerUrl,
    remember: str,
    alias: DatasetAlias,
    options: SyncOptions,
    token: str | None,
) -> Pulled:
    workspace, given = sharing.workspace, options.signature
    policy = given or NO_POLICY
    here = workspace.present(alias)
    if given is None or given.required:
        own = policy_of(here) if here is not None else NO_POLICY
        policy = policy.and_also(own).and_also(sharing.repositories.policy(url))
    before = read_config(here).witnesses if here is not None and not options.witnesses else None
    wanted = (workspace.config.trust.witnesses, *options.witnesses, *((before,) if before else ()))
    with closing(open_peer(url, sharing.peer_options(token, options.parallel))) as peer:
        outcome = pull_dataset(workspace, peer, alias, replace(options, signature=policy, witnesses=wanted))
    dataset = workspace.dataset(alias)
    # a requirement on a copy's signature holds at every place, until the caller changes it; the longest age
    # that a repository sets stays the repository's
    if policy.required:
        kept = policy_of(dataset).and_also(given or NO_POLICY).and_also(SignaturePolicy(require=True))
        change_config(dataset, lambda config: replace(config, **kept.as_fields()))
    elif given is not None:
        change_config(dataset, lambda config: replace(config, **NO_POLICY.as_fields()))
    if options.witnesses:
        change_config(dataset, lambda config: replace(config, witnesses=options.witnesses[0]))
    add_alias(dataset, AliasKind.PULL, remember)
    return Pulled(dataset.alias, str(url), outcome)


def pull_branch(
    sharing: Sharing,
    dataset: DatasetFiles,
    source: str | None = None,
    options: SyncOptions | None = None,
    *,
    token: str | None = None,
) -> Pulled:
    """The branch that a dataset of this workspace is opened on is that of a place, or as it was.

    `source` is a URL or `repo/name`; None is where the branch came from before. What repositories and
    copies require of the head's signature they do not require of a branch; `options` may.
    """
    check_shareable(dataset)
    options = options or SyncOptions(parallel=sharing.config.parallel)
    dataset.shared.follow(dataset.folder, dataset.ref)
    known = FetchedBranches(dataset).find(dataset.ref)
    place = source or (known.where if known is not None else None)
    if place is None or place == dataset.shared.place(dataset.folder):
        raise errors.UsageError(
            f"it is not known where {dataset.alias}@{dataset.ref} comes from",
            hint=f"name it: odfchain pull {dataset.alias}@{dataset.ref} --from URL",
        )
    where = str(sharing.url_of(place)) if "://" in place else place
    with closing(sharing.open(place, token if source else None, options.parallel, dataset.ref)) as peer:
        outcome = pull_branch_from(dataset, peer, where, options)
    dataset.shared.signed(dataset.folder, dataset.ref)
    return Pulled(dataset.alias, where, outcome)
