"""Real files, small changes to them, and what is in the changed file according to somebody else's reader.

The oracles are Python's `csv` and `json` in their strict forms, pyarrow, and a reader of shapefiles by their
published layout; none of them shares code with the readers under test. An oracle gives the records, or
raises `UnreadableError` where the file breaks its format or leaves open what is meant.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import random
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.odf import sources as src
from tests.kit.shapefiles import parts
from tests.kit.support import FIXTURES, ROOT


class UnreadableError(Exception):
    """The file breaks its format, or two readers could differ in what it says."""


class Points(int):
    """How many points a shape has."""


class Digits(str):
    """A JSON number as it is written."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Case:
    """A file, how it is read, and its records by the oracle."""

    name: str
    content: bytes
    step: src.ReadStep
    columns: tuple[str, ...]
    oracle: Callable[[bytes, tuple[str, ...]], list[list[Any]]]

    def expected(self) -> list[list[Any]] | None:
        """The records; None where the file has to be refused."""
        try:
            return self.oracle(self.content, self.columns)
        except UnreadableError:
            return None


# --- oracles ---------------------------------------------------------------------------------------


def _text(content: bytes) -> str:
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UnreadableError from error


def csv_records(content: bytes, columns: tuple[str, ...]) -> list[list[Any]]:
    text = _text(content)
    if "\0" in text:
        raise UnreadableError
    try:
        rows = [r for r in csv.reader(io.StringIO(text, newline=""), strict=True) if r]
    except csv.Error as error:
        raise UnreadableError from error
    if not rows:
        return []
    header, *rows = rows
    if len(set(header)) < len(header) or any(len(r) != len(header) for r in rows):
        raise UnreadableError
    if sorted(header) == sorted(columns):
        places = [header.index(c) for c in columns]
    elif len(header) == len(columns) and all(
        h == c or h not in columns for h, c in zip(header, columns, strict=True)
    ):
        places = list(range(len(columns)))
    else:
        raise UnreadableError
    return [[r[p] or None for p in places] for r in rows]


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(items)) < len(items):
        raise UnreadableError
    return dict(items)


def _constant(_: str) -> Any:
    raise UnreadableError


def json_value(text: str) -> Any:
    try:
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_int=Digits, parse_float=Digits, parse_constant=_constant
        )
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair cannot be written
    except (ValueError, RecursionError) as error:
        raise UnreadableError from error
    return value


def _row(record: Any, columns: tuple[str, ...]) -> list[Any]:
    if not isinstance(record, dict):
        raise UnreadableError
    folded = {c.casefold() for c in columns}
    if any(k not in columns and k.casefold() in folded for k in record):
        raise UnreadableError
    return [record.get(c) for c in columns]


def _lines(content: bytes) -> Iterator[Any]:
    for line in re.split("\r\n|\n|\r", _text(content)):
        if line.strip(" \t"):
            yield json_value(line)


def _feature(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("type") != "Feature":
        raise UnreadableError
    properties, geometry = value.get("properties"), value.get("geometry")
    if not isinstance(properties, dict | None) or not isinstance(geometry, dict | None):
        raise UnreadableError
    return {**(properties or {}), "geometry": geometry}


def ndjson_records(content: bytes, columns: tuple[str, ...]) -> list[list[Any]]:
    return [_row(value, columns) for value in _lines(content)]


def json_records(content: bytes, columns: tuple[str, ...]) -> list[list[Any]]:
    if not content:
        return []
    values = json_value(_text(content))
    if not isinstance(values, list):
        raise UnreadableError
    return [_row(value, columns) for value in values]


def ndgeojson_records(content: bytes, columns: tuple[str, ...]) -> list[list[Any]]:
    return [_row(_feature(value), columns) for value in _lines(content)]


def geojson_records(content: bytes, columns: tuple[str, ...]) -> list[list[Any]]:
    if not content:
        return []
    value = json_value(_text(content))
    if not isinstance(value, dict) or value.get("type") != "FeatureCollection":
        raise UnreadableError
    if not isinstance(value.get("features"), list):
        raise UnreadableError
    return [_row(_feature(f), columns) for f in value["features"]]


def parquet_records(content: bytes, columns: tuple[str, ...]) -> list[list[Any]]:
    if not content:
        return []
    try:
        table = pq.read_table(pa.BufferReader(content), partitioning=None)
        table.validate(full=True)
        return [list(row.values()) for row in table.select(list(columns)).to_pylist()]
    except (pa.ArrowException, OSError, KeyError, ValueError, OverflowError) as error:
        raise UnreadableError from error


def shape_records(content: bytes, columns: tuple[str, ...]) -> list[list[Any]]:
    """Texts of the .dbf file and points of the .shp file, by their layouts (dBASE III, ESRI 1998)."""
    if not content:
        return []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [n for n in archive.namelist() if n.lower().endswith(".shp")]
            if len(names) != 1:
                raise UnreadableError
            stem = names[0][:-4]
            dbf, shp = archive.read(stem + ".dbf"), archive.read(names[0])
        texts = _dbf_rows(dbf, columns)
        shapes = _shp_points(shp)
    except (zipfile.BadZipFile, struct.error, LookupError, ValueError, NotImplementedError, EOFError) as e:
        raise UnreadableError from e
    if len(texts) != len(shapes):
        raise UnreadableError
    return [[*text, points] for text, points in zip(texts, shapes, strict=True) if text is not None]


def _dbf_rows(dbf: bytes, columns: tuple[str, ...]) -> list[list[Any] | None]:
    count, header, size = struct.unpack_from("<IHH", dbf, 4)
    fields, at = {}, 1
    for start in range(32, header - 1, 32):
        if dbf[start] == 0x0D:
            break
        name = dbf[start : start + 11].partition(b"\0")[0].decode("latin-1").strip()
        fields[name] = (at, dbf[start + 16], chr(dbf[start + 11]))
        at += dbf[start + 16]
    rows: list[list[Any] | None] = []
    for number in range(count):
        record = dbf[header + number * size : header + (number + 1) * size]
        if len(record) < size or at != size:
            raise UnreadableError
        row: list[Any] = []
        for name in columns:
            begin, length, kind = fields[name]
            raw = record[begin : begin + length]
            if kind != "C":
                raise UnreadableError
            row.append(raw.decode("latin-1").rstrip(" \0") or None)
        if record[:1] not in (b" ", b"*"):
            raise UnreadableError
        rows.append(None if record[:1] == b"*" else row)
    return rows


def _shp_points(shp: bytes) -> list[Any]:
    """For each record the number of its points; None for a null shape."""
    if struct.unpack_from(">i", shp)[0] != 9994:
        raise UnreadableError
    end = 2 * struct.unpack_from(">i", shp, 24)[0]
    at, found = 100, []
    while at < min(end, len(shp)):
        length = 2 * struct.unpack_from(">i", shp, at + 4)[0]
        (kind,) = struct.unpack_from("<i", shp, at + 8)
        if at + 8 + length > len(shp):
            raise UnreadableError
        if kind == 0:
            found.append(None)
        elif kind in (3, 5):
            found.append(Points(struct.unpack_from("<ii", shp, at + 44)[1]))
        else:
            raise UnreadableError
        at += 8 + length
    return found


def same(found: Any, expected: Any) -> bool:
    """Whether a text that was read means the value of an oracle."""
    if isinstance(expected, dict | list):
        return found is not None and _plain(json_value(found)) == _plain(expected)
    if isinstance(expected, Points):
        return found is not None and _points(json.loads(found)["coordinates"]) == expected
    if isinstance(expected, Digits):
        return found is not None and Decimal(found) == Decimal(expected)
    if isinstance(expected, bytes):  # of a column that lost its mark as text
        return found is not None and found.encode() == expected
    if isinstance(expected, bool):
        return bool(found == str(expected).lower())
    return bool(found == (str(expected) if isinstance(expected, int) else expected))


def _points(coordinates: Any) -> int:
    if coordinates and isinstance(coordinates[0], int | float):
        return 1
    return sum(map(_points, coordinates))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return ("number", Decimal(value)) if isinstance(value, Digits) else value


# --- real files ------------------------------------------------------------------------------------


def data_folder() -> Path | None:
    """More real files for the long profile: `$ODFCHAIN_TEST_DATA`, or `../shared/data` beside the checkout."""
    given = os.environ.get("ODFCHAIN_TEST_DATA")
    if given:
        assert Path(given).is_dir(), f"ODFCHAIN_TEST_DATA: {given} is no folder"
        return Path(given)
    beside = ROOT.parent / "shared" / "data"
    return beside if beside.is_dir() else None


def _tables(folder: Path | None) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Tables of text: name, columns, rows."""
    paths = sorted((FIXTURES / "data" / "airports").glob("*.csv"))
    assert paths, "fixtures/data/airports has the files that this test is cut from"
    if folder is not None:
        paths += sorted(folder.rglob("*.csv"))
    for path in paths:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
        rows = [r for r in rows if len(r) == len(rows[0])]
        if len(rows) > 2 and len(set(rows[0])) == len(rows[0]):
            yield path.name, rows[0], rows[1:]


def _value(text: str) -> Any:
    """A cell as JSON would have it."""
    if text == "":
        return None
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,8})?", text):
        return float(text) if "." in text else int(text)
    return text


def _csv_text(columns: Iterable[str], rows: Iterable[Iterable[str]], chosen: random.Random) -> bytes:
    out, end = io.StringIO(), chosen.choice(["\n", "\r\n"])
    quoting = chosen.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    csv.writer(out, lineterminator=end, quoting=quoting).writerows([columns, *rows])
    return out.getvalue().encode()


def _features(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    points = [{"type": "Point", "coordinates": [n, 0.5]} if n % 5 else None for n in range(len(objects))]
    pairs = zip(objects, points, strict=True)
    return [{"type": "Feature", "properties": o, "geometry": point} for o, point in pairs]


def seeds(chosen: random.Random, kind: str, folder: Path | None = None) -> Iterator[Case]:
    """Pieces of the real files in one format, without end."""
    tables = list(_tables(folder))
    while True:
        name, columns, rows = chosen.choice(tables)
        first = chosen.randrange(len(rows))
        rows = rows[first : first + chosen.randint(1, 12)]
        objects = [{c: _value(v) for c, v in zip(columns, row, strict=True)} for row in rows]
        ddl = tuple(f"`{c}` STRING" for c in columns)
        given = tuple(columns)
        compact = {"ensure_ascii": chosen.random() < 0.5, "indent": chosen.choice([None, None, 1])}
        match kind:
            case "csv":
                step: src.ReadStep = src.ReadStepCsv(
                    header=True, ddl_schema=ddl, escape=chosen.choice(['"', ""])
                )
                yield Case(name, _csv_text(columns, rows, chosen), step, given, csv_records)
            case "ndjson":
                text = "\n".join(json.dumps(o, ensure_ascii=chosen.random() < 0.5) for o in objects)
                yield Case(name, text.encode(), src.ReadStepNdJson(ddl_schema=ddl), given, ndjson_records)
            case "json":
                text = json.dumps(objects, **compact)
                yield Case(name, text.encode(), src.ReadStepJson(ddl_schema=ddl), given, json_records)
            case "ndgeojson":
                text = "\n".join(json.dumps(f) for f in _features(objects))
                step = src.ReadStepNdGeoJson(ddl_schema=(*ddl, "geometry STRING"))
                yield Case(name, text.encode(), step, (*given, "geometry"), ndgeojson_records)
            case "geojson":
                text = json.dumps({"type": "FeatureCollection", "features": _features(objects)}, **compact)
                step = src.ReadStepGeoJson(ddl_schema=(*ddl, "geometry STRING"))
                yield Case(name, text.encode(), step, (*given, "geometry"), geojson_records)
            case "parquet":
                out = io.BytesIO()
                table = pa.table({c: [r[i] or None for r in rows] for i, c in enumerate(columns)})
                table = table.append_column("row", pa.array(range(len(rows)), pa.int64()))
                pq.write_table(table, out, compression=chosen.choice(["none", "snappy"]))
                yield Case(name, out.getvalue(), src.ReadStepParquet(), (*given, "row"), parquet_records)
            case "shapefile":
                yield _shapefile(name, rows, chosen)


SHAPES = src.ReadStepEsriShapefile(ddl_schema=("first STRING", "second STRING", "geometry STRING"))


def _shapefile(name: str, rows: list[list[str]], chosen: random.Random) -> Case:
    square = [[0, 0], [0, 10], [10, 10], [10, 0], [0, 0]]
    files = parts(
        [("first", "C", 60), ("second", "C", 60)],
        [[t.encode()[:20].decode(errors="ignore").rstrip() for t in row[:2]] for row in rows],
        shapes=[None if n % 4 == 3 else [square] * (1 + n % 2) for n in range(len(rows))],
    )
    suffix = chosen.choice(["shp", "dbf", "dbf", "shx"])
    files[suffix] = mutated(files[suffix], chosen) if chosen.random() < 0.9 else files[suffix]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for ending, data in files.items():
            archive.writestr(f"a.{ending}", data)
        archive.writestr("a.cpg", b"ISO-8859-1")
    return Case(name, out.getvalue(), SHAPES, ("first", "second"), shape_records)


# --- small changes ---------------------------------------------------------------------------------

TOKENS = [
    b'"', b'""', b'"x"y', b",", b";", b"\n", b"\r", b"\r\n", b"\n\n", b" ", b"\t", b"\\", b'\\"', b"\\\\", b"\0", b"\xff",
    b"\xc3", b"\xef\xbb\xbf", b"{", b"}", b"[", b"]", b"{}", b"[]", b":", b"null", b"true", b"NaN", b"Infinity", b"-0",
    b"1e400", b"01", b"+1", b"1.", b"'", b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\u0000", b"//", b"/*", b"\x0c", b"\x1c",
    b'{"a":1}', b'"a":1,', b'"a":1,"A":2,', "\u2028".encode(), "\x85".encode(), "\xa0".encode(), b"\x7f", b"[" * 250,
]  # fmt: skip


def mutated(content: bytes, chosen: random.Random) -> bytes:
    """The content with one to three small changes."""
    data = bytearray(content)
    for _ in range(chosen.choice([1, 1, 1, 2, 3])):
        at = chosen.randrange(len(data) + 1)
        end = min(len(data), at + chosen.choice([1, 1, 2, 8, 40]))
        match chosen.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << chosen.randrange(8)
            case 1 | 2 | 3:
                data[at:at] = chosen.choice(TOKENS)
            case 4:
                data[at:end] = b""
            case 5:
                data[at:at] = data[at:end]
            case 6:
                data[at:end] = chosen.choice(TOKENS)
            case 7 if chosen.random() < 0.3:
                del data[at:]
            case _:
                # a quote, a key or a line once more, or in capitals: where readers differ
                places = [m.start() for m in re.finditer(rb'["\n,]', bytes(data))] or [0]
                here = chosen.choice(places)
                more = chosen.choice([b"", b'"', b" "])
                data[here : here + 3] = bytes(data[here : here + 3]).swapcase() + more
    return bytes(data)


def mutations(kind: str, count: int, seed: int, folder: Path | None = None) -> list[Case]:
    """So many changed files of one format; every twelfth is as it was."""
    chosen = random.Random(f"{kind} {seed}")
    found = []
    for number, case in zip(range(count), seeds(chosen, kind, folder), strict=False):
        content = case.content
        if number % 12 and kind != "shapefile":
            content = mutated(content, chosen)
        found.append(dataclasses.replace(case, content=content))
    return found
