"""A PUT that outlives its push: whatever it still sends, and whenever, what is published hashes to its name."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import CorruptedPeerError, StoreError
from odfchain.odf.identity import Multihash, encode
from odfchain.odf.physical_hash import hash_file
from odfchain.progress import SILENT
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Incoming
from odfchain.transfer import node_pushes
from tests.kit.held_puts import PIECE, HeldPut, Watched, large, path_of, spoilt
from tests.kit.scenario import Chain, install
from tests.kit.smart_site import CITIES, Site, ask_to_commit, asked_for_objects, closed, committed
from tests.kit.store_node import Hub


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def intact(site: Site, chain: Chain) -> None:
    """All that was pushed is there, and hashes to its name; nothing else is left."""
    folder = site.node.dataset(CITIES).folder
    assert site.head() == chain.head
    for key in chain.objects:
        assert hash_file(folder / str(key))[0] == key.name, key
    assert left(site) == []


def left(site: Site) -> list[Path]:
    """Files in places where uploads arrive."""
    return [path for path in site.node.root.rglob("uploads/**/*") if path.is_file()]


def begun_put(
    site: Site, watched: Watched, key: ObjectKey, token: str, body: bytes, name: str = "cities"
) -> HeldPut:
    """A PUT of which one piece has come."""
    found, number = HeldPut(site.url, path_of(key, name), token, body), len(watched.files)
    found.send(PIECE)
    watched.until_written(number, 1)
    return found


def stale(site: Site, watched: Watched, token: str, body: bytes, *, name: str = "cities") -> HeldPut:
    """A PUT of which one piece has come, and whose push has ended."""
    chain, key = large()
    with site.socket(token, name) as socket:
        asked_for_objects(socket, chain)
        found = begun_put(site, watched, key, token, body, name)
        socket.close()
    assert site.idle.wait(20)
    return found


MOMENTS = ["after the commit", "before the commit", "during the upload", "both", "cut"]
WHO = ["another token", "the same token", "a revoked token", "another spelling"]
FEW = {("another token", each, False) for each in MOMENTS} | {
    (each, "during the upload", False) for each in WHO
}


@pytest.mark.parametrize(
    ("who", "moment", "honest"),
    [
        pytest.param(*case, marks=() if case in FEW else pytest.mark.soak)
        for case in itertools.product(WHO, MOMENTS, (False, True))
    ],
)
def test_a_put_that_outlives_its_push(
    who: str, moment: str, honest: bool, site: Site, watched: Watched
) -> None:
    chain, key = large()
    body = chain.objects[key]
    mine = site.token()
    other = mine if who == "the same token" else site.token(name="other")
    name = "CITIES" if who == "another spelling" else "cities"
    old = stale(site, watched, other, body if honest else spoilt(body), name=name)
    if who == "a revoked token":
        site.tokens.revoke("other")
    said = list[int]()
    refused = {401, 404} if who == "a revoked token" else {404}

    with site.socket(mine) as socket:
        asked_for_objects(socket, chain)
        site.upload(chain, mine, chain.files[1])
        new = HeldPut(site.url, path_of(key), mine, body)
        new.send(4 * PIECE)
        watched.until_written(2, 3 * PIECE)
        if moment in ("during the upload", "both"):
            old.send(PIECE)  # into what the new one has written, if it could
            watched.until(lambda: watched.ended == 2 or watched.files[0].received > PIECE)
        if moment == "both":
            said.append(old.finish())
        assert new.finish() == 201
        if moment == "before the commit":
            said.append(old.finish())
        if moment == "cut":
            old.cut()
            watched.until(lambda: watched.ended == 3)
        committed(socket)
        if moment in ("after the commit", "during the upload"):
            said.append(old.finish())
    assert site.idle.wait(20)
    intact(site, chain)
    assert set(said) <= refused


def test_a_push_that_goes_on_is_not_hindered_by_one_that_ended(site: Site, watched: Watched) -> None:
    """A client whose connection broke comes again, while what it sent before is still on its way."""
    chain, key = large()
    token = site.token()
    old = [stale(site, watched, token, chain.objects[key]) for _ in range(3)]
    install(site.ours, "cities", chain)
    site.push("cities", token)
    intact(site, chain)
    assert [each.finish() for each in old] == [404] * 3
    intact(site, chain)


@pytest.mark.parametrize("what", ["token", "push"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_who_uploads_is_asked_with_every_piece(
    what: str, at: int, site: Site, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one is asked after the disk has it, before the file gets its name."""
    chain, key = large()
    token = site.token()

    def end() -> None:
        if what == "token":
            site.tokens.revoke("me")
        else:
            socket.close()
            assert site.idle.wait(20)

    with site.socket(token) as socket:
        asked_for_objects(socket, chain)
        put = HeldPut(site.url, path_of(key), token, chain.objects[key])
        if at == 2:
            sync = Incoming.sync

            def synced(incoming: Incoming) -> None:
                sync(incoming)
                end()

            monkeypatch.setattr(Incoming, "sync", synced)
        else:
            put.send(PIECE * (at + 1))
            watched.until_written(0, at * PIECE + 1)
            end()
        assert put.finish() == (401 if what == "token" else 404)
        assert left(site) == []
        assert not list((site.node.root / "incoming" / "cities" / "objects").iterdir())


def test_a_file_is_not_written_to_once_it_has_its_name(
    site: Site, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second PUT in the same push, good or bad, or given up, leaves the file of the first."""
    chain, key = large()
    body, token = chain.objects[key], site.token()
    with site.socket(token) as socket:
        asked_for_objects(socket, chain)
        assert HeldPut(site.url, path_of(key), token, body).finish() == 201
        again = begun_put(site, watched, key, token, body)
        assert HeldPut(site.url, path_of(key), token, body).finish() == 409
        again.cut()
        watched.until(lambda: watched.ended == 2)
        assert HeldPut(site.url, path_of(key), token, b"?" * len(body)).finish() == 400
        assert HeldPut(site.url, path_of(key), token, body).finish() == 201
        site.upload(chain, token, chain.files[1])
        late = begun_put(site, watched, key, token, body)
        said = list[int]()
        pull = node_pushes.pull_dataset

        def committing(*args: Any) -> Any:
            said.append(late.finish())
            return pull(*args)

        monkeypatch.setattr(node_pushes, "pull_dataset", committing)
        committed(socket)
        assert said == [404], "nothing is taken over once a push commits"
    assert site.idle.wait(20)
    intact(site, chain)


@pytest.mark.parametrize("encoding", ["base58btc", "base64url", "base32"])
def test_another_spelling_of_a_hash_is_the_same_object(encoding: str, site: Site, watched: Watched) -> None:
    chain, key = large()
    body, token = chain.objects[key], site.token()
    spelled = f"/cities/data/{encode(key.name.to_bytes(), encoding)}"
    with site.socket(token) as socket:
        asked_for_objects(socket, chain)
        first = begun_put(site, watched, key, token, body)
        assert HeldPut(site.url, spelled, token, b"?" * len(body)).finish() == 409
        assert first.finish() == 201
        assert HeldPut(site.url, spelled, token, b"?" * len(body)).finish() == 400
        assert HeldPut(site.url, spelled, token, body).finish() == 201
        site.upload(chain, token, chain.files[1])
        committed(socket)
    assert site.idle.wait(20)
    intact(site, chain)


def test_what_was_hashed_is_the_file_that_was_written(
    site: Site, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another file has the name right after it was given, that one is hashed before it is published."""
    chain, key = large()
    body, token = chain.objects[key], site.token()
    replace = Path.replace

    def replaced(path: Path, target: Path) -> Path:
        found = replace(path, target)
        if target.name.endswith(str(key.name)):
            target.unlink()
            target.write_bytes(b"?" * len(body))
        return found

    with site.socket(token) as socket:
        asked_for_objects(socket, chain)
        site.upload(chain, token, chain.files[1])
        monkeypatch.setattr(Path, "replace", replaced)
        assert site.put(str(key), body, token) == 201
        ask_to_commit(socket)
        assert closed(socket)[0] == 1011
    assert not list((site.node.root / "datasets").iterdir())


def test_what_uploads_left_is_private_to_a_push(site: Site, watched: Watched) -> None:
    """Parts of files are found by no other push, and go with theirs."""
    chain, key = large()
    token = site.token()
    with site.socket(token) as socket:
        asked_for_objects(socket, chain)
        put = begun_put(site, watched, key, token, chain.objects[key])
        (part,) = left(site)
        part.write_bytes(chain.objects[key])
        socket.close()
    assert site.idle.wait(20)
    assert left(site) == []
    with site.socket(site.token(name="other")) as socket:
        asked = asked_for_objects(socket, chain)
        assert {each["push_strategy"] for each in asked} == {"HttpUpload"}
    put.cut()


def test_a_stale_put_to_a_node_of_a_store(hub: Hub, watched: Watched) -> None:
    chain, key = large()
    site, mine = hub.site, hub.site.token()
    body = chain.objects[key]
    old = stale(site, watched, site.token(name="other"), spoilt(body))
    install(site.ours, "cities", chain)
    site.push("cities", mine)
    assert old.finish() == 404
    other = hub.other().dataset(CITIES)
    assert other.chain.head() == chain.head
    assert other.data.verified_path(key.name).read_bytes() == body


# --- files that pulls continue ---------------------------------------------------------------------------


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    """A transfer that was stopped and still writes: another one does not take over its file."""
    body = b"0123456789"
    key = ObjectKey(ObjectKind.DATA, Multihash.sha3_256(bytes(32)))
    made = lambda **more: Incoming(key, len(body), tmp_path / "x", name="x", progress=SILENT, **more)  # noqa: E731
    with made() as old:
        old.add(memoryview(body[:4]))
        with pytest.raises(StoreError, match="another transfer"):
            made().__enter__()
        old.add(memoryview(body[4:6]))
    with made() as new:
        assert new.received == 6, "what has ended is continued"
    with pytest.raises(StoreError, match="exists"), made(resume=False):
        pass


def test_what_fails_removes_its_own_file_only(tmp_path: Path) -> None:
    key = ObjectKey(ObjectKind.DATA, Multihash.sha3_256(bytes(32)))
    path = tmp_path / "x"
    with Incoming(key, 2, path, name="x", progress=SILENT) as old:
        old.add(memoryview(b"ab"))
        good = tmp_path / "good"
        good.write_bytes(b"cd")
        good.replace(path)
        with pytest.raises(CorruptedPeerError):
            old.complete()
    assert path.read_bytes() == b"cd"


def test_a_server_that_ends_waits_for_what_writes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not closed under it: another file might have its number by then."""
    import asyncio
    import threading

    said = list[str]()
    began, go = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert go.wait(20)
        said.append("written")

    async def main() -> None:
        task = asyncio.ensure_future(node_pushes._whole(work))
        await asyncio.to_thread(began.wait, 20)
        task.cancel()
        asyncio.get_running_loop().call_soon(go.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        said.append("closed")

    asyncio.run(main())
    assert said == ["written", "closed"]
