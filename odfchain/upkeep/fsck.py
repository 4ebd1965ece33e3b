"""Finding what is damaged or missing in a dataset, and putting good copies in its place.

    refs -> blocks from every reference, and from what was merged, to the Seed -> slices, checkpoints
         -> manifests and profiles that are here -> the chains' indexes

A good copy is one that hashes to its name, so any mirror will do. It is put in place in one step; the damaged
file gets a second name in `info/quarantine` before that. A file without a good copy stays where it is.
Good files are never replaced. Killed at any moment, each file is as before or good.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path

from odfchain import errors
from odfchain.chain.chain import descend, link_fault
from odfchain.chain.index import ROW_BYTES, ChainIndex, Link
from odfchain.chain.key_statements import key_history
from odfchain.chain.signed_heads import read_head_signature
from odfchain.chain.signed_lines import SNAPSHOTS
from odfchain.chain.statements import read_branch
from odfchain.odf.block_codec import decode_block
from odfchain.odf.events import MetadataBlock, Seed
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import is_branch_name
from odfchain.odf.physical_hash import hash_file
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.fsio import LocalScratch, MemoryScratch
from odfchain.storage.local import HEAD, LocalObjectStore
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.transfer.signed_statements import SeenHeads, signed_last
from odfchain.transfer.slice_files import DataObject, incoming_folder, is_partial, objects_of, store_of
from odfchain.transfer.snapshot_objects import key_of
from odfchain.upkeep.garbage import lines_about, merged_blocks
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.points import OVERWRITTEN, branch_names, locked_for, ref_names, refs_of
from odfchain.workspace.private_notes import forget_faults
from odfchain.workspace.workspace_files import WorkspaceFiles

# A lost head reference, as far as the block can be proven.
# A candidate is a stored block that no block and no other reference names, with a complete chain to the
# Seed of this dataset (blocks of branches and merges need evidence as well). That alone proves nothing: an
# interrupted transaction leaves such a block too. It is taken only if it is the single candidate and has
# evidence: the owner's signature of the head, the memory of the last pull, or a peer whose chain contains
# it; never if signature or memory name another or a later block. Otherwise the user decides.


@dataclass(frozen=True, slots=True)
class HeadCandidate:
    """A block that the head may have been, and its evidence, if any."""

    head: Multihash
    sequence_number: int
    proof: str | None = None


class _StoredBlocks:
    """Every block of a dataset that is good, by hash."""

    def __init__(self, dataset: DatasetFiles) -> None:
        self.blocks: dict[Multihash, MetadataBlock] = {}
        self.dataset_id: DatasetId | None = None
        with contextlib.suppress(errors.InvalidIdError):  # else its folder is not named by an id
            self.dataset_id = DatasetId.from_multibase(dataset.folder.name)
        store = store_of(dataset, ObjectKind.BLOCK)
        for name in store.names():
            with contextlib.suppress(errors.StoreError, errors.CodecError):
                self.blocks[name] = decode_block(store.get(name))

    def is_complete(self, head: Multihash) -> bool:
        expected: int | None = None
        for _, block in descend([head], self.blocks.get):
            if link_fault(block.sequence_number, expected, block.prev_block_hash) is not None:
                return False
            expected = block.sequence_number - 1
            if block.prev_block_hash is None:
                return isinstance(block.event, Seed) and block.event.dataset_id == self.dataset_id
        return False


def candidates(workspace: WorkspaceFiles, dataset: DatasetFiles, peer: Store | None) -> list[HeadCandidate]:
    """Candidates for the lost head, the newest block first; with their evidence."""
    stored = _StoredBlocks(dataset)
    if stored.dataset_id is None:
        return []
    given_up = [ref for ref in ref_names(dataset) if ref != HEAD and not is_branch_name(ref)]
    named = {block.prev_block_hash for block in stored.blocks.values()} | _heads(dataset, given_up)
    tips = [name for name in stored.blocks if name not in named and stored.is_complete(name)]
    elsewhere = _on_branches(dataset, stored)
    signed, seen = signed_last(dataset, stored.dataset_id), None
    with contextlib.suppress(errors.StoreError):
        seen = SeenHeads(workspace.root / "seen").get(stored.dataset_id)
    spoken_for = [said for said in (signed, seen) if said is not None]
    tips += {said.head for said in spoken_for if said.head in elsewhere} - {*tips}

    def proof(name: Multihash, number: int) -> str | None:
        if signed is not None and signed.head == name:
            return "the owner has signed it as the head"
        if any(said.sequence_number >= number and said.head != name for said in spoken_for):
            return None  # an owner who went on from here would sign a second history
        if seen is not None and seen.head == name:
            return "it is the block that was last pulled or pushed"
        if peer is not None and _contains(peer, stored, name, number):
            return f"the chain of {peer.where} contains it"
        return None

    numbers = {name: stored.blocks[name].sequence_number for name in tips}
    heads = [HeadCandidate(name, number, proof(name, number)) for name, number in numbers.items()]
    heads = [head for head in heads if head.proof is not None or head.head not in elsewhere]
    return sorted(heads, key=lambda c: (-c.sequence_number, str(c.head)))


def by_name(dataset: DatasetFiles, ref: str) -> Multihash | None:
    """The only stored block whose hash begins as the name of its reference says."""
    digits = ref.removeprefix(OVERWRITTEN)
    named = [n for n in store_of(dataset, ObjectKind.BLOCK).names() if n.digest.hex().startswith(digits)]
    return named[0] if len(named) == 1 and digits else None


def signed_tip(dataset: DatasetFiles, branch: str) -> Multihash | None:
    """The block that the owner has signed last as a branch's newest, if its chain is here."""
    stored = _StoredBlocks(dataset)
    try:
        signer, signed = read_branch((read_head_signature(dataset.folder, branch) or b"")[:-1])
    except (errors.SignatureError, errors.StoreError):
        return None
    if signed.ref != branch or not signer == signed.dataset_id == stored.dataset_id:
        return None
    return signed.head if stored.is_complete(signed.head) else None


def _on_branches(dataset: DatasetFiles, stored: _StoredBlocks) -> set[Multihash]:
    found = {name for block in stored.blocks.values() for name in merged_blocks(dataset, block)}
    heads = _heads(dataset, branch_names(dataset))
    for name, _ in descend(heads, stored.blocks.get, found.__contains__):  # what is below was found before
        found.add(name)
    return found


def _heads(dataset: DatasetFiles, names: list[str]) -> set[Multihash | None]:
    heads: set[Multihash | None] = set()
    for name in names:
        with contextlib.suppress(errors.StoreError):
            heads.add(refs_of(dataset).get(name))
    return heads


def _contains(peer: Store, stored: _StoredBlocks, name: Multihash, number: int) -> bool:
    try:
        current, at = peer.head(), None
        while current is not None and current != name:
            block = stored.blocks.get(current)
            # only blocks that are not here are requested
            if block is None:
                block = decode_block(peer.block(current))
            if block.sequence_number <= number or (at is not None and block.sequence_number != at - 1):
                return False
            at, current = block.sequence_number, block.prev_block_hash
    except errors.OdfchainError:
        return False
    return current == name


_NAME_A_COPY = "name a copy that has it: --from URL (of a workspace: file://COPY/.odfchain/datasets/ID)"
_KINDS = {kind: "slice" if kind is ObjectKind.DATA else kind.value.removesuffix("s") for kind in ObjectKind}


class State(Enum):
    """State of a finding."""

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
    """The origin of the good copy."""
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

    @classmethod
    def of_unopenable(cls, workspace: WorkspaceFiles) -> list[FsckReport]:
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
            except errors.OdfchainError as error:
                path = folder / "info" / "alias"
                hint = f"write the dataset's name into {path}"
                finding = Finding("dataset", str(path), str(error), State.BROKEN, hint=hint)
                reports.append(cls(folder.name, [finding]))
        return reports

    @property
    def whole(self) -> bool:
        """True if nothing is broken any more."""
        return all(finding.state is State.REPAIRED for finding in self.findings)

    def __repr__(self) -> str:
        found = "; ".join(f"{item.kind} {item.state.value}" for item in self.findings[:3])
        more = f" and {len(self.findings) - 3:,} more" if len(self.findings) > 3 else ""
        return f"<fsck of {self.dataset}: {self.objects:,} objects, {found or 'all good'}{more}>"


@dataclass
class Fsck:
    """One run over a dataset: what is damaged or missing, repaired where there is a good copy.

    A dry run changes nothing, and brings nothing from a peer. `head` is a lost one that the user knows.
    """

    workspace: WorkspaceFiles
    dataset: DatasetFiles
    peer: Store | None = None
    dry_run: bool = field(default=False, kw_only=True)
    head: Multihash | None = field(default=None, kw_only=True)
    progress: Progress = field(default=SILENT, kw_only=True)

    def __post_init__(self) -> None:
        self._resources = ExitStack()
        self._area: Path | None = None
        self._report = FsckReport(str(self.dataset.alias))
        self._blocks: dict[Multihash, MetadataBlock] = {}

    @property
    def _mended(self) -> State:
        return State.REPAIRABLE if self.dry_run else State.REPAIRED

    def run(self) -> FsckReport:
        """Everything that is damaged or missing is in the report."""
        with locked_for(self.dataset, "fsck"), self._resources:
            self._check()
        if self._report.whole and not self.dry_run:
            forget_faults(self.dataset)
        return self._report

    def _check(self) -> None:
        head = self._head()
        self.progress.phase(f"Checking the chain of {self.dataset.alias}")
        whole = head is not None and self._chain(head)
        good = {HEAD: head} if whole and head is not None else {}
        for name in ref_names(self.dataset)[1:]:
            if (other := self._other_ref(name)) is not None and self._chain(other):
                good[name] = other
        self._merged()
        self._objects()
        self._descriptions()
        for name, newest in good.items():
            self._index(self.dataset.on(name).index_path, newest)

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
        path = self.dataset.folder / "refs" / HEAD
        try:
            head = refs_of(self.dataset).get(HEAD)
            problem = "the dataset has no head"
        except errors.StoreError as error:
            head, problem = None, str(error)
        if head is not None:
            return head
        known = candidates(self.workspace, self.dataset, self.peer)
        if (chosen := self._chosen(known)) is None:
            listed = ", ".join(f"{c.head} (block {c.sequence_number:,})" for c in known[:8])
            hint = _NAME_A_COPY
            if known:
                hint += f"; or say which block it was (--head BLOCK): {listed}"
            self._find("reference", path, problem, hint=hint)
            return None
        self._set_ref(path, chosen.head, problem, chosen.proof or "as you said")
        if not self.dry_run and self.dataset.signer is not None:
            self.dataset.signer.head_moved(chosen.head, chosen.sequence_number)
        return chosen.head

    def _chosen(self, known: list[HeadCandidate]) -> HeadCandidate | None:
        if (wanted := self.head) is None:
            return known[0] if len(known) == 1 and known[0].proof is not None else None
        if not _StoredBlocks(self.dataset).is_complete(wanted):
            raise errors.UsageError(
                f"{self.dataset.alias}: the head cannot be block {wanted}: its chain down to the Seed of "
                "this dataset is not here, or is damaged"
            )
        return HeadCandidate(wanted, decode_block(self._store(ObjectKind.BLOCK).get(wanted)).sequence_number)

    def _other_ref(self, name: str) -> Multihash | None:
        path = self.dataset.folder / "refs" / name
        try:
            return refs_of(self.dataset).get(name)
        except errors.StoreError as error:
            kept = name.startswith(OVERWRITTEN)
            found = by_name(self.dataset, name) if kept else signed_tip(self.dataset, name)
            if found is None:
                self._find("reference", path, str(error), hint=f"if it is of no use any more, remove {path}")
                return None
            source = "the block that its name says"
            if not kept:
                source = "the owner has signed it as that of the branch"
            self._set_ref(path, found, str(error), source)
            return found

    def _set_ref(self, path: Path, target: Multihash, problem: str, source: str) -> None:
        self._find("reference", path, problem, self._mended, source)
        if self.dry_run:
            return
        with fsio.locked(self.dataset.folder / "info" / "lock"):
            try:
                # another process may have repaired it meanwhile
                if refs_of(self.dataset).get(path.name) is not None:
                    return
            except errors.StoreError:
                self._quarantine(path, f"refs-{path.name}")
            fsio.replace_file(path, str(target).encode())

    # --- blocks ------------------------------------------------------------------------------------

    def _chain(self, head: Multihash) -> bool:
        current: Multihash | None = head
        expected: int | None = None
        while current is not None:
            # reached from another head before
            if current in self._blocks:
                return True
            path = self.dataset.folder / "blocks" / str(current)
            if not self._object(ObjectKey(ObjectKind.BLOCK, current), None):
                return False
            try:
                block = decode_block(self._store(ObjectKind.BLOCK).get(current))
            except (errors.StoreError, errors.CodecError) as error:
                self._find("chain", path, f"its name is right, but it is no block: {error}")
                return False
            number = block.sequence_number
            if link_fault(number, expected, block.prev_block_hash) is not None:
                self._find("chain", path, f"block {number} does not fit the block after it")
                return False
            self._blocks[current] = block
            self.progress.advance()
            expected, current = number - 1, block.prev_block_hash
        return True

    def _merged(self) -> None:
        looked_at: set[Multihash] = set()
        while waiting := [name for name in self._blocks if name not in looked_at]:
            looked_at.update(waiting)
            for name in waiting:
                # the refs of merged branches may be deleted, so their chains are found from the records
                for merged in merged_blocks(self.dataset, self._blocks[name]):
                    self._chain(merged)

    # --- slices and checkpoints --------------------------------------------------------------------

    def _objects(self) -> None:
        wanted: dict[ObjectKey, DataObject] = {}
        for block in self._blocks.values():
            for item in objects_of(block):
                wanted.setdefault(item.key, item)
        total = sum(item.size for item in wanted.values())
        self.progress.phase(f"Checking the files of {self.dataset.alias}", total)
        partial = is_partial(self.dataset) or self.dataset.data.on_demand
        for key, item in sorted(wanted.items(), key=lambda found: found[1].sequence_number):
            if partial and not (self.dataset.folder / str(key)).is_file():
                self._report.absent += 1
                continue
            self._object(key, item.size)
            self.progress.advance(item.size)

    def _descriptions(self) -> None:
        seeds = [block.event for block in self._blocks.values() if isinstance(block.event, Seed)]
        if not seeds:
            return
        try:
            lines = lines_about(self.dataset, seeds[0].dataset_id, self._blocks)
        except errors.StoreError as error:
            self._find("lines", self.dataset.folder / SNAPSHOTS.key, str(error))
            return
        keys = key_history(self.dataset.folder, seeds[0].dataset_id)
        lines = sorted(lines, key=lambda line: line.by_owner(keys))
        sizes = {key_of(line): line.size for line in lines}
        for key, size in sizes.items():
            # missing ones are fetched on demand
            if self._store(key.kind).contains(key.name):
                self._object(key, size)

    def _object(self, key: ObjectKey, size: int | None) -> bool:
        path = self.dataset.folder / str(key)
        self._report.objects += 1
        # what has the right hash is good, at any size that was signed
        if (problem := _problem(path, key, None if key.kind.describes else size)) is None:
            self._report.bytes += path.stat().st_size
            return True
        kind = _KINDS[key.kind]
        # only local copies: a dry run makes no requests
        if self.dry_run:
            copy = self._copy_here(key)
            state, source = (State.REPAIRABLE, copy[1]) if copy else (State.BROKEN, None)
            self._find(kind, path, problem, state, source)
            return False
        if self._area is None:
            self._area = self._resources.enter_context(self.dataset.staging())
        if (brought := self._bring(key, size, self._area)) is None:
            more = ", or remove the file: it can be made again" if key.kind.describes else ""
            self._find(kind, path, problem, hint=_NAME_A_COPY + more)
            return False
        self._quarantine(path, f"{key.kind.value}-{key.name}")
        self._store(key.kind).put_file(brought[0], key.name)
        self._find(kind, path, problem, State.REPAIRED, brought[1])
        return True

    def _quarantine(self, path: Path, name: str) -> None:
        if not path.exists():
            return
        folder = self.dataset.folder / "info" / "quarantine"
        fsio.make_folder(folder)
        for number in count(1):
            target = folder / (name if number == 1 else f"{name}.{number}")
            if not path.is_file():
                if not os.path.lexists(target):
                    fsio.move_folder(path, target)
                    return
                continue
            with fsio.storage_errors(target), contextlib.suppress(FileExistsError):
                os.link(path, target)  # which keeps the file's bytes in place until they are replaced
                fsio.sync_folder(folder)
                return

    def _store(self, kind: ObjectKind) -> LocalObjectStore:
        return store_of(self.dataset, kind)

    # --- good copies: in this workspace, and at any peer; each is hashed, so no peer needs to be trusted ---

    def _copy_here(self, key: ObjectKey) -> tuple[Path, str] | None:
        # a good one in this workspace, and where it was found
        for path, where in self._places(key):
            try:
                if path.is_file() and not path.is_symlink() and hash_file(path)[0] == key.name:
                    return path, where
            except OSError:
                continue
        return None

    def _places(self, key: ObjectKey) -> Iterator[tuple[Path, str]]:
        for name in (f"{key.kind.value}/{key.name}", f"objects/{key.kind.value}-{key.name}"):
            yield incoming_folder(self.dataset) / name, "an interrupted pull"
        for other in self.workspace.datasets():
            if other.folder != self.dataset.folder:
                yield other.folder / str(key), f"dataset {other.alias}"

    def _bring(self, key: ObjectKey, size: int | None, folder: Path) -> tuple[Path, str] | None:
        # a good copy in the folder, and its origin; the size of a block is not known
        target = folder / uuid.uuid4().hex
        copy = self._copy_here(key)
        with fsio.storage_errors(target):
            if copy is not None:
                shutil.copyfile(copy[0], target)
                if hash_file(target)[0] == key.name:
                    return target, copy[1]
            if self.peer is not None and self._fetch(self.peer, key, size, target):
                return target, self.peer.where
        fsio.remove_quietly(target)
        return None

    def _fetch(self, peer: Store, key: ObjectKey, size: int | None, target: Path) -> bool:
        fsio.remove_quietly(target)
        try:
            if size is None:
                target.write_bytes(peer.block(key.name))
            else:
                peer.fetch(key, size, target, SILENT)
            return hash_file(target)[0] == key.name
        except errors.CorruptedPeerError as error:  # of this object; others may be good
            self._report.notes.append(str(error))
        except errors.TransferError as error:
            self._report.notes.append(str(error))
            self.peer = None  # it is gone: not asked a thousand times more
        return False

    # --- the index ---------------------------------------------------------------------------------

    def _index(self, path: Path, head: Multihash) -> None:
        if not path.is_file():
            return
        fresh = MemoryScratch()
        index = ChainIndex(fresh, self._links)
        block = self._blocks[head]
        index.sync(Link.of(head, block))
        if not _is_damaged(LocalScratch(path), fresh, block.sequence_number + 1):
            return
        if not self.dry_run:
            # it is rebuilt on the next use
            fsio.remove_file(path)
        self._find("index", path, "the index is not that of the chain", self._mended, "the chain")

    def _links(self, head: Multihash) -> Iterator[Link]:
        return (Link.of(*found) for found in descend([head], self._blocks.get))


def _is_damaged(present: LocalScratch, fresh: MemoryScratch, count: int) -> bool:
    stored, made = ChainIndex(present, _no_links), ChainIndex(fresh, _no_links)
    for number in range(count):
        if not present.read(number * ROW_BYTES, 1):
            return False  # it ends here: newer blocks are added when it is used
        # rows beyond `count` are left over from a reset, and are overwritten on use
        row, right = stored.row(number), made.row(number)
        if row is None:
            return True
        if row != right:
            return right is not None and row.hash == right.hash
    return False


def _no_links(_: Multihash) -> Iterator[Link]:
    return iter(())


def _problem(path: Path, key: ObjectKey, size: int | None) -> str | None:
    try:
        # stat follows links: a link to an intact file is intact
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
