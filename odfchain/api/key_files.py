"""Files with the private keys of auditors."""

from __future__ import annotations

from pathlib import Path

from odfchain.ids.did import DatasetId, DidKey
from odfchain.trust import signing_keys


def create_key(file: Path) -> DatasetId:
    """Make a new ed25519 key in a file that only its owner may read; returns its public identity.

    Raises:
        StoreError: there is a file of this name, or it cannot be written.
    """
    return signing_keys.create_key_file(file).dataset_id


def signer_in(file: Path, dataset: DatasetId) -> str:
    """How the key in a file signs what is said of a dataset: as the dataset itself, or as an auditor.

    Raises:
        SignatureError, StoreError: it is no such file, or it cannot be read.
    """
    found = identity_in(file)
    return str(found if found == dataset else DidKey(found.public_key))


def identity_in(file: Path) -> DatasetId:
    """The public identity of the key in a file.

    Raises:
        SignatureError, StoreError: it is no such file, or it cannot be read.
    """
    return signing_keys.read_key_file(file).dataset_id
