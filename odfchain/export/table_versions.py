"""What a version of a table is made of, and what goes wrong in the libraries of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from odfchain.errors import OdfchainError, StoreError
from odfchain.ids.multihash import Multihash
from odfchain.model.metadata_block import MetadataBlock
from odfchain.slices.footers import FileStats
from odfchain.text import first_line

_LIBRARIES = ("deltalake", "_internal", "pyiceberg", "sqlalchemy", "sqlite3")
_PLAIN = (Exception, ValueError, RuntimeError)
"""What the libraries raise besides errors of their own; other kinds are faults of ours."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """What a block makes of a table: its columns, and the data file that is added or replaces all others."""

    hash: Multihash
    block: MetadataBlock
    columns: pa.Schema
    name: str
    """Of the file in the table's folder `data`."""
    source: Path
    """Where its content is."""
    stats: FileStats

    @property
    def facts(self) -> Mapping[str, str]:
        """What the version says of itself."""
        return {
            "odf.blockHash": str(self.hash),
            "odf.sequenceNumber": str(self.block.sequence_number),
            "odf.systemTime": str(self.block.system_time),
        }


@contextmanager
def library_errors(place: Path) -> Iterator[None]:
    """What a format's library raises inside becomes the project's error on a folder.

    Raises:
        StoreError: the library failed.
    """
    try:
        yield
    except (OdfchainError, MemoryError):
        raise
    except Exception as error:
        known = type(error) in _PLAIN or isinstance(error, OSError)
        if not known and type(error).__module__.partition(".")[0] not in _LIBRARIES:
            raise
        raise StoreError(f"{place}: {type(error).__name__}: {first_line(error)}") from error
