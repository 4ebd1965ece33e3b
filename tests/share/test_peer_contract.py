"""What every store promises, over every kind of transport; kinds are listed in `tests/kit/web_peers.py`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    ObjectCorruptedError,
    RefConflictError,
    TransferError,
    UnsupportedPeerError,
)
from odfchain.limits import LIMITS
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import SILENT
from odfchain.storage.folder_store import FolderTransport
from odfchain.storage.locations import _SCHEMES, PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind, SignedFile
from odfchain.storage.store import Store
from odfchain.transfer.open_peer import KINDS, PeerOptions, gateway_url, open_peer, open_writable
from tests.kit.servers import Meter
from tests.kit.shared_store import environment
from tests.kit.support import hash_of
from tests.kit.web_peers import PLACES, WRITABLE, Place, Published, by_child, refused_by

BIG = bytes(range(256)) * 9_000
NAME = hash_of("a block")


@pytest.fixture
def dataset(tmp_path: Path) -> Published:
    folder = tmp_path / "root" / "my dataset"
    folder.mkdir(parents=True)
    return Published(folder)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One process for all tests, which hands out the folders of each."""
    with by_child(tmp_path_factory.getbasetemp()) as found:
        yield found


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    environment(monkeypatch, tmp_path / "home")
    if PLACES[request.param] is by_child:
        yield request.getfixturevalue("child")
        return
    (tmp_path / "root").mkdir(exist_ok=True)
    with PLACES[request.param](tmp_path / "root") as found:
        yield found


@pytest.fixture
def peer(place: Place, dataset: Published) -> Iterator[Store]:
    """The dataset, as it is at each request."""
    url = place.publish(dataset.folder)
    with contextlib.closing(open_peer(PeerUrl(url.text.replace(" ", "%20")), PeerOptions(retries=0))) as peer:
        yield peer


# --- the head ----------------------------------------------------------------------------------------


def test_a_dataset_without_a_head_is_none(peer: Store) -> None:
    assert peer.head() is None


def test_a_folder_that_is_missing_is_no_dataset(peer: Store, dataset: Published) -> None:
    dataset.folder.rmdir()
    assert peer.head() is None


@pytest.mark.parametrize("form", [b"%s", b"%s\n", b" \r\n%s\r\n\t"])
def test_white_space_around_the_head_does_not_matter(peer: Store, dataset: Published, form: bytes) -> None:
    dataset.head(form % str(NAME).encode())
    assert peer.head() == NAME


def test_the_head_may_be_in_another_base(peer: Store, dataset: Published) -> None:
    dataset.head(str(NAME).upper().encode())
    assert peer.head() == NAME


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"\xef\xbb\xbf" + str(NAME).encode(), b"q" + str(NAME).encode(), str(NAME)[:-2].encode(),
     b"f1220" + b"0" * 64, b"<html>\x1b[31m", b"\xff\xfe", str(NAME).encode() + b"\n" + str(NAME)[:10].encode()],
)  # fmt: skip
def test_a_head_that_is_no_hash_of_a_block_is_refused(peer: Store, dataset: Published, text: bytes) -> None:
    dataset.head(text)
    with refused_by(peer, "refs/head", kind=CorruptedPeerError):
        peer.head()


def test_a_head_may_be_as_long_as_its_limit_and_no_longer(peer: Store, dataset: Published) -> None:
    text = str(NAME).encode()
    dataset.head(text.ljust(LIMITS.ref_bytes))
    assert peer.head() == NAME
    dataset.head(text.ljust(LIMITS.ref_bytes + 1))
    with refused_by(peer, "refs/head", "larger than"):
        peer.head()


# --- blocks ------------------------------------------------------------------------------------------


def test_a_block_comes_as_its_bytes(peer: Store, dataset: Published) -> None:
    for data in (b"x", b"", b"y" * LIMITS.block_bytes):
        assert peer.block(dataset.put(ObjectKind.BLOCK, data).name) == data


def test_a_block_that_is_not_there_is_missed_by_name(peer: Store) -> None:
    with refused_by(peer, f"blocks/{NAME}", "not there", CorruptedPeerError) as caught:
        peer.block(NAME)
    assert caught.value.hint is not None


def test_another_block_under_the_name_is_refused(peer: Store, dataset: Published) -> None:
    key = dataset.put(ObjectKind.BLOCK, b"another", named=NAME)
    with refused_by(peer, key, f"hashes to {hash_bytes(b'another')}", CorruptedPeerError):
        peer.block(NAME)


def test_a_block_larger_than_the_limit_is_refused(peer: Store, dataset: Published) -> None:
    key = dataset.put(ObjectKind.BLOCK, b"y" * (LIMITS.block_bytes + 1))
    with refused_by(peer, key, "larger than"):
        peer.block(key.name)


def test_many_threads_read_at_once(peer: Store, dataset: Published) -> None:
    bodies = [f"block {i}".encode() * 20 for i in range(100)]
    names = [dataset.put(ObjectKind.BLOCK, body).name for body in bodies]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(peer.block, names)) == bodies


# --- objects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [ObjectKind.DATA, ObjectKind.CHECKPOINT])
@pytest.mark.parametrize("data", [b"", b"1", BIG], ids=["empty", "small", "big"])
def test_an_object_arrives_in_a_file(
    peer: Store, dataset: Published, tmp_path: Path, part: ObjectKind, data: bytes
) -> None:
    meter = Meter()
    peer.fetch(dataset.put(part, data), len(data), tmp_path / "target", meter)
    assert (tmp_path / "target").read_bytes() == data
    assert meter.steps == len(data)


@pytest.mark.parametrize(
    "left",
    [
        *(pytest.param(BIG[:begun], id=f"{begun} bytes") for begun in (1, 1_000_000, len(BIG) - 1, len(BIG))),
        pytest.param(b"z" * 1_000, id="others"),
        pytest.param(b"z" * len(BIG), id="as many others"),
        pytest.param(BIG + b"more", id="more"),
    ],
)
def test_what_a_broken_run_left_is_continued_or_replaced(
    peer: Store, dataset: Published, tmp_path: Path, left: bytes
) -> None:
    target, meter = tmp_path / "target", Meter()
    target.write_bytes(left)
    peer.fetch(dataset.put(ObjectKind.DATA, BIG), len(BIG), target, meter)
    assert target.read_bytes() == BIG
    assert meter.steps == len(BIG)


@pytest.mark.parametrize(
    "body", [BIG[:-1], BIG + b"x", BIG[:-1] + b"x", b""], ids=["short", "long", "other", "empty"]
)
@pytest.mark.parametrize("begun", [0, 5_000])
def test_an_object_that_is_not_what_it_is_called_leaves_nothing(
    peer: Store, dataset: Published, tmp_path: Path, body: bytes, begun: int
) -> None:
    key = dataset.put(ObjectKind.DATA, body, named=hash_bytes(BIG))
    target = tmp_path / "target"
    if begun:
        target.write_bytes(BIG[:begun])
    with refused_by(peer, key, kind=CorruptedPeerError):
        peer.fetch(key, len(BIG), target, SILENT)
    assert not target.exists()


def test_an_object_that_is_not_there_is_missed_by_name(peer: Store, tmp_path: Path) -> None:
    key = ObjectKey(ObjectKind.CHECKPOINT, NAME)
    with refused_by(peer, key, "not there", CorruptedPeerError):
        peer.fetch(key, 10, tmp_path / "target", SILENT)
    assert not (tmp_path / "target").exists()


# --- the hint ----------------------------------------------------------------------------------------

HASHES = [hash_of(f"block {i}") for i in range(5)]
LINES = b"".join(f"{name}\n".encode() for name in HASHES)


def test_the_hint_lists_hashes(peer: Store, dataset: Published) -> None:
    assert peer.hint(5) is None
    for text in (LINES, LINES[:-1]):
        dataset.hint(text)
        found = peer.hint(5)
        assert found is not None
        assert list(found) == HASHES


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", LINES + b"\n", LINES.upper(), LINES[:-2], LINES.replace(b"\n", b" "), b"\xff", LINES * 2],
)
def test_a_hint_that_is_wrong_is_no_hint(peer: Store, dataset: Published, text: bytes) -> None:
    dataset.hint(text)
    assert peer.hint(5) is None


# --- signed statements ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", SignedFile)
def test_signed_statements_come_as_they_are_up_to_their_limit(
    peer: Store, dataset: Published, file: SignedFile
) -> None:
    assert peer.signed(file) is None
    for data in (b"", b"any bytes\xff\n", b"x" * file.limit):
        dataset.signed(file, data)
        assert peer.signed(file) == data
    dataset.signed(file, b"x" * (file.limit + 1))
    with refused_by(peer, file.value, "larger than"):
        peer.signed(file)


# --- writing -----------------------------------------------------------------------------------------


@pytest.fixture(params=sorted(WRITABLE))
def writable(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Store]]:
    """Opens a place where nothing is yet, as often as is wanted."""
    environment(monkeypatch, tmp_path / "home")
    root = tmp_path / "writable"
    root.mkdir()
    with WRITABLE[request.param](root) as place, contextlib.ExitStack() as stack:
        url = place.publish(root / "new")
        yield lambda: stack.enter_context(contextlib.closing(open_writable(url)))


def test_what_is_written_can_be_read(writable: Callable[[], Store], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(BIG)
    key = ObjectKey(ObjectKind.DATA, hash_bytes(BIG))
    peer = writable()
    assert peer.head() is None
    assert not peer.contains(key)
    for _ in range(2):
        meter = Meter()
        peer.put(key, source, meter)
        assert meter.steps == len(BIG)
        assert peer.contains(key)
    assert source.read_bytes() == BIG
    writable().fetch(key, len(BIG), tmp_path / "back", SILENT)
    assert (tmp_path / "back").read_bytes() == BIG
    peer.put_hint(HASHES)
    assert writable().hint(5) == HASHES


def test_the_head_is_swapped_only_from_what_it_is(writable: Callable[[], Store]) -> None:
    peer = writable()
    one, two, three = HASHES[:3]
    for expected in (two, three):
        with pytest.raises(RefConflictError):
            peer.swap_head(expected, one)
        assert peer.head() is None
    peer.swap_head(None, one)
    for wrong in (None, two):
        with pytest.raises(RefConflictError):
            writable().swap_head(wrong, three)
    peer.swap_head(one, two)
    assert writable().head() == two


@pytest.mark.parametrize("file", SignedFile)
def test_signed_statements_are_replaced_and_removed(writable: Callable[[], Store], file: SignedFile) -> None:
    peer = writable()
    peer.put_signed(file, None)  # nothing is there yet
    for data in (b"one\n", b"two\n"):
        peer.put_signed(file, data)
        assert writable().signed(file) == data
    for _ in range(2):
        peer.put_signed(file, None)
        assert writable().signed(file) is None


def test_of_many_writers_one_wins(writable: Callable[[], Store]) -> None:
    writable().swap_head(None, NAME)
    peers = [writable() for _ in HASHES]

    def swap(peer: Store, name: Multihash) -> Multihash | None:
        try:
            peer.swap_head(NAME, name)
        except RefConflictError:
            return None
        return name

    with ThreadPoolExecutor(len(HASHES)) as threads:
        won = [name for name in threads.map(swap, peers, HASHES) if name]
    assert won == [writable().head()]


# who sends to a bucket has hashed what is sent
@pytest.mark.parametrize("writable", sorted(WRITABLE.keys() - {"bucket"}), indirect=True)
def test_a_source_that_is_not_what_it_is_called_is_not_stored(
    writable: Callable[[], Store], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"other")
    peer = writable()
    with pytest.raises(ObjectCorruptedError, match="source"):
        peer.put(ObjectKey(ObjectKind.DATA, NAME), source, SILENT)
    assert not peer.contains(ObjectKey(ObjectKind.DATA, NAME))


@pytest.mark.parametrize("place", ["http.server in threads"], indirect=True)
def test_what_a_kind_does_not_do_is_refused(peer: Store, tmp_path: Path) -> None:
    key = ObjectKey(ObjectKind.DATA, NAME)
    for write in (
        lambda: peer.put(key, tmp_path, SILENT),
        lambda: peer.swap_head(None, NAME),
        lambda: peer.put_hint(HASHES),
        lambda: peer.put_signed(SignedFile.HEAD, None),
    ):
        with pytest.raises(TransferError, match="cannot be written here"):
            write()
    assert not peer.contains(key)
    with pytest.raises(UnsupportedPeerError):
        peer.transport.folders("")


# --- only in folders ---------------------------------------------------------------------------------


def folder_peer(dataset: Published) -> Store:
    return Store(FolderTransport(PeerUrl.parse(dataset.folder.as_uri())))


def test_links_are_not_followed(dataset: Published, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(str(NAME).encode())
    key = ObjectKey(ObjectKind.BLOCK, hash_bytes(outside.read_bytes()))
    for part in ("refs", "blocks"):
        (dataset.folder / part).mkdir()
    (dataset.folder / "refs/head").symlink_to(outside)
    (dataset.folder / str(key)).symlink_to(outside)
    peer = folder_peer(dataset)
    for ask in (
        peer.head,
        lambda: peer.block(key.name),
        lambda: peer.contains(key),
        lambda: peer.put(key, outside, SILENT),
        lambda: peer.swap_head(None, NAME),
        lambda: peer.fetch(key, 69, tmp_path / "target", SILENT),
    ):
        with pytest.raises(CorruptedPeerError, match="symbolic link"):
            ask()
    assert (dataset.folder / "refs/head").is_symlink()
    assert not (tmp_path / "target").exists()


def test_nothing_is_written_through_a_linked_folder(dataset: Published, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "source").write_bytes(b"x")
    for part in ("data", "refs", "hints", "attestations"):
        (dataset.folder / part).symlink_to(tmp_path / "outside")
    peer = folder_peer(dataset)
    key = ObjectKey(ObjectKind.DATA, hash_bytes(b"x"))
    for write in (
        lambda: peer.put(key, tmp_path / "source", SILENT),
        lambda: peer.swap_head(None, NAME),
        lambda: peer.put_hint(HASHES),
        *(lambda file=file: peer.put_signed(file, b"x") for file in SignedFile),
        *(lambda file=file: peer.put_signed(file, None) for file in SignedFile),
        *(lambda file=file: peer.signed(file) for file in SignedFile),
    ):
        with pytest.raises(CorruptedPeerError, match="symbolic link"):
            write()
    peer.close()
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_pipe_does_not_keep_the_reader_waiting(dataset: Published) -> None:
    (dataset.folder / "refs").mkdir()
    os.mkfifo(dataset.folder / "refs/head")
    with pytest.raises(CorruptedPeerError, match="not a regular file"):
        folder_peer(dataset).head()


def test_a_damaged_copy_is_repaired_and_nothing_else_stays(dataset: Published, tmp_path: Path) -> None:
    key = dataset.put(ObjectKind.DATA, b"damaged", named=hash_bytes(b"right"))
    (tmp_path / "source").write_bytes(b"right")
    peer = folder_peer(dataset)
    peer.put(key, tmp_path / "source", SILENT)
    peer.close()
    assert (dataset.folder / str(key)).read_bytes() == b"right"
    left = {p.relative_to(dataset.folder).as_posix() for p in dataset.folder.rglob("*") if p.is_file()}
    assert left == {str(key), ".staging/.lock"}


def test_a_dataset_of_a_workspace_is_not_written_to(dataset: Published) -> None:
    (dataset.folder / "staging").mkdir()
    with pytest.raises(AccessError, match="dataset of a workspace"):
        folder_peer(dataset).swap_head(None, NAME)
    assert folder_peer(dataset).head() is None


def test_a_place_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    peer = Store(FolderTransport(PeerUrl.parse(file.as_uri())))
    with pytest.raises(TransferError, match="Not a directory"):
        peer.put_hint(HASHES)
    with pytest.raises(TransferError, match="Not a directory"):
        peer.head()
    assert file.read_bytes() == b""


@pytest.mark.parametrize("text", ["file:///a%00b", "file:a"])
def test_a_url_that_names_no_folder(text: str) -> None:
    with pytest.raises(UnsupportedPeerError, match="not the URL of a folder"):
        FolderTransport(PeerUrl.parse(text))


# --- the table --------------------------------------------------------------------------------------


def test_every_scheme_that_a_url_may_have_has_a_kind() -> None:
    assert KINDS.keys() == {*_SCHEMES}


def test_ipfs_goes_through_the_gateway() -> None:
    for text, expected in (
        ("ipfs://bafyCID/a/b", "http://127.0.0.1:8080/ipfs/bafyCID/a/b/"),
        ("ipns://Key.example", "http://127.0.0.1:8080/ipns/Key.example/"),
    ):
        peer = open_peer(PeerUrl.parse(text), PeerOptions(token="not for the gateway"))  # noqa: S106
        assert peer.where == expected
        peer.close()
    assert gateway_url(PeerUrl.parse("ipfs://c"), "https://gw/x").text == "https://gw/x/ipfs/c/"
    with pytest.raises(UnsupportedPeerError, match="not the URL of an IPFS gateway"):
        gateway_url(PeerUrl.parse("ipfs://c"), "file:///gw")


def test_object_stores_are_opened_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    from odfchain.storage.bucket_store import BucketTransport

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = PeerUrl.parse("s3+http://127.0.0.1:1/bucket/x")
    for peer in (open_peer(url), open_writable(url)):
        assert isinstance(peer.transport, BucketTransport)
        peer.close()
