"""Finding what is damaged or missing in a dataset, and putting good copies in its place.

    refs -> blocks from every reference, and from what was merged, to the Seed -> slices, checkpoints
         -> manifests and profiles that are here -> the chains' indexes

A good copy is one that hashes to its name, so any mirror will do. It is put in place in one step; the damaged
file gets a second name in `info/quarantine` before that. What nobody has a good copy of stays where it is.
Good files are never replaced. Killed at any moment, each file is as before or good.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path

from odfchain.chain.index import ROW_BYTES, ChainIndex, Link
from odfchain.codec.blocks import decode_block
from odfchain.digest.physical import hash_file
from odfchain.errors import BusyError, CodecError, OdfchainError, StoreError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import Seed
from odfchain.model.metadata_block import MetadataBlock
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.references import OVERWRITTEN, lock_path, ref_names, refs_of
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.store.local import LocalObjectStore
from odfchain.store.scratch import LocalScratch, MemoryScratch
from odfchain.transfer.partial import is_partial
from odfchain.transfer.peer import Peer
from odfchain.transfer.public_layout import ObjectKey, ObjectKind
from odfchain.transfer.slice_files import DataObject, objects_of, store_of
from odfchain.transfer.snapshot_objects import key_of
from odfchain.trust.snapshot_lines import SNAPSHOTS
from odfchain.upkeep.lost_head import HeadCandidate, by_name, candidates, is_candidate, signed_tip
from odfchain.upkeep.reachable import lines_about, merged_blocks
from odfchain.upkeep.spares import Spares

_KINDS = {kind: "slice" if kind is ObjectKind.DATA else kind.value.removesuffix("s") for kind in ObjectKind}


class State(Enum):
    """What became of something that is not as it should be."""

    REPAIRED = "repaired"
    REPAIRABLE = "repairable"
    """A good copy is in this workspace (found without changing anything)."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    """`reference`, `block`, `slice`, `checkpoint`, `manifest`, `profile`, `lines`, `chain`, `index`,
    `dataset`."""
    file: str
    message: str
    state: State
    source: str | None = None
    """Where the good copy came from, or is."""
    hint: str | None = None


@dataclass(slots=True)
class FsckReport:
    """The outcome for one dataset."""

    dataset: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    objects: int = 0
    """Objects that were looked at [count], each byte of them."""
    bytes: int = 0
    absent: int = 0
    """Slices and checkpoints that a partial copy does without [count]."""

    @property
    def whole(self) -> bool:
        """Whether nothing is broken any more."""
        return all(finding.state is State.REPAIRED for finding in self.findings)

    def __repr__(self) -> str:
        found = "; ".join(f"{item.kind} {item.state.value}" for item in self.findings[:3])
        more = f" and {len(self.findings) - 3:,} more" if len(self.findings) > 3 else ""
        return f"<fsck of {self.dataset}: {self.objects:,} objects, {found or 'all good'}{more}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckOptions:
    """How to check."""

    dry_run: bool = False
    """Change nothing, and bring nothing from a peer."""
    head: Multihash | None = None
    """What a lost head is to be, when the user knows it."""


def fsck(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    peer: Peer | None = None,
    options: FsckOptions | None = None,
    progress: Progress = SILENT,
) -> FsckReport:
    """Everything that is damaged or missing is in the report, and repaired where there is a good copy.

    Raises:
        BusyError: something is being pulled into the dataset.
    """
    with fsio.try_locked(lock_path(dataset)) as free:
        if not free:
            raise BusyError(
                f"{dataset.alias}: something is being pulled into it", hint="run fsck again when that is done"
            )
        with ExitStack() as resources:
            return _Fsck(workspace, dataset, peer, options or FsckOptions(), progress, resources).run()


class _Fsck:
    def __init__(
        self,
        workspace: WorkspaceFiles,
        dataset: DatasetFiles,
        peer: Peer | None,
        options: FsckOptions,
        progress: Progress,
        resources: ExitStack,
    ) -> None:
        self._workspace = workspace
        self._dataset = dataset
        self._peer = peer
        self._options = options
        self._progress = progress
        self._resources = resources
        self._area: Path | None = None
        self._spares = Spares(workspace, dataset, peer)
        self._report = FsckReport(str(dataset.alias))
        self._blocks: dict[Multihash, MetadataBlock] = {}

    @property
    def _mended(self) -> State:
        return State.REPAIRABLE if self._options.dry_run else State.REPAIRED

    def run(self) -> FsckReport:
        head = self._head()
        self._progress.phase(f"Checking the chain of {self._dataset.alias}")
        whole = head is not None and self._chain(head)
        good = {HEAD: head} if whole and head is not None else {}
        for name in ref_names(self._dataset)[1:]:
            other = self._other_ref(name)
            if other is not None and self._chain(other):
                good[name] = other
        self._merged()
        self._objects()
        self._descriptions()
        for name, newest in good.items():
            self._index(self._dataset.on(name).index_path, newest)
        self._report.notes += self._spares.problems
        return self._report

    def _find(
        self,
        kind: str,
        file: Path,
        message: str,
        state: State = State.BROKEN,
        source: str | None = None,
        hint: str | None = None,
    ) -> None:
        self._report.findings.append(Finding(kind, str(file), message, state, source, hint))

    # --- references --------------------------------------------------------------------------------

    def _head(self) -> Multihash | None:
        path = self._dataset.folder / "refs" / HEAD
        try:
            head = refs_of(self._dataset).get(HEAD)
            problem = "the dataset has no head"
        except StoreError as error:
            head, problem = None, str(error)
        if head is not None:
            return head
        known = candidates(self._workspace, self._dataset, self._peer)
        chosen = self._chosen(known)
        if chosen is None:
            listed = ", ".join(f"{c.head} (block {c.sequence_number:,})" for c in known[:8])
            hint = "name a copy that has it: --from URL"
            if known:
                hint += f"; or say which block it was (--head BLOCK): {listed}"
            self._find("reference", path, problem, hint=hint)
            return None
        source = chosen.proof or "as you said"
        if not self._options.dry_run:
            self._set_ref(path, chosen.head)
            if self._dataset.signer is not None:
                self._dataset.signer.head_moved(chosen.head, chosen.sequence_number)
        self._find("reference", path, problem, self._mended, source)
        return chosen.head

    def _chosen(self, known: list[HeadCandidate]) -> HeadCandidate | None:
        wanted = self._options.head
        if wanted is None:
            return known[0] if len(known) == 1 and known[0].proof is not None else None
        if not is_candidate(self._dataset, wanted):
            raise UsageError(
                f"{self._dataset.alias}: the head cannot be block {wanted}: its chain down to the Seed of "
                "this dataset is not here, or is damaged"
            )
        return HeadCandidate(wanted, decode_block(self._store(ObjectKind.BLOCK).get(wanted)).sequence_number)

    def _other_ref(self, name: str) -> Multihash | None:
        path = self._dataset.folder / "refs" / name
        try:
            return refs_of(self._dataset).get(name)
        except StoreError as error:
            kept = name.startswith(OVERWRITTEN)
            found = by_name(self._dataset, name, OVERWRITTEN) if kept else signed_tip(self._dataset, name)
            if found is None:
                self._find("reference", path, str(error), hint=f"if it is of no use any more, remove {path}")
                return None
            if not self._options.dry_run:
                self._set_ref(path, found)
            source = (
                "the block that its name says" if kept else "the owner has signed it as that of the branch"
            )
            self._find("reference", path, str(error), self._mended, source)
            return found

    def _set_ref(self, path: Path, target: Multihash) -> None:
        """Write a reference, unless somebody has made it good meanwhile."""
        with fsio.locked(self._dataset.folder / "info" / "lock"):
            try:
                if refs_of(self._dataset).get(path.name) is not None:
                    return
            except StoreError:
                self._quarantine(path, f"refs-{path.name}")
            fsio.replace_file(path, str(target).encode())

    # --- blocks ------------------------------------------------------------------------------------

    def _chain(self, head: Multihash) -> bool:
        """Look at all blocks from a head to the Seed; whether they are all good now."""
        current: Multihash | None = head
        expected: int | None = None
        while current is not None:
            if current in self._blocks:
                return True
            path = self._dataset.folder / "blocks" / str(current)
            if not self._object(ObjectKey(ObjectKind.BLOCK, current), None):
                return False
            try:
                block = decode_block(self._store(ObjectKind.BLOCK).get(current))
            except (StoreError, CodecError) as error:
                self._find("chain", path, f"its name is right, but it is no block: {error}")
                return False
            number = block.sequence_number
            if (expected is not None and number != expected) or (block.prev_block_hash is None) != (
                number == 0
            ):
                self._find("chain", path, f"block {number} does not fit the block after it")
                return False
            self._blocks[current] = block
            self._progress.advance()
            expected, current = number - 1, block.prev_block_hash
        return True

    def _merged(self) -> None:
        """Look at the chains of merged branches, as far as they are here; the references may be gone."""
        looked_at: set[Multihash] = set()
        while waiting := [name for name in self._blocks if name not in looked_at]:
            looked_at.update(waiting)
            for name in waiting:
                for merged in merged_blocks(self._dataset, self._blocks[name].event):
                    self._chain(merged)

    # --- slices and checkpoints --------------------------------------------------------------------

    def _objects(self) -> None:
        wanted: dict[ObjectKey, DataObject] = {}
        for block in self._blocks.values():
            for item in objects_of(block):
                wanted.setdefault(item.key, item)
        self._progress.phase(
            f"Checking the files of {self._dataset.alias}", sum(item.size for item in wanted.values())
        )
        partial = is_partial(self._dataset) or self._dataset.data.on_demand
        for key, item in sorted(wanted.items(), key=lambda found: found[1].sequence_number):
            if partial and not (self._dataset.folder / str(key)).is_file():
                self._report.absent += 1
                continue
            self._object(key, item.size)
            self._progress.advance(item.size)

    def _descriptions(self) -> None:
        """Manifests and profiles that are here; those that are not come on demand."""
        seeds = [block.event for block in self._blocks.values() if isinstance(block.event, Seed)]
        if not seeds:
            return
        try:
            lines = lines_about(self._dataset, seeds[0].dataset_id, self._blocks)
        except StoreError as error:
            self._find("lines", self._dataset.folder / SNAPSHOTS.key, str(error))
            return
        sizes = {key_of(line): line.size for line in sorted(lines, key=lambda line: line.by_owner)}
        for key, size in sizes.items():
            if self._store(key.kind).contains(key.name):
                self._object(key, size)

    def _object(self, key: ObjectKey, size: int | None) -> bool:
        """Whether an object is good, or could be repaired."""
        path = self._dataset.folder / str(key)
        self._report.objects += 1
        # what has the right hash is good, whatever size somebody has signed
        problem = _problem(path, key, None if key.kind.describes else size)
        if problem is None:
            self._report.bytes += path.stat().st_size
            return True
        kind = _KINDS[key.kind]
        if self._options.dry_run:
            spare = self._spares.find_here(key)
            self._find(
                kind, path, problem, State.REPAIRABLE if spare else State.BROKEN, spare[1] if spare else None
            )
            return False
        if self._area is None:
            self._area = self._resources.enter_context(self._dataset.staging())
        brought = self._spares.bring(key, size, self._area)
        if brought is None:
            more = ", or remove the file: it can be made again" if key.kind.describes else ""
            self._find(kind, path, problem, hint=f"name a copy that has it: --from URL{more}")
            return False
        self._quarantine(path, f"{key.kind.value}-{key.name}")
        self._store(key.kind).put_file(brought[0], key.name)
        self._find(kind, path, problem, State.REPAIRED, brought[1])
        return True

    def _quarantine(self, path: Path, name: str) -> None:
        """Keep what is in the place of a file; what is no file (a folder, a pipe) is not there any more."""
        if not path.exists():
            return
        folder = self._dataset.folder / "info" / "quarantine"
        fsio.make_folder(folder)
        for number in count(1):
            target = folder / (name if number == 1 else f"{name}.{number}")
            if not path.is_file():
                if not os.path.lexists(target):
                    fsio.move_folder(path, target)
                    return
            elif fsio.link_file(path, target):
                return

    def _store(self, kind: ObjectKind) -> LocalObjectStore:
        return store_of(self._dataset, kind)

    # --- the index ---------------------------------------------------------------------------------

    def _index(self, path: Path, head: Multihash) -> None:
        """The index is compared with one that is made anew; a damaged one is removed, to be made again."""
        if not path.is_file():
            return
        fresh = MemoryScratch()
        index = ChainIndex(fresh, self._links)
        block = self._blocks[head]
        index.sync(Link.of(head, block))
        if not _is_damaged(LocalScratch(path), fresh, block.sequence_number + 1):
            return
        if not self._options.dry_run:
            fsio.remove_file(path)
        self._find("index", path, "the index is not that of the chain", self._mended, "the chain")

    def _links(self, head: Multihash) -> Iterator[Link]:
        current: Multihash | None = head
        while current is not None:
            block = self._blocks[current]
            yield Link.of(current, block)
            current = block.prev_block_hash


def _is_damaged(present: LocalScratch, fresh: MemoryScratch, count: int) -> bool:
    """Whether an index says something wrong of the chain's blocks.

    Rows of other blocks are no damage: after a reset they stay until the index is used.
    """
    stored, made = ChainIndex(present, _no_links), ChainIndex(fresh, _no_links)
    for number in range(count):
        if not present.read(number * ROW_BYTES, 1):
            return False  # it ends here: newer blocks are added when it is used
        row, right = stored.row(number), made.row(number)
        if row is None:
            return True
        if row != right:
            return right is not None and row.hash == right.hash
    return False


def _no_links(_: Multihash) -> Iterator[Link]:
    return iter(())


def _problem(path: Path, key: ObjectKey, size: int | None) -> str | None:
    """What is wrong with an object's file, None when it is good; a link to a good file is as good."""
    try:
        status = path.stat()
        if not path.is_file():
            return "it is not a regular file"
        if size is not None and status.st_size != size:
            return f"it has {status.st_size:,} bytes, expected {size:,}"
        actual, _ = hash_file(path)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None if actual == key.name else f"the content hashes to {actual}, not to its name"


def unopenable(workspace: WorkspaceFiles) -> list[FsckReport]:
    """A report for each folder among the datasets that cannot be opened as one."""
    reports = []
    known = {dataset.folder for dataset in workspace.datasets()}
    with fsio.storage_errors(workspace.root / "datasets"):
        folders = sorted((workspace.root / "datasets").iterdir())
    for folder in folders:
        if folder in known or not folder.is_dir():
            continue
        try:
            DatasetFiles.open(folder)
        except OdfchainError as error:
            path = folder / "info" / "alias"
            finding = Finding(
                "dataset", str(path), str(error), State.BROKEN, hint=f"write the dataset's name into {path}"
            )
            reports.append(FsckReport(folder.name, [finding]))
    return reports
