"""Profiles that were computed, kept: private, disposable, and never believed without their checksum.

A file of `info/profiles` has the name of a block, and is a digest followed by the profile's one text. What a
block looks like never changes; a profile of another format, or one that is damaged, is as none. Only those
are kept that hide nothing and tell languages where they can. Source: RFC-041.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from odfchain.digest.sha3 import sha3_256
from odfchain.errors import CodecError, StoreError
from odfchain.ids.multihash import Multihash
from odfchain.profile.profile_reader import MOST_BYTES, read_profile
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio

_DIGEST_BYTES = 32
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
    from odfchain.codec.document_bytes import canonical_bytes  # noqa: PLC0415 - who compares only reads

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
