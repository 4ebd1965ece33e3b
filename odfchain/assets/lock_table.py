"""The table of an asset lock: nine columns of ADR-003, one row for each asset; how it is made and written.

Rows are sorted by (`item_id`, `asset_key`) in UTF-8 order. Every command writes the same schema, its metadata
included. Source: RFC-047; asset-lock ADR-003.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.assets.hrefs import ACCESS_KEY, checked_location
from odfchain.assets.objects import Facts
from odfchain.errors import AssetError, BadInputError, OversizedInputError
from odfchain.limits import ASSETS
from odfchain.odf.row_hash import Numbers, hash_rows
from odfchain.slices.reader import ParquetSource, open_parquet
from odfchain.storage.fsio import no_file
from odfchain.storage.locations import Location
from odfchain.text import one_line

KEY = ("item_id", "asset_key")
KIND, VERSION = b"stacpkg:schema-kind", b"stacpkg:schema-version"
"""Its key in the schema's metadata, as the tool of the ADR writes and reads it."""
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
_PLACE = zip(SCHEMA.names[2:6], ("store", "container", "endpoint", "key"), strict=True)
PATHS = {
    **{name: name for name in KEY},
    **{name: f"location.{part}" for name, part in _PLACE},
    **{name: f"facts.{name}" for name in SCHEMA_WITH_CHECKSUM.names[6:]},
}
"""Where an `AssetRow` has the values of the columns."""
TEXTS = tuple(field.name for field in SCHEMA_WITH_CHECKSUM if field.type == pa.string())


@dataclass(frozen=True, slots=True)
class AssetRow:
    """Location and facts of an asset."""

    item_id: str
    asset_key: str
    location: Location
    facts: Facts = field(default_factory=Facts)

    @property
    def key(self) -> tuple[str, str]:
        """The key of the row in its lock."""
        return self.item_id, self.asset_key

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.item_id} {self.asset_key}"


def schema_like(columns: Container[str]) -> pa.Schema:
    """The schema of a lock for these columns: with checksums or without."""
    return SCHEMA_WITH_CHECKSUM if "file_checksum" in columns else SCHEMA


# Validity of rows: one rule for a row, and vectorised expressions that pass rows which are surely valid; the
# rule decides on the rest (RFC-047).

PIECE = 4_096
"""Rows that become values at a time."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A fault of a row of a lock."""

    number: int
    """Of the row, from 0."""
    item_id: str | None
    asset_key: str | None
    message: str

    def __str__(self) -> str:
        label = f"{one_line(str(self.item_id))} {one_line(str(self.asset_key))}"
        return f"row {self.number:,} ({label}): {self.message}"

    def to_document(self) -> dict[str, Any]:
        """As JSON has it, with the members that a check of objects has."""
        return {
            "item_id": self.item_id,
            "asset_key": self.asset_key,
            "row": self.number,
            "valid": False,
            "errors": [self.message],
            "status": "faulty",
        }


def schema_fault(schema: pa.Schema) -> str | None:
    """The fault in the columns of a table that is to be a lock, or None."""
    wanted = schema_like(schema.names)
    for name in wanted.names:
        if name not in schema.names:
            return f"column `{name}` is missing"
    for name in schema.names:
        if name not in wanted.names:
            return f"column `{name}` is not one of a lock's"
    for ours, theirs in zip(wanted, schema, strict=True):
        if ours.name != theirs.name:
            return f"found column `{theirs.name}`, expected `{ours.name}`"
        if ours.type != theirs.type:
            return f"column `{ours.name}` has type {theirs.type} instead of {ours.type}"
    return None


def row_fault(row: Mapping[str, object]) -> str | None:
    """The fault of a row, or None."""
    for name in KEY:
        if not row[name]:
            return f"`{name}` is empty"
    for name in TEXTS:
        value = row.get(name)
        message = text_fault(name, value) if isinstance(value, str) else None
        if message is not None:
            return message
    if row["store_type"] is None or row["key"] is None:
        return "it says of no store, or no key, where it is"
    size, time = row["size_bytes"], row["last_modified"]
    if isinstance(size, int) and size < 0:
        return f"size_bytes is {size}"
    if time is not None and instant(str(time)) is None:
        return "`last_modified` is not a time"
    try:
        _location(row)
    except AssetError as error:
        return error.message
    return None


def text_fault(name: str, text: str) -> str | None:
    """The fault of a text of a row, or None."""
    if len(text.encode(errors="surrogatepass")) > ASSETS.text_bytes:
        return f"`{name}` is longer than {ASSETS.text_bytes:,} bytes"
    if not text.isprintable():
        return f"`{name}` has control characters"
    if ACCESS_KEY.search(text):
        return f"`{name}` contains an access key"
    return None


def instant(text: str) -> dt.datetime | None:
    """The instant that `last_modified` names; None: it is none. A time without a zone is in UTC."""
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def row_faults(batch: pa.RecordBatch, first: int) -> Iterator[RowFault]:
    """The faults of those rows that the vectorised check does not pass."""
    doubtful = np.flatnonzero(~surely_in_order(batch))
    for start in range(0, len(doubtful), PIECE):
        numbers = doubtful[start : start + PIECE]
        for index, row in zip(numbers, batch.take(numbers).to_pylist(), strict=True):
            if (message := row_fault(row)) is not None:
                yield RowFault(first + int(index), row["item_id"], row["asset_key"], message)


_BUCKETS, _WEB = pa.array(["s3", "gs", "az"]), pa.array(["http", "https"])
_PLAIN_KEY = r"^/?[^/]*[^/.][^/]*(/[^/]*[^/.][^/]*)*$"
_PLAIN_ORIGIN = r"^https?://[a-z0-9-]+(\.[a-z0-9-]+)*$"
_PLAIN_TIME = r"^[0-9]{4}-(0[1-9]|1[0-2])-([01][0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\+00:00$"
"""Each of them accepts less than the rule does: what it does not know is judged by the rule."""


def surely_in_order(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Per row: True only where `row_fault` has nothing to say; computed for the whole batch at once."""
    store, key = batch.column("store_type"), batch.column("key")
    container, endpoint = batch.column("store_container"), batch.column("store_endpoint_url")
    is_file = pc.equal(store, "file")
    in_bucket = pc.and_(pc.is_in(store, _BUCKETS), _matches(container, r"^[A-Za-z0-9._-]+$"))
    on_web = pc.and_(pc.is_in(store, _WEB), _matches(container, _PLAIN_ORIGIN))
    same_scheme = pc.equal(pc.starts_with(container, "https:"), pc.equal(store, "https"))
    contained = pc.if_else(is_file, pc.is_null(container), pc.or_(in_bucket, pc.and_(on_web, same_scheme)))
    checks = [
        contained,
        pc.is_null(endpoint),
        _plain_keys(key),
        pc.less_equal(pc.binary_length(key), ASSETS.key_bytes),
        pc.or_(is_file, pc.invert(pc.starts_with(key, "/"))),
        pc.or_kleene(pc.is_null(batch.column("size_bytes")), pc.greater_equal(batch.column("size_bytes"), 0)),
        pc.fill_null(pc.match_substring_regex(batch.column("last_modified"), _PLAIN_TIME), True),
    ]
    for name in TEXTS:
        if name in batch.schema.names:
            column = batch.column(name)
            checks.append(pc.fill_null(pc.ascii_is_printable(column), True))
            checks.append(pc.fill_null(pc.less_equal(pc.binary_length(column), ASSETS.key_bytes), True))
            if b"AKIA" in _bytes_of(column):  # that is found sooner than in which row
                checks.append(pc.fill_null(pc.invert(pc.match_substring(column, "AKIA")), True))
    checks.extend(pc.greater(pc.binary_length(batch.column(name)), 0) for name in KEY)
    found = np.ones(batch.num_rows, bool)
    for check in checks:
        found &= pc.fill_null(check, False).to_numpy(zero_copy_only=False)
    return found


def _matches(column: pa.StringArray, pattern: str) -> pa.Array:
    # few distinct texts, so each of them is matched once
    encoded = column.dictionary_encode()
    return pc.match_substring_regex(encoded.dictionary, pattern).take(encoded.indices)


def _plain_keys(column: pa.StringArray) -> pa.Array:
    # the slow pattern only where some key has a segment that is empty or begins with a dot
    together = _bytes_of(column)
    if b"//" in together or b"/." in together:
        return pc.match_substring_regex(column, _PLAIN_KEY)
    ends = pc.or_(pc.ends_with(column, "/"), pc.starts_with(column, "."))
    return pc.and_not(pc.greater(pc.binary_length(column), 0), ends)


def _bytes_of(column: pa.StringArray) -> bytes:
    _, offsets, texts = column.buffers()
    if texts is None:
        return b""
    first, last = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return bytes(texts.slice(first, last - first))


def _location(row: Mapping[str, object]) -> Location:
    parts = (row[name] for name in ("store_type", "store_container", "store_endpoint_url", "key"))
    store, container, endpoint, key = (None if part is None else str(part) for part in parts)
    return checked_location(store or "", container, endpoint, key or "")


# Locks are read once, one batch in memory at a time. In sorted rows duplicates are neighbours, so nothing is
# kept; of others, 8 bytes a row (RFC-047).

_READ = 16_384
"""Rows that are read at a time [count]: more are judged no faster."""
_BUFFER = 1 << 16
"""Bytes of a column that are read at a time: a row group may be as large as its file."""


class LockFile:
    """A lock file as it is read: once, a batch in memory at a time, and every row is judged."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():  # a lock that is missing is missing like a dataset, so it ends with 4
            error = no_file(path, "name the lock in it, like assets.lock.parquet" if path.is_dir() else None)
            raise AssetError(error.message, hint=error.hint, exit_code=4)
        self._path = path
        self._order = _Order()
        self.schema = SCHEMA
        """Once it was opened, its columns."""

    @property
    def rows(self) -> int:
        """Those that have been read."""
        return self._order.rows

    @property
    def is_sorted(self) -> bool:
        """True if the rows that have been read come in the order of a lock."""
        return self._order.is_sorted

    def faults(self) -> Iterator[RowFault]:
        """The faults of its rows."""
        for _, faults in self.batches():
            yield from faults
        yield from self.repeated()

    def batches(self) -> Iterator[tuple[pa.RecordBatch, list[RowFault]]]:
        """Batches, each with what is wrong with its rows; `repeated` says what is seen of all rows only."""
        with self._open() as file:
            for batch in file.batches(most_rows=_READ):
                yield batch, self._order.faults_in(batch)

    def repeated(self) -> Iterator[RowFault]:
        """A fault for each row whose item and asset are in an earlier one that is not its neighbour."""
        # sorted rows have no distant duplicates; of others a hash is kept, and of candidates one that cannot
        # be forged (some 100 bytes each)
        if self.is_sorted:
            return
        hashes = np.concatenate([found["high"] for found, _ in self._hashed()])
        hashes.sort()
        several = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        del hashes
        seen, number, last = set[bytes](), 0, b""
        for found, batch in self._hashed() if len(several) else ():
            for index in map(int, np.flatnonzero(np.isin(found["high"], several))):
                pair, before = found[index].tobytes(), found[index - 1].tobytes() if index else last
                if pair in seen and pair != before:
                    yield _twice(batch, index, number)
                seen.add(pair)
            number, last = number + batch.num_rows, found[-1].tobytes()

    @contextlib.contextmanager
    def _open(self) -> Iterator[ParquetSource]:
        try:
            with open_parquet(self._path, pre_buffer=False, buffer_size=_BUFFER) as file:
                self.schema = file.schema_arrow
                if (message := schema_fault(self.schema)) is not None:
                    raise AssetError(f"{self._path}: not an asset lock: {message}", exit_code=6)
                if file.metadata.num_rows > ASSETS.rows:
                    raise AssetError(f"{self._path}: more than {ASSETS.rows:,} rows")
                yield file
        except OversizedInputError:
            raise
        except BadInputError as error:
            raise AssetError(
                f"{self._path}: {error.message}", hint="get the lock again, or derive it anew", exit_code=6
            ) from None

    def _hashed(self) -> Iterator[tuple[Numbers, pa.RecordBatch]]:
        with self._open() as file:
            for batch in file.batches(list(KEY), most_rows=_READ):
                yield hash_rows(batch, ()), batch


class SortedLock:
    """A table in the order of a lock, whose rows are judged."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.rows = table.num_rows

    def faults(self) -> Iterator[RowFault]:
        """The faults of its rows."""
        order = _Order()
        for batch in self._table.to_batches(max_chunksize=_READ):
            yield from order.faults_in(batch)


class _Order:
    """Judges rows as they come; of those that went by it keeps the last."""

    def __init__(self) -> None:
        self.rows = 0
        self.is_sorted = True
        self._last: dict[str, pa.Array] = {}

    def faults_in(self, batch: pa.RecordBatch) -> list[RowFault]:
        faults = [*row_faults(batch, self.rows), *self._neighbours(batch)]
        self.rows += batch.num_rows
        return sorted(faults, key=lambda fault: fault.number)

    def _neighbours(self, batch: pa.RecordBatch) -> Iterator[RowFault]:
        # a row is compared with the one before it only, so nothing has to be kept
        rises, same = list[Numbers](), list[Numbers]()
        for name in KEY:
            column = batch.column(name)
            before = pa.concat_arrays([self._last.get(name, column[:1]), column[:-1]])
            for found, compare in ((rises, pc.less), (same, pc.equal)):
                found.append(pc.fill_null(compare(before, column), False).to_numpy(zero_copy_only=False))
        twice = same[0] & same[1]
        self.is_sorted = self.is_sorted and bool((rises[0] | (same[0] & rises[1]) | twice).all())
        if not self._last:  # the first row was compared with itself
            twice[0] = False
        # a copy: a window would keep the whole batch in memory
        self._last = {name: batch.column(name).take([batch.num_rows - 1]) for name in KEY}
        for index in map(int, np.flatnonzero(twice)):
            yield _twice(batch, index, self.rows)


def _twice(batch: pa.RecordBatch, index: int, first: int) -> RowFault:
    item, asset = (batch.column(name)[index].as_py() for name in KEY)
    return RowFault(first + index, item, asset, "named twice")
