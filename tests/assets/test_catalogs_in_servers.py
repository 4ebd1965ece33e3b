"""Catalogs that lie in a server that speaks like S3, and their assets beside them."""

from __future__ import annotations

import json

import pytest

import odfchain as odf
from odfchain.assets.hrefs import parse_href
from odfchain.errors import AssetError
from tests.kit.small_s3 import SmallS3


def put(bucket: SmallS3, key: str, document: dict[str, object]) -> None:
    bucket.objects[f"scenes/{key}"] = json.dumps(document).encode()


def links(**hrefs: str) -> list[dict[str, str]]:
    return [{"rel": rel, "href": href} for rel, href in hrefs.items()]


def test_a_catalog_is_walked_in_its_server_and_its_assets_are_there_too(bucket: SmallS3) -> None:
    put(bucket, "catalog.json", {"type": "Catalog", "links": links(child="./a b/collection.json")})
    put(bucket, "a b/collection.json", {"type": "Collection", "links": links(item="s1/s1.json")})
    assets = {"B04": {"href": "./B04.tif"}, "up": {"href": "/top.tif"}}
    put(bucket, "a b/s1/s1.json", {"type": "Feature", "id": "s1", "assets": assets})
    bucket.objects["scenes/a b/s1/B04.tif"] = b"1234567"
    bucket.objects["scenes/top.tif"] = b"12"
    lock = odf.AssetLock.derive([bucket.url("scenes/catalog.json")])
    endpoint = f"http://127.0.0.1:{bucket.port}"
    found = [
        (row.asset_key, row.location.endpoint, row.location.key, row.facts.size_bytes) for row in lock.rows
    ]
    assert found == [("B04", endpoint, "a b/s1/B04.tif", 7), ("up", endpoint, "top.tif", 2)]
    assert all("authorization" in headers for _, _, headers in bucket.requests), "the user named the server"


def test_what_an_item_names_is_no_reason_to_sign(bucket: SmallS3) -> None:
    """Another server stands in the Item's own link: nobody named that one."""
    with SmallS3() as other:
        other.objects["b/x.tif"] = b"1"
        item = {"type": "Feature", "id": "s1", "assets": {"x": {"href": "x.tif"}}}
        put(bucket, "s1.json", item | {"links": links(self=other.url("b/s1.json"))})
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
