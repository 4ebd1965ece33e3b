"""Cached totals of slices: private, disposable, and never used without a valid checksum.

A file of `info/profile-parts` has the name of its slice, and is a digest followed by the bytes that it is of.
A slice never changes, so what was found of it is never wrong, only of another version, or damaged: then it
is found again. Source: RFC-040.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from odfchain.errors import CodecError, StoreError
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import sha3_256
from odfchain.profiles.reader import MOST_BYTES, read_profile
from odfchain.storage import fsio
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

_MOST_BYTES = 256 * 1024 * 1024
"""A kept part of this size is not one of ours."""
_DIGEST_BYTES = 32


def parts_folder(dataset: DatasetFiles) -> Path:
    """The folder of cached totals."""
    return dataset.folder / "info" / "profile-parts"


def kept_part(dataset: DatasetFiles, name: Multihash) -> bytes | None:
    """The cached totals of a slice, as written; None where there are none."""
    data = None
    with contextlib.suppress(StoreError):
        data = fsio.read_start(_path(dataset, name), _MOST_BYTES)
    if data is None or sha3_256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        return None
    return data[_DIGEST_BYTES:]


def keep_part(dataset: DatasetFiles, name: Multihash, data: bytes) -> None:
    """Keep what was found of a slice, if it can be written: it only saves time."""
    if len(data) > _MOST_BYTES - _DIGEST_BYTES:
        return
    path = _path(dataset, name)
    with contextlib.suppress(StoreError):
        fsio.make_folder(path.parent)
        fsio.replace_file(path, sha3_256(data).digest() + data)


def drop_part(dataset: DatasetFiles, name: Multihash) -> None:
    """Remove the cached totals of a slice that was not committed."""
    with contextlib.suppress(OSError):
        _path(dataset, name).unlink(missing_ok=True)


def _path(dataset: DatasetFiles, name: Multihash) -> Path:
    return parts_folder(dataset) / f"{name}.arrow"


# Computed profiles, cached in `info/profiles` by block hash: a digest, then the profile's text.
# An entry with another format or a wrong digest is ignored. Only profiles without hidden columns are cached
# (RFC-041).

_MOST = 64
"""Profiles that are kept of a dataset; the oldest make room."""


def kept_profile(dataset: DatasetFiles, block: Multihash) -> dict[str, Any] | None:
    """The profile that was kept of a block; None where there is none."""
    data = None
    with contextlib.suppress(StoreError):
        data = fsio.read_start(_folder(dataset) / str(block), _DIGEST_BYTES + MOST_BYTES)
    if data is None or sha3_256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        return None
    with contextlib.suppress(CodecError):
        found = read_profile(data[_DIGEST_BYTES:])
        return found if found.get("snapshot_id") == str(block) else None
    return None


def keep_profile(dataset: DatasetFiles, document: Mapping[str, Any]) -> None:
    """Keep a profile, if it hides nothing and can be written: it only saves time."""
    if document["odf"]["hidden"]:
        return
    from odfchain.odf.canonical_json import canonical_bytes

    data = canonical_bytes(document)
    if len(data) > MOST_BYTES:
        return
    folder = _folder(dataset)
    with contextlib.suppress(StoreError):
        fsio.make_folder(folder)
        fsio.replace_file(folder / str(document["snapshot_id"]), sha3_256(data).digest() + data)
        _make_room(folder)


def _make_room(folder: Path) -> None:
    with contextlib.suppress(OSError):
        found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in found[:-_MOST]:
            path.unlink(missing_ok=True)


def _folder(dataset: DatasetFiles) -> Path:
    return dataset.folder / "info" / "profiles"


# For views that must not compute a profile.


def known_profile(dataset: DatasetFiles, state: DatasetState) -> dict[str, Any] | None:
    """The profile of a state that is cached or published by the owner; None where neither is here."""
    # blocks without rows have the profile of the last block with rows
    last = next(state.slices_newest_first(), None)
    for block in [state.head] if last is None else [state.head, last.block_hash]:
        if (found := kept_profile(dataset, block) or owners_profile(dataset, block)) is not None:
            return found
    return None


def owners_profile(dataset: DatasetFiles, block: Multihash) -> dict[str, Any] | None:
    """The profile that the owner signed for a block; None where it is missing or damaged."""
    from odfchain.chain.signed_lines import SnapshotKind
    from odfchain.profiles.published import object_of, published

    for line in published(dataset, SnapshotKind.PROFILE):
        if line.by_owner and line.block == block:
            with contextlib.suppress(StoreError, CodecError):
                return read_profile(object_of(dataset, line))
    return None
