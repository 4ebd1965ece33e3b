"""Pulling: a dataset from a peer becomes, or continues, a dataset of this workspace.

    incoming/<alias>/       a new dataset on its way; it appears by one rename when it is complete
    <dataset>/info/incoming/    what arrives for a dataset that is here already

Order: head and signature, blocks back to a known one, all append rules, then slices and checkpoints, then the
blocks become visible oldest first, then one compare-and-swap of the head, then its signature, then manifests
and profiles. An interruption
before that leaves the dataset as it was, and what arrived is used by the next pull. Source: specification
"Dataset Sharing"; RFC-021.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from odfchain import errors
from odfchain.chain.compare import (
    Ahead,
    Behind,
    ChainLinks,
    Comparison,
    Descent,
    Diverged,
    Equal,
    compare,
    whole_chain,
)
from odfchain.chain.index import ChainIndex, Link
from odfchain.chain.signed_heads import BlockAt, HeadSignature, read_head_signature
from odfchain.odf.block_codec import decode_block
from odfchain.odf.events import Seed
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalObjectStore, conflict
from odfchain.transfer.peer import Peer
from odfchain.transfer.receive import BlockSpool, Download, PeerLinks, Received, bad_block, differ, shortened
from odfchain.transfer.signed_statements import (
    NO_POLICY,
    Examination,
    Offer,
    Seen,
    SeenHeads,
    SignaturePolicy,
    read_offer,
)
from odfchain.transfer.slice_files import (
    DataObject,
    Selection,
    incoming_folder,
    missing_slices,
    selection_of,
    unmark,
)
from odfchain.transfer.snapshot_objects import bring_newest
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.points import keep_reachable, lock_path
from odfchain.workspace.workspace_files import WorkspaceFiles

_WAYS_OUT = "--force replaces what is here by the peer's chain; or pull it under another name with --as"

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
    signature: SignaturePolicy | None = None
    """Required signature of the head; None is nothing more than the settings require."""
    dataset_id: DatasetId | None = None
    """The expected dataset; None is any."""
    onto: Multihash | None = None
    """The expected head of the copy here; None is any."""
    only: Multihash | None = None
    """The expected head of the peer; None is any."""
    on_demand: bool = False
    """Slices come when they are read: none is brought, and the copy is not marked for that."""

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
    """Warnings for the user."""


def pull_dataset(
    workspace: WorkspaceFiles,
    peer: Peer,
    alias: DatasetAlias,
    options: SyncOptions = DEFAULTS,
    progress: Progress = SILENT,
) -> SyncOutcome:
    """The dataset called `alias` has the peer's head and everything it refers to, or is as it was."""
    with _begun(workspace, peer, alias, options, progress) as (pull, here):
        return pull.create(alias) if here is None else pull.update(here)


def judge_pull(
    workspace: WorkspaceFiles, peer: Peer, alias: DatasetAlias, options: SyncOptions = DEFAULTS
) -> list[DataObject]:
    """Validate a pull's blocks and list its objects, oldest first; the dataset stays as it is."""
    with _begun(workspace, peer, alias, options, SILENT) as (pull, here):
        received = pull.judge_new(alias) if here is None else pull.judge(here)[1]
        return received.objects


def arrival_folder(workspace: WorkspaceFiles, alias: DatasetAlias) -> Path:
    """The incoming folder of the dataset called `alias`: hidden, until it is complete."""
    here = present(workspace, alias)
    return incoming_folder(here) if here else workspace.root / "incoming" / _file_key(alias)


def _file_key(alias: DatasetAlias) -> str:
    return alias.key.replace("/", "+")


@contextmanager
def _begun(
    workspace: WorkspaceFiles, peer: Peer, alias: DatasetAlias, options: SyncOptions, progress: Progress
) -> Iterator[tuple[_Pull, DatasetFiles | None]]:
    offer = read_offer(peer, options.signature or NO_POLICY)
    if offer is None:
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
        here = present(workspace, alias)
        if here is None:
            yield _Pull(workspace, peer, offer, options, progress, incoming / key), None
            return
        if options.dataset_id not in (None, here.id):
            raise errors.NameCollisionError(
                f"{here.alias} is {here.id}, and {options.dataset_id} was asked for",
                hint="choose another name: --as NAME",
            )
        shutil.rmtree(incoming / key, ignore_errors=True)  # of a pull that died as the dataset appeared
        with fsio.locked(lock_path(here)):
            area = incoming_folder(here)
            yield _Pull(workspace, peer, offer, options, progress, area), here


def present(workspace: WorkspaceFiles, ref: DatasetAlias | DatasetId) -> DatasetFiles | None:
    """The dataset of a workspace that a reference names, if it is there."""
    try:
        return workspace.dataset(ref)
    except errors.DatasetNotFoundError:
        return None


def _by_number(newest_first: Sequence[Multihash]) -> BlockAt:
    # newest first, so numbers count from the end
    count = len(newest_first)
    return lambda number: newest_first[count - 1 - number] if 0 <= number < count else None


@dataclass(slots=True)
class _Pull:
    """One pull; `area` is where things arrive, blocks in its `spool`."""

    workspace: WorkspaceFiles
    peer: Peer
    offer: Offer
    options: SyncOptions
    progress: Progress
    area: Path
    download: Download = field(init=False)
    statements: Examination = field(init=False)
    spool: BlockSpool = field(init=False)
    # Of the peer's head.
    number: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self.download = Download(self.peer, self.area, self.options.parallel, self.progress)
        policy = self.options.signature or NO_POLICY
        self.statements = Examination(
            self.workspace,
            self.peer,
            self.offer,
            policy,
            self.options.force,
            trusted=lambda: self.workspace.config.audit.trusted_auditors,
        )

    @property
    def head(self) -> Multihash:
        return self.offer.head

    # --- a dataset that is not here yet ------------------------------------------------------------

    def judge_new(self, alias: DatasetAlias) -> Received:
        hidden = self.area / "dataset"
        DatasetFiles.create_folders(hidden, alias)
        self.spool = BlockSpool(hidden / "blocks")  # it becomes the dataset's own folder
        with self._refusing(), self.download.links(self.spool, None) as links:
            self.number = links.prepare(self.head, known=-1)
            blocks = whole_chain(links, self.head)
            received = self.download.check(links, blocks, None)
            assert received.seed is not None  # noqa: S101 - the rules want it first
            dataset_id, wanted = received.seed.dataset_id, self.options.dataset_id
            if wanted not in (None, dataset_id):
                raise errors.CorruptedPeerError(
                    f"{self.peer.where}: the dataset there is {dataset_id}, and {wanted} was asked for"
                )
            with self.statements.proving():
                here = present(self.workspace, dataset_id)  # under another name
                seen = self.statements.examine(
                    dataset_id, here, self.number, _by_number(blocks), links.bytes_of, str(alias)
                )
                try:
                    self.workspace.check_new(dataset_id, alias)
                except errors.NameCollisionError as error:
                    raise errors.NameCollisionError(f"{self.peer.where}: {error}", hint=error.hint) from None
                if seen is not None:
                    self._refuse_rollback(links, seen, None)
        return received

    def create(self, alias: DatasetAlias) -> SyncOutcome:
        received = self.judge_new(alias)
        assert received.seed is not None  # noqa: S101 - it was judged
        dataset = DatasetFiles.open(self.area / "dataset")
        selection = self.options.selection
        self.download.bring(dataset, selection.of(received.objects))
        unmark(dataset)  # an earlier attempt may have had other options
        if not (selection.everything or self.options.on_demand):
            selection.mark(dataset)
        self.progress.phase("Publishing", len(received.blocks))
        self._publish_hidden(dataset, received)
        self.statements.keep(dataset, received.seed.dataset_id)
        return self._done(SyncStatus.CREATED, self.workspace.adopt(dataset), None, len(received.blocks))

    def _publish_hidden(self, dataset: DatasetFiles, received: Received) -> None:
        spool, blocks, kinds = self.spool, received.blocks, received.kinds
        spool.keep_only(blocks)
        # of a pull that died; no other process writes here
        for path in dataset.folder.glob(f"*/{fsio.TEMP_PREFIX}*"):
            fsio.remove_quietly(path)
        for _ in fsio.sync_files([spool.path(name) for name in reversed(blocks)]):
            self.progress.advance()
        fsio.sync_folder(spool.folder)
        dataset.chain.set_ref(HEAD, self.head, expected=dataset.chain.head())
        # the index is a cache: filled now, so that no block is read again for it
        top = len(blocks) - 1
        links = (Link(name, top - n, kinds[top - n]) for n, name in enumerate(blocks))
        ChainIndex(fsio.LocalScratch(dataset.index_path), lambda _: links).sync(
            Link(blocks[0], top, kinds[top])
        )

    # --- a dataset that is here --------------------------------------------------------------------

    def judge(self, dataset: DatasetFiles) -> tuple[SyncStatus, Received]:
        seed, old = dataset.seed, dataset.chain.head()
        assert old is not None  # noqa: S101 - it has a seed
        if self.options.onto not in (None, old):
            raise conflict(HEAD, self.options.onto, old)
        ours = ChainLinks(dataset.chain)
        store = LocalObjectStore(dataset.folder / "blocks")
        self.spool = BlockSpool(self.area / "blocks")
        fsio.make_folder(self.spool.folder)
        with self._refusing(), self.download.links(self.spool, store) as links:
            self.number = links.prepare(self.head, ours.link(old).sequence_number, old)
            found = compare(self.head, links, old, ours)
            self._guard(dataset, links, old, found)
            if isinstance(found, Equal):
                return SyncStatus.UP_TO_DATE, Received((), seed, [], [])
            if isinstance(found, Ahead):
                base = dataset.chain.history(old)
                return SyncStatus.UPDATED, self.download.check(links, found.blocks, base)
            blocks = whole_chain(links, self.head)
            return SyncStatus.OVERWRITTEN, self.download.check(links, blocks, None)

    def update(self, dataset: DatasetFiles) -> SyncOutcome:
        old = dataset.chain.head()
        assert old is not None  # noqa: S101 - it has a seed
        status, received = self.judge(dataset)
        blocks = received.blocks
        if status is not SyncStatus.UP_TO_DATE:
            given = self.options.selection
            selection = selection_of(dataset) if given.everything else given
            self.download.bring(dataset, selection.of(received.objects))
            if not (given.everything or self.options.on_demand):
                given.mark(dataset)
            self.download.publish(dataset, self.spool, blocks)
            if status is SyncStatus.OVERWRITTEN:
                keep_reachable(dataset, old)
            dataset.chain.set_ref(HEAD, self.head, expected=old)
        self._keep_statements(dataset)
        return self._done(status, dataset, old, len(blocks))

    def _keep_statements(self, dataset: DatasetFiles) -> None:
        before = None
        with contextlib.suppress(errors.StoreError):  # something else has its place; it is replaced
            before = read_head_signature(dataset.folder)
        self.statements.keep(dataset, dataset.id)
        if read_head_signature(dataset.folder) != before:
            dataset.shared.signed(dataset.folder, HEAD)

    def _guard(self, dataset: DatasetFiles, links: PeerLinks, old: Multihash, found: Comparison) -> None:
        if isinstance(found, Diverged) and found.common is None:
            self._refuse_other_dataset(dataset, links, old, found)
        with self.statements.proving():
            seen = self.statements.examine(
                dataset.id,
                dataset,
                self.number,
                self._block_at(dataset, links, old, found),
                links.bytes_of,
                str(dataset.alias),
            )
            if seen is not None:
                self._refuse_rollback(links, seen, dataset)
            if not self.options.force:
                self._refuse_difference(dataset, old, found)

    def _block_at(
        self, dataset: DatasetFiles, links: PeerLinks, old: Multihash, found: Comparison
    ) -> BlockAt:
        # read from the local chain where both are the same
        first = ChainLinks(dataset.chain).link(old).sequence_number + 1

        def block_at(number: int) -> Multihash | None:
            if not 0 <= number <= self.number:
                return None
            if not isinstance(found, Equal | Ahead):
                return Descent(links, self.head).down_to(number)
            if isinstance(found, Ahead) and number >= first:
                return found.blocks[self.number - number]
            return dataset.chain.hash_at(number, old)

        return block_at

    def _refuse_other_dataset(
        self, dataset: DatasetFiles, links: PeerLinks, old: Multihash, found: Diverged
    ) -> None:
        theirs, ours, where = self._seed(links), dataset.seed, self.peer.where
        if (theirs.dataset_id, theirs.dataset_kind) == (ours.dataset_id, ours.dataset_kind):
            return
        # a dataset is never overwritten by another one
        raise differ(
            errors.DatasetsDivergedError,
            (self.head, old, found),
            f"{'OverwriteSeedBlock: ' if self.options.force else ''}{where} is another dataset than "
            f"{str(dataset.alias)!r} here: {theirs.dataset_kind.value} {theirs.dataset_id}, "
            f"not {ours.dataset_kind.value} {ours.dataset_id}; their heads are {shortened(self.head)} "
            f"and {shortened(old)}",
            "pull it under another name with --as",
        )

    def _seed(self, links: PeerLinks) -> Seed:
        name = whole_chain(links, self.head)[-1]
        try:
            event = decode_block(links.bytes_of(name)).event
        except errors.CodecError as error:
            raise bad_block(self.peer, name, error) from error
        if not isinstance(event, Seed):
            raise errors.CorruptedPeerError(
                f"the chain of {self.peer.where} is broken: its first block {name} is {event.KIND}, not Seed"
            )
        return event

    def _refuse_difference(self, dataset: DatasetFiles, old: Multihash, found: Comparison) -> None:
        where, name = self.peer.where, str(dataset.alias)
        heads = f"the peer's head is {shortened(self.head)}, the local one {shortened(old)}"
        if isinstance(found, Behind):
            raise differ(
                errors.DestinationAheadError,
                (self.head, old, found),
                f"{name!r} has all blocks of {where} and {len(found.blocks):,} more: {heads}",
                _WAYS_OUT,
            )
        if isinstance(found, Diverged):
            common = f"is {shortened(found.common)}" if found.common else "does not exist"
            raise differ(
                errors.DatasetsDivergedError,
                (self.head, old, found),
                f"{name!r} and {where} have diverged: their newest common block {common}, after which the "
                f"peer has {found.source_blocks:,} blocks and {name!r} {found.destination_blocks:,}; {heads}",
                _WAYS_OUT,
            )

    def _refuse_rollback(self, links: PeerLinks, seen: Seen, dataset: DatasetFiles | None) -> None:
        lower = self.number < seen.sequence_number
        if not lower and Descent(links, self.head).down_to(seen.sequence_number) == seen.head:
            return
        # counts are from the remembered block's height where its chain is not here
        above = max(0, self.number - seen.sequence_number), max(0, seen.sequence_number - self.number)
        counted: Behind | Diverged = Diverged(*above, None)
        if dataset is not None and dataset.chain.contains(seen.head):
            found = compare(self.head, links, seen.head, ChainLinks(dataset.chain))
            counted = found if isinstance(found, Behind | Diverged) else counted
        raise differ(
            errors.RollbackError,
            (self.head, seen.head, counted),
            f"{self.peer.where} offers {'an older' if lower else 'another'} chain than was seen before: its "
            f"head is block {self.number:,} {shortened(self.head)}, the newest block seen is "
            f"{seen.sequence_number:,} {shortened(seen.head)}"
            + ("" if lower else ", which it does not contain"),
            "the peer may be out of date or forged: ask its owner, try another; --force accepts its chain",
        )

    # --- both --------------------------------------------------------------------------------------

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (
            errors.CorruptedPeerError,
            errors.ChainsDifferError,
            errors.NameCollisionError,
            errors.SignatureError,
        ):
            # what a refused peer has sent is useless to the next attempt
            shutil.rmtree(self.area, ignore_errors=True)
            raise

    def _done(
        self, status: SyncStatus, dataset: DatasetFiles, old: Multihash | None, blocks: int
    ) -> SyncOutcome:
        brought = bring_newest(
            dataset,
            self.peer,
            self.statements.snapshot_lines,
            self.area / "snapshots",
            self.statements.believed,
            parallel=self.options.parallel,
            progress=self.progress,
        )
        shutil.rmtree(self.area, ignore_errors=True)
        seen = Seen(self.number, self.head, self.statements.text)
        SeenHeads(self.workspace.root / "seen").remember(dataset.id, seen, lower=self.statements.forgets)
        return SyncOutcome(
            status,
            old,
            self.head,
            blocks,
            self.download.objects,
            self.download.bytes + brought.bytes,
            missing_slices(dataset),
            self.statements.signature,
            self.statements.attestations,
            brought.objects,
            (*self.statements.warnings, *brought.problems),
        )
