"""Objects copied elsewhere: what copies are called, what is not copied, and what their rows say."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.assets import relocating
from odfchain.assets.access import Access, Stores
from odfchain.assets.arrivals import Arrivals
from odfchain.assets.hrefs import href_of, parse_href
from odfchain.assets.lock_file import LockFile
from odfchain.assets.lock_table import AssetRow, Facts, table_of, write_lock
from odfchain.assets.relocating import Relocated, relocate
from odfchain.assets.relocation_plan import Layout, RelocateOptions, described_plan, file_name, plan
from odfchain.errors import AssetError, NameCollisionError
from odfchain.store.locations import Location
from tests.kit.lying_objects import BYTES, LyingObjects
from tests.kit.processes import ODFCHAIN, TIMEOUT, environment, wait_until
from tests.kit.small_s3 import SmallS3

NAMES = json.loads(Path("fixtures/assets/relocation.json").read_text())["names"]
LOCKED = Facts(7, '"abc"', "2015-10-21T07:28:00+00:00")


@pytest.fixture
def server() -> Iterator[LyingObjects]:
    with LyingObjects({f"/o/{n}.tif": {} for n in range(5)}) as found:
        yield found


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t0k3n")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with SmallS3() as found:
        yield found


def rows(server: LyingObjects, count: int = 5) -> list[AssetRow]:
    return [AssetRow("S2A", f"B{n}", parse_href(f"{server.origin}/o/{n}.tif"), LOCKED) for n in range(count)]


def stores(folder: Path, *trusted: str) -> Stores:
    return Stores(Access(folder=folder, allow_private=True, trusted=frozenset(trusted)))


def moved(found: list[AssetRow], to: Location, folder: Path, trusted: str = "", **options: Any) -> Relocated:
    chosen = RelocateOptions(**options)
    here = stores(folder, trusted)
    return relocate(plan(found, to, chosen), here, here, Arrivals(folder / "arrivals"), chosen)


@pytest.mark.parametrize("case", NAMES, ids=lambda case: case["id"])
def test_names_of_copies(case: dict[str, Any]) -> None:
    assert file_name(case["item"], case["asset"], case["key"]) == case["name"]


def test_two_rows_with_one_target_are_refused(server: LyingObjects) -> None:
    one, other = rows(server, 2)
    clash = [one, replace(other, asset_key="B0.tif")]
    with pytest.raises(NameCollisionError, match="S2A B0"):
        plan(clash, Location.parse("s3://m/p/", folder=True), RelocateOptions())


def test_source_keys_below_a_prefix(server: LyingObjects) -> None:
    options = RelocateOptions(
        layout=Layout.SOURCE_KEY, prefix=Location.parse(f"{server.origin}/o", folder=True)
    )
    planned = plan(rows(server, 1), Location.parse("s3://m/p/", folder=True), options)
    assert [href_of(each.target) for each in planned] == ["s3://m/p/0.tif"]
    other = RelocateOptions(layout=Layout.SOURCE_KEY, prefix=Location.parse("s3://o/", folder=True))
    with pytest.raises(AssetError, match="does not begin"):
        plan(rows(server, 1), Location.parse("s3://m/p/", folder=True), other)


def test_case_39_a_plan_proves_nothing(server: LyingObjects) -> None:
    options = RelocateOptions()
    found = described_plan(plan(rows(server), Location.parse("s3://m/p/", folder=True), options), options)
    assert {row.facts for row in found} == {Facts(7)}
    assert href_of(found[0].location) == "s3://m/p/S2A/B0.tif"
    assert server.requests == []


def test_files_are_named_relative_to_their_lock(server: LyingObjects, tmp_path: Path) -> None:
    to = Location.parse(f"file://{tmp_path}/assets", folder=True)
    found = moved(rows(server), to, tmp_path, relative_to=tmp_path)
    assert not found.faults
    assert (found.copied, found.copied_bytes) == (5, 35)
    assert [row.location.key for row in found.rows] == [f"assets/S2A/B{n}.tif" for n in range(5)]
    assert {row.facts for row in found.rows} == {Facts(7)}
    assert (tmp_path / "assets/S2A/B0.tif").read_bytes() == BYTES


def test_case_36_what_changed_is_not_copied(server: LyingObjects, tmp_path: Path) -> None:
    server.answers["/o/3.tif"] = {"etag": '"new"'}
    found = moved(rows(server), Location.parse(f"file://{tmp_path}/a", folder=True), tmp_path)
    assert [row.asset_key for row in found.rows] == ["B0", "B1", "B2", "B4"]
    assert [(fault.asset_key, fault.error.exit_code) for fault in found.faults] == [("B3", 6)]
    assert not (tmp_path / "a/S2A/B3.tif").exists()


def test_case_36_what_changes_on_the_way_is_not_copied(server: LyingObjects, tmp_path: Path) -> None:
    server.answers["/o/0.tif"] = {"bytes": b"12345678", "head": 405, "ranges": True}
    locked = [replace(rows(server, 1)[0], facts=Facts(None, '"abc"', None, "1220" + "0" * 64))]
    found = moved(locked, Location.parse(f"file://{tmp_path}/a", folder=True), tmp_path)
    assert "checksum" in str(found.faults[0])
    assert not (tmp_path / "a/S2A/B0.tif").exists()


def test_case_37_the_facts_are_those_of_the_copy(
    server: LyingObjects, bucket: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Location.parse(bucket.url("m/p"), folder=True)
    found = moved(rows(server), to, tmp_path, trusted=str(to.endpoint), checksum=True)
    assert not found.faults
    assert {row.facts.size_bytes for row in found.rows} == {7}
    assert all(row.facts.etag not in (None, '"abc"') for row in found.rows)
    assert {row.facts.file_checksum for row in found.rows} == {
        "12208bb0cf6eb9b17d0f7d22b456f121257dc1254e1f01665370476383ea776df414"
    }
    # a target that is not what was written is removed
    monkeypatch.setattr(relocating, "_asked", _shortened(relocating._asked, to))
    short = moved(rows(server, 1), to, tmp_path / "x", trusted=str(to.endpoint), overwrite=True)
    assert [fault.error.exit_code for fault in short.faults] == [8]
    assert "m/p/S2A/B0.tif" not in "".join(bucket.objects)


def _shortened(asked: Any, to: Location) -> Any:
    calls = list[Location]()

    def shortened(location: Location, where: Stores) -> Any:
        found = asked(location, where)
        if location.store == "s3":
            calls.append(location)
        return replace(found, facts=Facts(6)) if len(calls) == 2 and location.store == "s3" else found

    return shortened


def test_case_38_a_second_run_copies_the_rest(
    server: LyingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Location.parse(f"file://{tmp_path}/a", folder=True)
    copied, write = 0, relocating.write

    def killed(*args: Any) -> Any:
        nonlocal copied
        if copied == 3:
            raise KeyboardInterrupt
        copied += 1
        return write(*args)

    monkeypatch.setattr(relocating, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        moved(rows(server), to, tmp_path, jobs=1)
    monkeypatch.undo()
    again = moved(rows(server), to, tmp_path)
    assert again.copied == 2
    assert len(again.rows) == 5


@pytest.mark.soak
def test_case_38_a_killed_process_leaves_the_old_lock_and_what_arrived(
    server: LyingObjects, tmp_path: Path
) -> None:
    lock, moved = tmp_path / "old.parquet", tmp_path / "new.parquet"
    write_lock(table_of(rows(server)), lock)
    old = lock.read_bytes()
    held = threading.Event()
    server.before = lambda method, path: held.wait() if method == "GET" and path > "/o/2.tif" else None
    command = [
        str(ODFCHAIN),
        "assets",
        "relocate",
        str(lock),
        "--to",
        "a",
        "-o",
        str(moved),
        "--allow-private",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment())
    arrived = tmp_path / "new.parquet.arrived"
    wait_until(lambda: arrived.exists() and arrived.read_bytes().count(b"\n") == 3)
    process.kill()
    process.wait(TIMEOUT)
    held.set()
    assert (lock.read_bytes(), moved.exists()) == (old, False)
    server.before = lambda method, path: None
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert "copied 2 objects, 14 bytes; 3 were there" in done.stderr
    assert not list(LockFile(moved).faults())
    assert not arrived.exists()


def test_case_35_what_is_there_is_not_replaced(server: LyingObjects, tmp_path: Path) -> None:
    there = tmp_path / "a/S2A/B0.tif"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"12345")
    to = Location.parse(f"file://{tmp_path}/a", folder=True)
    refused = moved(rows(server, 1), to, tmp_path)
    assert [fault.error.exit_code for fault in refused.faults] == [5]
    assert there.read_bytes() == b"12345"
    assert moved(rows(server, 1), to, tmp_path, overwrite=True).copied == 1
    assert there.read_bytes() == BYTES


def test_case_40_credentials_go_only_where_the_user_said(bucket: SmallS3, tmp_path: Path) -> None:
    bucket.objects["/b/k.tif"] = BYTES
    location = Location.parse(bucket.url("b/k.tif"))

    def headers(*trusted: str) -> dict[str, str]:
        import asyncio

        from odfchain.assets.probing import probe

        bucket.requests.clear()
        asyncio.run(probe(location, stores(tmp_path, *trusted)))
        return bucket.requests[0][2]

    assert {"authorization", "x-amz-security-token"} & set(headers()) == set()
    assert {"authorization", "x-amz-security-token"} <= set(headers(str(location.endpoint)))
