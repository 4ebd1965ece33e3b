"""Definitions of datasets in manifests (YAML or JSON), and the order in which they are made."""

from pathlib import Path

from odfchain.codec.yaml_manifest import read_snapshots
from odfchain.errors import ManifestError
from odfchain.limits import LIMITS
from odfchain.repo.creation import in_creation_order

__all__ = ["in_creation_order", "read_manifest", "read_snapshots"]


def read_manifest(path: Path) -> bytes:
    """A manifest's bytes; one more than it may have says that it is too long.

    Raises:
        ManifestError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(LIMITS.manifest_bytes + 1)
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror}", source=str(path)) from None
