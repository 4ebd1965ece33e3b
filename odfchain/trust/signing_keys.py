"""Who signs: identifiers that are ed25519 public keys, and files with the private halves.

Some 32 bytes are no one's key. Under a point of small order a signature can be found that fits many messages,
without any private key; and a point that is written in two ways is two signers in one. Such keys are refused
before anything is checked with them (RFC 8032, section 5.1.3; Chalkias, Garillot and Nikolaenko, "Taming the
Many EdDSAs", 2020).
"""

from __future__ import annotations

import functools
from pathlib import Path

from odfchain.errors import InvalidIdError, SignatureError, StoreError, WorkspaceError
from odfchain.ids.did import DID_KEY_PREFIX, DID_ODF_PREFIX, ED25519_KEY_BYTES, DatasetId, DidKey
from odfchain.ids.keys import DatasetKey
from odfchain.limits import ATTEST
from odfchain.store import fsio
from odfchain.trust.files import read_regular
from odfchain.trust.problems import Problem

Did = DatasetId | DidKey
"""The public key of a signer, as it is written: a dataset's, or a person's or program's."""

_P = 2**255 - 19
"""The prime of the field (RFC 8032, section 5.1)."""

_Y_OF_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER_Y = frozenset({0, 1, _P - 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8})
"""The y of the eight points whose eightfold is the neutral element; with both signs of x."""


def check_public_key(key: bytes) -> None:
    """The bytes are a public key by their form: 32, in the one canonical encoding, and not of small order.

    Raises:
        SignatureError: they are not.
    """
    if len(key) != ED25519_KEY_BYTES:
        raise SignatureError(Problem.WEAK_KEY, f"an ed25519 public key of {len(key)} bytes")
    y = int.from_bytes(key, "little") & ~(1 << 255)
    if y >= _P:
        raise SignatureError(
            Problem.WEAK_KEY, "the signer's public key is not in canonical form: nobody's key is written so"
        )
    if y in _SMALL_ORDER_Y:
        raise SignatureError(
            Problem.WEAK_KEY, "the signer's public key is a point of small order: anyone can sign for it"
        )


def verify_signature(key: bytes, signature: bytes, signed: bytes) -> None:
    """The signature of a text was made with the private half of a key that `check_public_key` has passed.

    Raises:
        SignatureError: it was not.
    """
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - only who signs or verifies loads it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        raise SignatureError(
            Problem.NOT_VERIFIED,
            "the signature was not made by the signer that it names, or for another text",
        ) from None


@functools.lru_cache(maxsize=256)
def parse_did(text: str) -> Did:
    """The signer that a DID names, `did:odf:…` or `did:key:…`, in the spelling that is printed.

    Raises:
        InvalidIdError: another method, another spelling, or malformed.
    """
    did: Did
    if text.startswith(DID_ODF_PREFIX):
        did = DatasetId.parse(text)
    elif text.startswith(DID_KEY_PREFIX):
        did = DidKey.parse(text)
    else:
        raise InvalidIdError(f"{text[:80]!r} is neither a did:odf nor a did:key")
    if str(did) != text:
        raise InvalidIdError(f"{text!r} is another spelling of {did}")
    return did


def create_key_file(path: Path) -> DatasetKey:
    """A new key pair, whose private half is in a new file that only its owner may read.

    Raises:
        StoreError: the file exists already (it is left alone), or cannot be written.
    """
    key = DatasetKey.generate()
    if not fsio.create_file(path, key.to_pem(), mode=0o600):
        raise StoreError(
            f"{path}: the file exists already", hint="choose another name; keys are not replaced"
        )
    return key


def read_key_file(path: Path) -> DatasetKey:
    """The private key in a file that only its owner may read.

    Raises:
        StoreError: it cannot be read.
        WorkspaceError: others may read it.
        InvalidIdError: it is not an unencrypted PKCS#8 PEM of an ed25519 key.
    """
    found = read_regular(path, ATTEST.key_file_bytes, follow=True)
    if found is None:
        raise StoreError(f"{path}: there is no such file", hint="make a key with `odfchain key create`")
    pem, mode = found
    if mode & 0o077:
        raise WorkspaceError(
            f"{path}: mode {mode:04o} lets others read a private key", hint=f"chmod 600 {path}"
        )
    if len(pem) > ATTEST.key_file_bytes:
        raise InvalidIdError(f"{path}: more than {ATTEST.key_file_bytes} bytes are not a private key")
    try:
        return DatasetKey.from_pem(pem)
    except InvalidIdError as error:
        raise InvalidIdError(f"{path}: {error}") from None
