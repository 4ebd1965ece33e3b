"""A store that lies: old versions, mixed and absent objects, wrong tags, half listings, conditions that are dropped.

Two machines commit and read while a seeded store lies now and then. Whatever a machine reads is a state that was
acknowledged, or it says what is wrong; once the store is honest again, nothing that was acknowledged is missing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import DatasetNotFoundError, OdfchainError, SetBackError, TransferError
from odfchain.progress import SILENT
from odfchain.storage.bucket_store import BucketTransport
from odfchain.storage.locations import PeerUrl
from odfchain.workspace.commit import on_the_newest_head
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.run_length import scaled
from tests.kit.shared_store import PREFIX, QUICK, add, append, calm, machine, reopened, requests, texts
from tests.kit.small_s3 import Fault, SmallS3, tag_of

RecordProperty = Callable[[str, object], None]
LIES = (
    "old version",
    "other object",
    "absent",
    "wrong tag",
    "cut",
    "longer",
    "empty",
    "half listing",
    "listed twice",
)


class Liar:
    """Answers of a store that lie, each with a chance; what was told is counted."""

    def __init__(self, store: SmallS3, seed: int, chance: float = 0.08) -> None:
        self.told: Counter[str] = Counter()
        self._store, self._draw, self._chance = store, random.Random(seed), chance
        self._old: dict[str, list[bytes]] = {}
        self._honest = seed % 10

    def begin(self) -> None:
        self._store.before = self._remember
        self._store.after = self._lie
        self._store.lists = self._listed

    def end(self) -> None:
        calm(self._store)
        self._store.lists = lambda _: True

    def _remember(self, method: str, path: str) -> None:
        if method == "PUT" and path in self._store.objects:
            self._old.setdefault(path, []).append(self._store.objects[path])

    def _listed(self, _path: str) -> bool:
        if self._draw.random() < self._chance / 2:
            self.told["half listing"] += 1
            return False
        return True

    def _lie(self, method: str, path: str) -> Fault | None:
        if method not in ("GET", "HEAD") or path not in self._store.objects:
            return None
        self._honest -= 1  # the first lie comes after as many answers, the others by chance
        if (self.told or self._honest >= 0) and self._draw.random() > self._chance:
            return None
        honest = self._store.objects[path]
        lie = self._draw.choice(LIES[:7])
        body, tag = honest, None
        if lie == "old version":
            body = self._draw.choice(self._old.get(path) or [honest])
        elif lie == "other object":
            folder = path.rpartition("/")[0]
            alike = sorted(key for key in self._store.objects if key.rpartition("/")[0] == folder)
            body = self._store.objects[self._draw.choice(alike)]
        elif lie == "absent":
            self.told[lie] += 1
            return Fault(404)
        elif lie == "wrong tag":
            tag = tag_of(b"another")
        elif lie == "cut":
            body = honest[: len(honest) // 2]
        elif lie == "longer":
            body = honest + b"\n"
        else:
            body = b""
        if body == honest and tag is None:
            return None
        self.told[lie] += 1
        headers = {"ETag": tag or tag_of(body), "length": str(len(body))}
        headers["Last-Modified"] = "Wed, 21 Oct 2015 07:28:00 GMT"
        return Fault(200, headers, body)


def write(workspace: Workspace, text: str) -> None:
    root = workspace["cities"]._files
    on_the_newest_head(lambda: append(root, text), 3, SILENT)


@pytest.mark.parametrize("seed", range(scaled(2, 30, 200)))
def test_nothing_false_is_read_and_nothing_acknowledged_is_lost(
    store: SmallS3, one: Workspace, other: Workspace, seed: int, record_property: RecordProperty
) -> None:
    add(one)
    assert texts(other) == []
    liar, draw, written, refused = Liar(store, seed), random.Random(seed), list[str](), Counter[str]()
    unknown = set[str]()
    liar.begin()
    for number in range(12):
        at, text = draw.choice((one, other)), str(number)
        try:
            workspace = reopened(at)
            if draw.random() < 0.6:
                write(workspace, text)
                written.append(text)
            else:
                read = texts(workspace)
                assert [each for each in read if each not in unknown] == [
                    each for each in written if each in read
                ], "neither another order nor other rows"
        except OdfchainError as error:
            refused[type(error).__name__] += 1
            unknown.add(text)
    liar.end()
    for at in (one, other):
        read = texts(reopened(at))
        assert [each for each in read if each not in unknown] == written
        assert len(set(read)) == len(read)
    write(reopened(one), "again")
    assert texts(reopened(other))[-1] == "again"
    for at in (one, other):
        assert all(not report.faults for report in reopened(at).verify())
        assert reopened(at)["cities"].fsck().whole
    record_property("lies", liar.told.total())
    record_property("refused", refused.total())
    assert liar.told.total() > 0


@pytest.mark.parametrize("lie", [b"", b"did:odf:x cities", b"half"])
def test_one_wrong_answer_about_a_name_is_not_believed_for_ever(
    store: SmallS3, one: Workspace, other: Workspace, lie: bytes
) -> None:
    """It was kept under the tag of the right one: the machine never looked again, and saw no later commit."""
    append(add(one), "a")
    assert texts(other) == ["a"]
    (other.path / "run" / "names.json").unlink()
    name = f"{PREFIX}/names/cities"
    tag = tag_of(store.objects[name])
    headers = {"ETag": tag, "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "length": str(len(lie))}
    store.after = lambda method, path: Fault(200, headers, lie) if (method, path) == ("GET", name) else None
    assert texts(reopened(other)) == ["a"], "what is here"
    calm(store)
    append(one["cities"]._files, "b")
    assert texts(reopened(other)) == ["a", "b"]


def test_a_store_that_drops_conditions_later_loses_no_commit_unnoticed(
    store: SmallS3, one: Workspace, other: Workspace
) -> None:
    """Who was written over is told when he looks, and has the commit still."""
    add(one)
    one, other = reopened(one), reopened(other)
    assert texts(other) == []
    store.keeps.clear()

    def meanwhile(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("refs/head"):
            store.before = lambda *_: None
            write(other, "other")

    store.before = meanwhile
    write(one, "one")
    assert texts(reopened(one)) == ["one"]
    with pytest.raises(SetBackError, match="does not continue what was seen here"):
        texts(reopened(other))
    (copy,) = (other.path / "datasets").iterdir()
    assert DatasetState.read(DatasetFiles.open(copy).chain).record_count == 1, "it is on this machine still"


def test_names_of_two_datasets_that_were_exchanged(
    store: SmallS3, one: Workspace, other: Workspace, tmp_path: Path
) -> None:
    """The text of one name under another means nothing: who knew them has his own, who did not has neither."""
    for name in ("cities", "towns"):
        append(add(one, name), name)
    assert texts(other, "towns") == ["towns"]
    a, b = f"{PREFIX}/names/cities", f"{PREFIX}/names/towns"
    store.objects[a], store.objects[b] = store.objects[b], store.objects[a]
    assert texts(reopened(other), "towns") == texts(reopened(one), "towns") == ["towns"]
    with pytest.raises(DatasetNotFoundError):
        texts(machine(store, tmp_path / "third"), "towns")
    store.objects[a], store.objects[b] = store.objects[b], store.objects[a]
    assert texts(reopened(machine(store, tmp_path / "fourth")), "towns") == ["towns"]


@pytest.mark.parametrize(
    "key",
    ["names/../workspace.json", "names/..%2f..%2fx", "names/a/b", "names//x", "names/\x01", "names/é" * 90],
)
def test_listed_names_never_become_paths(store: SmallS3, one: Workspace, key: str, tmp_path: Path) -> None:
    append(add(one), "a")
    store.objects[f"{PREFIX}/{key}"] = b"did:odf:x ../../outside"
    before = {path for path in tmp_path.rglob("*") if ".odfchain" not in path.parts}
    try:
        assert texts(machine(store, tmp_path / "third")) == ["a"]
    except OdfchainError:
        assert ".." in key or "//" in key or "\x01" in key
    after = {path for path in tmp_path.rglob("*") if ".odfchain" not in path.parts}
    assert after - before <= {tmp_path / "third"}


@pytest.mark.parametrize("what", ["names", "folders", "objects"])
def test_a_listing_without_end_ends(store: SmallS3, one: Workspace, what: str) -> None:
    """There is always more, and nothing comes: no request failed, and no limit was met."""
    append(add(one), "a")
    listing = (
        b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    )
    store.listing = lambda *_: listing + b"</ListBucketResult>"  # type: ignore[method-assign]
    bucket = BucketTransport(PeerUrl.parse(store.url(f"{PREFIX}/")), replace(QUICK, deadline=0.5))
    ask: dict[str, Callable[[], object]] = {
        "names": lambda: bucket.listed("names", 1_000), "folders": lambda: bucket.folders("datasets/"), "objects": bucket.clear,
    }  # fmt: skip
    with pytest.raises(TransferError, match="the listing does not end"):
        ask[what]()
    assert requests(store) > 10
