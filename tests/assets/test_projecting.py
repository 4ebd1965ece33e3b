"""Locations and facts of a lock written back into STAC."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pystac")  # an extra; the tests' own environment has it (see test_the_extra_is_here)

from odfchain.assets.access import Access
from odfchain.assets.hrefs import checked_location, parse_href
from odfchain.assets.lock_table import AssetRow, Facts
from odfchain.assets.projecting import ProjectOptions, projected_item

CHECKSUM = "12208bb0cf6eb9b17d0f7d22b456f121257dc1254e1f01665370476383ea776df414"


def item(name: str = "a", version: str = "1.0.0") -> dict[str, Any]:
    return {
        "type": "Feature",
        "stac_version": version,
        "id": name,
        "geometry": None,
        "properties": {"datetime": "2024-01-01T00:00:00Z"},
        "links": [],
        "assets": {
            "thumbnail": {"href": "./t.png", "file:checksum": "1220ab", "x:own": [1]},
            "B04": {"href": "https://h/B04.tif"},
        },
    }


def options(**more: Any) -> ProjectOptions:
    return ProjectOptions(access=Access(folder=Path("/lock")), **more)


def written(row: AssetRow, document: dict[str, Any], **more: Any) -> dict[str, Any]:
    found, _ = projected_item(copy.deepcopy(document), {row.key: row}, Path("/out/x"), options(**more))
    return dict(found)


THUMBNAIL = AssetRow("a", "thumbnail", parse_href("s3://m/t.png"), Facts(7))


def test_case_42_both_ids_must_match() -> None:
    documents = [item("a"), item("b")]
    found = [projected_item(each, {THUMBNAIL.key: THUMBNAIL}, Path("/out"), options()) for each in documents]
    assert [count for _, count in found] == [1, 0]
    assert found[0][0]["assets"]["thumbnail"]["alternate"] == {"locked": {"href": "s3://m/t.png"}}
    assert found[0][0]["assets"]["B04"] == item()["assets"]["B04"]
    assert found[1][0]["assets"] == item()["assets"]


def test_claims_of_others_go_and_facts_come() -> None:
    asset = written(THUMBNAIL, item())["assets"]["thumbnail"]
    assert "file:checksum" not in asset
    assert asset["file:size"] == 7
    assert asset["x:own"] == [1]
    known = AssetRow("a", "thumbnail", THUMBNAIL.location, Facts(7, file_checksum=CHECKSUM))
    assert written(known, item())["assets"]["thumbnail"]["file:checksum"] == CHECKSUM


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_case_44_primary_twice_is_the_same_document(version: str) -> None:
    once = written(THUMBNAIL, item(version=version), primary=True)
    asset = once["assets"]["thumbnail"]
    assert (asset["href"], asset["alternate"]) == ("s3://m/t.png", {"original": {"href": "./t.png"}})
    assert written(THUMBNAIL, once, primary=True) == once


def test_an_endpoint_is_a_storage_scheme() -> None:
    location = checked_location("s3", "m", "http://minio:9000", "t.png")
    found = written(AssetRow("a", "thumbnail", location, Facts()), item(), name="mirror")
    assert found["assets"]["thumbnail"]["alternate"]["mirror"] == {
        "href": "s3://m/t.png",
        "storage:refs": ["minio:9000"],
    }
    assert found["properties"]["storage:schemes"] == {
        "minio:9000": {"type": "custom-s3", "platform": "http://minio:9000"}
    }


def test_files_beside_the_lock_are_named_from_where_the_item_lies() -> None:
    row = AssetRow("a", "thumbnail", parse_href("assets/t b.png"), Facts(7))
    found, _ = projected_item(item(), {row.key: row}, Path("/lock/stac/a"), options(primary=True))
    assert found["assets"]["thumbnail"]["href"] == "../../assets/t%20b.png"
