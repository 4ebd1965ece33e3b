"""Where assets come from: Items, ItemCollections, catalogs in folders and on servers, ndjson, STAC GeoParquet."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.assets.access import Access, Stores
from odfchain.assets.hrefs import href_of
from odfchain.assets.stac import AssetFault, NamedAsset, Selection, StacReader
from odfchain.errors import AccessError, AssetError, UsageError
from odfchain.limits import ASSETS
from tests.kit.lying_objects import LyingObjects


def item(name: str, href: str = "./B04.tif", **more: Any) -> dict[str, Any]:
    return {"type": "Feature", "stac_version": "1.1.0", "id": name, "assets": {"B04": {"href": href}}, **more}


def link(rel: str, href: str) -> dict[str, str]:
    return {"rel": rel, "href": href}


def named(folder: Path, *sources: str, private: bool = True) -> tuple[list[NamedAsset], list[AssetFault]]:
    faults = list[AssetFault]()
    stores = Stores(Access(folder=folder, allow_private=private))
    reader = StacReader(stores, Selection(), faults.append)
    return [asset for source in sources for asset in reader.assets(source)], faults


def hrefs(folder: Path, *sources: str) -> dict[str, str]:
    found, faults = named(folder, *sources)
    assert not faults
    return {asset.item_id: href_of(asset.location) for asset in found}


def test_items_in_a_folder_and_alone(tmp_path: Path) -> None:
    for name in ("a", "b c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "item.json").write_text(json.dumps(item(name)))
    expected = {name: f"file://{tmp_path}/{name}/B04.tif".replace(" ", "%20") for name in ("a", "b c")}
    assert hrefs(tmp_path, str(tmp_path)) == expected
    assert hrefs(tmp_path, str(tmp_path / "a" / "item.json"), str(tmp_path)) == expected, "each document once"


def test_an_item_lies_where_its_self_link_says(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(item("a", links=[link("self", "https://example.org/items/a.json")])))
    assert hrefs(tmp_path, str(path)) == {"a": "https://example.org/items/B04.tif"}


def test_collections_of_items_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [item("a"), item("b", links=[link("self", "https://h/x/b.json")])]
    collection = {"type": "FeatureCollection", "features": items}
    expected = {"a": "./B04.tif", "b": "https://h/x/B04.tif"}
    (tmp_path / "items.json").write_text(json.dumps(collection, indent=1))
    (tmp_path / "items.ndjson").write_text("".join(json.dumps(each) + "\n" for each in items))
    for name in ("items.json", "items.ndjson"):
        assert hrefs(tmp_path, str(tmp_path / name)) == expected
        data = (tmp_path / name).read_bytes()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert hrefs(tmp_path, "-") == expected


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
    for name, document in documents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(document))
    found = hrefs(tmp_path, str(tmp_path / "catalog.json"))
    assert found == {"a": f"file://{tmp_path}/2024/a/B04.tif"}
    answers = {f"/{name}": {"bytes": json.dumps(document).encode()} for name, document in documents.items()}
    with LyingObjects(answers) as server:
        origin = server.origin
        assert hrefs(tmp_path, f"{origin}/catalog.json") == {"a": f"{origin}/2024/a/B04.tif"}
        assert sorted(path for _, path, _ in server.requests) == sorted(answers)
        with pytest.raises(AccessError, match="private"):
            named(tmp_path, f"{origin}/catalog.json", private=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
    }
    (tmp_path / "x.json").write_text(json.dumps({**item("i"), "assets": assets}))
    found, faults = named(tmp_path, str(tmp_path / "x.json"))
    assert [asset.asset_key for asset in found] == ["b"]
    assert [fault.asset_key for fault in faults] == ["a", "c", "d"]
    assert "secret" not in "".join(map(str, faults))


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = {f"{n}.json": catalog(child=f"./{n + 1}.json") for n in range(40)}
    for name, document in chain.items():
        (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(AssetError, match="catalogs within each other"):
        named(tmp_path, str(tmp_path / "0.json"))
    monkeypatch.setattr("odfchain.assets.stac.ASSETS", type(ASSETS)(document_bytes=10))
    with pytest.raises(AssetError, match="more than 10 bytes"):
        named(tmp_path, str(tmp_path / "0.json"))
    with pytest.raises(UsageError, match="there is no such file"):
        named(tmp_path, "nowhere")
