"""Manifests and profiles on their way: what signed lines name goes with the lines, where it is here.

A push sends objects before the head and lines after it. A pull keeps the valid lines, and brings the objects
of the newest ones; the others come when they are asked for. What cannot be had is said and stops nothing: a
line may be signed by any key, and its object may be nowhere. Source: RFC-042.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from odfchain.chain.key_statements import Scope
from odfchain.chain.signed_lines import SNAPSHOTS, SnapshotKind, SnapshotLine
from odfchain.chain.statements import Did
from odfchain.errors import AccessError, OdfchainError, StoreError, TransferError
from odfchain.limits import ATTEST
from odfchain.profiles.published import object_of, publish, published, store_of_kind
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.storage.public_layout import ObjectKey, ObjectKind, SignedFile
from odfchain.storage.store import AbsentError, Store
from odfchain.text import one_line
from odfchain.transfer.sync import Download, with_answers
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState


def key_of(line: SnapshotLine) -> ObjectKey:
    """The object that a line names."""
    return ObjectKey(ObjectKind(line.kind.folder), line.object)


def bring_newest(
    dataset: DatasetFiles, download: Download, there: bytes | None, trusted: Collection[Did]
) -> tuple[int, list[str]]:
    """The objects of the newest lines come from a peer, those of the owner and of trusted signers first.

    Returns how many have come, and the failures. `there` is the peer's file of lines.
    """
    # only objects that the peer's lines name are requested; others come on demand from other peers
    keys = {did.public_key for did in trusted}

    def is_untrusted(line: SnapshotLine) -> bool:
        return line.signer.public_key not in keys

    problems: list[str] = []
    area = download.area / "snapshots"

    def bring(line: SnapshotLine) -> int:
        try:
            _bring(dataset, download.peer, line, area, download.progress)
        except (TransferError, StoreError) as error:
            # many static hosts refuse instead of answering 404
            is_absent = isinstance(error, AccessError) or isinstance(error.__cause__, AbsentError)
            if not is_absent and not is_untrusted(line):
                problems.append(
                    f"the {line.kind} of block {line.sequence_number:,} that {line.signer} signed is not "
                    f"here: {one_line(error.message, 500)}"
                )
            return 0
        return line.size

    try:
        known = _statements(there, dataset)
        lines = sorted(published(dataset), key=is_untrusted)
        wanted = [line for line in _newest(lines) if line in known and not _is_here(dataset, line)]
        if not wanted:
            return 0, []
        fsio.make_folder(area)
        size = sum(line.size for line in wanted)
        download.progress.phase(f"Receiving {len(wanted):,} manifests and profiles", size)
        sizes = [size for _, size in with_answers(bring, wanted, download.parallel) if size]
    except StoreError as error:  # the head has moved: that must not seem to have failed
        return 0, [f"manifests and profiles were not taken: {error.message}"]
    download.bytes += sum(sizes)
    return len(sizes), sorted(problems)


def _newest(lines: Iterable[SnapshotLine]) -> Iterator[SnapshotLine]:
    seen: set[ObjectKey] = set()
    size = 0
    # one object may have several lines, by different signers
    for line in lines:
        if len(seen) == ATTEST.snapshots_pulled:
            return
        if key_of(line) in seen or size + line.size > ATTEST.snapshots_pulled_bytes:
            continue
        seen.add(key_of(line))
        size += line.size
        yield line


def _is_here(dataset: DatasetFiles, line: SnapshotLine) -> bool:
    return store_of_kind(dataset, line.kind).contains(line.object)


def _bring(dataset: DatasetFiles, peer: Store, line: SnapshotLine, area: Path, progress: Progress) -> None:
    key = key_of(line)
    target = area / f"{key.kind.value}-{key.name}"
    peer.fetch(key, line.size, target, progress)
    fsio.make_folder(dataset.folder / line.kind.folder)
    store_of_kind(dataset, line.kind).put_file(target, line.object)


def object_from(dataset: DatasetFiles, peer: Store, line: SnapshotLine) -> bytes:
    """The document that a line names, which was brought from a peer and is here from now on."""
    with dataset.staging() as folder:
        # at most the line's size is read, and the content must hash to its name
        _bring(dataset, peer, line, folder, SILENT)
    return object_of(dataset, line)


def send_objects(dataset: DatasetFiles, peer: Store, *, parallel: int) -> tuple[int, list[str]]:
    """The objects of lines that the destination does not have are there, and those of the newest lines.

    Returns how many were sent, and what could not be sent, perhaps because the destination lets only other
    folders be written. With the dataset's key the manifest of the head is published before. Of branches
    nothing is sent.
    """
    if dataset.ref != HEAD:
        return 0, []
    problems = _publish_head(dataset)
    try:
        lines = [line for line in published(dataset) if _is_here(dataset, line)]
    except StoreError as error:
        return 0, [*problems, f"no manifests and profiles were sent: {error.message}"]
    if not lines:
        return 0, problems
    content = None
    with contextlib.suppress(TransferError):  # where that is nothing that can be read, anything is better
        content = peer.signed(SignedFile.SNAPSHOTS)
    known = _statements(content, dataset)
    newest = set(_newest(lines))
    lines = list({key_of(line): line for line in lines if line not in known or line in newest}.values())

    refused: list[TransferError] = []

    def send(line: SnapshotLine) -> bool:
        try:
            if refused or peer.contains(key_of(line)):
                return False
            path = store_of_kind(dataset, line.kind).verified_path(line.object)
            peer.put(key_of(line), path, SILENT)
        except (StoreError, TransferError) as error:
            refused.extend([error] if isinstance(error, TransferError) else [])
            where = f"the {line.kind} of block {line.sequence_number:,}"
            problems.append(f"{where} was not sent: {one_line(error.message, 500)}")
            return False
        return True

    return sum(is_sent for _, is_sent in with_answers(send, lines, parallel)), sorted(problems)


def _publish_head(dataset: DatasetFiles) -> list[str]:
    from odfchain.profiles.manifests import manifest_bytes, manifest_of  # noqa: PLC0415 - needs Arrow

    if dataset.signer is None:
        return []
    try:
        key, keys = dataset.signer.load_key(), dataset.keys_history()
        if key is None or keys.name_of(key) not in keys.signers(Scope.SNAPSHOTS):
            return []
        head = dataset.chain.head()
        lines = published(dataset, SnapshotKind.MANIFEST, owners=True)
        if not any(line.block == head and _is_here(dataset, line) for line in lines):
            state = DatasetState.read(dataset.chain)
            publish(dataset, state, SnapshotKind.MANIFEST, manifest_bytes(manifest_of(dataset, state)))
    except OdfchainError as error:
        return [f"the manifest of the head was not published: {one_line(error.message, 500)}"]
    return []


def _statements(content: bytes | None, dataset: DatasetFiles) -> set[SnapshotLine]:
    lines = SNAPSHOTS.valid(content, dataset.id)
    return {line.statement for line in lines if line.statement is not None}
