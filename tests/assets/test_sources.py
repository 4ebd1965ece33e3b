"""Where assets come from: Items, ItemCollections, catalogs in folders, on servers and in buckets, ndjson, STAC GeoParquet."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.assets.hrefs import parse_href
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.locks import AssetLock, table_of
from odfchain.assets.objects import Selection, Stores
from odfchain.assets.stac import AssetFault, NamedAsset, StacReader
from odfchain.errors import AccessError, AssetError, UsageError
from odfchain.limits import ASSETS
from tests.kit.asset_cases import Case, Hold, held
from tests.kit.lying_objects import LyingObjects
from tests.kit.small_s3 import SmallS3

PROJECTION = json.loads(Path("fixtures/assets/projection.json").read_text())


def item(name: str, href: str = "./B04.tif", **more: Any) -> dict[str, Any]:
    return {"type": "Feature", "stac_version": "1.1.0", "id": name, "assets": {"B04": {"href": href}}, **more}


def link(rel: str, href: str) -> dict[str, str]:
    return {"rel": rel, "href": href}


def answers_with(documents: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {path: {"bytes": json.dumps(document).encode()} for path, document in documents.items()}


def serving(documents: dict[str, Any]) -> LyingObjects:
    return LyingObjects(answers_with(documents))


def write(folder: Path, documents: dict[str, Any]) -> None:
    for name, document in documents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(document))


def named(
    folder: Path, *sources: str, private: bool = True, **selection: Any
) -> tuple[list[NamedAsset], list[AssetFault]]:
    faults = list[AssetFault]()
    stores = Stores(folder, allow_private=private)
    reader = StacReader(stores, Selection(**selection), faults.append)
    return [asset for source in sources for asset in reader.assets(source)], faults


def hrefs(folder: Path, *sources: str) -> dict[str, str]:
    found, faults = named(folder, *sources)
    assert not faults
    return {asset.item_id: asset.location.href() for asset in found}


def test_items_in_a_folder_and_alone(tmp_path: Path) -> None:
    write(tmp_path, {f"{name}/item.json": item(name) for name in ("a", "b c")})
    expected = {name: f"file://{tmp_path}/{name}/B04.tif".replace(" ", "%20") for name in ("a", "b c")}
    assert hrefs(tmp_path, str(tmp_path)) == expected
    assert hrefs(tmp_path, str(tmp_path / "a" / "item.json"), str(tmp_path)) == expected, "each document once"


def test_collections_of_items_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [item("a"), item("b", links=[link("self", "https://h/x/b.json")])]
    collection = {"type": "FeatureCollection", "features": items}
    expected = {"a": f"file://{tmp_path}/B04.tif", "b": "https://h/x/B04.tif"}
    (tmp_path / "items.json").write_text(json.dumps(collection, indent=1))
    (tmp_path / "items.ndjson").write_text("".join(json.dumps(each) + "\n" for each in items))
    for name in ("items.json", "items.ndjson"):
        assert hrefs(tmp_path, str(tmp_path / name)) == expected
        data = (tmp_path / name).read_bytes()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert hrefs(tmp_path, "-") == {**expected, "a": "./B04.tif"}, "nobody says where it was read"
    with serving({"/x/items.json": collection}) as server:
        found = hrefs(tmp_path, f"{server.origin}/x/items.json")
        assert found == {**expected, "a": f"{server.origin}/x/B04.tif"}
    monkeypatch.setattr("odfchain.assets.stac.ASSETS", type(ASSETS)(document_bytes=10))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(AssetError, match="standard input: more than 10 bytes"):
        hrefs(tmp_path, "-")


def test_a_page_of_a_search_is_no_collection(tmp_path: Path) -> None:
    page = {"type": "FeatureCollection", "features": [item("a")], "links": [link("next", "./items?page=2")]}
    write(tmp_path, {"items.json": page})
    assert hrefs(tmp_path, str(tmp_path / "items.json")) == {"a": f"file://{tmp_path}/B04.tif"}
    start = {"type": "Collection", "stac_version": "1.1.0", "id": "c", "links": [link("items", "./c/items")]}
    answers = {"/c": start, "/c/items": page}
    with serving(answers) as server, pytest.raises(AssetError, match="goes on on another one"):
        named(tmp_path, f"{server.origin}/c")


def test_geoparquet_with_structs_and_with_maps(tmp_path: Path) -> None:
    links = [[link("self", "https://h/x/a.json")], None]
    structs = [{"B04": {"href": "./B04.tif"}, "B08": None}, {"B04": None, "B08": {"href": "s3://b/B08.tif"}}]
    table = pa.table({"id": ["a", "b"], "links": links, "assets": structs, "collection": ["s2", "s2"]})
    pq.write_table(table, tmp_path / "items.parquet")
    entry = pa.map_(pa.string(), pa.struct([("href", pa.string()), ("file:size", pa.int64())]))
    maps = pa.array([[("B04", {"href": "./B04.tif"})], [("B08", {"href": "s3://b/B08.tif"})]], entry)
    pq.write_table(table.set_column(2, "assets", maps), tmp_path / "maps.geoparquet")
    for name in ("items.parquet", "maps.geoparquet"):
        assert hrefs(tmp_path, str(tmp_path / name)) == {"a": "https://h/x/B04.tif", "b": "s3://b/B08.tif"}
    sizes = {"B04": {"href": "./x.tif", "file:size": 7}, "B08": {"href": None, "file:size": None}}
    pq.write_table(pa.table({"id": ["a", "b"], "assets": [sizes, None]}), tmp_path / "nulls.parquet")
    (found,), faults = named(tmp_path, str(tmp_path / "nulls.parquet"))
    read = (found.item_id, found.asset_key, found.location.key, found.size)
    assert read == ("a", "B04", f"{tmp_path}/x.tif", 7)
    scheme = {"m": {"type": "custom-s3", "platform": "http://minio:9000"}, "n": None}
    other = {"href": "s3://b/k", "storage:refs": ["n", "m"]}
    asset = {"B04": {"href": "./x", "alternate": {"s3": other}}}
    table = pa.table({"id": ["a"], "assets": [asset], "storage:schemes": [scheme]})
    pq.write_table(table, tmp_path / "schemes.parquet")
    found, more = named(tmp_path, str(tmp_path / "schemes.parquet"), alternate="s3")
    assert [asset.location.endpoint for asset in found] == ["http://minio:9000"]
    assert not faults + more
    with pytest.raises(AssetError, match="GeoParquet is read from files"):
        named(tmp_path, "https://h/items.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(AssetError, match="not STAC GeoParquet"):
        named(tmp_path, str(tmp_path / "other.parquet"))


def catalog(**links: str) -> dict[str, Any]:
    found = [link(name.rstrip("0123456789"), href) for name, href in links.items()]
    return {"type": "Catalog", "stac_version": "1.1.0", "id": "c", "links": found}


def test_a_catalog_is_walked_and_no_document_read_twice(tmp_path: Path) -> None:
    documents = {
        "catalog.json": catalog(self="./catalog.json", root="./catalog.json", child="./2024/catalog.json"),
        "2024/catalog.json": catalog(parent="../catalog.json", child="../catalog.json", item="./a/a.json"),
        "2024/a/a.json": item("a"),
    }
    write(tmp_path, documents)
    found = hrefs(tmp_path, str(tmp_path / "catalog.json"))
    assert found == {"a": f"file://{tmp_path}/2024/a/B04.tif"}
    with serving({f"/{name}": document for name, document in documents.items()}) as server:
        origin = server.origin
        assert hrefs(tmp_path, f"{origin}/catalog.json") == {"a": f"{origin}/2024/a/B04.tif"}
        assert sorted(path for _, path, _ in server.requests) == sorted(server.answers)
        with pytest.raises(AccessError, match="private"):
            named(tmp_path, f"{origin}/catalog.json", private=False)


def test_a_package_with_its_lock_is_a_folder_of_documents(tmp_path: Path) -> None:
    write(tmp_path, {"a.json": item("a", "./assets/B04.tif")})
    row = AssetRow("a", "B04", parse_href("assets/B04.tif"))
    AssetLock(table_of([row]), tmp_path).write(tmp_path / "assets.lock.parquet")
    assert hrefs(tmp_path, str(tmp_path)) == {"a": f"file://{tmp_path}/assets/B04.tif"}


def test_files_of_assets_in_a_folder_are_no_documents(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "table.parquet")
    (tmp_path / "MTL.json").write_text('{"LANDSAT": 1}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "area.geojson").write_text('{"type": "Feature", "properties": {}, "geometry": null}')
    names = ("table.parquet", "MTL.json", "broken.json", "area.geojson")
    assets = {name.partition(".")[0]: {"href": f"./{name}"} for name in names}
    write(tmp_path, {"z.json": {**item("z"), "assets": assets}})
    found, faults = named(tmp_path, str(tmp_path), assets=frozenset({"MTL"}))
    assert [asset.location.key for asset in found] == [f"{tmp_path}/MTL.json"]
    assert not faults
    del assets["broken"]
    write(tmp_path, {"z.json": {**item("z"), "assets": assets}})
    with pytest.raises(AssetError, match=r"broken\.json: not JSON"):
        named(tmp_path, str(tmp_path))


def test_absolute_links_are_followed_and_servers_name_no_files_of_this_machine(tmp_path: Path) -> None:
    write(tmp_path, {"b.json": item("b")})
    with serving({"/a.json": item("a", "file:///etc/passwd")}) as server:
        both = catalog(item=f"{server.origin}/a.json", item2=f"{tmp_path}/b.json")
        write(tmp_path, {"catalog.json": both})
        found, faults = named(tmp_path, str(tmp_path / "catalog.json"))
        assert [asset.item_id for asset in found] == ["b"]
        assert ["a B04" in str(fault) and "file of this machine" in str(fault) for fault in faults] == [True]
        server.answers |= answers_with({"/c.json": catalog(child=f"file://{tmp_path}/b.json")})
        with pytest.raises(AssetError, match="file of this machine"):
            named(tmp_path, f"{server.origin}/c.json")


def hold_scheme(case: Case, tmp_path: Path) -> None:
    said = {"href": case["href"], "storage:refs": case["refs"]}
    assets = {"main": said, "other": {"href": "./x", "alternate": {"s3": said}}}
    document = {**item("a"), "assets": assets, "properties": {"storage:schemes": case["schemes"]}}
    write(tmp_path, {"a.json": document})
    for options in ({"assets": frozenset({"main"})}, {"assets": frozenset({"other"}), "alternate": "s3"}):
        found, faults = named(tmp_path, str(tmp_path), **options)
        if "fault" not in case:
            assert not faults
            assert [asset.location.endpoint for asset in found] == [case["endpoint"]]
        else:
            assert [case["fault"] in str(fault) for fault in faults] == [True]
            assert "secret" not in str(faults[0])


SCHEMES = {"schemes": (hold_scheme, ("endpoint", "fault"))}


@held(PROJECTION, SCHEMES)
def test_the_storage_scheme_of_an_item_says_where_it_is(hold: Hold, case: Case, tmp_path: Path) -> None:
    hold(case, tmp_path)


def test_what_a_scheme_names_is_asked_without_credentials(tmp_path: Path) -> None:
    schemes = {"m": {"type": "custom-s3", "platform": "http://minio:9000"}}
    assets = {"x": {"href": "s3://b/k", "storage:refs": ["m"]}}
    document = {**item("a"), "assets": assets, "properties": {"storage:schemes": schemes}}
    write(tmp_path, {"a.json": document})
    (found,), _ = named(tmp_path, str(tmp_path))
    assert not Stores(tmp_path).is_signed(found.location)
    named_by_user = Stores(tmp_path, trusted=frozenset({"http://minio:9000"}))
    assert named_by_user.is_signed(found.location)


def test_an_alternate_is_as_long_as_its_asset(tmp_path: Path) -> None:
    signed = {"href": "s3://b/b?X-Amz-Date=1", "file:size": 8}
    assets = {
        "a": {"href": "./a", "file:size": 7, "alternate": {"m": {"href": "s3://b/a"}}},
        "b": {"href": "./b", "file:size": 7, "alternate": {"m": signed}},
        "c": {"href": "./c"},
    }
    write(tmp_path, {"x.json": {**item("i"), "assets": assets}})
    found, faults = named(tmp_path, str(tmp_path), alternate="m", strip_query=True)
    assert [(asset.location.key, asset.size) for asset in found] == [("a", 7), ("b", 8)]
    assert [fault.asset_key for fault in faults] == ["c"]
    found, faults = named(tmp_path, str(tmp_path), alternate="m")
    assert [fault.asset_key for fault in faults] == ["b", "c"], "a signed href is refused unless it is cut"


def test_catalogs_before_stac_1_do_not_say_what_they_are(tmp_path: Path) -> None:
    old = {"stac_version": "0.9.0", "id": "c", "description": "c", "links": [link("item", "./a.json")]}
    write(tmp_path, {"c.json": old})
    write(tmp_path, {"a.json": item("a")})
    assert hrefs(tmp_path, str(tmp_path / "c.json")) == {"a": f"file://{tmp_path}/B04.tif"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"type": "FeatureCollection", "features": [{"type": "FeatureCollection", "features": []}]}',
            "features",
        ),
        ('{"type": "FeatureCollection", "features": [1]}', "not an Item"),
        ('{"type": "Feature", "id": "a", "assets": {}, "x": NaN}', "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an Item"),
        ('{"type": "Feature", "id": 1, "assets": {}}', "without an id"),
        ('{"type": "Feature", "id": "a"}', "without assets"),
        ('{"type": "Polygon"}', "not an Item"),
    ],
)
def test_what_is_no_stac(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(AssetError, match=message) as refused:
        named(tmp_path, str(tmp_path / "x.json"))
    assert refused.value.exit_code == 3


def test_all_faults_of_a_run_are_told(tmp_path: Path) -> None:
    assets = {
        "a": {"href": "ftp://h/x"},
        "b": {"href": "x.tif"},
        "c": {},
        "d": {"href": "https://u:secret@h/x"},
        "null": None,
        "": {"href": "x.tif"},
        "e\n": {"href": "x.tif"},
        "\ud800": {"href": "x.tif"},
        "f" * 5000: {"href": "x.tif"},
    }
    write(tmp_path, {"x.json": {**item("i"), "assets": assets}})
    found, faults = named(tmp_path, str(tmp_path / "x.json"))
    assert [asset.asset_key for asset in found] == ["b"]
    assert [fault.asset_key for fault in faults] == [key for key in assets if key != "b"]
    assert "secret" not in "".join(map(str, faults))
    write(tmp_path, {"x.json": item("a\x1b")})
    assert ["the Item's id" in str(fault) for fault in named(tmp_path, str(tmp_path / "x.json"))[1]] == [True]


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{n}.json": catalog(child=f"./{n + 1}.json") for n in range(40)})
    with pytest.raises(AssetError, match="catalogs within each other"):
        named(tmp_path, str(tmp_path / "0.json"))
    monkeypatch.setattr("odfchain.assets.stac.ASSETS", type(ASSETS)(documents=3))
    with pytest.raises(AssetError, match="more than 3 documents"):
        named(tmp_path, str(tmp_path))
    monkeypatch.setattr("odfchain.assets.stac.ASSETS", type(ASSETS)(document_bytes=10))
    with pytest.raises(AssetError, match="more than 10 bytes"):
        named(tmp_path, str(tmp_path / "0.json"))
    with pytest.raises(UsageError, match="no such file"):
        named(tmp_path, "nowhere")


# --- in buckets ----------------------------------------------------------------------------------


def put(bucket: SmallS3, key: str, document: dict[str, object]) -> None:
    bucket.objects[f"scenes/{key}"] = json.dumps(document).encode()


def test_a_catalog_in_a_bucket_is_walked_there_and_its_assets_are_there_too(bucket: SmallS3) -> None:
    put(bucket, "catalog.json", catalog(child="./a b/collection.json"))
    put(bucket, "a b/collection.json", catalog(item="s1/s1.json") | {"type": "Collection"})
    assets = {"B04": {"href": "./B04.tif"}, "up": {"href": "/top.tif"}}
    put(bucket, "a b/s1/s1.json", item("s1", assets=assets))
    bucket.objects["scenes/a b/s1/B04.tif"] = b"1234567"
    bucket.objects["scenes/top.tif"] = b"12"
    lock = odf.AssetLock.derive([bucket.url("scenes/catalog.json")])
    assert {row.location.endpoint for row in lock.rows} == {f"http://127.0.0.1:{bucket.port}"}
    found = [(row.asset_key, row.location.key, row.facts.size_bytes) for row in lock.rows]
    assert found == [("B04", "a b/s1/B04.tif", 7), ("up", "top.tif", 2)]
    assert all("authorization" in headers for _, _, headers in bucket.requests), "the user named the server"


def test_what_an_item_names_is_no_reason_to_sign(bucket: SmallS3) -> None:
    """Another server stands in the Item's own link: nobody named that one."""
    with SmallS3() as other:
        other.objects["b/x.tif"] = b"1"
        put(bucket, "s1.json", item("s1", "x.tif", links=[link("self", other.url("b/s1.json"))]))
        with pytest.raises(odf.errors.FetchError, match="private address"):
            odf.AssetLock.derive([bucket.url("scenes/s1.json")])
        stores = odf.StoreOptions(allow_private=True)
        (row,) = odf.AssetLock.derive([bucket.url("scenes/s1.json")], stores=stores).rows
        assert row.location.endpoint == f"http://127.0.0.1:{other.port}"
        assert not [headers for _, _, headers in other.requests if "authorization" in headers]


def test_places_of_documents_lose_nothing() -> None:
    for text in (
        "s3+http://h:9000/b/a%20b.json",
        "s3+https://h/b/x",
        "https://h/x.json",
        "/srv/x.json",
        "s3://b/x",
    ):
        assert parse_href(parse_href(text, servers=True).text, servers=True) == parse_href(text, servers=True)
    with pytest.raises(AssetError, match="a query"):
        parse_href("s3+http://h/b/x?y=1", servers=True)
