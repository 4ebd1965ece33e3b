"""The table of an asset lock: nine columns of ADR-003, one row for each asset; how it is made and written.

Rows are sorted by (`item_id`, `asset_key`) in UTF-8 order. Every command writes the same schema, its metadata
included. Source: RFC-047; asset-lock ADR-003.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odfchain.assets.hrefs import ACCESS_KEY
from odfchain.errors import AssetError
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


def table_of(rows: Iterable[AssetRow], *, checksums: bool = False) -> pa.Table:
    """The lock of these rows, sorted.

    Raises:
        AssetError: two rows have the same item and asset, or an access key stands in one.
    """
    chosen = sorted(rows, key=lambda row: row.key)  # texts are in the order of their UTF-8
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
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    for name in (*KEY, "etag"):  # a location has none
        if pc.any(pc.match_substring_regex(table.column(name), ACCESS_KEY.pattern)).as_py():
            raise AssetError(f"an access key stands in `{name}` of a row", hint="a lock is published")
    return table


def write_lock(table: pa.Table, path: Path) -> None:
    """Durably write a lock beside its name and rename it; what was there stays until then."""
    fsio.make_folder(path.parent)
    with fsio.replaced(path) as file:
        pq.write_table(table, file, version="2.6", compression="snappy", row_group_size=_GROUP)


def schema_like(schema: pa.Schema) -> pa.Schema:
    """Which of the two schemas of a lock some columns are to be: with checksums or without."""
    return SCHEMA_WITH_CHECKSUM if "file_checksum" in schema.names else SCHEMA
