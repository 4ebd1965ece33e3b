"""Objects of more than one piece: sent in parts, of which nothing stays where they do not become an object."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.assets import relocating
from odfchain.assets.hrefs import parse_href
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.locks import AssetLock, table_of
from odfchain.assets.objects import PIECE, Facts, StoreOptions, Stores
from tests.kit.memory_growth import growth_of_commands
from tests.kit.small_s3 import SmallS3

LARGE = bytes(range(256)) * (PIECE // 256) * 2 + b"the end"


def lock_of(folder: Path, content: bytes = LARGE, **facts: Any) -> AssetLock:
    (folder / "x.tif").write_bytes(content)
    row = AssetRow("S2A", "B04", parse_href("x.tif"), Facts(**{"size_bytes": len(content)} | facts))
    return AssetLock(table_of([row], checksums=row.facts.file_checksum is not None), folder, True)


def test_a_large_object_goes_in_parts(bucket: SmallS3, tmp_path: Path) -> None:
    parts = list[int]()

    def before(method: str, path: str) -> None:
        if method == "PUT":
            parts.append(int(bucket.requests[-1][2]["content-length"]))

    bucket.before = before
    moved = lock_of(tmp_path).relocate(bucket.url("m"), checksum=True)
    assert not moved.faults
    assert sorted(parts) == [7, PIECE, PIECE]
    assert bucket.objects == {"m/S2A/B04.tif": LARGE}
    assert bucket.uploads == {}
    assert moved.rows[0].facts.file_checksum == "1220" + hashlib.sha256(LARGE).hexdigest()


@pytest.mark.parametrize("content", [b"", b"x", LARGE[:PIECE]], ids=["empty", "a byte", "a piece"])
def test_a_small_object_goes_in_one_request(bucket: SmallS3, tmp_path: Path, content: bytes) -> None:
    moved = lock_of(tmp_path, content).relocate(bucket.url("m"))
    assert not moved.faults
    assert bucket.objects == {"m/S2A/B04.tif": content}
    assert len(bucket.sent("PUT")) == 1
    assert bucket.sent("POST") == []


def test_parts_of_what_is_not_what_was_locked_are_dropped(bucket: SmallS3, tmp_path: Path) -> None:
    moved = lock_of(tmp_path, file_checksum="1220" + "0" * 64).relocate(bucket.url("m"))
    assert [fault.error.exit_code for fault in moved.faults] == [6]
    assert "checksum" in str(moved.faults[0])
    assert (bucket.objects, bucket.uploads) == ({}, {})
    assert bucket.sent("DELETE") == ["m/S2A/B04.tif"]


def test_parts_are_dropped_when_the_store_refuses_one(bucket: SmallS3, tmp_path: Path) -> None:
    bucket.before = lambda method, path: (
        403 if method == "PUT" and bucket.requests[-1][2]["content-length"] == "7" else None
    )
    moved = lock_of(tmp_path).relocate(bucket.url("m"))
    assert [fault.error.exit_code for fault in moved.faults] == [8]
    assert (bucket.objects, bucket.uploads) == ({}, {})


def test_a_source_that_is_cut_while_it_is_read_leaves_no_parts(
    bucket: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Stores.pieces

    def cut(*args: Any, **options: Any) -> Iterator[memoryview]:
        for number, piece in enumerate(pieces(*args, **options)):
            yield piece
            if number == 1:  # what is left has not been read yet
                os.truncate(tmp_path / "x.tif", PIECE)

    monkeypatch.setattr(Stores, "pieces", cut)
    moved = lock_of(tmp_path).relocate(bucket.url("m"))
    assert [fault.error.exit_code for fault in moved.faults] == [6]
    assert (bucket.objects, bucket.uploads) == ({}, {})
    assert bucket.sent("DELETE") == ["m/S2A/B04.tif"]


@pytest.mark.parametrize("limit", [7, 6])
def test_what_the_store_copies_in_one_request(
    bucket: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """S3 copies at most 5 GiB so: what is larger is read and written."""
    monkeypatch.setattr(relocating, "_COPIED_AT_ONCE", limit)
    first = lock_of(tmp_path, b"1234567").relocate(bucket.url("m/p"))
    bucket.requests.clear()
    moved = first.relocate(bucket.url("m/q"), stores=StoreOptions(endpoints=[bucket.url("")[3:].rstrip("/")]))
    assert not moved.faults
    assert bucket.objects == {"m/p/S2A/B04.tif": b"1234567", "m/q/S2A/B04.tif": b"1234567"}
    assert ("m/p/S2A/B04.tif" in bucket.sent("GET")) == (limit == 6)


@pytest.mark.soak
def test_the_memory_of_a_relocation_does_not_grow_with_its_objects(
    bucket: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.forgets = True
    commands = list[list[str]]()
    for name, count in (("small", 4), ("large", 32)):
        folder = tmp_path / name
        folder.mkdir()
        with (folder / "x.tif").open("wb") as file:
            file.truncate(count * PIECE)
        row = AssetRow(name, "B04", parse_href("x.tif"), Facts(count * PIECE))
        AssetLock(table_of([row]), folder).write(folder / "lock.parquet")
        to = ["--to", bucket.url("m"), "--output", str(folder / "new.parquet")]
        commands.append(["assets", "relocate", str(folder / "lock.parquet"), *to])
    found = growth_of_commands(*commands)
    assert [len(each) for each in bucket.objects.values()] == [4 * PIECE, 32 * PIECE]
    assert found[2] < 40, found
