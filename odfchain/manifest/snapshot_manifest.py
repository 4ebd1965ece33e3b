"""The manifest of a snapshot: the files and facts that a dataset consists of at a block, as one JSON text.

A snapshot is the state of a dataset at a block: its id is the block's hash, its parent the block before. The
document has the form of Lode's manifest; what only ODF knows stands under `odf`, which Lode's readers pass
over. It is made from the chain and from footers alone, so anybody makes the same bytes, for every block, at
any time. Source: RFC-039.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import types as t

from odfchain.codec.document_bytes import canonical_bytes
from odfchain.errors import CodecError, UnsupportedVersionError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import AddData
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_state import DatasetState, SliceRef
from odfchain.slices.footers import FileStats
from odfchain.text import one_line

SCHEMA_NAME, FORMAT_VERSION = "lode-manifest", "1.0.0"
MOST_BYTES = 64 * 1024 * 1024
_DAY = 86_400 * 10**9

StatsOf = Callable[[SliceRef], FileStats]


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A slice as a manifest names it."""

    ref: SliceRef
    stats: FileStats

    def to_document(self) -> dict[str, Any]:
        """The file as the manifest has it; its path is relative to the dataset."""
        piece, offsets = self.ref.slice, self.ref.slice.offset_interval
        return {
            "path": f"data/{piece.physical_hash}",
            "size_bytes": piece.size,
            "checksum": piece.physical_hash.digest.hex(),
            "stats": self.stats.to_document(),
            "odf": {
                "logical_hash": str(piece.logical_hash),
                "offsets": [offsets.start, offsets.end],
                "sequence_number": self.ref.sequence_number,
            },
        }


def manifest_document(state: DatasetState, stats_of: StatsOf) -> dict[str, Any]:
    """The manifest of the snapshot at a state's block.

    Raises:
        Whatever `stats_of` raises for a slice that is not here.
    """
    block = state.head_block
    files = [ManifestFile(ref, stats_of(ref)) for ref in state.slices()]
    names = state.vocabulary
    document: dict[str, Any] = {
        "schema_name": SCHEMA_NAME,
        "format_version": FORMAT_VERSION,
        "dataset_id": str(state.seed.dataset_id),
        "snapshot_id": str(state.head),
        "created_at": str(block.system_time),
        "metadata": _metadata(block.event),
        "codec": "parquet",
        "compressor": "noop",
        "partitioner": "noop",
        "checksum_algorithm": "sha3-256",
        "row_count": state.record_count,
        **times_of([file.stats for file in files], names.event_time_column),
        "files": [file.to_document() for file in files],
        "odf": {
            "sequence_number": block.sequence_number,
            "event": block.event.KIND,
            "watermark": None if state.watermark is None else str(state.watermark),
            "columns": {
                "offset": names.offset_column,
                "operation": names.operation_type_column,
                "system_time": names.system_time_column,
                "event_time": names.event_time_column,
            },
        },
    }
    if block.prev_block_hash is not None:
        document["parent_snapshot_id"] = str(block.prev_block_hash)
    return document


def _metadata(event: object) -> Mapping[str, Any]:
    extra = event.extra if isinstance(event, AddData) else None
    return dict(extra.entries) if extra is not None else {}


def times_of(stats: Sequence[FileStats], column: str) -> dict[str, str]:
    """The earliest and the latest event time; nothing unless every file reports both."""
    lows, highs = [], []
    for each in stats:
        found = each.column(column)
        if found is None or not isinstance(found.low, int) or not isinstance(found.high, int):
            return {}
        unit = _DAY if t.is_date(found.type) else 1
        lows.append(found.low * unit)
        highs.append(found.high * unit)
    if not lows:
        return {}
    return {"min_timestamp": str(Timestamp(min(lows))), "max_timestamp": str(Timestamp(max(highs)))}


def manifest_bytes(document: Mapping[str, Any]) -> bytes:
    """The one text of a manifest.

    Raises:
        CodecError: it is larger than manifests may be.
    """
    data = canonical_bytes(document)
    _check_size(data)
    return data


def _check_size(data: bytes) -> None:
    if len(data) > MOST_BYTES:
        raise CodecError(
            f"a manifest of {len(data):,} bytes, at most {MOST_BYTES:,} are written and read",
            hint="`odfchain compact` makes fewer, larger slices",
        )


def read_manifest(data: bytes) -> dict[str, Any]:
    """The document of a manifest's bytes.

    Raises:
        CodecError: it is none, or too large.
        UnsupportedVersionError: it has another format version.
    """
    _check_size(data)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a manifest: {one_line(str(error))}") from None
    if not isinstance(tree, dict) or tree.get("schema_name") != SCHEMA_NAME:
        raise CodecError(f"not a manifest: its schema_name is not {SCHEMA_NAME}")
    if tree.get("format_version") != FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"a manifest of format {one_line(str(tree.get('format_version')))}, {FORMAT_VERSION} is read"
        )
    return tree


def files_of(document: Mapping[str, Any]) -> dict[Multihash, Mapping[str, Any]]:
    """The files of a manifest by the hash that they are stored under.

    Raises:
        CodecError: a file's path and checksum are not those of one object.
    """
    found = {}
    try:
        for each in document["files"]:
            name = Multihash.sha3_256(bytes.fromhex(each["checksum"]))
            if each["path"] != f"data/{name}":
                raise CodecError(f"the manifest names {one_line(str(each['path']))} with another checksum")
            found[name] = each
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a manifest: {one_line(str(error))}") from None
    return found
