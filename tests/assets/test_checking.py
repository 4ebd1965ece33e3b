"""The command that checks a lock: what it prints, how it ends, how it asks, and how little it keeps."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.assets import locks, objects
from odfchain.assets.hrefs import parse_href
from odfchain.assets.lock_table import SCHEMA, AssetRow
from odfchain.assets.locks import AssetLock, check_rows, table_of
from odfchain.assets.objects import Facts, Probe, Stores
from odfchain.cli.start import manifest_template
from odfchain.storage.locations import Location
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.asset_cases import numbered_rows
from tests.kit.lying_objects import BYTES, LyingObjects
from tests.kit.root_rows import MADE, START, append, records, schema_event, schema_with
from tests.kit.support import Run

LOCKED = Facts(7, '"abc"', "2015-10-21T07:28:00+00:00")
SHA_2, SHA_3, MD5 = (
    start + hashlib.new(name, BYTES).hexdigest()
    for start, name in (("1220", "sha256"), ("1620", "sha3_256"), ("d50110", "md5"))
)


@pytest.fixture
def server() -> Iterator[LyingObjects]:
    with LyingObjects({"/same.tif": {}, "/grown.tif": {"bytes": BYTES + b"8", "etag": '"abd"'}}) as found:
        yield found


@pytest.fixture
def nobody() -> Iterator[str]:
    """An origin where nobody listens, and nobody will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not answer is asked again at once."""
    monkeypatch.setattr(objects, "_RETRIES", 0)


def lock_of(path: Path, hrefs: dict[str, str], facts: Facts = LOCKED) -> str:
    """A lock file with an asset for each href."""
    rows = [AssetRow("S2A", name, parse_href(href), facts) for name, href in hrefs.items()]
    lock = AssetLock(table_of(rows, checksums=facts.file_checksum is not None), path)
    lock.write(path / "assets.lock.parquet")
    return str(path / "assets.lock.parquet")


@pytest.fixture
def lock(server: LyingObjects, nobody: str, tmp_path: Path) -> str:
    """Of assets that are the same, grown, gone, and of a server that is silent."""
    hrefs = {name: f"{server.origin}/{name}.tif" for name in ("same", "grown", "gone")}
    return lock_of(tmp_path, hrefs | {"silent": f"{nobody}/x.tif"})


def test_what_is_printed_and_how_it_ends(server: LyingObjects, lock: str, assets: Run) -> None:
    code, out, err = assets("check", lock, "--allow-private")
    assert code == 6
    assert [line.split() for line in out.splitlines()[1:4]] == [
        ["S2A", "gone", "missing", "no", "such", "object"],
        ["S2A", "grown", "changed", "size", "7", "→", "8,", "etag"],
        ["S2A", "silent", "unreachable", "HTTP", "error:", "error", "sending", "request"],
    ]
    assert err.strip() == "1 same, 1 changed, 1 missing, 1 unreachable"
    # the same under the other tool's name, and in the forms for programs
    code, out, _ = assets("validate", lock, "--allow-private", "-o", "ndjson")
    assert code == 6
    found = {each["asset_key"]: each for each in map(json.loads, out.splitlines())}
    assert found["same"] == {
        "item_id": "S2A", "asset_key": "same", "store_type": "http", "store_container": server.origin,
        "store_endpoint_url": None, "key": "same.tif", "valid": True, "errors": [], "status": "same",
        "note": "",
    }  # fmt: skip
    assert [found[name]["valid"] for name in ("grown", "gone", "silent")] == [False] * 3
    assert found["grown"]["errors"] == ["size 7 → 8", "etag"]
    code, out, _ = assets("check", lock, "--allow-private", "-o", "json")
    assert (code, json.loads(out)) == (6, list(found.values()))
    code, out, _ = assets("check", lock, "--allow-private", "-o", "html")
    assert code == 6
    assert out.startswith("<!DOCTYPE html>")
    assert out.index(" missing</span>") < out.index(" unreachable</span>")


@pytest.mark.parametrize(
    ("chosen", "code"),
    [(["same"], 0), (["silent"], 8), (["same", "silent"], 8), (["gone", "silent"], 6), (["grown"], 6)],
)
def test_the_exit_code(chosen: list[str], code: int, lock: str, assets: Run) -> None:
    options = [word for name in chosen for word in ("--asset", name)]
    for output in ("table", "html"):
        assert assets("check", lock, "--allow-private", *options, "-o", output)[0] == code


def test_nothing_to_compare_is_a_note(server: LyingObjects, tmp_path: Path, assets: Run) -> None:
    lock = lock_of(tmp_path, {"same": f"{server.origin}/same.tif"}, Facts())
    code, out, err = assets("check", lock, "--allow-private")
    assert code == 0
    assert "unknown" in out
    assert "there is nothing that both the lock and the store say" in out
    assert err.strip() == "1 unknown"


def test_a_time_alone_is_a_note(server: LyingObjects, tmp_path: Path, assets: Run) -> None:
    for time, shown in (("2015-10-21T07:28:00Z", ""), ("2014-01-01T00:00:00+00:00", "last modified 2014")):
        lock = lock_of(tmp_path, {"same": f"{server.origin}/same.tif"}, Facts(7, '"abc"', time))
        code, out, err = assets("check", lock, "--allow-private")
        assert (code, err.strip()) == (0, "1 same")
        assert shown in out
        assert bool(out) == bool(shown)


def test_a_package_is_checked_wherever_it_is(tmp_path: Path, assets: Run) -> None:
    made = tmp_path / "made"
    (made / "assets").mkdir(parents=True)
    (made / "assets" / "a.tif").write_bytes(BYTES)
    lock_of(made, {"a": "assets/a.tif"}, Facts(7))
    before = (made / "assets.lock.parquet").read_bytes()
    shutil.make_archive(str(tmp_path / "package"), "zip", made)
    shutil.rmtree(made)
    with zipfile.ZipFile(tmp_path / "package.zip") as archive:
        archive.extractall(tmp_path / "elsewhere")
    there = tmp_path / "elsewhere" / "assets.lock.parquet"
    assert there.read_bytes() == before
    assert assets("check", there, "--offline").code == assets("check", there).code == 0
    (there.parent / "assets" / "a.tif").write_bytes(b"12345678")
    assert assets("check", there).out.splitlines()[1].split()[:3] == ["S2A", "a", "changed"]
    (there.parent / "assets" / "a.tif").unlink()
    assert assets("check", there).out.splitlines()[1].split()[:3] == ["S2A", "a", "missing"]


def test_absolute_paths_of_somebody_are_not_looked_at(tmp_path: Path, assets: Run) -> None:
    (tmp_path / "a.tif").write_bytes(BYTES)
    lock = lock_of(tmp_path, {"a": str(tmp_path / "a.tif")}, Facts(7))
    code, out, _ = assets("check", lock)
    assert (code, "not made here; read it, and allow it with --trust-files" in out) == (8, True)
    assert assets("check", lock, "--trust-files")[0] == 0


def test_damaged_and_missing_locks(tmp_path: Path, assets: Run) -> None:
    table = numbered_rows(3)
    path = tmp_path / "x.parquet"
    AssetLock(table.append_column("href", table.column("key")), path.parent).write(path)
    for options in (["check"], ["check", "--offline"], ["href"], ["validate"]):
        code, _, err = assets(*options, path)
        assert (code, "column `href` is not one of a lock's" in err) == (6, True)
    assert assets("check", str(tmp_path / "none.parquet"))[0] == 4
    with pytest.raises(odf.errors.AssetError, match="no such file"):
        odf.AssetLock.read(tmp_path / "none.parquet")
    with pytest.raises(odf.errors.AssetError, match=r"faulty|lock"):
        odf.AssetLock.read(path)


@pytest.mark.parametrize("checksum", [SHA_2, SHA_3, MD5])
def test_checksums_are_read_if_asked_for(
    checksum: str, server: LyingObjects, tmp_path: Path, assets: Run
) -> None:
    facts = Facts(7, '"abc"', None, checksum)
    lock = lock_of(tmp_path, {name: f"{server.origin}/{name}.tif" for name in ("same", "grown")}, facts)
    only = ("--asset", "same", "--allow-private")
    assert assets("check", lock, "--offline")[0] == 0
    assert assets("check", lock, *only, "--checksum")[0] == 0
    server.answers["/same.tif"] = {"bytes": b"7654321"}
    server.requests.clear()
    assert assets("check", lock, *only)[0] == 0, "the store says the same"
    assert [method for method, *_ in server.requests] == ["HEAD"]
    code, out, _ = assets("check", lock, "--allow-private", "--checksum")
    assert code == 6
    assert [line.split()[1:] for line in out.splitlines()[1:]] == [
        ["grown", "changed", "size", "7", "→", "8,", "etag"], ["same", "changed", "checksum"],
    ]  # fmt: skip
    assert ("GET", "/grown.tif") not in [(method, path) for method, path, _ in server.requests]
    server.answers["/same.tif"]["get"] = 404
    assert "missing" in assets("check", lock, *only, "--checksum")[1]


def test_a_lock_without_checksums_has_none_to_compare(tmp_path: Path, assets: Run) -> None:
    code, _, err = assets("check", lock_of(tmp_path, {"a": "a.tif"}), "--checksum")
    assert code == 2
    assert "has no checksums\nhint: `assets derive SOURCE… --checksum calculate-always`" in err
    assert assets("check", str(tmp_path / "assets.lock.parquet"), "--offline", "-o", "html")[0] == 2


def test_a_size_alone_is_told(tmp_path: Path, assets: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tif").write_bytes(BYTES)
    document = {"type": "Feature", "id": "S2A", "assets": {"a": {"href": "a.tif"}}}
    Path("s.json").write_text(json.dumps(document))
    derived = assets("derive", "s.json", "--output", "plain.parquet")
    assert "of 1 file only the size is recorded; --checksum calculate-always" in derived.err
    derived = assets("derive", "s.json", "--output", "l.parquet", "--checksum", "calculate-always")
    assert "only the size" not in derived.err
    Path("a.tif").write_bytes(BYTES[::-1])
    way = "`assets derive SOURCE… --checksum calculate-always`"
    for lock, sure in (("plain.parquet", way), ("l.parquet", "`assets check --checksum`")):
        done = assets("check", lock)
        assert done.code == 0
        assert f"1 same\nonly the size was compared: 1 asset; {sure}" in done.err
        assert "Of 1 asset among them only the size was compared." in assets("check", lock, "-o", "html").out
    done = assets("check", "l.parquet", "--checksum")
    assert (done.code, "only the size" in done.err) == (6, False)


def stores(folder: Path) -> Stores:
    return Stores(folder, allow_private=True)


def test_requests_have_half_a_minute_and_three_retries(
    server: LyingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        objects, "open_store", lambda place, limits, seconds, **_: asked.append((limits.retries, seconds))
    )
    stores(tmp_path).store_of(parse_href(f"{server.origin}/same.tif"))
    assert asked == [(3, 30.0)]


def test_as_many_requests_as_allowed_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, lock, running = threading.Barrier(7, timeout=60), threading.Lock(), set[str]()

    def asked(_: Stores, location: Location) -> Probe:
        with lock:
            running.add(location.key)
            assert len(running) <= 7
        together.wait()  # of fewer none would ever go on
        with lock:
            running.discard(location.key)
        together.wait()
        return Probe(Facts(int(location.key)))

    monkeypatch.setattr(Stores, "probe", asked)
    found = stores(tmp_path).probes([Location("s3", "b", None, str(n)) for n in range(49)], 7)
    assert [each.facts for each in found] == [Facts(n) for n in range(49)], "in order"


def test_who_does_not_answer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_SECONDS", 0.5)
    over = threading.Event()
    with LyingObjects({"/x.tif": {}}) as server:
        server.held.append(over)
        server.before = lambda method, path: over.wait()  # type: ignore[assignment]
        found = stores(tmp_path).probe(parse_href(f"{server.origin}/x.tif"))
    assert (found.missing, bool(found.problem)) == (False, True)
    assert {method for method, *_ in server.requests} == {"HEAD"}


def test_results_come_before_all_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = 0

    def rows() -> Iterator[AssetRow]:
        nonlocal given
        for number in range(1_000):
            given += 1
            yield AssetRow(str(number), "B04", Location("file", None, None, "none.tif"))

    monkeypatch.setattr(locks, "WINDOW", 100)
    found = check_rows(rows(), stores(tmp_path))
    assert next(found).status.value == "missing"
    assert given == 100


def test_rows_of_datasets_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assets: Run) -> None:
    """Whoever published it may have recorded anything."""
    workspace = odf.init(tmp_path)
    monkeypatch.chdir(tmp_path)
    (dataset,) = workspace.add(manifest_template(odf.DatasetAlias.parse("s2.assets"), "assets"))
    root, schema = dataset._files, schema_with(*(field.with_nullable(True) for field in SCHEMA))
    commit(root, DatasetState.read(root.chain), [schema_event(schema)], [], system_time=MADE)
    columns = numbered_rows(4).to_pydict()
    columns["key"][1] = "../b"
    append(root, records(schema, 0, [0] * 4, [START] * 4, *columns.values()), MADE)
    code, out, err = assets("check", "s2.assets", "--offline", "-o", "ndjson")
    assert (code, err.strip()) == (6, "s2.assets: 4 rows, 1 faulty")
    assert [(each["row"], each["errors"]) for each in map(json.loads, out.splitlines())] == [
        (1, ["an empty path segment in the key, or a segment of dots"]),
    ]  # fmt: skip
    code, _, err = assets("check", "s2.assets")
    assert code == 6
    assert "row 1 (S2A_33UWP_000000001 B04)" in err
