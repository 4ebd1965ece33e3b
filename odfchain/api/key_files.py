"""Files with the private keys of auditors."""

from __future__ import annotations

from pathlib import Path

from odfchain.ids.did import DatasetId
from odfchain.trust import signing_keys


def create_key(file: Path) -> DatasetId:
    """Make a new ed25519 key in a file that only its owner may read; returns its public identity.

    Raises:
        StoreError: there is a file of this name, or it cannot be written.
    """
    return signing_keys.create_key_file(file).dataset_id


def identity_in(file: Path) -> DatasetId:
    """The public identity of the key in a file.

    Raises:
        SignatureError, StoreError: it is no such file, or it cannot be read.
    """
    return signing_keys.read_key_file(file).dataset_id
