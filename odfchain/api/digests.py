"""The two hashes of a Parquet file; no workspace is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from odfchain.digest.physical import hash_file
from odfchain.errors import OdfchainError, UsageError
from odfchain.ids.multihash import Multihash


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file hashes to; without a logical hash and a number of records where `problem` says why."""

    physical: Multihash
    size: int
    """[bytes]"""
    logical: Multihash | None = None
    records: int | None = None
    problem: OdfchainError | None = None


def digest_file(path: Path) -> FileDigest:
    """The hashes of a file, which need not be Parquet to have the physical one.

    Raises:
        UsageError: it cannot be read.
    """
    from odfchain.slices.hashes import hash_parquet

    try:
        physical, size = hash_file(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        logical, records = hash_parquet(path)
    except OdfchainError as error:
        return FileDigest(physical, size, problem=error)
    return FileDigest(physical, size, logical, records)
