"""Checksums of objects, by the draft of ADR-004: an optional column, off unless it is asked for.

A checksum is a multihash in lower-case hex. What a store reports is an observation; STAC's own
`file:checksum` is a claim and is never taken over. Source: RFC-047.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from odfchain.assets.access import Stores
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.objects import checksum_of
from odfchain.assets.stac import AssetFault
from odfchain.errors import OdfchainError
from odfchain.progress import SILENT, Progress

MD5, SHA2_256, SHA3_256 = "d50110", "1220", "1620"
"""What multihashes of these kinds begin with, in hex."""
_ALGORITHMS = {MD5: "md5", SHA2_256: "sha256", SHA3_256: "sha3_256"}
_MD5_TAG = re.compile(r'"([0-9A-Fa-f]{32})"')


class Method(Enum):
    """Where a checksum comes from."""

    METADATA = "metadata"
    """From what the store says of an object: nothing yet, obstore does not hand it out."""
    USE_ETAG = "use-etag"
    """From an entity tag that is an MD5."""
    CALCULATE_IF_NEEDED = "calculate-if-needed"
    """Of the bytes, where the entity tag is no MD5."""
    CALCULATE_ALWAYS = "calculate-always"


def of_etag(etag: str | None) -> str | None:
    """The checksum that an entity tag is: a strong one of 32 hex digits."""
    found = _MD5_TAG.fullmatch(etag or "")
    return MD5 + found[1].lower() if found else None


def algorithm_of(checksum: str) -> str | None:
    """The name that `hashlib` has for a checksum's algorithm; None: not one of ours."""
    return next((name for start, name in _ALGORITHMS.items() if checksum.startswith(start)), None)


def with_checksums(
    rows: Iterable[AssetRow],
    stores: Stores,
    method: Method,
    faults: list[AssetFault],
    progress: Progress = SILENT,
) -> list[AssetRow]:
    """These rows with checksums; one whose bytes cannot be read is left out and is a fault."""
    chosen, found = list(rows), list[AssetRow]()
    progress.phase("Reading objects", len(chosen))
    for row in chosen:
        checksum = None
        if method in (Method.USE_ETAG, Method.CALCULATE_IF_NEEDED):
            checksum = of_etag(row.facts.etag)
        try:
            if method is Method.CALCULATE_ALWAYS or (
                method is Method.CALCULATE_IF_NEEDED and checksum is None
            ):
                checksum = SHA2_256 + checksum_of(row.location, stores, "sha256", etag=row.facts.strong_etag)
            found.append(replace(row, facts=replace(row.facts, file_checksum=checksum)))
        except OdfchainError as error:
            faults.append(AssetFault(row.item_id, row.asset_key, error))
        progress.advance()
    return found
