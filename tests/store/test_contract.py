"""What every store promises, over every implementation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import (
    InvalidIdError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    RefConflictError,
    StoreError,
)
from odfchain.odf.identity import Multicodec, Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage import fsio, local
from odfchain.storage.bucket_store import STORE_LIMITS, BucketTransport
from odfchain.storage.fsio import LocalScratch, MemoryScratch
from odfchain.storage.local import HEAD, BroughtObjectStore, LocalObjectStore, LocalRefStore
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.store_commit import CommitPlan, SharedRefStore, StoredDataset
from tests.kit.memory_stores import MemoryObjectStore, MemoryRefStore
from tests.kit.shared_store import environment
from tests.kit.small_s3 import SmallS3


@pytest.fixture(params=["local", "memory", "brought"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return MemoryObjectStore()
    (tmp_path / "objects").mkdir()
    if request.param == "brought":
        return BroughtObjectStore(tmp_path / "objects", lambda store, name: None)
    return LocalObjectStore(tmp_path / "objects")


@pytest.fixture(params=["local", "memory", "shared"])
def refs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "refs").mkdir()
    local = LocalRefStore(tmp_path, tmp_path / "lock")
    if request.param != "shared":
        yield local if request.param == "local" else MemoryRefStore()
        return
    environment(monkeypatch, tmp_path)
    with SmallS3() as server:
        url = PeerUrl.parse(server.url("bucket/x"))
        (tmp_path / "info").mkdir()
        space = BucketTransport(url, STORE_LIMITS)
        yield SharedRefStore(WithoutBlocks(space, url.text, STORE_LIMITS, tmp_path))


class WithoutBlocks(StoredDataset):
    """The references alone: nothing is sent or followed."""

    def on(self, ref: str = HEAD) -> Any:
        return None

    def plan_commit(self, dataset: Any, expected: Any, version: Any, new: Multihash) -> CommitPlan:
        return CommitPlan(version, [])

    def is_committed(self, ref: str, expected: Any, new: Multihash, head: Multihash) -> bool:
        return head == new

    def follow(self, ref: str) -> None:
        pass


def damage(store: Any, name: Multihash, data: bytes) -> None:
    if isinstance(store, MemoryObjectStore):
        store.objects[name] = data
    else:
        Path(store.locate(name)).write_bytes(data)


# --- objects -----------------------------------------------------------------------------------------


def test_what_is_put_can_be_got(objects: Any) -> None:
    name = objects.put(b"hello")
    assert name == hash_bytes(b"hello")
    assert objects.get(name) == b"hello"
    assert objects.contains(name)
    assert objects.size(name) == 5
    assert list(objects.names()) == [name]
    assert objects.verified_path(name).read_bytes() == b"hello"


def test_putting_again_changes_nothing(objects: Any) -> None:
    assert objects.put(b"x") == objects.put(b"x")
    assert len(list(objects.names())) == 1


def test_files_are_taken_over(objects: Any, tmp_path: Path) -> None:
    for _ in range(2):
        source = tmp_path / "staged"
        source.write_bytes(b"slice")
        objects.put_file(source, hash_bytes(b"slice"))
        assert not source.exists()
        assert objects.get(hash_bytes(b"slice")) == b"slice"


def test_missing_objects(objects: Any) -> None:
    name = hash_bytes(b"nothing")
    assert not objects.contains(name)
    for call in (objects.get, objects.size, objects.verified_path):
        with pytest.raises(ObjectNotFoundError, match=str(name)):
            call(name)


@pytest.mark.parametrize("wrong", [b"", b"hell", b"hello!", b"jello", b"\0" * 5])
def test_reads_never_return_wrong_bytes(objects: Any, wrong: bytes) -> None:
    name = objects.put(b"hello")
    damage(objects, name, wrong)
    for call in (objects.get, objects.verified_path):
        with pytest.raises(ObjectCorruptedError, match=str(name)):
            call(name)


@pytest.mark.parametrize("call", ["get", "verified_path"])
def test_a_bit_that_is_flipped_once_is_an_error_and_right_when_it_is_read_again(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """Of each bit of an object: nothing that was read wrong is returned or remembered as verified, nor as damaged."""
    objects, data, fired = LocalObjectStore(tmp_path), bytes(range(32)), 0
    name = objects.put(data)
    path, whole = objects.path(name), fsio.file_state(objects.path(name).stat())
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        with monkeypatch.context() as once:
            # as a bus or a memory does it: the file is as it was, also its times
            once.setattr(Path, "read_bytes", lambda _, wrong=bytes(wrong): wrong)
            once.setattr(local, "hash_file", lambda _, wrong=bytes(wrong): (hash_bytes(wrong), len(wrong)))
            with pytest.raises(ObjectCorruptedError, match=str(name)):
                getattr(objects, call)(name)
            fired += 1
        assert fsio.file_state(path.stat()) == whole
        assert objects.get(name) == data
    assert objects.verified_path(name).read_bytes() == data
    record_property("bits", fired)


def test_swapped_objects_are_noticed(objects: Any) -> None:
    a, b = objects.put(b"a"), objects.put(b"b")
    damage(objects, a, b"b")
    damage(objects, b, b"a")
    for name in (a, b):
        with pytest.raises(ObjectCorruptedError):
            objects.get(name)


def test_a_damaged_object_is_repaired_by_putting_it_again(objects: Any, tmp_path: Path) -> None:
    name = objects.put(b"hello")
    damage(objects, name, b"jello")
    objects.put(b"hello")
    assert objects.get(name) == b"hello"
    damage(objects, name, b"jelly")
    (tmp_path / "again").write_bytes(b"hello")
    objects.put_file(tmp_path / "again", name)
    assert objects.get(name) == b"hello"


@pytest.mark.parametrize(
    "name", [Multihash(Multicodec.SHA3_256, b"short"), Multihash(Multicodec.SHA2_256, bytes(32)),
             Multihash(Multicodec.ARROW0_SHA3_256, bytes(32))],
)  # fmt: skip
def test_only_full_sha3_hashes_name_objects(objects: Any, name: Multihash) -> None:
    for call in (objects.contains, objects.get, objects.size, objects.verified_path):
        with pytest.raises(StoreError):
            call(name)


# --- references --------------------------------------------------------------------------------------

A, B, C = (hash_bytes(x) for x in (b"a", b"b", b"c"))


def test_a_reference_moves_only_from_where_it_is(refs: Any) -> None:
    assert refs.get("head") is None
    refs.compare_and_swap("head", None, A)
    assert refs.get("head") == A
    with pytest.raises(RefConflictError) as caught:
        refs.compare_and_swap("head", None, B)
    assert caught.value.actual == str(A)
    with pytest.raises(RefConflictError):
        refs.compare_and_swap("head", B, C)
    assert refs.get("head") == A
    refs.compare_and_swap("head", A, B)
    assert refs.get("head") == B
    assert list(refs.names()) == ["head"]


@pytest.mark.parametrize("name", ["", ".", "..", "../head", "a/b", "HEAD", ".pending-x", "a\0", "head.lock/"])
def test_reference_names_never_become_paths(refs: Any, name: str) -> None:
    with pytest.raises(InvalidIdError):
        refs.get(name)
    with pytest.raises(InvalidIdError):
        refs.compare_and_swap(name, None, A)


def test_no_update_is_lost_between_threads(refs: Any) -> None:
    refs.compare_and_swap("head", None, A)
    won: list[Multihash] = []

    def writer(number: int) -> None:
        for step in range(20):
            mine = hash_bytes(f"{number}-{step}".encode())
            while True:
                seen = refs.get("head")
                try:
                    refs.compare_and_swap("head", seen, mine)
                except RefConflictError:
                    continue
                won.append(mine)
                break

    threads = [threading.Thread(target=writer, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == len(set(won)) == 80
    assert refs.get("head") == won[-1] or refs.get("head") in won


# --- scratch -----------------------------------------------------------------------------------------


@pytest.fixture(params=["local", "memory"])
def scratch(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryScratch() if request.param == "memory" else LocalScratch(tmp_path / "scratch")


def test_scratch(scratch: Any) -> None:
    assert scratch.read(0, 10) == b""
    scratch.write(0, b"abcdef")
    assert scratch.read(2, 3) == b"cde"
    scratch.write(2, b"X")
    assert scratch.read(0, 10) == b"abX"
    scratch.write(5, b"Y")
    assert scratch.read(0, 10) == b"abX\0\0Y"
    scratch.write(0, b"")
    assert scratch.read(0, 10) == b""
