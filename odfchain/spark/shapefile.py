"""Zipped ESRI shapefiles to records: the attributes of each feature, and its geometry as GeoJSON text.

The driver looks at the archive's table of contents and at the two small side files that say which encoding
and which reference system it has. A worker unpacks the three files that pyshp needs, because it has to seek
in them, and streams the features. Coordinates are passed on as they are; no reference system is applied.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import datetime as dt
import io
import json
import re
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from odfchain.errors import BadInputError
from odfchain.limits import INPUT
from odfchain.spark.json_values import GEOMETRY, Number, Record, RecordError, Value

_SHP_CODE = 9994
_HEADER = 100
_SIDE_FILE_BYTES = 1 << 16
_CHUNK = 1 << 20
_SHOWN = 5
_MESSAGE = 160
_WITH_HEIGHTS, _WITH_MEASURES = (11, 13, 15, 18), (21, 23, 25, 28)
_WGS84 = re.compile(r'"(GCS_|D_)?WGS[ _]?(19)?84"', re.IGNORECASE)
_NAME = re.compile(r'\A\s*([A-Z_0-9]+)\s*\[\s*"([^"]{1,80})"', re.IGNORECASE)
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class ShapefileLayer:
    """One shapefile in an archive: its members, and the encoding of its text when that is said."""

    path: str
    folder: str
    """A folder that driver and workers both see, for what has to be unpacked."""
    shp: str
    dbf: str
    shx: str | None = None
    columns: tuple[str, ...] = ()
    """Attributes that the .dbf file has to have."""
    encoding: str | None = None
    """None: UTF-8 where that is valid for the whole file, else ISO-8859-1."""
    reference: str = ""
    """A sentence on the reference system of the coordinates."""

    @classmethod
    def find(cls, path: Path, sub_path: str | None, folder: Path) -> tuple[ShapefileLayer, tuple[str, ...]]:
        """The shapefile that is meant, and notes on what was decided for it.

        An exact name wins; else `sub_path` is a glob over `.shp` members, of which exactly one must match.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
                if len(members) > INPUT.archive_members:
                    raise BadInputError(
                        f"{len(members):,} members in the archive, at most {INPUT.archive_members:,} are "
                        "read",
                        file=str(path),
                    )
                names = [i.filename for i in members if not i.is_dir()]
                shp = _chosen(names, sub_path, str(path))
                notes: list[str] = []
                encoding = _declared_encoding(archive, names, shp, notes)
                reference = _noted_reference(archive, names, shp, notes)
                _note_dimensions(archive, shp, notes)
        except _ARCHIVE_ERRORS as error:
            hint = None
            if path.suffix.lower() in (".shp", ".shx", ".dbf"):
                hint = "put the .shp, .dbf and .shx files into one ZIP archive and give that"
            raise BadInputError(f"not a readable ZIP archive: {error}", file=str(path), hint=hint) from None
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
        dbf = _side_file(names, shp, ".dbf")
        if dbf is None:
            raise BadInputError(f"{shp} has no .dbf file with the same name", file=str(path))
        shx = _side_file(names, shp, ".shx")
        layer = cls(str(path.resolve()), str(folder.resolve()), shp, dbf, shx, (), encoding, reference)
        return layer, tuple(notes)

    def moved(self, path: str) -> ShapefileLayer:
        """The same layer in a copy of the file elsewhere, unpacked in its folder."""
        return dataclasses.replace(self, path=path, folder=str(Path(path).parent))

    def records(self) -> Iterator[Record]:
        """The features in the order of the file, each as its attributes and its geometry."""
        with tempfile.TemporaryDirectory(prefix="shapefile-", dir=self.folder) as name:
            folder = Path(name)
            _unpack(self, folder)
            with contextlib.ExitStack() as files:
                # pyshp warns of what is checked here: parts that do not belong together
                files.enter_context(warnings.catch_warnings(action="ignore"))
                streams = {p.suffix[1:]: files.enter_context(p.open("rb")) for p in folder.iterdir()}
                encoding = self.encoding or _guessed_encoding(folder / "layer.dbf")
                yield from _features(streams, encoding, self.columns)


# --- what is in the archive ------------------------------------------------------------------------


def _chosen(names: list[str], sub_path: str | None, file: str) -> str:
    if sub_path and sub_path in names and sub_path.lower().endswith(".shp"):
        return sub_path
    shapes = [n for n in names if n.lower().endswith(".shp") and not n.startswith("__MACOSX/")]
    if not shapes:
        hint = "of ZIP archives only shapefiles are read: unpack it, and give what is in it"
        raise BadInputError("Archive does not contain any .shp files", file=file, hint=hint)
    chosen = [n for n in shapes if fnmatchcase(n, sub_path)] if sub_path else shapes
    if len(chosen) == 1:
        return chosen[0]
    shown = ", ".join((chosen or shapes)[:_SHOWN]) + (", …" if len(chosen or shapes) > _SHOWN else "")
    if not chosen:
        raise BadInputError(f"no .shp file matches subPath {sub_path!r} (there are: {shown})", file=file)
    what = f"match subPath {sub_path!r}" if sub_path else "are in the archive"
    message = f"{len(chosen)} .shp files {what}, exactly one is expected: {shown}"
    raise BadInputError(message, file=file, hint="say which in the read step's 'subPath'")


def _side_file(names: list[str], shp: str, suffix: str) -> str | None:
    """The member of the same name with another suffix, in any case."""
    wanted = shp[: -len(".shp")] + suffix
    return wanted if wanted in names else next((n for n in names if n.lower() == wanted.lower()), None)


def _side_text(archive: zipfile.ZipFile, name: str | None) -> str:
    if name is None:
        return ""
    with archive.open(name) as stream:
        return stream.read(_SIDE_FILE_BYTES).decode("utf-8", "replace").lstrip("\ufeff").strip()


def _declared_encoding(archive: zipfile.ZipFile, names: list[str], shp: str, notes: list[str]) -> str | None:
    for suffix in (".cpg", ".cst"):
        label = _side_text(archive, _side_file(names, shp, suffix))
        if not label:
            continue
        codec = codec_of(label)
        if codec is not None:
            return codec
        notes.append(
            f"the encoding {label[:40]!r} that the {suffix} file names is not known; "
            "read as UTF-8 where that is valid, else as ISO-8859-1"
        )
    return None


def codec_of(label: str) -> str | None:
    """The Python codec of an encoding as `.cpg` files spell it; None for one that is not known."""
    name = re.sub(r"\A(ansi|oem)[ _-]+", "", label.strip().lower())
    if match := re.fullmatch(r"(iso[ _-]?)?8859-?([0-9]{1,2})", name):
        name = f"iso8859-{match[2]}"
    elif name.isdigit():
        name = "utf-8" if name == "65001" else f"cp{name}"
    try:
        "".encode(name)  # refuses codecs that are not encodings of text
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        return None


def _noted_reference(archive: zipfile.ZipFile, names: list[str], shp: str, notes: list[str]) -> str:
    text = _side_text(archive, _side_file(names, shp, ".prj"))
    match = _NAME.match(text)
    if match is None:
        return "no .prj file names the reference system of the coordinates; they are kept as they are"
    kind, name = match.groups()
    said = f"coordinates are in {name!r}, as the .prj file says; they are kept as they are"
    if not (kind.upper() in ("GEOGCS", "GEOGCRS") and _WGS84.search(text)):
        notes.append(said)
    return said


def _note_dimensions(archive: zipfile.ZipFile, shp: str, notes: list[str]) -> None:
    with archive.open(shp) as stream:
        kind = int.from_bytes(stream.read(36)[32:], "little")
    if kind in _WITH_HEIGHTS or kind in _WITH_MEASURES:
        what = "heights (Z) and measures (M)" if kind in _WITH_HEIGHTS else "measures (M)"
        notes.append(f"the shapes have {what}, which are left out: a geometry has x and y")


# --- on the worker ---------------------------------------------------------------------------------


def _unpack(layer: ShapefileLayer, folder: Path) -> None:
    # under plain names: those in the archive decide nothing about paths
    left = INPUT.archive_bytes
    try:
        with zipfile.ZipFile(layer.path) as archive:
            for suffix, name in (("shp", layer.shp), ("dbf", layer.dbf), ("shx", layer.shx)):
                if name is not None:
                    left -= _unpack_one(archive, name, folder / f"layer.{suffix}", left)
    except _ARCHIVE_ERRORS as error:
        raise RecordError(f"the archive cannot be unpacked: {error}") from None


def _unpack_one(archive: zipfile.ZipFile, name: str, target: Path, left: int) -> int:
    info = archive.getinfo(name)
    size = 0
    with archive.open(info) as stream, target.open("xb") as out:
        while chunk := stream.read(_CHUNK):
            size += len(chunk)
            if size > left:
                raise RecordError(f"{name}: more than {INPUT.archive_bytes >> 30} GiB when unpacked")
            if size > INPUT.ratio_from and size > INPUT.archive_ratio * max(info.compress_size, 1):
                raise RecordError(f"{name}: unpacks to more than {INPUT.archive_ratio:,} times its size")
            out.write(chunk)
    return size


def _guessed_encoding(dbf: Path) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with dbf.open("rb") as stream:
        header = stream.read(32)
        end = int.from_bytes(header[8:10], "little")
        fields = stream.read(max(end - 32, 0))
        try:
            for start in range(0, len(fields) - 31, 32):
                fields[start : start + 11].partition(b"\0")[0].decode("utf-8")
            while chunk := stream.read(_CHUNK):
                decoder.decode(chunk)
        except UnicodeDecodeError:
            return "iso8859-1"  # in which any bytes are text
    return "utf-8"


def _features(streams: dict[str, Any], encoding: str, columns: tuple[str, ...]) -> Iterator[Record]:
    import shapefile  # type: ignore[import-untyped]

    shapefile.VERBOSE = False
    row = 0
    try:
        _check_layout(streams["shp"], streams.get("shx"))
        with shapefile.Reader(**streams, encoding=encoding, encodingErrors="strict") as reader:
            names = _columns(reader, columns)
            # record by record, since pyshp's pairs go out of step after a record that is marked as deleted
            for index, shape in enumerate(reader.iterShapes()):
                row = index + 1
                record = reader.record(index) if row <= reader.numRecords else _parts_differ(row, reader)
                if record is None:
                    _check_deleted(streams["dbf"], index)
                else:
                    yield _feature(names, list(record), shape)
            if row < reader.numRecords:
                _parts_differ(row, reader)
    except RecordError as error:
        if error.row is None:
            error.row = row or None
        raise
    except (UnicodeDecodeError, shapefile.dbfFileException) as error:
        if "decode" not in str(error):
            raise _unreadable(error, row) from None
        raise RecordError(f"text in the .dbf file is not valid {encoding}", row or None) from None
    except (
        shapefile.ShapefileException,
        shapefile.GeoJSON_Error,
        shapefile.RingSamplingError,
        struct.error,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise _unreadable(error, row) from None


def _check_layout(shp: BinaryIO, shx: BinaryIO | None) -> None:
    code, length, kind = struct.unpack(">i20xi4xi", _exactly(shp, 36, 0))
    kind = int.from_bytes(kind.to_bytes(4, "big", signed=True), "little", signed=True)
    if code != _SHP_CODE:
        raise RecordError("not a readable shapefile: the .shp file does not begin as one")
    end, at, row = 2 * length, _HEADER, 0
    index = b"" if shx is None else shx.read()[_HEADER:]
    # pyshp goes by the index where there is one, and otherwise ends where a record looks wrong
    while at < end:
        row += 1
        _, words, found = struct.unpack(">ii4s", _exactly(shp, 12, row, at))
        if int.from_bytes(found, "little", signed=True) not in (0, kind):
            raise RecordError("the shape is of another type than the .shp file declares", row)
        entry = index[8 * (row - 1) : 8 * row]
        if shx is not None and entry != struct.pack(">ii", at // 2, words):
            raise RecordError("the .shx file does not say where the .shp file has the record", row)
        at += 8 + 2 * max(words, 2)
    if at != end or len(index) not in (0, 8 * row) or shp.seek(0, io.SEEK_END) != end:
        raise RecordError(f"the .shp file does not end where it says, after {row:,} records")
    for stream in (shp, shx):
        if stream is not None:
            stream.seek(0)


def _exactly(stream: BinaryIO, size: int, row: int, at: int = 0) -> bytes:
    stream.seek(at)
    data = stream.read(size)
    if len(data) < size:
        raise RecordError("not a readable shapefile: the .shp file is cut short", row or None)
    return data


def _check_deleted(dbf: BinaryIO, index: int) -> None:
    dbf.seek(8)
    header, size = struct.unpack("<HH", dbf.read(4))
    dbf.seek(header + index * size)
    # pyshp leaves out every record whose mark is not blank
    if (mark := dbf.read(1)) != b"*":
        message = f"the .dbf file marks the record with {mark!r}; a blank or '*' (deleted) was expected"
        raise RecordError(message)


def _unreadable(error: Exception, row: int) -> RecordError:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return RecordError(f"not a readable shapefile: {text[:_MESSAGE]}", row or None)


def _columns(reader: Any, wanted: tuple[str, ...]) -> list[str]:
    names = [str(f[0]) for f in reader.fields if f[0] != "DeletionFlag"]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise RecordError(f"the .dbf file names column {twice!r} twice")
    if missing := [n for n in wanted if n not in (*names, GEOMETRY)]:
        raise RecordError(
            f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)} of the schema not in the .dbf "
            f"file (it has {', '.join(names)})"
        )
    return names


def _parts_differ(shapes: int, reader: Any) -> NoReturn:
    less, more = (".shp", ".dbf") if shapes < reader.numRecords else (".dbf", ".shp")
    raise RecordError(f"the {less} file has fewer records than the {more} file")


def _feature(names: list[str], values: list[Any], shape: Any) -> Record:
    try:
        fields = {name: _value(value) for name, value in zip(names, values, strict=True)}
        fields[GEOMETRY] = None
        if shape.shapeType != 0:
            fields[GEOMETRY] = json.dumps(
                _geometry(shape.__geo_interface__),
                sort_keys=True,
                separators=(",", ":"),
                allow_nan=False,
                default=list,
            )
    except ValueError:
        raise RecordError("a number or coordinate is not finite") from None
    return fields


def _geometry(geometry: dict[str, Any]) -> dict[str, Any]:
    kind, coordinates = geometry["type"], geometry["coordinates"]
    # a polygon or line of a shapefile may have several parts: all get the type that can have them
    if kind in ("Polygon", "LineString"):
        return {"type": f"Multi{kind}", "coordinates": [coordinates] if coordinates else []}
    return geometry


def _value(value: Any) -> Value:
    """An attribute: numbers as JSON writes them, dates in ISO form, empty text as null."""
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Number(json.dumps(value, allow_nan=False))
    return None if value == "" else value
