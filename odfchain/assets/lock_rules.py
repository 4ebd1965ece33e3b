"""What a row of an asset lock may be: one rule for a row, and expressions that judge most rows at once.

The expressions let rows through that are surely in order; the rule judges the rest. Source: RFC-047.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.assets.hrefs import ACCESS_KEY, checked_location
from odfchain.assets.lock_table import KEY, TEXTS, schema_like
from odfchain.errors import AssetError
from odfchain.limits import ASSETS
from odfchain.store.locations import Location
from odfchain.text import one_line

PIECE = 4_096
"""Rows that become values at a time."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """What is wrong with a row of a lock."""

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
    """What is wrong with the columns of a table that is to be a lock; None: nothing."""
    wanted = schema_like(schema)
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
        message = text_fault(name, value) if isinstance(value, str) else None
        if message is not None:
            return message
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


def text_fault(name: str, text: str) -> str | None:
    """What is wrong with a text of a row; None: nothing."""
    if len(text.encode(errors="surrogatepass")) > ASSETS.text_bytes:
        return f"`{name}` is longer than {ASSETS.text_bytes:,} bytes"
    if not text.isprintable():
        return f"`{name}` has control characters"
    if ACCESS_KEY.search(text):
        return f"an access key stands in `{name}`"
    return None


def instant(text: str) -> dt.datetime | None:
    """The instant that `last_modified` names; None: it is none. A time without a zone is in UTC."""
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def row_faults(batch: pa.RecordBatch, first: int) -> Iterator[RowFault]:
    """What the rule says of those rows that the quick judgement lets not through."""
    doubtful = np.flatnonzero(~surely_in_order(batch))
    for start in range(0, len(doubtful), PIECE):
        numbers = doubtful[start : start + PIECE]
        for index, row in zip(numbers, batch.take(numbers).to_pylist(), strict=True):
            message = row_fault(row)
            if message is not None:
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
    """Whether texts of which there are few match a pattern."""
    encoded = column.dictionary_encode()
    return pc.match_substring_regex(encoded.dictionary, pattern).take(encoded.indices)


def _plain_keys(column: pa.StringArray) -> pa.Array:
    """Whether keys have no segment that is empty or begins with a dot; where some have, by the pattern."""
    together = _bytes_of(column)
    if b"//" in together or b"/." in together:
        return pc.match_substring_regex(column, _PLAIN_KEY)
    ends = pc.or_(pc.ends_with(column, "/"), pc.starts_with(column, "."))
    return pc.and_not(pc.greater(pc.binary_length(column), 0), ends)


def _bytes_of(column: pa.StringArray) -> bytes:
    """The texts of a column, one after the other."""
    _, offsets, texts = column.buffers()
    if texts is None:
        return b""
    first, last = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return bytes(texts.slice(first, last - first))


def _location(row: Mapping[str, object]) -> Location:
    parts = (row[name] for name in ("store_type", "store_container", "store_endpoint_url", "key"))
    store, container, endpoint, key = (None if part is None else str(part) for part in parts)
    return checked_location(store or "", container, endpoint, key or "")
