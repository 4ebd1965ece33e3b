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

from odfchain.chain.compare import Ahead, ChainLinks, Comparison, Equal, compare, whole_chain
from odfchain.chain.signed_heads import BlockAt, HeadSignature, read_head_signature
from odfchain.errors import (
    ChainsDifferError,
    CorruptedPeerError,
    DatasetNotFoundError,
    NameCollisionError,
    SignatureError,
    StoreError,
    UsageError,
)
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalObjectStore, conflict
from odfchain.transfer.peer import Peer
from odfchain.transfer.receive import (
    Arrival,
    Destination,
    Received,
    Source,
    Spool,
    blocks_of,
    index_chain,
    refuse_difference,
    refuse_other_dataset,
    refuse_rollback,
)
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
    set_selection,
    unmark,
)
from odfchain.transfer.snapshot_objects import bring_newest
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.points import keep_reachable, lock_path
from odfchain.workspace.workspace_files import WorkspaceFiles

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
    """The dataset that has to come; None is whatever is there."""
    onto: Multihash | None = None
    """The head that a copy which is here has to have until then; None is whatever it has."""
    only: Multihash | None = None
    """The head that the peer has to have; None is whatever it has."""
    on_demand: bool = False
    """Slices come when they are read: none is brought, and the copy is not marked for that."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: no transfer at all, or a selection that contradicts itself.
        """
        if self.parallel < 1:
            raise UsageError(f"the number of parallel transfers is at least 1, not {self.parallel}")
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
    """Attestations of auditors that came in."""
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
    with _begun(workspace, peer, alias, options, progress) as (pull, present):
        return pull.create(alias) if present is None else pull.update(present)


def judge_pull(
    workspace: WorkspaceFiles, peer: Peer, alias: DatasetAlias, options: SyncOptions = DEFAULTS
) -> list[DataObject]:
    """Validate a pull's blocks and list its objects, oldest first; the dataset stays as it is."""
    with _begun(workspace, peer, alias, options, SILENT) as (pull, present):
        judged = pull.judge_new(alias) if present is None else pull.judge(present)
        return judged.received.objects


def arrival_folder(workspace: WorkspaceFiles, alias: DatasetAlias) -> Path:
    """The incoming folder of the dataset called `alias`: hidden, until it is complete."""
    present = _present(workspace, alias)
    return incoming_folder(present) if present else workspace.root / "incoming" / _file_key(alias)


def _file_key(alias: DatasetAlias) -> str:
    return alias.key.replace("/", "+")


@contextmanager
def _begun(
    workspace: WorkspaceFiles, peer: Peer, alias: DatasetAlias, options: SyncOptions, progress: Progress
) -> Iterator[tuple[_Pull, DatasetFiles | None]]:
    offer = read_offer(peer, options.signature or NO_POLICY)
    if offer is None:
        raise DatasetNotFoundError(
            f"{peer.where}: there is no dataset (no refs/head)",
            hint="check the URL: it ends in the dataset's name; "
            "`odfchain search --repo URL` lists what a repository has; a server may show it only to those "
            "who have a token: `odfchain login URL`",
        )
    # `only` this head was chosen: another one is a conflict
    if options.only not in (None, offer.head):
        raise conflict(HEAD, options.only, offer.head)
    incoming = workspace.root / "incoming"
    fsio.make_folder(incoming)
    # who pulls from elsewhere may find on the way that the store has moved on
    key = _file_key(alias) + ("=" if options.on_demand else "")
    with fsio.locked(incoming / f".lock-{key}"):
        present = _present(workspace, alias)
        if present is None:
            yield _Pull(workspace, peer, offer, options, progress, incoming / key), None
            return
        if options.dataset_id not in (None, present.id):
            raise NameCollisionError(
                f"{present.alias} is {present.id}, and {options.dataset_id} was asked for",
                hint="choose another name: --as NAME",
            )
        shutil.rmtree(incoming / key, ignore_errors=True)  # of a pull that died as the dataset appeared
        with fsio.locked(lock_path(present)):
            area = incoming_folder(present)
            yield _Pull(workspace, peer, offer, options, progress, area), present


def _present(workspace: WorkspaceFiles, ref: DatasetAlias | DatasetId) -> DatasetFiles | None:
    try:
        return workspace.dataset(ref)
    except DatasetNotFoundError:
        return None


def _by_number(newest_first: Sequence[Multihash]) -> BlockAt:
    # newest first, so numbers count from the end
    count = len(newest_first)
    return lambda number: newest_first[count - 1 - number] if 0 <= number < count else None


@dataclass(frozen=True, slots=True)
class _Judged:
    """A chain whose blocks (newest first) are here, in a private folder, and keep all rules."""

    source: Source
    spool: Spool
    blocks: Sequence[Multihash]
    received: Received
    status: SyncStatus


@dataclass(slots=True)
class _Pull:
    """One pull; `area` is where things arrive."""

    workspace: WorkspaceFiles
    peer: Peer
    offer: Offer
    options: SyncOptions
    progress: Progress
    area: Path
    arrival: Arrival = field(init=False)
    statements: Examination = field(init=False)

    def __post_init__(self) -> None:
        self.arrival = Arrival(self.peer, self.area, self.options.parallel, self.progress)
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

    @property
    def memory(self) -> SeenHeads:
        return SeenHeads(self.workspace.root / "seen")

    # --- a dataset that is not here yet ------------------------------------------------------------

    def judge_new(self, alias: DatasetAlias) -> _Judged:
        hidden = self.area / "dataset"
        DatasetFiles.create_folders(hidden, alias)
        spool = Spool(hidden / "blocks")  # it becomes the dataset's own folder
        with self._refusing(), self.arrival.links(spool, None) as links:
            source = self.arrival.source(links, self.head, known=-1)
            blocks = whole_chain(links, self.head)
            received = self.arrival.check(links, blocks, None)
            assert received.seed is not None  # noqa: S101 - the rules want it first
            dataset_id = received.seed.dataset_id
            self._check_id(dataset_id)
            with self.statements.proving():
                here = _present(self.workspace, dataset_id)  # under another name
                seen = self.statements.examine(
                    dataset_id, here, source.number, _by_number(blocks), links.bytes_of, str(alias)
                )
                self._check_new(dataset_id, alias)
                if seen is not None:
                    refuse_rollback(source, seen, None)
        return _Judged(source, spool, blocks, received, SyncStatus.CREATED)

    def create(self, alias: DatasetAlias) -> SyncOutcome:
        judged = self.judge_new(alias)
        spool, blocks, received = judged.spool, judged.blocks, judged.received
        assert received.seed is not None  # noqa: S101 - it was judged
        dataset_id = received.seed.dataset_id
        dataset = DatasetFiles.open(self.area / "dataset")
        selection = self.options.selection
        self.arrival.bring(dataset, selection.of(received.objects))
        unmark(dataset)  # an earlier attempt may have had other options
        if not (selection.everything or self.options.on_demand):
            set_selection(dataset, selection)
        self.progress.phase("Publishing", len(blocks))
        self._publish_hidden(dataset, spool, blocks)
        index_chain(dataset, blocks, received.kinds)
        self.statements.keep(dataset, dataset_id)
        dataset = self.workspace.adopt(dataset)
        return self._done(SyncStatus.CREATED, dataset, judged.source, None, len(blocks))

    def _check_id(self, dataset_id: DatasetId) -> None:
        wanted = self.options.dataset_id
        if wanted is not None and dataset_id != wanted:
            raise CorruptedPeerError(
                f"{self.peer.where}: the dataset there is {dataset_id}, and {wanted} was asked for"
            )

    def _check_new(self, dataset_id: DatasetId, alias: DatasetAlias) -> None:
        try:
            self.workspace.check_new(dataset_id, alias)
        except NameCollisionError as error:
            raise NameCollisionError(f"{self.peer.where}: {error}", hint=error.hint) from None

    def _publish_hidden(self, dataset: DatasetFiles, spool: Spool, blocks: Sequence[Multihash]) -> None:
        spool.keep_only(blocks)
        for path in dataset.folder.glob(
            f"*/{fsio.TEMP_PREFIX}*"
        ):  # of a pull that died; nobody else writes here
            fsio.remove_quietly(path)
        for _ in fsio.sync_files([spool.path(name) for name in reversed(blocks)]):
            self.progress.advance()
        fsio.sync_folder(spool.folder)
        dataset.chain.set_ref(HEAD, self.head, expected=dataset.chain.head())

    # --- a dataset that is here --------------------------------------------------------------------

    def judge(self, dataset: DatasetFiles) -> _Judged:
        seed, old = dataset.seed, dataset.chain.head()
        assert old is not None  # noqa: S101 - it has a seed
        if self.options.onto not in (None, old):
            raise conflict(HEAD, self.options.onto, old)
        ours = ChainLinks(dataset.chain)
        store = LocalObjectStore(dataset.folder / "blocks")
        spool = Spool(self.area / "blocks")
        fsio.make_folder(spool.folder)
        with self._refusing(), self.arrival.links(spool, store) as links:
            source = self.arrival.source(links, self.head, known=ours.link(old).sequence_number, after=old)
            found = compare(self.head, links, old, ours)
            self._guard(source, dataset, Destination(str(dataset.alias), old, ours, seed), found)
            if isinstance(found, Equal):
                return _Judged(source, spool, (), Received(seed, [], []), SyncStatus.UP_TO_DATE)
            if isinstance(found, Ahead):
                received = self.arrival.check(links, found.blocks, dataset.chain.history(old))
                return _Judged(source, spool, found.blocks, received, SyncStatus.UPDATED)
            blocks = whole_chain(links, self.head)
            received = self.arrival.check(links, blocks, None)
            return _Judged(source, spool, blocks, received, SyncStatus.OVERWRITTEN)

    def update(self, dataset: DatasetFiles) -> SyncOutcome:
        seed, old = dataset.seed, dataset.chain.head()
        assert old is not None  # noqa: S101 - it has a seed
        judged = self.judge(dataset)
        source, spool, blocks, status = judged.source, judged.spool, judged.blocks, judged.status
        if status is SyncStatus.UP_TO_DATE:
            self._keep_statements(dataset, seed.dataset_id)
            return self._done(status, dataset, source, old, 0)
        store = LocalObjectStore(dataset.folder / "blocks")
        given = self.options.selection
        selection = selection_of(dataset) if given.everything else given
        self.arrival.bring(dataset, selection.of(judged.received.objects))
        if not (given.everything or self.options.on_demand):
            set_selection(dataset, given)
        self.progress.phase("Publishing", len(blocks))
        arrived = [(spool.path(name), name) for name in reversed(blocks) if spool.contains(name)]
        self.progress.advance(len(blocks) - len(arrived))
        for _ in store.put_files(arrived):
            self.progress.advance()
        if status is SyncStatus.OVERWRITTEN:
            keep_reachable(dataset, old)
        dataset.chain.set_ref(HEAD, self.head, expected=old)
        self._keep_statements(dataset, seed.dataset_id)
        return self._done(status, dataset, source, old, len(blocks))

    def _keep_statements(self, dataset: DatasetFiles, dataset_id: DatasetId) -> None:
        before = None
        with contextlib.suppress(StoreError):  # something else has its place; it is replaced
            before = read_head_signature(dataset.folder)
        self.statements.keep(dataset, dataset_id)
        if read_head_signature(dataset.folder) != before:
            dataset.shared.signed(dataset.folder, HEAD)

    def _guard(
        self, source: Source, dataset: DatasetFiles, destination: Destination, found: Comparison
    ) -> None:
        refuse_other_dataset(source, destination, found, force=self.options.force)
        with self.statements.proving():
            theirs = blocks_of(source, destination, found)
            dataset_id, read = destination.seed.dataset_id, source.links.bytes_of
            seen = self.statements.examine(dataset_id, dataset, source.number, theirs, read, destination.name)
            if seen is not None:
                refuse_rollback(source, seen, destination)
            if not self.options.force:
                refuse_difference(source, destination, found)

    # --- both --------------------------------------------------------------------------------------

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (CorruptedPeerError, ChainsDifferError, NameCollisionError, SignatureError):
            # what a refused peer has sent is useless to the next attempt
            shutil.rmtree(self.area, ignore_errors=True)
            raise

    def _done(
        self, status: SyncStatus, dataset: DatasetFiles, source: Source, old: Multihash | None, blocks: int
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
        seen = Seen(source.number, self.head, self.statements.text)
        self.memory.remember(dataset.id, seen, lower=self.statements.forgets)
        return SyncOutcome(
            status,
            old,
            self.head,
            blocks,
            self.arrival.objects,
            self.arrival.bytes + brought.bytes,
            missing_slices(dataset),
            self.statements.signature,
            self.statements.attestations,
            brought.objects,
            (*self.statements.warnings, *brought.problems),
        )
