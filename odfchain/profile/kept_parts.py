"""What profiles found of slices, kept: private, disposable, and never believed without its checksum.

A file of `info/profile-parts` has the name of its slice, and is a digest followed by the bytes that it is of.
A slice never changes, so what was found of it is never wrong, only of another version, or damaged: then it
is found again. Source: RFC-040.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from odfchain.digest.sha3 import sha3_256
from odfchain.errors import StoreError
from odfchain.ids.multihash import Multihash
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio

_MOST_BYTES = 256 * 1024 * 1024
"""A kept part of this size is not one of ours."""
_DIGEST_BYTES = 32


def parts_folder(dataset: DatasetFiles) -> Path:
    """Where parts are kept."""
    return dataset.folder / "info" / "profile-parts"


def kept_part(dataset: DatasetFiles, name: Multihash) -> bytes | None:
    """What was kept of a slice, as it was written; None where there is nothing."""
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
    """Nothing is kept of a slice, which was not committed."""
    with contextlib.suppress(OSError):
        _path(dataset, name).unlink(missing_ok=True)


def _path(dataset: DatasetFiles, name: Multihash) -> Path:
    return parts_folder(dataset) / f"{name}.arrow"
