"""The table of an asset lock: nine columns of ADR-003, one row for each asset; how it is written and judged.

Rows are sorted by (`item_id`, `asset_key`) in UTF-8 order. Every command writes the same schema, its metadata
included. What came from elsewhere is judged a batch at a time: expressions let rows through that are surely
in order, and the one rule (`row_fault`) judges the rest. Source: RFC-047; asset-lock ADR-003.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odfchain.assets.hrefs import checked_location
from odfchain.digest.row_hash import Numbers, hash_rows
from odfchain.errors import AssetError, SchemaError
from odfchain.limits import ASSETS
from odfchain.slices.reader import open_parquet
from odfchain.store import fsio
from odfchain.store.locations import Location

KEY = ("item_id", "asset_key")
KIND, VERSION = b"stacpkg:schema-kind", b"stacpkg:schema-version"
"""What the schema's metadata call it, as the tool of the ADR writes and looks for it."""
_GROUP = 65_536
_COLUMNS = [
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("asset_key", pa.string(), nullable=False),
    *(pa.field(name, pa.string()) for name in ("store_type", "store_container", "store_endpoint_url", "key")),
    pa.field("size_bytes", pa.int64()),
    pa.field("etag", pa.string()),
    pa.field("last_modified", pa.string()),
]
SCHEMA = pa.schema(_COLUMNS, {KIND: b"asset-lock", VERSION: b"v1"})
SCHEMA_WITH_CHECKSUM = pa.schema(
    [*_COLUMNS[:7], pa.field("file_checksum", pa.string()), *_COLUMNS[7:]],
    {KIND: b"asset-lock", VERSION: b"v2-draft"},
)
TEXTS = tuple(field.name for field in SCHEMA_WITH_CHECKSUM if field.type == pa.string())


@dataclass(frozen=True, slots=True)
class Facts:
    """What a store says of an object; None is what it does not say."""

    size_bytes: int | None = None
    etag: str | None = None
    """As the store writes it, quotes and `W/` included."""
    last_modified: str | None = None
    """Like `2015-10-21T07:28:00+00:00`."""
    file_checksum: str | None = None
    """A multihash in hex."""

    @property
    def strong_etag(self) -> str | None:
        """The entity tag where it is a strong one, which a request may be made to depend on."""
        return self.etag if self.etag is not None and self.etag.startswith('"') else None


@dataclass(frozen=True, slots=True)
class AssetRow:
    """Where an asset is, and what it was."""

    item_id: str
    asset_key: str
    location: Location
    facts: Facts = Facts()

    @property
    def key(self) -> tuple[str, str]:
        """What identifies it in its lock."""
        return self.item_id, self.asset_key

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.item_id} {self.asset_key}"


@dataclass(frozen=True, slots=True)
class RowFault:
    """What is wrong with a row of a lock."""

    number: int
    """Of the row, from 0."""
    item_id: str | None
    asset_key: str | None
    message: str


def table_of(rows: Iterable[AssetRow], *, checksums: bool = False) -> pa.Table:
    """The lock of these rows, sorted.

    Raises:
        AssetError: two rows have the same item and asset.
    """
    chosen = sorted(rows, key=lambda row: tuple(part.encode() for part in row.key))
    for before, after in itertools.pairwise(chosen):
        if before.key == after.key:
            raise AssetError(
                f"{after.label}: named twice",
                hint="ids are unique inside a collection only: make a lock for each collection",
            )
    schema = SCHEMA_WITH_CHECKSUM if checksums else SCHEMA
    columns: dict[str, list[object]] = {
        "item_id": [row.item_id for row in chosen],
        "asset_key": [row.asset_key for row in chosen],
        "store_type": [row.location.store for row in chosen],
        "store_container": [row.location.container for row in chosen],
        "store_endpoint_url": [row.location.endpoint for row in chosen],
        "key": [row.location.key for row in chosen],
        "size_bytes": [row.facts.size_bytes for row in chosen],
        "file_checksum": [row.facts.file_checksum for row in chosen],
        "etag": [row.facts.etag for row in chosen],
        "last_modified": [row.facts.last_modified for row in chosen],
    }
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def write_lock(table: pa.Table, path: Path) -> None:
    """Durably write a lock beside its name and rename it; what was there stays until then."""
    fsio.make_folder(path.parent)
    with fsio.replaced(path) as file:
        pq.write_table(table, file, version="2.6", compression="snappy", row_group_size=_GROUP)


def rows_of(batch: pa.RecordBatch | pa.Table) -> Iterator[AssetRow]:
    """The rows of a judged batch.

    Raises:
        AssetError: a row is faulty.
    """
    for number, row in enumerate(batch.to_pylist()):
        message = row_fault(row)
        if message is not None:
            raise AssetError(f"row {number} ({row.get('item_id')} {row.get('asset_key')}): {message}")
        facts = Facts(row["size_bytes"], row["etag"], row["last_modified"], row.get("file_checksum"))
        yield AssetRow(row["item_id"], row["asset_key"], _location(row), facts)


def schema_fault(schema: pa.Schema) -> str | None:
    """What is wrong with the columns of a table that is to be a lock; None: nothing."""
    wanted = SCHEMA_WITH_CHECKSUM if "file_checksum" in schema.names else SCHEMA
    for name in wanted.names:
        if name not in schema.names:
            return f"there is no column `{name}`"
    for name in schema.names:
        if name not in wanted.names:
            return f"column `{name}` is none of a lock's"
    for ours, theirs in zip(wanted, schema, strict=True):
        if ours.name != theirs.name:
            return f"column `{theirs.name}` stands where `{ours.name}` belongs"
        if ours.type != theirs.type:
            return f"column `{ours.name}` has type {theirs.type} instead of {ours.type}"
    return None


def row_fault(row: Mapping[str, object]) -> str | None:
    """What is wrong with a row; None: nothing."""
    for name in KEY:
        if not row[name]:
            return f"`{name}` is empty"
    for name in TEXTS:
        value = row.get(name)
        if isinstance(value, str) and len(value.encode(errors="surrogatepass")) > ASSETS.text_bytes:
            return f"`{name}` is longer than {ASSETS.text_bytes:,} bytes"
        if isinstance(value, str) and not value.isprintable():
            return f"`{name}` has control characters"
    if row["store_type"] is None or row["key"] is None:
        return "it says of no store, or no key, where it is"
    size, time = row["size_bytes"], row["last_modified"]
    if isinstance(size, int) and size < 0:
        return f"size_bytes is {size}"
    if time is not None and instant(str(time)) is None:
        return "`last_modified` is no time"
    try:
        _location(row)
    except AssetError as error:
        return error.message
    return None


def instant(text: str) -> dt.datetime | None:
    """The instant that `last_modified` names; None: it is none. A time without a zone is in UTC."""
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def faults_of(path: Path) -> Iterator[RowFault]:
    """What is wrong with a lock file, a batch in memory at a time; nothing: it is in order.

    Raises:
        SchemaError: it has other columns than a lock.
        AssetError: more rows than a lock may have.
        BadInputError, OversizedInputError: not a readable Parquet file.
    """
    hashes, number = list[Numbers](), 0
    with open_parquet(path) as file:
        message = schema_fault(file.schema_arrow)
        if message is not None:
            raise SchemaError(f"{path}: not an asset lock: {message}")
        if file.metadata.num_rows > ASSETS.rows:
            raise AssetError(f"{path}: more than {ASSETS.rows:,} rows")
        for batch in file.batches():
            for index in np.flatnonzero(~surely_in_order(batch)):
                row = batch.slice(int(index), 1).to_pylist()[0]
                message = row_fault(row)
                if message is not None:
                    yield RowFault(number + int(index), row["item_id"], row["asset_key"], message)
            hashes.append(hash_rows(batch.select(list(KEY)), ())["high"])
            number += batch.num_rows
    yield from _repeated(path, np.concatenate(hashes) if hashes else np.zeros(0, np.uint64))


_BUCKETS, _WEB = pa.array(["s3", "gs", "az"]), pa.array(["http", "https"])
_PLAIN_TEXT = r"^[ -~]*$"
_PLAIN_KEY = r"^/?[^/]*[^/.][^/]*(/[^/]*[^/.][^/]*)*$"
_PLAIN_ORIGIN = r"^https?://[a-z0-9-]+(\.[a-z0-9-]+)*$"
_PLAIN_TIME = r"^[0-9]{4}-(0[1-9]|1[0-2])-([01][0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\+00:00$"
"""Each of them accepts less than the rule does: what it does not know is judged by the rule."""


def surely_in_order(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Per row: True only where `row_fault` has nothing to say; computed for the whole batch at once."""
    store, key = batch.column("store_type"), batch.column("key")
    container, endpoint = batch.column("store_container"), batch.column("store_endpoint_url")
    is_file = pc.equal(store, "file")
    in_bucket = pc.and_(pc.is_in(store, _BUCKETS), pc.match_substring_regex(container, r"^[A-Za-z0-9._-]+$"))
    on_web = pc.and_(pc.is_in(store, _WEB), pc.match_substring_regex(container, _PLAIN_ORIGIN))
    same_scheme = pc.equal(pc.starts_with(container, "https:"), pc.equal(store, "https"))
    contained = pc.if_else(is_file, pc.is_null(container), pc.or_(in_bucket, pc.and_(on_web, same_scheme)))
    checks = [
        contained,
        pc.is_null(endpoint),
        pc.match_substring_regex(key, _PLAIN_KEY),
        pc.less_equal(pc.binary_length(key), ASSETS.key_bytes),
        pc.or_(is_file, pc.invert(pc.starts_with(key, "/"))),
        pc.or_kleene(pc.is_null(batch.column("size_bytes")), pc.greater_equal(batch.column("size_bytes"), 0)),
        _null_or(batch.column("last_modified"), _PLAIN_TIME),
    ]
    for name in TEXTS:
        if name in batch.schema.names:
            column = batch.column(name)
            checks.append(_null_or(column, _PLAIN_TEXT))
            checks.append(pc.fill_null(pc.less_equal(pc.binary_length(column), ASSETS.key_bytes), True))
            checks.append(pc.fill_null(pc.invert(pc.match_substring(column, "AKIA")), True))
    checks.extend(pc.greater(pc.binary_length(batch.column(name)), 0) for name in KEY)
    found = np.ones(batch.num_rows, bool)
    for check in checks:
        found &= pc.fill_null(check, False).to_numpy(zero_copy_only=False)
    return found


def _null_or(column: pa.Array, pattern: str) -> pa.Array:
    return pc.fill_null(pc.match_substring_regex(column, pattern), True)


def _location(row: Mapping[str, object]) -> Location:
    parts = (row[name] for name in ("store_type", "store_container", "store_endpoint_url", "key"))
    store, container, endpoint, key = (None if part is None else str(part) for part in parts)
    return checked_location(store or "", container, endpoint, key or "")


def _repeated(path: Path, hashes: Numbers) -> Iterator[RowFault]:
    """A fault for each row whose item and asset stand in an earlier one."""
    values, counts = np.unique(hashes, return_counts=True)
    several = values[counts > 1]
    if not len(several):
        return
    wanted, seen, number = np.isin(hashes, several), set[tuple[str, str]](), 0
    with open_parquet(path) as file:
        for batch in file.batches(list(KEY)):
            for index in np.flatnonzero(wanted[number : number + batch.num_rows]):
                item, asset = (batch.column(name)[int(index)].as_py() for name in KEY)
                if (item, asset) in seen:
                    yield RowFault(number + int(index), item, asset, "named twice")
                seen.add((item, asset))
            number += batch.num_rows
