"""Assets in buckets of Google's: a little server that speaks like them as far as these tests need.

The emulators that registries have either know no HEAD of an object or are programs of another language; what
obstore asks of Google's XML interface is what it asks of S3, but for how copies are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.assets.checking import Status
from odfchain.assets.locks import AssetLock
from tests.kit.lying_objects import BYTES
from tests.kit.small_s3 import SmallS3, tag_of


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallS3]:
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    with SmallS3() as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "t0k3n")
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        yield server


def derived(folder: Path, href: str) -> AssetLock:
    item = {"type": "Feature", "stac_version": "1.0.0", "id": "S2A", "assets": {"B04": {"href": href}}}
    (folder / "i.json").write_text(json.dumps(item))
    return AssetLock.derive([str(folder / "i.json")], folder=folder)


def test_objects_of_google_are_locked_checked_and_moved(google: SmallS3, tmp_path: Path) -> None:
    (tmp_path / "x.tif").write_bytes(BYTES)
    there = derived(tmp_path, "./x.tif").relocate("gs://scenes/p")
    assert not there.faults
    assert google.objects == {"scenes/p/S2A/B04.tif": BYTES}
    assert {headers["authorization"] for _, _, headers in google.requests} == {"Bearer t0k3n"}

    lock = derived(tmp_path, "gs://scenes/p/S2A/B04.tif")
    assert [row.facts for row in lock.rows] == [row.facts for row in there.rows]
    assert (lock.rows[0].facts.size_bytes, lock.rows[0].facts.etag) == (7, tag_of(BYTES))
    within = lock.relocate("gs://scenes/q", layout="source-key", prefix="gs://scenes/p")
    assert [row.location.href() for row in within.rows] == ["gs://scenes/q/S2A/B04.tif"]
    assert (
        google.sent("GET").count("scenes/p/S2A/B04.tif") == 1
    )  # when nothing was there: the copy is the store's
    back = within.relocate(str(tmp_path / "back"), folder=tmp_path)
    assert (tmp_path / back.rows[0].location.key).read_bytes() == BYTES

    google.objects["scenes/p/S2A/B04.tif"] = b"12345678"
    assert [each.status for each in lock.check()] == [Status.CHANGED]
    assert [fault.error.exit_code for fault in lock.relocate("gs://scenes/r").faults] == [6]
    del google.objects["scenes/p/S2A/B04.tif"]
    assert [each.status for each in lock.check()] == [Status.MISSING]
