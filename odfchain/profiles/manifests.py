"""The manifest of a snapshot: the files and facts that a dataset consists of at a block, as one JSON text.

A snapshot is the state of a dataset at a block: its id is the block's hash, its parent the block before. The
document has the form of Lode's manifest; what only ODF knows is under `odf`, which Lode's readers pass
over. It is made from the chain and from footers alone, so anybody makes the same bytes, for every block, at
any time. Source: RFC-039.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from odfchain.chain.signed_lines import SnapshotKind, SnapshotLine
from odfchain.errors import CodecError, InvalidIdError, OdfchainError, StoreError, UnsupportedVersionError
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.events import AddData, DatasetVocabulary, MetadataBlock
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import record_of
from odfchain.profiles.published import object_of, published
from odfchain.slices.footers import ColumnStats, FileStats, Value, leaves
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.read_slices import KeptFooters, columns_of

SCHEMA_NAME, FORMAT_VERSION = "lode-manifest", "1.0.0"
MOST_BYTES = 64 * 1024 * 1024
_DAY = 86_400 * 10**9


def file_document(ref: SliceRef, stats: FileStats) -> dict[str, Any]:
    """A slice as a manifest names it; the path is relative to the dataset."""
    piece, offsets = ref.slice, ref.slice.offset_interval
    odf = record_of(ref, "logical_hash:slice.logical_hash", "sequence_number:sequence_number")
    return {
        "path": f"data/{piece.physical_hash}",
        "size_bytes": piece.size,
        "checksum": piece.physical_hash.digest.hex(),
        "stats": stats.to_document(),
        "odf": odf | {"offsets": [offsets.start, offsets.end]},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """Facts of a chain up to a block."""

    dataset_id: DatasetId
    head: Multihash
    block: MetadataBlock
    record_count: int
    watermark: Timestamp | None
    vocabulary: DatasetVocabulary


def manifest_document(state: DatasetState, stats_of: Callable[[SliceRef], FileStats]) -> dict[str, Any]:
    """The manifest of the snapshot at a state's block."""
    facts = SnapshotFacts(
        dataset_id=state.seed.dataset_id,
        head=state.head,
        block=state.head_block,
        record_count=state.record_count,
        watermark=state.watermark,
        vocabulary=state.vocabulary,
    )
    files = [(ref, stats_of(ref)) for ref in state.slices()]
    return snapshot_document(facts, [stats for _, stats in files]) | {
        "files": [file_document(ref, stats) for ref, stats in files]
    }


def snapshot_document(facts: SnapshotFacts, stats: Sequence[FileStats]) -> dict[str, Any]:
    """The manifest of a block without its files, whose statistics these are."""
    block, names = facts.block, facts.vocabulary
    document: dict[str, Any] = {
        "schema_name": SCHEMA_NAME,
        "format_version": FORMAT_VERSION,
        **record_of(facts, "dataset_id:dataset_id", "snapshot_id:head", "created_at:block.system_time"),
        "metadata": _metadata(block.event),
        "codec": "parquet",
        "compressor": "noop",
        "partitioner": "noop",
        "checksum_algorithm": "sha3-256",
        "row_count": facts.record_count,
        **times_of(stats, names.event_time_column),
        "odf": {
            **record_of(block, "sequence_number:sequence_number", "event:event.KIND"),
            **record_of(facts, "watermark"),
            "columns": record_of(
                names,
                "offset:offset_column",
                "operation:operation_type_column",
                "system_time:system_time_column",
                "event_time:event_time_column",
            ),
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
    """The one text of a manifest."""
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
    """The files of a manifest by the hash that they are stored under."""
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


# The manifest at a block, from the local slices.


def manifest_of(dataset: DatasetFiles, state: DatasetState) -> dict[str, Any]:
    """The manifest at a state's block."""
    return described(dataset, state)[0]


def described(dataset: DatasetFiles, state: DatasetState) -> tuple[dict[str, Any], list[FileStats]]:
    """(the manifest at a state's block, the statistics of its files as they are compared)."""
    # a slice is hashed once before its footer is trusted
    kept = KeptFooters(dataset)
    stats = {ref: kept.stats(ref) for ref in state.slices()}
    return manifest_document(state, stats.__getitem__), list(stats.values())


# Statistics in a manifest back in typed form. JSON has strings for some values, so the columns' types are
# needed; a value of another type is no bound, so the file is kept, never skipped (RFC-039).

_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


def stats_of_document(file: Mapping[str, Any], schema: pa.Schema) -> FileStats:
    """The statistics of one of a manifest's files; columns that the schema has not are left out."""
    types = {name: kind for name, kind, _ in leaves(schema)}
    try:
        stats = file["stats"]
        found = [_column(each, types[each["name"]]) for each in stats["columns"] if each["name"] in types]
        return FileStats(_count(stats["row_count"]), tuple(found))
    except (KeyError, TypeError, AttributeError) as error:
        raise CodecError(f"not a manifest: its statistics are malformed ({one_line(str(error))})") from None


def _column(given: Mapping[str, Any], kind: pa.DataType) -> ColumnStats:
    low, high = (_value(given.get(name), kind) for name in ("min", "max"))
    known = low is not None and high is not None
    bounds = (low, high) if known else (None, None)
    return ColumnStats(given["name"], kind, _count(given["null_count"]), *bounds)


def _count(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise CodecError("not a manifest: a count in its statistics is not a whole number")
    return given


def _value(given: Any, kind: pa.DataType) -> Value | None:
    # None for a value that is not of the column's type
    if t.is_boolean(kind):
        return given if isinstance(given, bool) else None
    if isinstance(given, bool):
        return None
    try:
        if t.is_integer(kind):
            return int(given) if isinstance(given, int | str) else None
        if t.is_floating(kind):
            found = float(given)
            return None if math.isnan(found) else found
        return _text_value(given, kind) if isinstance(given, str) else None
    except (ValueError, TypeError, OverflowError, InvalidOperation, InvalidIdError, binascii.Error):
        return None


def _text_value(given: str, kind: pa.DataType) -> Value | None:
    if t.is_string(kind) or t.is_large_string(kind):
        return given
    if t.is_decimal(kind):
        found = Decimal(given)
        return found if found.is_finite() else None
    if t.is_date(kind):
        return (dt.date.fromisoformat(given) - dt.date(1970, 1, 1)).days
    if t.is_timestamp(kind):
        return Timestamp.parse(given).epoch_ns
    if t.is_time(kind) and (parts := _TIME.fullmatch(given)):
        hours, minutes, seconds = map(int, parts.groups()[:3])
        return (hours * 3600 + minutes * 60 + seconds) * 10**9 + int((parts[4] or "").ljust(9, "0"))
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return base64.b64decode(given, validate=True)
    return None


# Manifests that the owner signed, and the statistics in them of slices that are not here.

Bring = Callable[[SnapshotLine], bytes]
"""Brings the document that a line names from elsewhere; it hashes to its name."""


def signed_manifest(dataset: DatasetFiles, line: SnapshotLine, data: bytes) -> dict[str, Any]:
    """The manifest that a line names, which is that of the line's dataset and block."""
    document = read_manifest(data)
    for name, wanted in (("dataset_id", line.dataset_id), ("snapshot_id", line.block)):
        if document.get(name) != str(wanted):
            raise CodecError(
                f"the manifest {line.object} of {dataset.alias} is not of block {line.sequence_number:,}: "
                f"its {name} is {one_line(str(document.get(name)), 120)}, not {wanted}"
            )
    return document


@dataclass(frozen=True, slots=True)
class OwnersManifests:
    """The manifests that the owner of a dataset signed, as far as they speak of its slices at a block."""

    dataset: DatasetFiles
    state: DatasetState

    def of_block(self) -> tuple[dict[str, Any], list[FileStats]] | None:
        """(the manifest of a state's block that the owner signed, the statistics of its files).

        None where it is not here, or names other files than the chain.
        """
        schema, slices = columns_of(self.state, None), [ref.slice for ref in self.state.slices()]
        for line in published(self.dataset, SnapshotKind.MANIFEST, owners=True):
            if line.block != self.state.head:
                continue
            try:
                document = signed_manifest(self.dataset, line, object_of(self.dataset, line))
                files = files_of(document)
                found = [stats_of_document(file, schema) for file in files.values()]
            except OdfchainError:
                return None
            signed = [(name, stats.row_count) for name, stats in zip(files, found, strict=True)]
            named = [(each.physical_hash, each.offset_interval.count) for each in slices]
            return (document, found) if signed == named else None
        return None

    def trusted_stats(self, bring: Bring) -> dict[Multihash, FileStats]:
        """Statistics of slices that can be trusted before the slices are here."""
        kept, said = KeptFooters(self.dataset), self._said_by_owner(bring)
        found = {}
        for ref in self.state.slices():
            name = ref.slice.physical_hash
            # statistics read from verified bytes win over the owner's signed manifest
            own = kept.known(name)
            stats = own if own is not None else said.get(name)
            if stats is not None and stats.row_count == ref.slice.offset_interval.count:
                found[name] = stats
        return found

    def _said_by_owner(self, bring: Bring) -> dict[Multihash, FileStats]:
        def content(line: SnapshotLine) -> bytes:
            try:
                return object_of(self.dataset, line)
            except StoreError:  # it is not here, or damaged
                return bring(line)

        schema = columns_of(self.state, None)
        for line in published(self.dataset, SnapshotKind.MANIFEST, owners=True):
            try:
                document = signed_manifest(self.dataset, line, content(line))
                return {name: stats_of_document(file, schema) for name, file in files_of(document).items()}
            except OdfchainError:
                continue  # an older one says less, and is as true
        return {}
