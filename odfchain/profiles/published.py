"""Manifests and profiles that were published or are kept here: which there are, by whom; publishing one.

A document is an object of the dataset, named by its hash, and what is published is a signed line that names
it (`attestations/snapshots.jws`). The object is stored before the line (RFC-042). What is kept in `info` is
private, disposable, and never used without a valid checksum (RFC-040).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odfchain.chain.key_statements import Scope
from odfchain.chain.signed_lines import SNAPSHOTS, SnapshotKind, SnapshotLine
from odfchain.chain.statements import Did
from odfchain.errors import CodecError, ObjectCorruptedError, StoreError
from odfchain.limits import ATTEST
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.identity import DatasetKey, DidKey, Multihash
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.times import Timestamp
from odfchain.profiles.reader import MOST_BYTES, library, read_profile
from odfchain.storage import fsio
from odfchain.storage.local import LocalObjectStore
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


def published(
    dataset: DatasetFiles, kind: SnapshotKind | None = None, *, owners: bool = False
) -> list[SnapshotLine]:
    """Valid lines about blocks of its chain, the newest block first, of one block the owner's first.

    With `owners` his alone.
    """
    head, content = dataset.chain.head(), SNAPSHOTS.content(dataset.folder)
    if head is None or content is None:
        return []
    lines = SNAPSHOTS.valid(content, dataset.id, SNAPSHOTS.of_chain(dataset.chain.by_number(head)))
    keys, found = dataset.keys_history(), [line.statement for line in lines if line.statement is not None]
    wanted = {line: line.by_owner(keys) for line in found if kind is None or line.kind is kind}
    return sorted(
        (line for line in wanted if wanted[line] or not owners),
        key=lambda line: (-line.sequence_number, not wanted[line]),
    )


def store_of_kind(dataset: DatasetFiles, kind: SnapshotKind) -> LocalObjectStore:
    """The folder of a dataset's manifests, or profiles."""
    return dataset.manifests if kind is SnapshotKind.MANIFEST else dataset.profiles


def object_of(dataset: DatasetFiles, line: SnapshotLine) -> bytes:
    """The document that a line names, from here; it has the line's size and hashes to its name."""
    store = store_of_kind(dataset, line.kind)
    data = store.read(line.object, line.size, f"this {line.kind}")
    if len(data) != line.size:
        raise ObjectCorruptedError(
            f"{store.locate(line.object)}: {len(data):,} bytes, and {line.signer} signed {line.size:,}"
        )
    return data


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
    SNAPSHOTS.add(
        dataset.folder, dataset_id, line.sign(key), trusted=dataset.keys_history().signers(Scope.SNAPSHOTS)
    )
    return WrittenSnapshot(kind, name, len(content), line)


# What is kept of slices and blocks: a digest, then the bytes that it is of. A slice never changes, so what
# was found of it is never wrong, only of another version, or damaged: then it is found again.

_DIGEST_BYTES = 32
_PART_BYTES = 256 * 1024 * 1024
"""A kept part of this size is not one of ours."""
_MOST_PROFILES = 64
"""Profiles that are kept of a dataset; the oldest make room."""


def _kept(path: Path, most: int) -> bytes | None:
    data = None
    with contextlib.suppress(StoreError):
        data = fsio.read_start(path, most)
    if data is None or sha3_256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        return None
    return data[_DIGEST_BYTES:]


def _keep(path: Path, data: bytes) -> None:
    # what cannot be written costs time only
    with contextlib.suppress(StoreError):
        fsio.make_folder(path.parent)
        fsio.replace_file(path, sha3_256(data).digest() + data)


@dataclass(frozen=True, slots=True)
class KeptParts:
    """The totals that are kept of a dataset's slices, as they were written."""

    dataset: DatasetFiles

    @property
    def folder(self) -> Path:
        """The folder of all of them."""
        return self.dataset.folder / "info" / "profile-parts"

    def _path(self, name: Multihash) -> Path:
        return self.folder / f"{name}.arrow"

    def get(self, name: Multihash) -> bytes | None:
        """Those of a slice; None where none are kept."""
        return _kept(self._path(name), _PART_BYTES)

    def keep(self, name: Multihash, data: bytes) -> None:
        """Keep what was found of a slice."""
        if len(data) <= _PART_BYTES - _DIGEST_BYTES:
            _keep(self._path(name), data)

    def drop(self, name: Multihash) -> None:
        """Remove those of a slice that was not committed."""
        with contextlib.suppress(OSError):
            self._path(name).unlink(missing_ok=True)


def kept_profile(dataset: DatasetFiles, block: Multihash) -> dict[str, Any] | None:
    """The profile that was kept of a block; None where there is none."""
    data = _kept(dataset.folder / "info" / "profiles" / str(block), _DIGEST_BYTES + MOST_BYTES)
    with contextlib.suppress(CodecError):
        found = None if data is None else read_profile(data)
        if found is not None and found.get("snapshot_id") == str(block):
            # the package that tells languages was installed since: they are told now
            return None if found["odf"]["languages"] is None and library() else found
    return None


def keep_profile(dataset: DatasetFiles, document: Mapping[str, Any]) -> None:
    """Keep a profile, unless it hides columns (RFC-041)."""
    data = canonical_bytes(document)
    if document["odf"]["hidden"] or len(data) > MOST_BYTES:
        return
    folder = dataset.folder / "info" / "profiles"
    _keep(folder / str(document["snapshot_id"]), data)
    with contextlib.suppress(OSError):
        found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in found[:-_MOST_PROFILES]:
            path.unlink(missing_ok=True)
