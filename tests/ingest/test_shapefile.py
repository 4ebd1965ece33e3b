"""Zipped shapefiles: which one is meant, what its values become, what is refused. All are made with pyshp."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odfchain.errors import BadInputError
from odfchain.ingest.importing import infer_file
from odfchain.limits import INPUT
from odfchain.odf.sources import ReadStepEsriShapefile
from odfchain.spark import shapefile
from odfchain.spark.json_values import RecordError, json_text
from odfchain.spark.shapefile import ShapefileLayer, codec_of
from tests.kit.pushed_files import put
from tests.kit.reader_harness import Harness
from tests.kit.shapefiles import LAMBERT, SQUARE, SQUARE_TEXT, WGS84, Field, archive, named, parts
from tests.kit.support import unchanged

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

NUMBER: list[Field] = [("n", "N", 5, 0)]
FIELDS: list[Field] = [
    ("name", "C", 40), ("real", "N", 33, 15), ("whole", "N", 18, 0), ("float", "F", 20, 5), ("day", "D"),
    ("flag", "L"),
]  # fmt: skip
ROW = ["é", 1, 12_345_678_901_234_567, 1.5, dt.date(2020, 1, 5), True]


def records(path: Path, sub_path: str | None = None) -> list[dict[str, Any]]:
    layer, _ = ShapefileLayer.find(path, sub_path, path.parent)
    try:
        return [json.loads(json_text(r)) for r in layer.records()]
    finally:
        assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing unpacked is left"


def fault(path: Path) -> tuple[int | None, str]:
    with pytest.raises(RecordError) as caught:
        records(path)
    return caught.value.row, caught.value.message


def refused(path: Path, sub_path: str | None = None) -> BadInputError:
    with pytest.raises(BadInputError) as caught:
        ShapefileLayer.find(path, sub_path, path.parent)
    assert str(caught.value).startswith(f"{path}: ")
    return caught.value


# --- values ----------------------------------------------------------------------------------------


def test_values(tmp_path: Path) -> None:
    nothing = ["", None, None, None, None, None]
    path = archive(tmp_path / "a.zip", named("a", parts(FIELDS, [ROW, nothing], shapes=[SQUARE, None])))
    first, second = records(path)
    assert list(first.values()) == ["é", 1.0, 12_345_678_901_234_567, 1.5, "2020-01-05", True, SQUARE_TEXT]
    assert type(first["real"]) is float
    assert type(first["whole"]) is int
    assert second == dict.fromkeys([*[f[0] for f in FIELDS], "geometry"])


def test_several_rings_and_an_attribute_called_geometry(tmp_path: Path) -> None:
    far = [[[20, 0], [20, 10], [30, 10], [30, 0], [20, 0]]]
    files = parts([("geometry", "C", 5)], [["x"]], shapes=[SQUARE + far])
    (record,) = records(archive(tmp_path / "a.zip", named("a", files)))
    geometry = json.loads(record["geometry"])
    assert geometry["type"] == "MultiPolygon"
    assert [len(polygon) for polygon in geometry["coordinates"]] == [1, 1]


def marked(tmp_path: Path, mark: str) -> Path:
    """An archive whose first of three records has this mark."""
    files = parts(NUMBER, [[1], [2], [3]], shapes=[None, SQUARE, None])
    dbf = bytearray(files["dbf"])
    dbf[int.from_bytes(dbf[8:10], "little")] = ord(mark)
    return archive(tmp_path / "a.zip", named("a", files | {"dbf": bytes(dbf)}))


def test_a_record_marked_as_deleted_takes_its_shape_with_it(tmp_path: Path) -> None:
    assert records(marked(tmp_path, "*")) == [{"n": 2, "geometry": SQUARE_TEXT}, {"n": 3, "geometry": None}]


def test_another_mark_than_deleted_is_damage(tmp_path: Path) -> None:
    """pyshp would leave the record out."""
    said = "the .dbf file marks the record with b'!'; a blank or '*' (deleted) was expected"
    assert fault(marked(tmp_path, "!")) == (1, said)


def test_a_column_of_the_schema_that_is_not_there(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", named("a", parts(NUMBER, [[1]])))
    layer, _ = ShapefileLayer.find(path, None, tmp_path)
    with pytest.raises(RecordError) as caught:
        list(dataclasses.replace(layer, columns=("n", "m", "geometry")).records())
    assert caught.value.message == "column m of the schema not in the .dbf file (it has n)"


def test_dimensions_that_are_left_out_are_said(tmp_path: Path) -> None:
    files = named("a", parts(NUMBER, [[1]]))
    for kind, note in [
        (5, ()),
        (15, ("the shapes have heights (Z) and measures (M), which are left out: a geometry has x and y",)),
        (25, ("the shapes have measures (M), which are left out: a geometry has x and y",)),
    ]:
        shp = files["a.shp"][:32] + kind.to_bytes(4, "little") + files["a.shp"][36:]
        path = archive(tmp_path / f"{kind}.zip", files | {"a.shp": shp})
        assert ShapefileLayer.find(path, None, tmp_path)[1] == note


@pytest.mark.parametrize(
    ("written", "side_file", "read"),
    [
        ("latin-1", {"a.cst": b"ISO-8859-1\r\n"}, "é"),
        ("cp1251", {"A.CPG": b"1251"}, "ж"),
        ("utf-8", {"a.cpg": b"\xef\xbb\xbfUTF-8"}, "é"),
        ("utf-8", {}, "é"),
        ("latin-1", {}, "é"),
        ("cp1252", {"a.cpg": b"ANSI 1252", "a.cst": b"UTF-8"}, "€"),
    ],
)
def test_the_encoding_of_text(tmp_path: Path, written: str, side_file: dict[str, bytes], read: str) -> None:
    files = named("a", parts([("t", "C", 9)], [[read]], encoding=written))
    (record,) = records(archive(tmp_path / "a.zip", files | side_file))
    assert record["t"] == read


def test_an_encoding_that_is_not_known_is_said(tmp_path: Path) -> None:
    files = named("a", parts([("t", "C", 9)], [["é"]], encoding="latin-1"))
    path = archive(tmp_path / "a.zip", files | {"a.cpg": b"klingon"})
    _, notes = ShapefileLayer.find(path, None, tmp_path)
    (note,) = notes
    assert note.startswith("the encoding 'klingon' that the .cpg file names is not known; read as UTF-8")
    assert records(path)[0]["t"] == "é"


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("UTF-8", "utf-8"), ("65001", "utf-8"), ("88591", "iso8859-1"), ("8859-15", "iso8859-15"),
        ("ISO 8859-1", "iso8859-1"), ("OEM 437", "cp437"), ("ansi_1251", "cp1251"), ("CP1252", "cp1252"),
        ("hex", None), ("klingon", None), ("99999", None),
    ],
)  # fmt: skip
def test_names_of_encodings(label: str, codec: str | None) -> None:
    assert codec_of(label) == codec


def test_another_reference_system_is_said_and_nothing_is_converted(tmp_path: Path) -> None:
    files = named("a", parts(NUMBER, [[1]]))
    path = archive(tmp_path / "a.zip", files | {"a.prj": LAMBERT})
    assert ShapefileLayer.find(path, None, tmp_path)[1] == (
        "coordinates are in 'ETRS89-extended / LAEA Europe', as the .prj file says; they are kept as they are",
    )
    assert records(path)[0]["geometry"] == SQUARE_TEXT
    path.unlink()
    assert ShapefileLayer.find(archive(path, files | {"a.prj": WGS84}), None, tmp_path)[1] == ()


@pytest.mark.parametrize(
    ("side_file", "said"),
    [
        ({"a.prj": LAMBERT}, "coordinates are in 'ETRS89-extended / LAEA Europe', as the .prj file says"),
        ({"a.prj": WGS84}, "coordinates are in 'GCS_WGS_1984', as the .prj file says"),
        ({}, "no .prj file names the reference system of the coordinates"),
    ],
)
def test_an_import_knows_a_zipped_shapefile_and_says_its_reference_system(
    tmp_path: Path, side_file: dict[str, bytes], said: str
) -> None:
    path = archive(tmp_path / "a.zip", named("a", parts(NUMBER, [[1]])) | side_file)
    found = infer_file(path, tmp_path)
    assert isinstance(found.read, ReadStepEsriShapefile)
    assert found.notes == (f"{said}; they are kept as they are",)


@pytest.mark.parametrize(
    ("member", "said"),
    [("", "WGS 84, as always in GeoJSON"), ('"crs": {"type": "name", "properties": {"name": "EPSG:3857"}}, ', "'EPSG:3857'")],
)  # fmt: skip
def test_so_does_one_of_geojson(tmp_path: Path, member: str, said: str) -> None:
    path = tmp_path / "a.geojson"
    feature = '{"type": "Feature", "properties": {"n": 1}, "geometry": null}'
    path.write_text(f'{{"type": "FeatureCollection", {member}"features": [{feature}]}}')
    assert infer_file(path, tmp_path).notes == (f"coordinates are in {said}; they are kept as they are",)


def test_of_other_archives_nothing_is_read(tmp_path: Path) -> None:
    for path in (archive(tmp_path / "b.zip", {"a.csv": b"n"}), put(tmp_path, "no archive", "c.ZIP")):
        with pytest.raises(BadInputError, match=r"(?i)archive"):
            infer_file(path, tmp_path)


# --- which one -------------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """An archive of three layers, and what macOS puts beside a file."""
    files: dict[str, bytes] = {"__MACOSX/one/._a.shp": b""}
    for number, name in enumerate(["one/a", "one/b", "two/[c]"], start=1):
        files |= named(name, parts(NUMBER, [[number]]))
    return archive(tmp_path / "a.zip", files)


@pytest.mark.parametrize(
    ("sub_path", "number"), [("one/a.shp", 1), ("*/b.shp", 2), ("two/*", 3), ("two/[c].shp", 3), ("*b*", 2)]
)
def test_a_sub_path_is_an_exact_name_or_a_glob(three: Path, sub_path: str, number: int) -> None:
    assert [r["n"] for r in records(three, sub_path)] == [number]


def test_none_or_several_are_refused_with_their_names(three: Path) -> None:
    error = refused(three)
    assert error.message == (
        "3 .shp files are in the archive, exactly one is expected: one/a.shp, one/b.shp, two/[c].shp"
    )
    assert error.hint == "say which in the read step's 'subPath'"
    assert "2 .shp files match subPath 'one/*'" in refused(three, "one/*").message
    no_such = "no .shp file matches subPath 'one/a.dbf' (there are: one/a.shp,"
    assert no_such in refused(three, "one/a.dbf").message


def test_at_most_five_names_are_listed(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {f"{n}.shp": b"" for n in range(9)})
    assert refused(path).message.endswith("expected: 0.shp, 1.shp, 2.shp, 3.shp, 4.shp, …")


def test_not_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a.shp").write_bytes(parts(NUMBER, [[1]])["shp"])
    error = refused(tmp_path / "a.shp")
    assert "not a readable ZIP archive" in error.message
    assert error.hint == "put the .shp, .dbf and .shx files into one ZIP archive and give that"


def test_a_part_is_missing(tmp_path: Path) -> None:
    files = named("a", parts(NUMBER, [[1]]))
    no_index = {n: d for n, d in files.items() if n != "a.shx"}
    assert len(records(archive(tmp_path / "a.zip", no_index))) == 1, "the index is not needed"
    (tmp_path / "a.zip").unlink()
    no_attributes = archive(tmp_path / "b.zip", {n: d for n, d in files.items() if n != "a.dbf"})
    assert refused(no_attributes).message == "a.shp has no .dbf file with the same name"


# --- damage ----------------------------------------------------------------------------------------


def damaged(tmp_path: Path, part: str, change: Any) -> Path:
    files = parts([("n", "N", 5, 0), ("t", "C", 9)], [[1, "a"], [2, "é"], [3, "c"]])
    return archive(tmp_path / "a.zip", named("a", files | {part: change(files[part])}))


def fewer(dbf: bytes, count: int) -> bytes:
    return dbf[:4] + count.to_bytes(4, "little") + dbf[8:]


@pytest.mark.parametrize(
    ("part", "change", "row", "message"),
    [
        ("dbf", lambda d: d[:-20], 2, "not a readable shapefile: "),
        ("dbf", lambda _: b"junk", None, "not a readable shapefile: "),
        ("dbf", lambda d: fewer(d, 2), 3, "the .dbf file has fewer records than the .shp file"),
        ("dbf", lambda d: fewer(d, 5), 3, "the .shp file has fewer records than the .dbf file"),
        ("shp", lambda d: d[:-100], None, "the .shp file does not end where it says, after 3 records"),
        ("shp", lambda d: d[:150], 2, "not a readable shapefile: the .shp file is cut short"),
        (
            "shp",
            lambda d: d[:108] + b"\1" + d[109:],
            1,
            "the shape is of another type than the .shp file declares",
        ),
        ("shx", lambda d: d[:-1] + b"!", 3, "the .shx file does not say where the .shp file has the record"),
        ("shp", lambda _: b"junk", None, "not a readable shapefile: "),
        ("dbf", lambda d: d.replace(b"t\0", b"n\0", 1), None, "the .dbf file names column 'n' twice"),
    ],
)
def test_a_damaged_shapefile(tmp_path: Path, part: str, change: Any, row: int | None, message: str) -> None:
    found, said = fault(damaged(tmp_path, part, change))
    assert said.startswith(message)
    assert found == row
    assert len(said.splitlines()) == 1


def test_text_that_is_not_in_the_declared_encoding(tmp_path: Path) -> None:
    files = named("a", parts([("t", "C", 9)], [["a"], ["é"]], encoding="latin-1"))
    path = archive(tmp_path / "a.zip", files | {"a.cpg": b"UTF-8"})
    assert fault(path) == (2, "text in the .dbf file is not valid utf-8")


def test_a_damaged_archive(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", named("a", parts(NUMBER, [[1]] * 50)))
    with zipfile.ZipFile(path) as packed:
        start = packed.getinfo("a.dbf").header_offset + 40
    content = bytearray(path.read_bytes())
    content[start] ^= 0xFF
    path.write_bytes(content)
    assert fault(path)[1].startswith("the archive cannot be unpacked: ")


def test_an_archive_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.zip", named("a", parts([("t", "C", 200)], [[""]] * 2_000)))
    monkeypatch.setattr(shapefile, "INPUT", dataclasses.replace(INPUT, archive_bytes=300_000))
    assert "when unpacked" in fault(path)[1]
    small = dataclasses.replace(INPUT, ratio_from=100_000, archive_ratio=2)
    monkeypatch.setattr(shapefile, "INPUT", small)
    assert fault(path)[1] == "a.shp: unpacks to more than 2 times its size"


# --- on Spark --------------------------------------------------------------------------------------


def test_with_a_schema(tmp_path: Path, engine: SparkEngine) -> None:
    path = archive(tmp_path / "a.zip", named("a", parts(FIELDS, [ROW])))
    ddl = ("day DATE", "name STRING", "whole BIGINT", "real DOUBLE", "flag BOOLEAN", "geometry STRING")
    harness = Harness(tmp_path / "d", engine.session)
    harness.write(path.read_bytes(), ReadStepEsriShapefile(ddl_schema=ddl))
    (row,) = harness.rows()
    assert row[4:] == ["2020-01-05", "é", 12_345_678_901_234_567, 1.0, True, SQUARE_TEXT]


def test_damage_names_file_and_row(tmp_path: Path, engine: SparkEngine) -> None:
    path = damaged(tmp_path, "dbf", lambda d: d[:-20])
    harness = Harness(tmp_path / "d", engine.session)
    for ddl in (None, ("n INT",)):
        with unchanged(harness.dataset.folder), pytest.raises(BadInputError) as caught:
            harness.write(path.read_bytes(), ReadStepEsriShapefile(ddl_schema=ddl))
        assert "row 2: not a readable shapefile: " in str(caught.value)
        assert caught.value.row == 2
