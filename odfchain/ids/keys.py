"""The ed25519 key pair behind a dataset's identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.errors import InvalidIdError
from odfchain.ids.did import DatasetId

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True, repr=False)
class DatasetKey:
    """A private key; never printed, never part of anything that is shared.

    `cryptography` is loaded on use: most commands never touch a key.
    """

    _private: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> DatasetKey:
        """A new key pair from the operating system's randomness."""
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

        return cls(ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> DatasetKey:
        """Load an unencrypted PKCS#8 PEM.

        Raises:
            InvalidIdError: not a PEM, or not an ed25519 key.
        """
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InvalidIdError("the key file is not an unencrypted PKCS#8 PEM") from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise InvalidIdError("the key file does not hold an ed25519 key")
        return cls(key)

    def to_pem(self) -> bytes:
        """Unencrypted PKCS#8 PEM, for a file with mode 0600."""
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        return self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    @property
    def dataset_id(self) -> DatasetId:
        """The identity this key pair gives (specification "Unique Identifiers")."""
        return DatasetId(self._private.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """A 64-byte ed25519 signature of `message`."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"DatasetKey(<private key of {self.dataset_id}>)"
