"""Assets in accounts of Azure and in buckets of Google: who is signed for, what is asked, recorded and copied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError

from odfchain.assets.checking import Status
from odfchain.assets.hrefs import parse_href
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.locks import AssetLock, table_of
from odfchain.assets.objects import PIECE, Facts, StoreOptions, Stores
from odfchain.limits import FetchLimits
from odfchain.storage.locations import Location
from tests.kit.lying_objects import BYTES
from tests.kit.small_azure import ACCOUNT, KEY, Azurite, SmallAzure, create_container, stand_ins
from tests.kit.small_s3 import SmallS3, tag_of

LIMITS = FetchLimits(retries=1, first_wait=0.01)
OTHERS = (
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_ENCRYPTION_KEY",
)


@pytest.fixture(params=["small", pytest.param("azurite", marks=pytest.mark.soak)])
def azure(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SmallAzure | Azurite]:
    for server in stand_ins(tmp_path, request.param):
        configured(server.endpoint, monkeypatch)
        yield server


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallAzure]:
    with SmallAzure() as server:
        configured(server.endpoint, monkeypatch)
        yield server


def configured(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account with two containers."""
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    create_container(endpoint, "scenes")
    create_container(endpoint, "open", public=True)


X = parse_href("az://scenes/x.tif")


@pytest.fixture
def lock(small: SmallAzure, tmp_path: Path) -> AssetLock:
    """Of one object, `X`."""
    put(X, BYTES, tmp_path)
    return derived(tmp_path, B04=X.href())


def stores(folder: Path, *trusted: str, **allowed: Any) -> Stores:
    return Stores(folder, trusted=frozenset(trusted), limits=LIMITS, **allowed)


def put(location: Location, data: bytes, folder: Path) -> str:
    trusted = [location.endpoint] if location.endpoint else []
    return str(obstore.put(stores(folder, *trusted).store_of(location), location.key, data)["e_tag"])


def at(server: SmallAzure | Azurite, container: str, key: str) -> Location:
    return Location("az", container, server.endpoint, key)


def derived(folder: Path, **hrefs: str) -> AssetLock:
    assets = {key: {"href": href} for key, href in hrefs.items()}
    item = {"type": "Feature", "stac_version": "1.0.0", "id": "S2A", "assets": assets}
    (folder / "i.json").write_text(json.dumps(item))
    return AssetLock.derive([str(folder / "i.json")], folder=folder)


def test_facts_are_what_azure_says(azure: SmallAzure | Azurite, tmp_path: Path) -> None:
    tag = put(parse_href("az://scenes/x/B 04.tif"), BYTES, tmp_path)
    assert tag.startswith('"0x')
    lock = derived(
        tmp_path,
        one="az://scenes/x/B%2004.tif",
        other=f"abfss://scenes@{ACCOUNT}.dfs.core.windows.net/x/B%2004.tif",
    )
    for row in lock.rows:
        assert (row.facts.size_bytes, row.facts.etag) == (7, tag)
        assert str(row.facts.last_modified).endswith("+00:00")
    assert lock.rows[1].location == Location(
        "az", "scenes", f"https://{ACCOUNT}.blob.core.windows.net", "x/B 04.tif"
    )
    assert [each.status for each in lock.check()] == [Status.SAME, Status.SAME]
    put(parse_href("az://scenes/x/B%2004.tif"), b"12345678", tmp_path)
    assert [each.errors for each in lock.check()] == [("size 7 → 8", "etag")] * 2
    stores(tmp_path).remove(parse_href("az://scenes/x/B%2004.tif"))
    assert [each.status for each in lock.check()] == [Status.MISSING, Status.MISSING]


def test_conditions_of_requests(azure: SmallAzure | Azurite, tmp_path: Path) -> None:
    tag, store = put(X, BYTES, tmp_path), stores(tmp_path).store_of(X)
    assert bytes(obstore.get(store, "x.tif", options={"if_match": tag}).bytes()) == BYTES
    with pytest.raises(PreconditionError):
        obstore.get(store, "x.tif", options={"if_match": '"0x8D0"'})
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "x.tif", b"new", mode="create", use_multipart=False)
    with pytest.raises(PreconditionError):
        obstore.put(store, "x.tif", b"new", mode={"e_tag": '"0x8D0"'}, use_multipart=False)
    other = obstore.put(store, "x.tif", b"new", mode={"e_tag": tag}, use_multipart=False)["e_tag"]
    assert other not in (None, tag)


def test_files_to_azure_within_and_away(azure: SmallAzure | Azurite, bucket: SmallS3, tmp_path: Path) -> None:
    large = bytes(range(256)) * (PIECE // 256 * 2 + 1)  # more than two pieces: blocks, and a list of them
    (tmp_path / "ä.tif").write_bytes(BYTES)
    (tmp_path / "large").write_bytes(large)
    lock = derived(tmp_path, B04="./ä.tif", all="./large")
    there = lock.relocate("az://scenes/p")
    assert not there.faults
    assert [row.location.href() for row in there.rows] == [
        "az://scenes/p/S2A/B04.tif",
        "az://scenes/p/S2A/all",
    ]
    assert all(str(row.facts.etag).startswith('"0x') for row in there.rows)
    within = there.relocate("az://scenes/q", layout="source-key", prefix="az://scenes/p")
    assert [row.location.key for row in within.rows] == ["q/S2A/B04.tif", "q/S2A/all"]
    assert [row.facts.size_bytes for row in within.rows] == [7, len(large)]
    away = within.only(assets=["B04"]).relocate(bucket.url("m/r"))
    assert not away.faults
    assert bucket.objects == {"m/r/S2A/B04.tif": BYTES}
    back = within.relocate(str(tmp_path / "back"), folder=tmp_path)
    assert (tmp_path / "back/S2A/all").read_bytes() == large
    assert [row.facts for row in back.rows] == [Facts(7), Facts(len(large))]


def test_a_copy_within_a_container_is_the_store_s(small: SmallAzure, lock: AssetLock) -> None:
    small.requests.clear()
    moved = lock.relocate("az://scenes/p")
    assert small.sent("GET") == ["scenes/p/S2A/B04.tif"]  # which is not there
    (copied,) = [headers for method, _, headers in small.requests if method == "PUT"]
    assert copied["x-ms-copy-source"] == f"{small.endpoint}/scenes/x.tif"
    assert small.blobs["scenes/p/S2A/B04.tif"][0] == BYTES
    assert moved.rows[0].facts.etag not in (None, lock.rows[0].facts.etag)


@pytest.mark.parametrize(
    ("meanwhile", "to", "said"),
    [("PUT", "az://scenes/p", "changed since it was locked: etag"), ("GET", "{folder}/a", "changed since it was locked")],
    ids=["a copy of the store's is removed", "case 36: what changes before it is read is not copied"],
)  # fmt: skip
def test_what_changed_meanwhile(
    small: SmallAzure, lock: AssetLock, tmp_path: Path, meanwhile: str, to: str, said: str
) -> None:
    def changed(method: str, path: str) -> None:
        if method == meanwhile:
            small.blobs["scenes/x.tif"] = (b"7654321", '"0x8D9"')

    small.before = changed
    moved = lock.relocate(to.format(folder=tmp_path))
    assert [(fault.error.exit_code, said in str(fault.error)) for fault in moved.faults] == [(6, True)]
    assert set(small.blobs) == {"scenes/x.tif"}
    assert not (tmp_path / "a/S2A/B04.tif").exists()


def headers_of(small: SmallAzure, location: Location, where: Stores) -> list[dict[str, str]]:
    """What a probe and a reading of an object in a public container sent."""
    small.requests.clear()
    found = where.probe(location)
    assert found.facts is not None, found
    assert found.facts.size_bytes == 7
    assert where.read_small(location, 7) == BYTES
    return [headers for _, _, headers in small.requests]


def test_strangers_get_no_key(small: SmallAzure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(parse_href("az://open/x.tif"), BYTES, tmp_path)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2023-11-03&sig=s3cr3t")
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "b34r3r")
    monkeypatch.setenv("AZURE_ENCRYPTION_KEY", "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1")
    location = at(small, "open", "x.tif")
    for headers in headers_of(small, location, stores(tmp_path, allow_private=True)):
        assert set(headers) <= {"accept", "host", "user-agent", "x-ms-version"}
    assert all("sig" not in target for target in small.targets)


def test_an_account_that_the_user_named_is_signed_for(small: SmallAzure, tmp_path: Path) -> None:
    location = at(small, "scenes", "x.tif")
    put(location, BYTES, tmp_path)
    for headers in headers_of(small, location, stores(tmp_path, small.endpoint)):
        assert headers["authorization"].startswith(f"SharedKey {ACCOUNT}:")
    refused = stores(tmp_path, allow_private=True).probe(location)
    assert refused.missing  # Azure says so to whoever may not read


@pytest.mark.parametrize(
    ("endpoint", "is_signed"),
    [
        (f"https://{ACCOUNT}.blob.core.windows.net", True),
        (f"https://{ACCOUNT}.blob.fabric.microsoft.com", True),
        ("https://other.blob.core.windows.net", False),
        (f"http://{ACCOUNT}.blob.core.windows.net", False),
        (f"https://{ACCOUNT}.blob.core.windows.net:8443", False),
        (f"https://{ACCOUNT}.blob.core.windows.net.evil.example", False),
        (f"https://{ACCOUNT}.evil.example", False),
        (f"https://{ACCOUNT}", False),
        (f"https://evil.example/{ACCOUNT}", False),
    ],
)
def test_which_accounts_are_signed_for(
    small: SmallAzure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, is_signed: bool
) -> None:
    location = Location("az", "c", endpoint, "x")
    assert stores(tmp_path).is_signed(location) == is_signed
    assert stores(tmp_path, endpoint).is_signed(location)
    assert not stores(tmp_path).is_signed(replace(location, store="s3"))
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    assert not stores(tmp_path).is_signed(location)


def test_a_wrong_key_is_told(small: SmallAzure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in does check signatures."""
    put(X, BYTES, tmp_path)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "b3RoZXI=")
    assert "403" in stores(tmp_path).probe(X).problem


@pytest.mark.parametrize("own", [False, True], ids=["no endpoint", "the account's endpoint"])
def test_exported_facts_are_as_the_store_wrote_them(small: SmallAzure, tmp_path: Path, own: bool) -> None:
    """Entity tags of Azure are texts in quotes like others: they are written to the file and read again."""
    tag = put(X, BYTES, tmp_path)
    row = AssetRow("S2A", "B04", at(small, "scenes", "x.tif") if own else X)
    facts = stores(tmp_path, small.endpoint).probe(row.location).facts
    AssetLock(table_of([replace(row, facts=facts)]), tmp_path).write(tmp_path / "x.parquet")
    read = AssetLock.read(tmp_path / "x.parquet")
    assert read.rows == [replace(row, facts=Facts(7, tag, "2015-10-21T07:28:00+00:00"))]
    checked = read.check(stores=StoreOptions(endpoints=[small.endpoint]))
    assert [each.status for each in checked] == [Status.SAME]


# --- Google -------------------------------------------------------------------------------------


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallS3]:
    """A server that speaks like Google's as far as these tests need.

    The emulators in registries either know no HEAD or are programs of another language; what obstore asks
    of Google's XML interface is what it asks of S3, but for how copies are asked for.
    """
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    with SmallS3() as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "t0k3n")
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        yield server


def test_objects_of_google_are_locked_checked_and_moved(google: SmallS3, tmp_path: Path) -> None:
    (tmp_path / "x.tif").write_bytes(BYTES)
    there = derived(tmp_path, B04="./x.tif").relocate("gs://scenes/p")
    assert not there.faults
    assert google.objects == {"scenes/p/S2A/B04.tif": BYTES}
    assert {headers["authorization"] for _, _, headers in google.requests} == {"Bearer t0k3n"}

    lock = derived(tmp_path, B04="gs://scenes/p/S2A/B04.tif")
    assert [row.facts for row in lock.rows] == [row.facts for row in there.rows]
    assert (lock.rows[0].facts.size_bytes, lock.rows[0].facts.etag) == (7, tag_of(BYTES))
    within = lock.relocate("gs://scenes/q", layout="source-key", prefix="gs://scenes/p")
    assert [row.location.href() for row in within.rows] == ["gs://scenes/q/S2A/B04.tif"]
    assert google.sent("GET").count("scenes/p/S2A/B04.tif") == 1, "when nothing was there: the store copies"
    back = within.relocate(str(tmp_path / "back"), folder=tmp_path)
    assert (tmp_path / back.rows[0].location.key).read_bytes() == BYTES

    google.objects["scenes/p/S2A/B04.tif"] = b"12345678"
    assert [each.status for each in lock.check()] == [Status.CHANGED]
    assert [fault.error.exit_code for fault in lock.relocate("gs://scenes/r").faults] == [6]
    del google.objects["scenes/p/S2A/B04.tif"]
    assert [each.status for each in lock.check()] == [Status.MISSING]
