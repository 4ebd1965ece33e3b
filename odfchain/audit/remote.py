"""Verifying a dataset elsewhere, without making it a dataset here.

A private folder is filled with whatever the peer gives, and verified as it is. What the peer does not give,
or gives wrong, does not stop the rest; the peer's own words are in the fault, and every fault names the
object at the peer. Nothing of it stays.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from odfchain.audit.checks import PHYSICAL, PRESENT
from odfchain.audit.report import Fault, Report
from odfchain.codec.blocks import decode_block
from odfchain.errors import CodecError, CorruptedPeerError, OdfchainError, StorageFullError, TransferError
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.limits import LIMITS
from odfchain.manifest.published_objects import published
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio
from odfchain.text import one_line
from odfchain.transfer.peer import Peer
from odfchain.transfer.public_layout import HEAD_KEY, ObjectKey, ObjectKind
from odfchain.transfer.slice_files import DataObject, objects_of
from odfchain.trust.offered import read_offer
from odfchain.trust.parties import SignedFile
from odfchain.trust.signature_policy import SignaturePolicy
from odfchain.trust.snapshot_lines import SnapshotKind

_STATEMENTS = {
    SignedFile.AUDITS: "the attestations of auditors",
    SignedFile.SNAPSHOTS: "the signed lines about snapshots",
}


@dataclass(slots=True)
class RemoteCopy:
    """What could be had of a dataset, and what the peer said of the rest, by the key of the object."""

    dataset: DatasetFiles
    where: str
    wrong: dict[str, str] = field(default_factory=dict)
    """Objects that are not there or not what they should be."""
    unreached: dict[str, str] = field(default_factory=dict)
    """Objects that could not be asked for: that proves nothing."""
    unsigned: str | None = None
    """Why it is not known whether the head is signed."""
    notes: list[str] = field(default_factory=list)

    def relate(self, report: Report) -> None:
        """Let a report of the copy speak of the peer: places are keys there, reasons are the peer's words."""
        faults: list[Fault] = []
        for fault in report.faults:
            key = self._key(fault.file)
            if key in self.unreached:
                report.leave_out(self.unreached[key], fault.sequence_number, check=fault.check)
                continue
            message = self.wrong.get(key, self._text(fault.message))
            check = PHYSICAL if fault.check == PRESENT and "hashes to" in message else fault.check
            faults.append(replace(fault, file=f"{self.where}{key}", message=message, check=check))
        report.faults = faults
        report.notes = [self._text(note) for note in report.notes] + self.notes

    def _key(self, file: str) -> str:
        path = Path(file)
        folder = self.dataset.folder
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else file

    def _text(self, text: str) -> str:
        return text.replace(f"{self.dataset.folder}/", self.where)


@contextmanager
def remote_copy(
    peer: Peer,
    alias: DatasetAlias,
    base: Path,
    progress: Progress,
    *,
    parallel: int = 10,
    require_signature: bool = False,
    profiles: bool = False,
) -> Iterator[RemoteCopy]:
    """A copy of whatever a peer gives of a dataset, in a private folder that is gone afterwards.

    Published documents are no part of it, but for `profiles`, whose words are needed to compute them again.
    With `require_signature` a missing signature is asked for twice: its owner may just be publishing.
    """
    fsio.make_folder(base)
    with fsio.private_folder(base) as private:
        folder = private / "dataset"
        DatasetFiles.create_folders(folder, alias)
        copy = RemoteCopy(DatasetFiles.open(folder), peer.where)
        head = _receive_head(peer, copy, folder, SignaturePolicy(require=require_signature))
        objects = _receive_chain(peer, copy, folder, head, progress)
        total = sum(item.size for item in objects)
        _check_space(folder, total, peer.where)
        progress.phase(f"Receiving {len(objects):,} objects", total)
        with ThreadPoolExecutor(parallel, thread_name_prefix="objects") as pool:
            for _ in pool.map(lambda item: _receive(peer, copy, item.key, item.size, progress), objects):
                pass
        if profiles:
            _receive_profiles(peer, copy, progress)
        yield copy


def _receive_head(peer: Peer, copy: RemoteCopy, folder: Path, policy: SignaturePolicy) -> Multihash | None:
    """The head, its signature, and what auditors say; None where there is no head to go on from."""
    try:
        offer = read_offer(peer, policy)
    except CorruptedPeerError as error:
        copy.wrong[HEAD_KEY] = error.message
        return None
    if offer is None:
        return None
    fsio.create_file(folder / HEAD_KEY, str(offer.head).encode("ascii"))
    if offer.unread is not None:
        copy.unsigned = f"the signature of the head cannot be read: {offer.unread}"
    if offer.content is not None:
        fsio.create_file(folder / SignedFile.HEAD.value, offer.content)
    for file, what in _STATEMENTS.items():
        try:
            content = peer.signed(file)
        except TransferError as error:
            copy.notes.append(f"{what} cannot be read: {one_line(error.message, 800)}")
            continue
        if content is not None:
            target = folder / file.value
            fsio.make_folder(target.parent)
            fsio.create_file(target, content)
    return offer.head


def _receive_profiles(peer: Peer, copy: RemoteCopy, progress: Progress) -> None:
    try:
        lines = published(copy.dataset, SnapshotKind.PROFILE)
    except OdfchainError:
        return  # the chain, or the file of lines: verification says so
    sizes = {line.object: line.size for line in lines}
    folder = copy.dataset.folder
    _check_space(folder, sum(sizes.values()), peer.where)
    fsio.make_folder(folder / ObjectKind.PROFILE.value)
    for name, size in sizes.items():
        _receive(peer, copy, ObjectKey(ObjectKind.PROFILE, name), size, progress)


def _receive_chain(
    peer: Peer, copy: RemoteCopy, folder: Path, head: Multihash | None, progress: Progress
) -> list[DataObject]:
    """The blocks; returns the objects that they name, each once."""
    progress.phase("Receiving blocks")
    objects: dict[tuple[ObjectKey, int], DataObject] = {}
    current: Multihash | None = head
    for _ in range(LIMITS.chain_blocks):
        if current is None:
            break
        key = ObjectKey(ObjectKind.BLOCK, current)
        try:
            data = peer.block(current)
        except CorruptedPeerError as error:
            copy.wrong[str(key)] = error.message
            break
        except TransferError as error:
            copy.unreached[str(key)] = error.message
            break
        fsio.create_file(folder / str(key), data)
        progress.advance()
        try:
            block = decode_block(data)
        except CodecError:
            break  # verification says so
        for item in objects_of(block):
            objects.setdefault((item.key, item.size), item)
        current = block.prev_block_hash
    return list(objects.values())


def _check_space(folder: Path, total: int, where: str) -> None:
    """Sizes are a peer's words: what cannot fit is refused before any of it fills the disk."""
    with fsio.storage_errors(folder):
        free = shutil.disk_usage(folder).free
    if total > free:
        raise StorageFullError(
            f"{folder}: {total:,} bytes of objects of {where} do not fit into the {free:,} that are free",
            hint="make room, or pull a part of it (--last, --metadata-only) and verify that",
        )


def _receive(peer: Peer, copy: RemoteCopy, key: ObjectKey, size: int, progress: Progress) -> None:
    target = copy.dataset.folder / str(key)
    try:
        peer.fetch(key, size, target, progress)
    except CorruptedPeerError as error:
        copy.wrong[str(key)] = error.message
    except TransferError as error:
        copy.unreached[str(key)] = error.message
