"""The local file system: layout, odd files, symlinks, faults of every system call, and many processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.errors import RefConflictError, StorageFullError, StoreError
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage import fsio
from odfchain.storage.local import LocalObjectStore, LocalRefStore
from tests.kit.faults import faulty

A, B = hash_bytes(b"a"), hash_bytes(b"b")


def stores(folder: Path) -> tuple[LocalObjectStore, LocalRefStore]:
    for part in ("objects", "refs"):
        (folder / part).mkdir(parents=True)
    return LocalObjectStore(folder / "objects"), LocalRefStore(folder, folder / "lock")


@pytest.fixture
def both(tmp_path: Path) -> tuple[LocalObjectStore, LocalRefStore]:
    return stores(tmp_path)


@pytest.fixture
def objects(both: tuple[LocalObjectStore, LocalRefStore]) -> LocalObjectStore:
    return both[0]


@pytest.fixture
def refs(both: tuple[LocalObjectStore, LocalRefStore]) -> LocalRefStore:
    return both[1]


def test_layout(objects: LocalObjectStore, refs: LocalRefStore, tmp_path: Path) -> None:
    name = objects.put(b"a")
    refs.compare_and_swap("head", None, name)
    assert (tmp_path / "objects" / f"f1620{name.digest.hex()}").read_bytes() == b"a"
    assert (tmp_path / "refs" / "head").read_bytes() == str(name).encode(), "exactly the hash, no newline"


def test_many_files_wait_for_the_disk_together(
    objects: LocalObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [b"%d" % number for number in range(100)]
    names = [hash_bytes(content) for content in contents]
    objects.put(contents[3])
    path = objects._path(objects.put(contents[4]))
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    staged = [tmp_path / f"staged-{number}" for number in range(100)]
    for file, content in zip(staged, contents, strict=True):
        file.write_bytes(content)
    synced: list[Path] = []
    sync_folder = fsio.sync_folder
    monkeypatch.setattr(fsio, "sync_folder", lambda folder: (synced.append(folder), sync_folder(folder))[1])
    assert list(objects.put_files(list(zip(staged, names, strict=True)))) == names
    assert [objects.get(name) for name in names] == contents
    assert not any(file.exists() for file in staged)
    assert synced[-1] == tmp_path / "objects"
    assert len(synced) <= 3, "one for all, and one for each that was there"


def test_foreign_files_are_passed_over(objects: LocalObjectStore, tmp_path: Path) -> None:
    name = objects.put(b"a")
    for other in (".pending-x", "README", "f1620zz", f"{name}.tmp"):
        (tmp_path / "objects" / other).write_bytes(b"")
    assert list(objects.names()) == [name]


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"", "not a reference"), (b"hello", "not a reference"), (b"\xff\xfe", "not a reference"),
     (b"f1220" + b"0" * 64, "not a reference"), (b"f1620" + b"0" * 10, "not a reference"),
     (b"f" * 4_000, "at most 128"), (b"0" * 64, "not a reference")],
)  # fmt: skip
def test_a_damaged_reference_is_an_error_that_names_the_file(
    refs: LocalRefStore, tmp_path: Path, content: bytes, fault: str
) -> None:
    (tmp_path / "refs" / "head").write_bytes(content)
    with pytest.raises(StoreError, match=fault) as caught:
        refs.get("head")
    assert str(tmp_path / "refs" / "head") in str(caught.value)


def test_a_reference_with_white_space_around_it_is_read(refs: LocalRefStore, tmp_path: Path) -> None:
    (tmp_path / "refs" / "head").write_bytes(b" " + str(A).encode() + b"\r\n")
    assert refs.get("head") == A


def test_a_planted_symlink_is_not_written_through(refs: LocalRefStore, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "refs" / "head").symlink_to(victim)
    with pytest.raises(StoreError):
        refs.compare_and_swap("head", None, A)
    assert victim.read_bytes() == b"precious"
    (tmp_path / "lock").unlink(missing_ok=True)
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(StoreError):
        refs.compare_and_swap("other", None, A)
    assert victim.read_bytes() == b"precious"


# --- every system call fails once, and for ever --------------------------------------------------------


def everything(objects: LocalObjectStore, refs: LocalRefStore, staged: Path) -> None:
    staged.write_bytes(b"slice")
    objects.put(b"block")
    objects.put_file(staged, hash_bytes(b"slice"))
    refs.compare_and_swap("head", None, A)
    refs.compare_and_swap("head", A, B)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_every_failing_call(
    tmp_path: Path, error: int, forever: bool, record_property: Callable[[str, object], None]
) -> None:
    with faulty(None) as counter:
        everything(*stores(tmp_path / "clean"), tmp_path / "clean" / "staged")
    assert counter.count > 20
    fired = 0
    for fail_at in range(1, counter.count + 1):
        folder = tmp_path / f"run-{fail_at}"
        objects, refs = stores(folder)
        with faulty(fail_at, error, forever=forever) as faults:
            try:
                everything(objects, refs, folder / "staged")
            except StoreError as caught:
                expected = StoreError if error == errno.EIO else StorageFullError
                assert isinstance(caught, expected)
                assert "\n" not in str(caught)
        fired += faults.fired > 0
        # whatever happened: complete files under final names only, the head old or new, and work can go on
        for name in objects.names():
            assert objects.get(name) in (b"block", b"slice")
        head = refs.get("head")
        assert head in (None, A, B)
        objects.put(b"block")
        refs.compare_and_swap("head", head, B)
        assert refs.get("head") == B
    assert fired > 15, "the faults did not fire"
    record_property("faults", fired)


def test_what_was_not_durable_is_made_durable_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync of a folder fails after a file or folder has its name in it: finding it there is not enough."""
    synced: list[Path] = []
    sync_folder = fsio.sync_folder

    def fails(folder: Path) -> None:
        raise StoreError(f"{folder}: {os.strerror(errno.EIO)}")

    objects = tmp_path / "objects"
    for work in (lambda: fsio.make_folder(objects), lambda: LocalObjectStore(objects).put(b"x")):
        with monkeypatch.context() as failing:
            failing.setattr(fsio, "sync_folder", fails)
            with pytest.raises(StoreError):
                work()
        with monkeypatch.context() as seen:
            seen.setattr(fsio, "sync_folder", lambda folder: (synced.append(folder), sync_folder(folder))[1])
            work()
    assert synced == [tmp_path, objects]


def test_a_real_full_device() -> None:
    full = Path("/dev/full")
    with (
        pytest.raises(StorageFullError, match="no space left"),
        fsio.storage_errors(full),
        full.open("wb", buffering=0) as stream,
    ):
        stream.write(b"x")


def test_a_real_file_size_limit(tmp_path: Path) -> None:
    """Short writes, without root: the process may not write files of more than 1,000 bytes."""
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from odfchain.errors import StorageFullError
        from odfchain.storage.local import LocalObjectStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        store = LocalObjectStore(Path(sys.argv[1]))
        store.put(b"x" * 1000)
        try:
            store.put(b"y" * 5000)
        except StorageFullError as error:
            print(error)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "the file size limit is reached" in result.stdout
    assert [p.stat().st_size for p in tmp_path.iterdir()] == [1000], "nothing half-written may stay"


# --- order of operations --------------------------------------------------------------------------------


def test_the_order_of_system_calls_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write, sync, publish, sync the folder: any new or missing step fails this test."""
    calls: list[str] = []

    class Recorder:
        def __getattr__(self, name: str) -> object:
            real = getattr(os, name)
            if name not in ("open", "fsync", "link", "replace", "unlink"):
                return real

            def call(*args: object, **kwargs: object) -> object:
                calls.append(name)
                return real(*args, **kwargs)

            return call

    monkeypatch.setattr(fsio, "os", Recorder())
    fsio.create_file(tmp_path / "a", b"x")
    assert calls == ["open", "fsync", "link", "open", "fsync"]
    calls.clear()
    fsio.replace_file(tmp_path / "a", b"y")
    assert calls == ["open", "fsync", "replace", "open", "fsync"]
    calls.clear()
    (tmp_path / "staged").write_bytes(b"z")
    fsio.adopt_file(tmp_path / "staged", tmp_path / "b")
    assert calls == ["open", "fsync", "link", "open", "fsync"]


# --- many processes -------------------------------------------------------------------------------------

WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from odfchain.odf.physical_hash import hash_bytes
    from odfchain.errors import RefConflictError
    from odfchain.storage.local import LocalRefStore
    folder, me = Path(sys.argv[1]), sys.argv[2]
    refs = LocalRefStore(folder, folder / "lock")
    for step in range(25):
        mine = hash_bytes(f"{me}-{step}".encode())
        while True:
            seen = refs.get("head")
            try:
                refs.compare_and_swap("head", seen, mine)
                print(seen, mine, flush=True)
                break
            except RefConflictError:
                pass
    """
)


def test_no_update_is_lost_between_processes(refs: LocalRefStore, tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(n)], stdout=subprocess.PIPE, text=True
        )
        for n in range(4)
    ]
    moves = dict(line.split() for writer in writers for line in writer.communicate()[0].splitlines())
    assert len(moves) == 100, "two writers moved the head from the same place"
    at, seen = "None", 0
    while at in moves:
        at, seen = moves[at], seen + 1
    assert seen == 100, "the moves do not form one history"
    assert str(refs.get("head")) == at


def test_a_killed_lock_holder_blocks_nobody(refs: LocalRefStore, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom odfchain.storage import fsio\n"
        "with fsio.locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    refs.compare_and_swap("head", None, A)
    with pytest.raises(RefConflictError):
        refs.compare_and_swap("head", None, A)
