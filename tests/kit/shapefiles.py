"""Shapefiles made with pyshp, zipped as publishers do."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import shapefile

SQUARE = [[[0, 0], [0, 10], [10, 10], [10, 0], [0, 0]]]
SQUARE_TEXT = (
    '{"coordinates":[[[[0.0,0.0],[0.0,10.0],[10.0,10.0],[10.0,0.0],[0.0,0.0]]]],"type":"MultiPolygon"}'
)
WGS84 = b'GEOGCS["GCS_WGS_1984",DATUM["D_WGS_1984",SPHEROID["WGS_1984",6378137,298.257223563]]]'
LAMBERT = b'PROJCS["ETRS89-extended / LAEA Europe",GEOGCS["ETRS89",DATUM["D_ETRS_1989"]]]'

Field = tuple[Any, ...]


def parts(
    fields: Iterable[Field],
    rows: Iterable[list[Any]],
    *,
    encoding: str = "utf-8",
    shapes: list[Any] | None = None,
) -> dict[str, bytes]:
    """The three files of a polygon shapefile; a shape of None is a null shape, the default is one square."""
    out = {name: io.BytesIO() for name in ("shp", "shx", "dbf")}
    with shapefile.Writer(**out, encoding=encoding) as writer:
        writer.shapeType = shapefile.POLYGON
        for field in fields:
            writer.field(*field)
        for index, row in enumerate(rows):
            rings = SQUARE if shapes is None else shapes[index]
            if rings is None:
                writer.null()
            else:
                writer.poly(rings)
            writer.record(*row)
    return {name: stream.getvalue() for name, stream in out.items()}


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return path


def named(name: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.{suffix}": data for suffix, data in files.items()}


UKRAINE_NAMES = [
    "Cherkasy", "Chernihiv", "Chernivtsi", "Crimea", "Dnipropetrovs'k", "Donets'k", "Ivano-Frankivs'k",
    "Kharkiv", "Kherson", "Khmel'nyts'kyy", "Kiev City", "Kiev", "Kirovohrad", "L'viv", "Luhans'k",
    "Mykolayiv", "Odessa", "Poltava", "Rivne", "Sevastopol'", "Sumy", "Ternopil'", "Transcarpathia",
    "Vinnytsya", "Volyn", "Zaporizhzhya", "Zhytomyr",
]  # fmt: skip


def ukraine(fields: list[Field]) -> dict[str, bytes]:
    """An archive built like the reference's `ukraine.zip`: same members, columns, names and encoding.

    Shapes (one square each) and the values that the case does not give are made up.
    """
    rows = []
    for number, name in enumerate(UKRAINE_NAMES, start=1):
        values = {
            "id_0": 240.0, "iso": "UKR", "name_0": "Ukraine", "id_1": float(number), "name_1": name,
            "hasc_1": f"UA.{number:02}", "ccn_1": 0.0, "type_1": "Oblast'", "engtype_1": "Region",
            "varname_1": "Crimée|Criméia|Krim" if name == "Crimea" else name.upper(),
        }  # fmt: skip
        rows.append([values.get(f[0], "") for f in fields])
    files = named("gg870xt4706", parts(fields, rows, encoding="iso8859-1"))
    return files | {
        "gg870xt4706.cst": b"ISO-8859-1",
        "gg870xt4706.prj": WGS84,
        "wfsrequest.txt": b"made for a test",
    }
