"""Rows as CSV, JSON, Arrow and Parquet, written as they come: a batch is held at a time.

CSV is that of RFC 4180 with a header, lines that end in LF, nothing where there is no value, and `""` for a
text of no characters.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, BinaryIO

from odfchain.errors import QueryError
from odfchain.lazy import pa, pc, pq
from odfchain.odf.enums import OperationType
from odfchain.text import escaped_json, first_line, one_line, printable

OPERATIONS = {str(each.code): each.value for each in OperationType}
"""The name of each operation, by the text of its code; people read names."""
_ROW_GROUP_ROWS, _ROW_GROUP_BYTES = 131_072, 64 << 20
_QUOTED = re.compile('[",\r\n]')


def write_rows(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], output: str, stream: BinaryIO, *,
    shown: bool = False,
) -> None:  # fmt: skip
    """Write rows; `shown` is for a terminal, where no character may act."""
    if output in ("json", "ndjson", "parquet"):
        _check_names(schema)
    if output == "arrow":
        with pa.ipc.new_stream(stream, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                stream.flush()
    elif output == "parquet":
        _write_parquet(schema, batches, stream)
    else:
        pieces = {"json": _json, "ndjson": _ndjson, "csv": _csv}[output]
        for piece in pieces(schema, batches, shown):
            stream.write(piece.encode())
            stream.flush()


def _columns(batch: pa.RecordBatch, *, nan: bool = True) -> list[list[Any]]:
    return [python_values(column, nan=nan) for column in batch.columns]


def texts_of(batch: pa.RecordBatch) -> list[list[str | None]]:
    """The cells of each column as texts, None where there is no value."""
    return [[None if v is None else cell_text(v) for v in values] for values in _columns(batch)]


def _rows(columns: Sequence[Sequence[Any]], count: int) -> Iterable[tuple[Any, ...]]:
    return zip(*columns, strict=True) if columns else [()] * count


def _csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], shown: bool) -> Iterator[str]:
    def field(text: str | None) -> str:
        if text is None:
            return ""
        safe = printable(text) if shown else text
        return f'"{safe.replace(chr(34), chr(34) * 2)}"' if not safe or _QUOTED.search(safe) else safe

    yield ",".join(map(field, schema.names)) + "\n"
    for batch in batches:
        columns = [list(map(field, texts)) for texts in texts_of(batch)]
        yield "".join(f"{','.join(row)}\n" for row in _rows(columns, batch.num_rows))


def _documents(schema: pa.Schema, batch: pa.RecordBatch, shown: bool, indent: int | None) -> Iterator[str]:
    encode = json.JSONEncoder(ensure_ascii=False, default=plain, indent=indent).encode
    for row in _rows(_columns(batch, nan=False), batch.num_rows):
        text = encode(dict(zip(schema.names, row, strict=True)))
        yield escaped_json(text) if shown else text


def _ndjson(schema: pa.Schema, batches: Iterable[pa.RecordBatch], shown: bool) -> Iterator[str]:
    for batch in batches:
        yield "".join(f"{text}\n" for text in _documents(schema, batch, shown, None))


def _json(schema: pa.Schema, batches: Iterable[pa.RecordBatch], shown: bool) -> Iterator[str]:
    start = "[\n  "
    for batch in batches:
        if batch.num_rows:
            texts = (text.replace("\n", "\n  ") for text in _documents(schema, batch, shown, 2))
            yield start + ",\n  ".join(texts)
            start = ",\n  "
    yield "[]\n" if start[0] == "[" else "\n]\n"


def _check_names(schema: pa.Schema) -> None:
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        message = f"two columns of the result are called `{one_line(twice)}`"
        raise QueryError(message, hint='give one of them another name: … AS "another name"')


def _write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], stream: BinaryIO) -> None:
    try:
        writer = pq.ParquetWriter(stream, schema, compression="zstd")
    except pa.ArrowException as error:
        message = f"Parquet cannot hold the result: {first_line(error)}"
        raise QueryError(message, hint="cast the column to another type") from None
    with writer:
        for group in _row_groups(batches):
            writer.write_table(pa.Table.from_batches(group, schema))


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    waiting, rows, size = list[Any](), 0, 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


# Values of Arrow columns for printing: exact, of any type. Arrow's own conversion fails for nanoseconds and
# for years beyond Python's, and keeps NaN, which JSON lacks.

_SCALE = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def python_values(column: pa.Array, *, nan: bool = True) -> list[Any]:
    """The values of a column; times are texts already."""
    from pyarrow import types as t

    kind = column.type
    if t.is_floating(kind):
        values = (column.cast(pa.float32()) if t.is_float16(kind) else column).to_pylist()
        # JSON has no NaN: None there, as within lists and structs
        return values if nan else [None if v is None or not math.isfinite(v) else v for v in values]
    if t.is_timestamp(kind):
        utc = column.cast(pa.timestamp(kind.unit, "UTC")) if kind.tz else column
        return [v and _moment(v) for v in utc.cast(pa.string()).to_pylist()]
    if t.is_time(kind):
        return [v and _time(v) for v in column.cast(pa.string()).to_pylist()]
    if t.is_date(kind):
        return list(column.cast(pa.string()).to_pylist())
    if t.is_duration(kind):
        scale = _SCALE[kind.unit]
        return [None if v is None else v / scale for v in column.cast(pa.int64()).to_pylist()]
    if t.is_interval(kind):
        return [v and _interval(*v) for v in column.to_pylist()]
    if t.is_dictionary(kind):
        return python_values(column.dictionary_decode(), nan=nan)
    if t.is_struct(kind):
        return _structs(column)
    if t.is_map(kind):
        return [python_values(value.values, nan=False) if value.is_valid else None for value in column]
    if t.is_nested(kind) and not t.is_union(kind):
        return _lists(column)
    return list(column.to_pylist())


def _structs(column: pa.Array) -> list[Any]:
    kind = column.type
    names = [kind.field(i).name for i in range(kind.num_fields)]
    parts = [python_values(part, nan=False) for part in column.flatten()]
    rows = zip(column.is_valid().to_pylist(), _rows(parts, len(column)), strict=True)
    return [dict(zip(names, row, strict=True)) if there else None for there, row in rows]


def _lists(column: pa.Array) -> list[Any]:
    items = iter(python_values(column.flatten(), nan=False))
    lengths = pc.list_value_length(column).to_pylist()
    return [None if length is None else list(islice(items, length)) for length in lengths]


def _moment(text: str) -> str:
    day, _, rest = text.partition(" ")
    zone = "Z" if rest.endswith("Z") else ""
    clock, _, fraction = rest.removesuffix("Z").partition(".")
    if not clock:
        return text
    # 0, 3, 6 or 9 digits, whichever loses nothing
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{day}T{clock}.{fraction}{zone}" if fraction else f"{day}T{clock}{zone}"


def _time(text: str) -> str:
    clock, _, fraction = text.partition(".")
    if not fraction.strip("0"):
        return clock
    return f"{clock}.{fraction[:6].ljust(6, '0')}{fraction[6:] if fraction[6:].strip('0') else ''}"


def _interval(months: int, days: int, nanoseconds: int) -> str:
    whole, part = divmod(abs(nanoseconds), 1_000_000_000)
    sign = "-" if nanoseconds < 0 else ""
    fraction = f".{part:09}".rstrip("0") if part else ""
    found = [f"{months}M"] * bool(months) + [f"{days}D"] * bool(days)
    # seconds may have another sign than days
    found += [f"T{sign}{whole}{fraction}S"] * bool(nanoseconds)
    return "P" + ("".join(found) or "T0S")


def numeric_columns(schema: pa.Schema) -> set[int]:
    """The places of the columns of numbers, which a table aligns right."""
    kinds = ("int", "uint", "float", "double", "dec")
    return {place for place, field in enumerate(schema) if str(field.type).startswith(kinds)}


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    match value:
        case dt.datetime():
            utc = value.astimezone(dt.UTC) if value.tzinfo else value
            fine = "microseconds" if utc.microsecond % 1_000 else "milliseconds"
            text = utc.isoformat(timespec=fine if utc.microsecond else "seconds")
            return text.replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case dt.timedelta():
            return value.total_seconds()
    return str(value)


def cell_text(value: Any) -> str:
    """A value as a table and CSV have it; nothing for None."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list() | dict():
            return json.dumps(value, default=plain, ensure_ascii=False)
    return str(plain(value))
