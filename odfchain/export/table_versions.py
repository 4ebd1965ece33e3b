"""What a version of a table is made of, and what a table of any format can do with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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


class Table(Protocol):
    """A table in a folder, of whatever format."""

    def files(self) -> Sequence[str] | None:
        """Names of the data files of its newest version; None where there is no table yet."""

    def newest(self) -> str | None:
        """The block of the newest version that was exported; None where the table does not know it."""

    def append(self, columns: pa.Schema, versions: Iterable[TableVersion]) -> int:
        """Add versions in their order, and in the end have these columns; returns how many were added."""

    def replace(self, version: TableVersion) -> None:
        """Add a version that has this one's file alone."""

    def drop(self) -> None:
        """Remove the table, and leave the data files."""


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
