"""Definitions of datasets in manifests (YAML or JSON), and the order in which they are made."""

from odfchain.codec.manifest import read_snapshots
from odfchain.repo.creation import in_creation_order

__all__ = ["in_creation_order", "read_snapshots"]
