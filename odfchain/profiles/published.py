"""Manifests and profiles that were published: which there are, by whom; what they say; publishing one.

A document is an object of the dataset, named by its hash, and what is published is a signed line that names
it (`attestations/snapshots.jws`). The object is stored before the line. Source: RFC-042.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from odfchain.chain.signed_lines import SNAPSHOTS, SnapshotKind, SnapshotLine, sign_snapshot
from odfchain.chain.statements import Did
from odfchain.errors import CodecError, ObjectCorruptedError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetKey, DidKey, Multihash
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.local import LocalObjectStore
from odfchain.text import one_line
from odfchain.versions import __version__
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

_TICK = 1_000_000
"""Least distance of a later statement [ns]: times in lines are compared."""


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """A document that was stored, and its signed line; None where no key is here to sign it."""

    kind: SnapshotKind
    object: Multihash
    size: int
    line: SnapshotLine | None

    @property
    def published(self) -> bool:
        """True if others find it."""
        return self.line is not None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.object}: {'published' if self.published else 'not published'}>"


def published(dataset: DatasetFiles, kind: SnapshotKind | None = None) -> list[SnapshotLine]:
    """Valid lines about blocks of its chain, the newest block first, of one block the owner's first."""
    head, content = dataset.chain.head(), SNAPSHOTS.content(dataset.folder)
    if head is None or content is None:
        return []
    lines = SNAPSHOTS.valid(content, dataset.id, SNAPSHOTS.of_chain(dataset.chain.by_number(head)))
    found = [line.statement for line in lines if line.statement is not None]
    return sorted(
        (line for line in found if kind is None or line.kind is kind),
        key=lambda line: (-line.sequence_number, not line.by_owner),
    )


def store_of_kind(dataset: DatasetFiles, kind: SnapshotKind) -> LocalObjectStore:
    """The folder of a dataset's manifests, or profiles."""
    return dataset.manifests if kind is SnapshotKind.MANIFEST else dataset.profiles


def object_of(dataset: DatasetFiles, line: SnapshotLine) -> bytes:
    """The document that a line names, from here; it has the line's size and hashes to its name.

    Raises:
        ObjectCorruptedError: what is here is not it.
    """
    store = store_of_kind(dataset, line.kind)
    data = store.read(line.object, line.size, f"this {line.kind}")
    if len(data) != line.size:
        raise ObjectCorruptedError(
            f"{store.locate(line.object)}: {len(data):,} bytes, and {line.signer} signed {line.size:,}"
        )
    return data


def signed_manifest(dataset: DatasetFiles, line: SnapshotLine, data: bytes) -> dict[str, Any]:
    """The manifest that a line names, which is that of the line's dataset and block.

    Raises:
        CodecError, UnsupportedVersionError: it is no manifest, or of something else.
    """
    from odfchain.profiles.manifests import read_manifest

    document = read_manifest(data)
    for name, wanted in (("dataset_id", line.dataset_id), ("snapshot_id", line.block)):
        if document.get(name) != str(wanted):
            raise CodecError(
                f"the manifest {line.object} of {dataset.alias} is not of block {line.sequence_number:,}: "
                f"its {name} is {one_line(str(document.get(name)), 120)}, not {wanted}"
            )
    return document


def publish(
    dataset: DatasetFiles,
    state: DatasetState,
    kind: SnapshotKind,
    content: bytes,
    key: DatasetKey | None = None,
) -> WrittenSnapshot:
    """Store a document of the block of `state`, and a signed statement about it.

    Without a `key` the dataset's own signs, if it is here; else nothing is published. What the same key has
    published of this block before gives way; the same object is not signed twice.

    Raises:
        CodecError: the document is too large to be published.
    """
    if len(content) > ATTEST.snapshot_bytes:
        raise CodecError(
            f"a {kind} of {len(content):,} bytes, at most {ATTEST.snapshot_bytes:,} are published",
            hint="`odfchain compact` makes fewer, larger slices",
        )
    fsio.make_folder(dataset.folder / kind.folder)
    name = store_of_kind(dataset, kind).put(content)
    if key is None and dataset.signer is not None:
        key = dataset.signer.load_key()
    if key is None:
        return WrittenSnapshot(kind, name, len(content), None)
    dataset_id = state.seed.dataset_id
    signer: Did = dataset_id if key.dataset_id == dataset_id else DidKey(key.dataset_id.public_key)
    known = SNAPSHOTS.about_block(SNAPSHOTS.content(dataset.folder), dataset_id, state.head)
    earlier = next(
        (line for line in known if line.kind is kind and line.signer.public_key == signer.public_key), None
    )
    # the same object is not signed twice
    if earlier is not None and (earlier.object, earlier.size) == (name, len(content)):
        return WrittenSnapshot(kind, name, len(content), earlier)
    now = Timestamp.now()
    if earlier is not None:
        # of two statements the later one counts, even if the clock went back
        now = max(now, Timestamp(earlier.time.epoch_ns + _TICK))
    line = SnapshotLine(
        signer=signer,
        dataset_id=dataset_id,
        block=state.head,
        sequence_number=state.head_block.sequence_number,
        kind=kind,
        object=name,
        size=len(content),
        time=now,
        tool=f"odfchain {__version__}",
    )
    SNAPSHOTS.add(dataset.folder, dataset_id, sign_snapshot(key, line), trusted=(dataset_id,))
    return WrittenSnapshot(kind, name, len(content), line)


def publish_manifest(dataset: DatasetFiles, state: DatasetState) -> WrittenSnapshot:
    """The manifest of a state's block is stored and, where the dataset's key is here, signed."""
    from odfchain.profiles.manifests import (
        manifest_bytes,
        manifest_of,
    )

    content = manifest_bytes(manifest_of(dataset, state))
    return publish(dataset, state, SnapshotKind.MANIFEST, content)
