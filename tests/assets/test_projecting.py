"""Locations and facts of a lock written back into STAC, which is valid afterwards."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pystac")  # an extra; the tests' own environment has it

from pystac.errors import STACValidationError

import odfchain as odf
from odfchain.assets.hrefs import checked_location, parse_href, placed
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.locks import AssetLock, table_of
from odfchain.assets.objects import Facts, Selection, Stores
from odfchain.assets.stac import Projection, StacReader
from odfchain.errors import AssetError, NameCollisionError, UsageError
from odfchain.storage.locations import Location
from tests.kit.asset_cases import Case, Hold, held
from tests.kit.stac_validation import check_stac
from tests.kit.support import Run

FIXTURE = json.loads(Path("fixtures/assets/projection.json").read_text())
EXTENSION = "https://stac-extensions.github.io/{}/schema.json"
VERSIONS = ["1.0.0", "1.1.0"]


def item(version: str = "1.0.0", **more: Any) -> dict[str, Any]:
    """The Item of the fixture; with the words that cases have for parts of it."""
    found = copy.deepcopy(FIXTURE["item"]) | {"stac_version": version}
    return changed(found, more)


def changed(document: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    for name, part in copy.deepcopy(parts).items():
        if name == "stac_extensions":
            document[name] = [EXTENSION.format(each) for each in part]
        elif name == "schemes":
            document["properties"]["storage:schemes"] = part
        else:
            document["assets"][name] = part
    return document


def row_of(item_id: str, asset: str, *parts: Any) -> AssetRow:
    *place, size, checksum = parts
    return AssetRow(item_id, asset, checked_location(*place), Facts(size, file_checksum=checksum))


def projection(rows: Iterable[AssetRow] = (), **more: Any) -> Projection:
    return Projection({row.key: row for row in rows}, Path("/lock"), **more)


def written(document: dict[str, Any], *rows: AssetRow, **more: Any) -> tuple[dict[str, Any], int]:
    return projection(rows, **more).item(document, Path("/out/x"))


def hold_case(case: Case, _: Path) -> None:
    rows, options = [row_of(*row) for row in case["rows"]], case.get("options", {})
    for version, keep in itertools.product(VERSIONS, (False, True)):
        before = item(version, **case.get("input", {}))
        expected = changed(copy.deepcopy(before), case["expected"])
        expected["stac_version"] = version if keep else "1.1.0"
        given = copy.deepcopy(before)
        found, count = written(given, *rows, **options, keep_version=keep)
        assert given == before, "what is read is not changed"
        assert (found, count) == (expected, case["changed"])
        check_stac(found)
        assert written(found, *rows, **options, keep_version=keep)[0] == found, "twice is once"


def hold_refusal(case: Case, _: Path) -> None:
    messages = {False: case["message"], True: case.get("kept", case["message"])}
    for keep, message in messages.items():
        with pytest.raises(AssetError) as refused:
            written(case["item"], keep_version=keep and isinstance(case["item"]["stac_version"], str))
        assert message in refused.value.message


HELD = {"cases": (hold_case, ("expected", "changed")), "refused": (hold_refusal, ("message", "kept"))}


@held(FIXTURE, HELD)
def test_cases(hold: Hold, case: Case, tmp_path: Path) -> None:
    hold(case, tmp_path)


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["id"])
def test_what_is_written_is_read_back(case: dict[str, Any], tmp_path: Path) -> None:
    rows = [row_of(*row) for row in case["rows"] if row[0] == "a"]
    named = case.get("options", {})
    found, _ = written(item(**case.get("input", {})), *rows, **named)
    (tmp_path / "a.json").write_text(json.dumps(found))
    selection = Selection(
        assets=frozenset(row.asset_key for row in rows),
        alternate=None if named.get("primary") else named.get("name", "locked"),
    )
    reader = StacReader(Stores(tmp_path), selection, pytest.fail)
    back = list(reader.assets(str(tmp_path))) if rows else []
    assert sorted((a.item_id, a.asset_key, a.location) for a in back) == sorted(
        (row.item_id, row.asset_key, row.location) for row in rows
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("links"),
        lambda d: d.update(stac_version="1.2.0"),
        lambda d: d["properties"].update(datetime=None),
        lambda d: d["properties"]["storage:schemes"]["minio:9000"].pop("type"),
        lambda d: d["properties"]["storage:schemes"]["minio:9000"].update(type="ms-azure"),
        lambda d: d["properties"].pop("storage:schemes"),
        lambda d: d["properties"].update({"storage:platform": "AWS"}),
        lambda d: d["assets"]["thumbnail"].update({"file:size": -1}),
        lambda d: d["assets"]["thumbnail"].update({"file:checksum": "1220AB"}),
        lambda d: d["assets"]["thumbnail"].update({"file:data_type": "uint8"}),
        lambda d: d["assets"]["thumbnail"]["alternate"]["locked"].pop("href"),
        lambda d: d["assets"]["thumbnail"]["alternate"]["locked"].update({"storage:refs": ["nowhere"]}),
        lambda d: d["assets"]["B04"].pop("href"),
        lambda d: d["stac_extensions"].append(EXTENSION.format("eo/v1.0.0")),
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_a_spoiled_document_is_found(spoil: Any, keep: bool) -> None:
    row = row_of("a", "thumbnail", "s3", "m", "http://minio:9000", "t.png", 7, None)
    found, _ = written(item(), row, keep_version=keep)
    check_stac(found)
    spoil(found)
    with pytest.raises((STACValidationError, AssertionError, LookupError, KeyError)):
        check_stac(found)


def test_extensions_that_cannot_be_brought_up_to_date_stay(caplog: pytest.LogCaptureFixture) -> None:
    old = {"storage:platform": "GCP", "storage:region": "eu", "href": "gs://b/t.png"}
    document = item(stac_extensions=["storage/v1.0.0"], thumbnail=old)
    row = row_of("a", "B04", "s3", "m", "http://minio:9000", "B04.tif", None, None)
    found, _ = written(document, row)
    assert found["assets"]["thumbnail"] == old
    assert EXTENSION.format("storage/v1.0.0") in found["stac_extensions"]
    assert EXTENSION.format("storage/v2.0.0") not in found["stac_extensions"], "it refuses these fields"
    check_stac(found)
    found, _ = written(item(stac_extensions=["storage/v1.0.0"], thumbnail=old | {"storage:platform": "AWS"}))
    assert found["stac_extensions"] == [EXTENSION.format("storage/v1.0.0")]
    known = {"href": "s3://bbb/t.png", "storage:platform": "AWS", "storage:region": "eu"}
    found, _ = written(item(stac_extensions=["storage/v1.0.0"], thumbnail=known))
    assert found["stac_extensions"] == [EXTENSION.format("storage/v2.0.0")]
    check_stac(found)
    typed = {"href": "./t.png", "file:data_type": "uint8"}
    found, _ = written(item(stac_extensions=["file/v1.0.0"], thumbnail=typed), row)
    assert [e for e in found["stac_extensions"] if "/file/" in e] == [EXTENSION.format("file/v1.0.0")]
    found, _ = written(item(thumbnail=typed), row)
    assert "/file/" not in str(found["stac_extensions"]), "it was not said before, either"


def test_items_that_were_rows_of_a_table() -> None:
    found, _ = written({**item(), "bbox": None, "collection": None, "stac_extensions": None})
    check_stac(found)


MINIO = ["http://minio:9000", "https://minio:9000"]
ENDPOINTS = {
    "s3": [None, *MINIO, "http://minio:9000/a", "http://[::1]:9000", "https://h"],
    "az": [
        None,
        *(f"https://{name}.blob.core.windows.net" for name in ("acct", "zz")),
        "http://h:10000/acct",
    ],
}
AZURE = {"type": "ms-azure", "platform": "https://{account}.blob.core.windows.net"}
SCHEMES = st.fixed_dictionaries(
    {},
    optional={
        "minio:9000": st.sampled_from(["http://minio:9000", "https://minio:9000/", "http://{x}:9000"]).map(
            lambda url: {"type": "custom-s3", "platform": url, "x": "minio"}
        ),
        "h": st.just({"type": "aws-s3", "platform": "https://{bucket}.s3.{region}.amazonaws.com"}),
        "z": st.sampled_from(["acct", "Foo", "zz"]).map(lambda name: {**AZURE, "account": name}),
        "t": st.just({"type": "custom-s3", "platform": "https://{bucket}.h"}),
    },
)


@st.composite
def locations(draw: st.DrawFn) -> Location:
    store = draw(st.sampled_from(["s3", "az", "gs", "https", "file"]))
    key = draw(st.sampled_from(["k", "a b.tif", "ä/ö.tif", "x%y", "q?z", "h#1", "a+b"]))
    container = {"https": "https://h:81", "file": None}.get(store, draw(st.sampled_from(["bbb", "m.m"])))
    endpoint = draw(st.sampled_from(ENDPOINTS.get(store, [None])))
    return checked_location(store, container, endpoint, f"/data/{key}" if store == "file" else key)


@st.composite
def places(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"href": draw(locations()).href()}
    if names and draw(st.booleans()):
        found["storage:refs"] = draw(st.lists(st.sampled_from(names), unique=True))
    return found


@pytest.mark.soak
@given(data=st.data(), version=st.sampled_from(VERSIONS), primary=st.booleans(), keep=st.booleans())
def test_what_is_written_comes_back(data: st.DataObject, version: str, primary: bool, keep: bool) -> None:
    schemes = data.draw(SCHEMES)
    parts: dict[str, Any] = {key: data.draw(places(sorted(schemes))) for key in ("thumbnail", "B04")}
    for part in parts.values():
        others = {
            n: data.draw(places(sorted(schemes))) for n in ("locked", "original") if data.draw(st.booleans())
        }
        if others:
            part["alternate"] = others
    if schemes:
        parts |= {"schemes": schemes, "stac_extensions": ["storage/v2.0.0"]}
    document = item(version, **parts)
    check_stac(document)
    row = AssetRow("a", "thumbnail", data.draw(locations()), Facts(7))
    found, _ = written(document, row, primary=primary, keep_version=keep)
    check_stac(found)
    assert written(found, row, primary=primary, keep_version=keep)[0] == found
    assert found["assets"]["B04"] == document["assets"]["B04"]
    place = found["assets"]["thumbnail"] if primary else found["assets"]["thumbnail"]["alternate"]["locked"]
    back = placed(
        parse_href(place["href"]), found["properties"].get("storage:schemes"), place.get("storage:refs")
    )
    assert back == row.location


def test_files_beside_the_lock_are_named_from_where_the_item_lies() -> None:
    row = AssetRow("a", "thumbnail", parse_href("assets/t b.png"), Facts(7))
    found, _ = projection([row], primary=True).item(item(), Path("/lock/stac/a"))
    assert found["assets"]["thumbnail"]["href"] == "../../assets/t%20b.png"


def test_an_item_with_a_self_link_lies_where_it_is_written(tmp_path: Path) -> None:
    links = [{"rel": "self", "href": "https://h/items/a.json"}, {"rel": "parent", "href": "../catalog.json"}]
    document = item() | {"links": links}
    alternates = {"x": {"href": "y.tif"}, "z": {"href": "?q=1"}}
    document["assets"]["more"] = {"href": "./more.tif", "alternate": alternates}
    row = AssetRow("a", "thumbnail", parse_href("assets/t.png"))
    folder = tmp_path / "stac"
    where = Projection({row.key: row}, tmp_path, primary=True)
    found, _ = where.item(document, folder)
    check_stac(found)
    assert found["links"] == [{"rel": "canonical", "href": "https://h/items/a.json"}, links[1]]
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(found))
    reader = StacReader(Stores(tmp_path), Selection(), pytest.fail)
    assert {asset.asset_key: asset.location.href() for asset in reader.assets(str(folder))} == {
        "thumbnail": f"file://{tmp_path}/assets/t.png",
        "B04": "https://h/B04.tif",
        "more": "https://h/items/more.tif",
    }
    assert found["assets"]["thumbnail"]["alternate"]["original"]["href"] == "https://h/items/t.png"
    alternates["x"] = {"href": "https://h/items/y.tif"}
    assert found["assets"]["more"]["alternate"] == alternates, "a query is no file"
    assert where.item(found, folder)[0] == found
    twice = item() | {"links": [*links, {"rel": "canonical", "href": "https://o/a.json"}]}
    found, _ = where.item(twice, folder)
    assert [link["rel"] for link in found["links"]] == ["parent", "canonical"]
    elsewhere = AssetRow("a", "thumbnail", parse_href("s3://m/t.png"))
    assert replace(where, rows={row.key: elsewhere}).item(twice, folder)[0]["links"] == twice["links"]


CATALOG = {"type": "Catalog", "id": "c", "description": "c", "license": "proprietary"}
EXTENT = {"spatial": {"bbox": [[0, 0, 1, 1]]}, "temporal": {"interval": [[None, None]]}}
COLLECTION = {**CATALOG, "type": "Collection", "id": "s2", "extent": EXTENT}


def a_catalog(folder: Path, version: str) -> dict[str, Any]:
    """A catalog with a collection, an Item, an ItemCollection and Items on lines; its documents by path."""
    links = [{"rel": "self", "href": "https://h/c.json"}, {"rel": "child", "href": "./s2/collection.json"}]
    said: dict[str, Any] = {"stac_version": version, "stac_extensions": []}
    two = [item(version), item(version) | {"id": "b"}]
    documents = {
        "catalog.json": {**CATALOG, **said, "links": links},
        "s2/collection.json": {**COLLECTION, **said, "links": [{"rel": "item", "href": "./a/a.json"}]},
        "s2/a/a.json": item(version) | {"id": "x"},
        "more/items.geojson": {"type": "FeatureCollection", "features": two},
        "more/lines.ndjson": two,
    }
    for name, document in documents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        lines = document if isinstance(document, list) else [document]
        (folder / name).write_text("".join(json.dumps(each) + "\n" for each in lines))
    (folder / "s2/a/t.png").write_text("no document")
    return documents


@pytest.mark.parametrize("keep", [False, True], ids=["brought up", "kept"])
@pytest.mark.parametrize("version", VERSIONS)
def test_folders_of_documents_are_written_as_they_are(tmp_path: Path, version: str, keep: bool) -> None:
    documents = a_catalog(tmp_path / "in", version)
    row = row_of("a", "B04", "s3", "m", "http://minio:9000", "B04.tif", 7, None)
    out = tmp_path / "out"
    done = projection([row], keep_version=keep).write(str(tmp_path / "in"), out)
    assert (done.documents, done.assets) == (5, 2)
    names = [path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()]
    assert sorted(names) == sorted(documents)
    wanted = version if keep else "1.1.0"
    for name in documents:
        text = (out / name).read_text()
        lines = text.splitlines() if name.endswith(".ndjson") else [text]
        for document in map(json.loads, lines):
            check_stac(document)
            for each in document.get("features", [document]):
                assert each["stac_version"] == wanted
    read = json.loads((out / "s2/collection.json").read_text())
    assert read["license"] == ("proprietary" if keep or version == "1.1.0" else "other")
    assert read["links"] == documents["s2/collection.json"]["links"]
    with pytest.raises(NameCollisionError, match="already exists") as refused:
        projection([row]).write(str(tmp_path / "in"), out)
    assert refused.value.exit_code == 5
    again = tmp_path / "again"
    projection([row], keep_version=keep).write(str(out), again)
    assert all((again / name).read_bytes() == (out / name).read_bytes() for name in documents)


@pytest.mark.parametrize("way", [["--primary"], ["--as", "mirror"]])
def test_relative_hrefs_keep_their_places(
    way: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assets: Run
) -> None:
    """Files stay where they are, so what is written elsewhere names them from there."""
    monkeypatch.chdir(tmp_path)
    documents = a_catalog(tmp_path / "in", "1.1.0")
    links = [{"rel": "parent", "href": "../collection.json"}, {"rel": "license", "href": "../../../a%20b"}]
    plain = {
        "t": {"href": "./t.png", "alternate": {"near": {"href": "../n.png"}}},
        "far": {"href": "/far.png"},
    }
    placed = documents["s2/a/a.json"] | {"links": links, "assets": plain}
    (tmp_path / "in/s2/a/a.json").write_text(json.dumps(placed))
    AssetLock(table_of([row_of("x", "far", "s3", "m", None, "f", 7, None)]), tmp_path).write("l.parquet")
    done = assets("project", "l.parquet", "--items", "in", "--output", "new/out", *way)
    assert (done.code, "warning" in done.err) == (0, False)
    found = json.loads(Path("new/out/s2/a/a.json").read_text())
    assert [link["href"] for link in found["links"]] == ["../collection.json", "../../../../a%20b"]
    asset = found["assets"]["t"]
    assert (asset["href"], asset["alternate"]["near"]["href"]) == (
        "../../../../in/s2/a/t.png", "../../../../in/s2/n.png",
    )  # fmt: skip
    assert "/far.png" in json.dumps(found["assets"]["far"])
    assert assets("derive", "new/out/s2/a", "--asset", "t", "--output", "t.parquet").code == 0
    done = assets("project", "t.parquet", "--items", "in/more", "--output", "none")
    assert "warning: no asset of in/more is in the lock" in done.err


@pytest.mark.parametrize("way", [["--primary"], ["--as", "mirror"], ["--keep-version"]])
def test_the_command_writes_what_derives_to_the_same_lock(
    way: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assets: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    a_catalog(tmp_path / "in", "1.0.0")
    derive = ["derive", "--no-probe-metadata", "--output"]
    project = ["project", "moved.parquet", "--items", "in", "--output", "out", *way]
    assert assets(*derive, "claimed.parquet", "in").code == 0
    rows = [
        replace(
            row, location=checked_location("s3", "m", "http://minio:9000", f"{row.item_id}/{row.asset_key}")
        )
        for row in odf.AssetLock.read("claimed.parquet").rows
    ]
    AssetLock(table_of(rows), tmp_path).write(tmp_path / "moved.parquet")
    done = assets(*project)
    assert done.code == 0
    assert "wrote 5 documents below out: 10 assets have their locations" in done.err
    name = {"--primary": [], "--as": ["--alternate", "mirror"]}.get(way[0], ["--alternate", "locked"])
    assert assets(*derive, "again.parquet", "out", *name).code == 0
    assert odf.AssetLock.read("again.parquet").table.equals(odf.AssetLock.read("moved.parquet").table)
    assert assets(*project).code == 5
    assert assets("project", "x", "--items", "x", "--output", "y", "--as", "a", "--primary").code == 2


def test_older_catalogs_are_brought_up_to_date(tmp_path: Path) -> None:
    old = {"stac_version": "0.9.0", "id": "c", "description": "c", "links": []}
    (tmp_path / "c.json").write_text(json.dumps(old))
    (tmp_path / "i.json").write_text(json.dumps(item("0.9.0") | {"stac_extensions": ["checksum"]}))
    projection(keep_version=True).write(str(tmp_path / "c.json"), tmp_path / "out")
    projection(keep_version=True).write(str(tmp_path / "i.json"), tmp_path / "out")
    for name in ("c.json", "i.json"):
        found = json.loads((tmp_path / "out" / name).read_text())
        assert found["stac_version"] == "1.1.0"
        check_stac(found)


def test_files_of_assets_are_no_documents(tmp_path: Path) -> None:
    names = {"MTL.json": "[1]", "area.geojson": '{"type": "Feature", "properties": {}, "geometry": null}'}
    (tmp_path / "in").mkdir()
    for name, text in names.items():
        (tmp_path / "in" / name).write_text(text)
    document = item(**{name.partition(".")[0]: {"href": f"./{name}"} for name in names})
    (tmp_path / "in" / "a.json").write_text(json.dumps(document))
    assert projection().write(str(tmp_path / "in"), tmp_path / "out").documents == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.json"]
    (tmp_path / "in" / "more.json").write_text("[1]")
    with pytest.raises(AssetError, match=r"more\.json: not an Item"):
        projection().write(str(tmp_path / "in"), tmp_path / "other")


def test_nothing_is_written_unless_all_is_in_order(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    a_catalog(source, "1.1.0")
    spoiled = json.dumps(item()).replace('"MIT"', "NaN"), json.dumps(item()).replace('"MIT"', '"\\ud800"')
    for name, text in zip(("x", "y", "z"), (*spoiled, "[]"), strict=True):
        (source / f"{name}.json").write_text(text)
    with pytest.raises(AssetError) as refused:
        projection().write(str(source), out)
    for part in ("x.json: not JSON", "y.json: a number", "z.json: not an Item"):
        assert part in refused.value.message
    assert not out.exists()
    with pytest.raises(UsageError, match="in the folder that is read"):
        projection().write(str(source), source / "out")
    with pytest.raises(UsageError, match="no such file"):
        projection().write(str(tmp_path / "nowhere"), out)
