"""Objects copied elsewhere: what copies are called, what is not copied, and what their rows say."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import odfchain as odf
from odfchain.assets import objects
from odfchain.assets.hrefs import parse_href
from odfchain.assets.lock_table import AssetRow, LockFile
from odfchain.assets.locks import AssetLock, table_of
from odfchain.assets.objects import Facts, StoreOptions, Stores
from odfchain.assets.relocating import Arrivals, Relocated, Relocation
from odfchain.cli.start import manifest_template
from odfchain.storage.locations import Location
from tests.kit.lying_objects import BYTES, LyingObjects
from tests.kit.processes import ODFCHAIN, TIMEOUT, environment, wait_until
from tests.kit.small_s3 import SmallS3
from tests.kit.stand_ins import simulated_s3

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

PRIVATE = StoreOptions(allow_private=True)
LOCKED = Facts(7, '"abc"', "2015-10-21T07:28:00+00:00")


@pytest.fixture
def server() -> Iterator[LyingObjects]:
    with LyingObjects({f"/o/{n}.tif": {} for n in range(5)}) as found:
        yield found


def rows(server: LyingObjects, count: int = 5) -> list[AssetRow]:
    return [AssetRow("S2A", f"B{n}", parse_href(f"{server.origin}/o/{n}.tif"), LOCKED) for n in range(count)]


def stores(folder: Path, *trusted: str) -> Stores:
    return Stores(folder, allow_private=True, trusted=frozenset(trusted))


def moved(
    found: list[AssetRow], folder: Path, to: Location | None = None, trusted: str = "", **options: Any
) -> Relocated:
    """Copied into `folder/a`, or elsewhere."""
    chosen, here = Relocation(**options), stores(folder, trusted)
    to = to or Location.parse(f"file://{folder}/a", folder=True)
    return chosen.run(chosen.plan(found, to), here, here, Arrivals(folder / "arrivals"))


def locked(server: LyingObjects, folder: Path, count: int = 5) -> AssetLock:
    return AssetLock(table_of(rows(server, count)), folder, True)


def test_case_39_a_plan_proves_nothing(server: LyingObjects) -> None:
    options = Relocation()
    found = options.described(options.plan(rows(server), Location.parse("s3://m/p/", folder=True)))
    assert {row.facts for row in found} == {Facts(7)}
    assert found[0].location.href() == "s3://m/p/S2A/B0.tif"
    assert server.requests == []


def test_files_are_named_relative_to_their_lock(server: LyingObjects, tmp_path: Path) -> None:
    found = moved(rows(server), tmp_path, relative_to=tmp_path)
    assert not found.faults
    assert (found.copied, found.copied_bytes) == (5, 35)
    assert [row.location.key for row in found.rows] == [f"a/S2A/B{n}.tif" for n in range(5)]
    assert {row.facts for row in found.rows} == {Facts(7)}
    assert (tmp_path / "a/S2A/B0.tif").read_bytes() == BYTES


def test_case_36_what_changed_is_not_copied(server: LyingObjects, tmp_path: Path) -> None:
    server.answers["/o/3.tif"] = {"etag": '"new"'}
    found = moved(rows(server), tmp_path)
    assert [row.asset_key for row in found.rows] == ["B0", "B1", "B2", "B4"]
    assert [(fault.asset_key, fault.error.exit_code) for fault in found.faults] == [("B3", 6)]
    assert not (tmp_path / "a/S2A/B3.tif").exists()


def test_case_37_the_facts_are_those_of_the_copy(
    server: LyingObjects, bucket: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Location.parse(bucket.url("m/p"), folder=True)
    found = moved(rows(server), tmp_path, to, str(to.endpoint), checksum=True)
    assert not found.faults
    assert {row.facts.size_bytes for row in found.rows} == {7}
    assert all(row.facts.etag not in (None, '"abc"') for row in found.rows)
    assert {row.facts.file_checksum for row in found.rows} == {
        "12208bb0cf6eb9b17d0f7d22b456f121257dc1254e1f01665370476383ea776df414"
    }
    # a target that is not what was written is removed
    monkeypatch.setattr(Stores, "probe", _shortened(Stores.probe, to))
    short = moved(rows(server, 1), tmp_path / "x", to, str(to.endpoint), overwrite=True)
    assert [fault.error.exit_code for fault in short.faults] == [8]
    assert "m/p/S2A/B0.tif" not in "".join(bucket.objects)


def _shortened(asked: Any, to: Location) -> Any:
    calls = list[Location]()

    def shortened(where: Stores, location: Location) -> Any:
        found = asked(where, location)
        if location.store == "s3":
            calls.append(location)
        return replace(found, facts=Facts(6)) if len(calls) == 1 and location.store == "s3" else found

    return shortened


def test_case_38_a_second_run_copies_the_rest(
    server: LyingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, write = 0, Stores.write

    def killed(*args: Any) -> Any:
        nonlocal copied
        if copied == 3:
            raise KeyboardInterrupt
        copied += 1
        return write(*args)

    monkeypatch.setattr(Stores, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        moved(rows(server), tmp_path, jobs=1)
    monkeypatch.undo()
    again = moved(rows(server), tmp_path)
    assert again.copied == 2
    assert len(again.rows) == 5


@pytest.mark.parametrize(("jobs", "copies"), [(1, 1), (4, 1), (8, 2), (16, 4)])
def test_a_copy_takes_four_of_the_requests_at_a_time(
    jobs: int, copies: int, server: LyingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met, most, lock, write = threading.Barrier(copies), [0, 0], threading.Lock(), Stores.write

    def counted(*args: Any) -> Any:
        with lock:
            most[0] += 1
            most[1] = max(most)
        met.wait(20)
        with lock:
            most[0] -= 1
        return write(*args)

    monkeypatch.setattr(Stores, "write", counted)
    source = locked(server, tmp_path, 4)
    options = StoreOptions(jobs=jobs, allow_private=True)
    done = source.relocate(f"file://{tmp_path}/a/", folder=tmp_path, stores=options)
    assert (len(done.table), most[1]) == (4, copies)


def command(lock: Path, new: Path) -> list[str]:
    to = ["--to", "a", "--output", str(new), "--allow-private"]
    return [str(ODFCHAIN), "assets", "relocate", str(lock), *to]


def test_case_38_a_killed_process_leaves_lock_and_arrivals(server: LyingObjects, tmp_path: Path) -> None:
    lock, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    AssetLock(table_of(rows(server)), lock.parent).write(lock)
    old, arrived = lock.read_bytes(), tmp_path / "new.parquet.arrived"
    held = threading.Event()
    server.held.append(held)
    server.before = lambda method, path: held.wait() if method == "GET" and path > "/o/2.tif" else None
    process = subprocess.Popen(command(lock, new), cwd=tmp_path, env=environment())
    try:
        wait_until(lambda: arrived.exists() and arrived.read_bytes().count(b"\n") == 3)
    finally:
        process.kill()
        process.wait(TIMEOUT)
        held.set()
    assert (lock.read_bytes(), new.exists()) == (old, False)
    server.before = lambda method, path: None
    server.requests.clear()
    done = subprocess.run(
        command(lock, new), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert "copied 2 objects, 14 bytes; 3 were there" in done.stderr
    assert sorted(path for method, path, _ in server.requests if method == "GET") == ["/o/3.tif", "/o/4.tif"]
    assert not list(LockFile(new).faults())
    assert not arrived.exists()


def test_two_relocations_into_one_lock(server: LyingObjects, tmp_path: Path) -> None:
    """Both have copied everything when they end, and what remembers their arrivals is gone."""
    lock = locked(server, tmp_path)
    met = threading.Barrier(2)
    # each waits for the other before its first object: they do run at once
    first = {"left": 2}

    def meet(method: str, path: str) -> None:
        if path == "/o/0.tif" and method == "HEAD" and first["left"] > 0:
            first["left"] -= 1
            met.wait(TIMEOUT)

    server.before = meet
    arrived = tmp_path / "new.parquet.arrived"

    def run(_: int) -> AssetLock:
        found = lock.relocate(str(tmp_path / "a"), folder=tmp_path, arrivals=arrived, stores=PRIVATE)
        found.write(tmp_path / "new.parquet")
        arrived.unlink(missing_ok=True)
        return found

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(run, range(2))
    assert one.faults == other.faults == ()
    assert not arrived.exists()
    assert one.table == other.table == AssetLock.read(tmp_path / "new.parquet").table
    assert [path.read_bytes() for path in sorted((tmp_path / "a/S2A").iterdir())] == [BYTES] * 5


@pytest.mark.soak
def test_two_relocations_into_one_dataset(server: LyingObjects, tmp_path: Path, engine: SparkEngine) -> None:
    """One of them records the rows, the other has nothing new to say."""
    lock = locked(server, tmp_path)
    assert engine.session  # which begins once
    workspace = odf.init(tmp_path / "w")
    workspace.add(manifest_template(odf.DatasetAlias.parse("s2.mirror"), "assets"))
    met = threading.Barrier(2)

    def run(_: int) -> bool:
        here = odf.open(tmp_path / "w")
        here._engines.spark = engine
        arrived = tmp_path / "arrived"
        found = lock.relocate(str(tmp_path / "a"), folder=tmp_path, arrivals=arrived, stores=PRIVATE)
        met.wait(TIMEOUT)
        return here["s2.mirror"].record_lock(found).up_to_date

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(run, range(2))) == [False, True]
    workspace._engines.spark = engine
    recorded = workspace["s2.mirror"].lock()
    assert [Path(href).name for href in recorded.hrefs()] == [f"B{n}.tif" for n in range(5)]
    assert workspace["s2.mirror"].verify(replay=True).ok


def test_damaged_lines_of_arrivals_are_not_believed(server: LyingObjects, tmp_path: Path) -> None:
    moved(rows(server), tmp_path)
    path = tmp_path / "arrivals"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)

    def copied_after(data: bytes, **options: Any) -> int:
        path.write_bytes(data)
        # what arrived is not replaced; the rest is, though it is there
        return moved(rows(server), tmp_path, overwrite=True, **options).copied

    assert copied_after(whole) == 0
    for left in (1, 10):
        assert copied_after(whole[:-left]) == 1  # cut
        assert moved(rows(server), tmp_path).copied == 0  # and what was cut spoils no other
    assert copied_after(b"".join(lines[:2]) + lines[2][:40]) == 3
    assert copied_after(lines[0] + b"\0\xff{}[]null\n" + b"".join(lines[2:])) == 1
    for changed in (
        (b'"size_bytes": 7', b'"size_bytes": 8'),
        (b'"etag": null', b'"etag": "x"'),
        (b'"copy": "', b'"copy": "0'),
        (b'"sum": "', b'"sum": "0'),
        (b'"sum"', b'"som"'),
    ):
        assert copied_after(lines[0].replace(*changed) + b"".join(lines[1:])) == 1, changed
    assert copied_after(b"[1]\n7\nnull\n\n" + whole) == 0
    assert copied_after(whole, checksum=True) == 5  # they have no checksum
    assert copied_after(path.read_bytes(), checksum=True) == 0
    other = Location.parse(f"file://{tmp_path}/b", folder=True)
    assert moved(rows(server), tmp_path, other).copied == 5  # made for another target
    (tmp_path / "a/S2A/B0.tif").write_bytes(b"123")
    assert copied_after(whole) == 1  # it is not there any more


def test_arrivals_in_a_folder_that_is_to_come(server: LyingObjects, tmp_path: Path) -> None:
    lock = locked(server, tmp_path)
    arrived = tmp_path / "not/there/new.parquet.arrived"
    found = lock.relocate(str(tmp_path / "a"), arrivals=arrived, stores=PRIVATE)
    assert not found.faults
    assert arrived.read_bytes().count(b"\n") == 5


def test_case_40_credentials_go_only_where_the_user_said(bucket: SmallS3, tmp_path: Path) -> None:
    bucket.objects["/b/k.tif"] = BYTES
    location = Location.parse(bucket.url("b/k.tif"))

    def headers(*trusted: str) -> dict[str, str]:
        bucket.requests.clear()
        stores(tmp_path, *trusted).probe(location)
        return bucket.requests[0][2]

    assert {"authorization", "x-amz-security-token"} & set(headers()) == set()
    assert {"authorization", "x-amz-security-token"} <= set(headers(str(location.endpoint)))


@pytest.mark.usefixtures("bucket")
def test_large_objects_go_between_servers_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library cannot read an object while it asks for the pieces of another: a thread reads ahead."""
    data = bytes(range(256)) * (5 << 12) + b"end"
    monkeypatch.setattr(objects, "PIECE", 5 << 20)  # four pieces; no part may be smaller
    with LyingObjects({"/x.tif": {"bytes": data * 4}}) as server, simulated_s3("mirror") as target:
        location = parse_href(f"{server.origin}/x.tif")
        right, wrong = (
            AssetLock(table_of([AssetRow("s1", "B04", location, facts)], checksums=True), tmp_path)
            for facts in (Facts(len(data) * 4), Facts(file_checksum="1220" + "0" * 64))
        )
        moved = right.relocate(f"s3+{target}/mirror", checksum=True, stores=PRIVATE)
        assert not moved.faults
        (row,) = moved.rows
        assert row.facts.size_bytes == len(data) * 4
        assert row.facts.file_checksum == f"1220{hashlib.sha256(data * 4).hexdigest()}"
        (fault,) = wrong.relocate(f"s3+{target}/mirror/wrong", stores=PRIVATE).faults
        assert fault.error.exit_code == 6
