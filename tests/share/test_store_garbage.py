"""What nothing needs any more in a store: it is removed, and nothing else, whoever writes at the same time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import CorruptedPeerError, StoreError, TransferError, UsageError
from odfchain.odf.identity import Multihash
from odfchain.transfer import store_garbage
from odfchain.upkeep.garbage import Collected
from tests.kit.shared_store import PREFIX, add, append, objects, texts
from tests.kit.small_s3 import START, SmallS3

DAY = 86_400.0


@dataclass
class Clock:
    """The clock of a store, and nobody else's."""

    time: float = START

    def __call__(self) -> float:
        return self.time


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for others."""
    monkeypatch.setattr(store_garbage, "_LOOKS", 2)
    monkeypatch.setattr(store_garbage, "_WAIT", 0.001)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store: SmallS3, clock: Clock) -> SmallS3:
    """One that has a clock of its own."""
    store.clock = clock
    return store


@pytest.fixture(autouse=True)
def _one_row(one: Workspace, other: Workspace) -> None:
    """A dataset of one row that both machines have seen."""
    append(add(one), "kept")
    assert texts(other) == ["kept"]


@contextlib.contextmanager
def no_head(store: SmallS3) -> Iterator[None]:
    """What is done ends where a head would be written."""
    store.before = lambda method, path: 403 if method == "PUT" and path.endswith("refs/head") else None
    with pytest.raises(TransferError):
        yield
    store.before = lambda *_: None


def killed(store: SmallS3, workspace: Workspace, text: str) -> set[str]:
    """A commit that dies before its head is there; what it leaves in the store."""
    before = set(store.objects)
    with no_head(store):
        append(workspace["cities"]._files, text)
    return set(store.objects) - before


def collect(workspace: Workspace, **options: bool) -> dict[str, int]:
    """What a gc of the whole workspace removes in the store, by kind."""
    found: list[Collected] = workspace.gc(**options)  # type: ignore[arg-type]
    return {g.kind: g.files for each in found for g in each.removed if g.kind.endswith("in the store")}


def test_what_a_killed_commit_left_is_removed_when_it_is_old(
    store: SmallS3, one: Workspace, other: Workspace, clock: Clock
) -> None:
    left = killed(store, one, "never")
    assert {key.split("/")[4] for key in left} == {"blocks", "data"}
    before = dict(store.objects)
    assert collect(other) == {}, "it is young, and may be about to be named"
    assert sum(each.young.files for each in other.gc()) == 2
    assert store.objects == before, "marks are gone as well"
    clock.time += 2 * DAY
    found = {"blocks in the store": 1, "slices in the store": 1}
    assert collect(other, dry_run=True) == found
    assert store.objects == before
    assert collect(other) == found
    assert set(store.objects) == set(before) - left
    assert collect(other) == {}
    append(one["cities"]._files, "again")
    assert texts(other) == texts(one) == ["kept", "again"]
    assert [not report.faults for report in other.verify()] == [True]


def test_the_clock_of_this_machine_does_not_count(
    store: SmallS3, one: Workspace, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(store, one, "never")
    monkeypatch.setattr(time, "time", lambda: START + 1_000 * DAY)
    assert collect(other) == {}


EVERY = pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.soak)])
"""How many requests lie between the moments that are tried."""


@EVERY
def test_a_commit_of_old_objects_is_not_hurt(
    store: SmallS3, one: Workspace, other: Workspace, clock: Clock, step: int
) -> None:
    """The same commit again, days later: its objects are there, and a gc begins at each of its requests."""
    count, fired = 0, True
    busy, requests = 0, list[str]()
    while fired:
        text = f"row {count}"
        killed(store, one, text)
        clock.time += 2 * DAY
        number, fired = iter(range(1_000)), False

        def gc(method: str, path: str, number: Iterator[int] = number, count: int = count) -> None:
            nonlocal fired, busy
            if not fired and next(number) == count:
                fired = True
                requests.append(f"{method} {path.split('/')[2]}")
                try:
                    other["cities"].gc()
                except StoreError as error:
                    assert "something is being committed" in error.message
                    busy += 1

        store.before = gc
        append(one["cities"]._files, text)
        store.before = lambda *_: None
        count += step
        assert texts(other)[-1] == text
    assert [not report.faults for report in other.verify()] == [True]
    assert step > 1 or "PUT relying" in requests
    assert busy >= 2 / step, "a gc saw the mark, and left the objects alone"


@EVERY
def test_a_gc_at_which_a_commit_of_old_objects_begins(
    store: SmallS3, one: Workspace, other: Workspace, clock: Clock, step: int
) -> None:
    """The commit says that it has to wait, or finds its objects gone and puts them again."""
    count, fired, waited = 0, True, 0
    while fired:
        text = f"row {count}"
        killed(store, one, text)
        clock.time += 2 * DAY
        number, fired = iter(range(1_000)), False

        def commit(
            method: str, path: str, number: Iterator[int] = number, count: int = count, text: str = text
        ) -> None:
            nonlocal fired, waited
            if not fired and next(number) == count:
                fired = True
                try:
                    append(one["cities"]._files, text)
                except StoreError as error:
                    assert "nothing was committed" in error.message
                    waited += 1

        store.before = commit
        try:
            other["cities"].gc()
        finally:
            store.before = lambda *_: None
        count += step
        if text not in texts(one):
            append(one["cities"]._files, text)
        assert texts(other)[-1] == text
    assert [not report.faults for report in other.verify()] == [True]
    assert count > 5
    assert waited >= 2 / step, "a commit saw the mark, and did nothing"


def test_two_at_once_and_one_that_was_killed(store: SmallS3, one: Workspace, clock: Clock) -> None:
    folder = one["cities"]._files.folder.name
    held = f"{PREFIX}/removing/{folder}"
    store.objects[held] = b"somebody else"
    store.written[held] = clock.time
    with pytest.raises(StoreError, match="another gc is at work"):
        collect(one)
    clock.time += DAY
    relying = f"{PREFIX}/relying/{folder}/x"
    store.objects[relying] = b"-"
    assert collect(one) == {}
    assert not objects(store, "removing/")
    assert not objects(store, "relying/")


def test_a_grace_that_is_too_short_is_refused(one: Workspace) -> None:
    with pytest.raises(UsageError, match="too short for what other machines"):
        one["cities"].gc(grace=1_800)


def test_what_others_have_put_there_stays(
    store: SmallS3, one: Workspace, other: Workspace, clock: Clock
) -> None:
    """A branch that another tool has pushed; and what is no object of ours."""
    left = killed(store, one, "branch")
    block = next(key for key in left if "/blocks/" in key)
    folder = f"{PREFIX}/datasets/{one['cities']._files.folder.name}"
    others = {
        f"{folder}/refs/fix": block.rsplit("/", maxsplit=1)[1].encode(),
        f"{folder}/data/notes.txt": b"x",
        f"{folder}/manifests/f1620{'0' * 64}": b"x",
        f"{PREFIX}/notes": b"x",
    }
    store.objects.update(others)
    clock.time += 2 * DAY
    assert collect(other) == {}
    assert set(others) <= set(store.objects)
    store.objects[f"{folder}/refs/fix"] = str(Multihash.parse(f"f1620{'0' * 64}")).encode()
    with pytest.raises(CorruptedPeerError, match="not there, though"):
        collect(other)
    assert left <= set(store.objects), "what cannot be said completely removes nothing"


def test_runs_and_datasets_that_nobody_names(
    store: SmallS3, one: Workspace, other: Workspace, clock: Clock
) -> None:
    store.objects[f"{PREFIX}/staging/dead/input"] = b"x"
    store.objects[f"{PREFIX}/staging/alive/input"] = b"x"
    with no_head(store):
        add(one, "lakes")
    clock.time += 2 * DAY
    store.objects[f"{PREFIX}/staging/alive/part"] = b"x"
    store.written[f"{PREFIX}/staging/alive/part"] = clock.time
    assert len(store_datasets(store)) == 2
    found = collect(other)
    assert found["runs in the store"] == 1
    assert found["blocks in the store"] == 1
    assert set(objects(store, "staging/")) == {"staging/alive/input", "staging/alive/part"}
    assert len(store_datasets(store)) == 1
    assert texts(other) == ["kept"]


def store_datasets(store: SmallS3) -> set[str]:
    """Folders of datasets that have blocks in the store."""
    return {key.split("/")[1] for key in objects(store, "/blocks/")}


def test_a_dataset_that_was_set_back_is_left_alone(
    store: SmallS3, one: Workspace, other: Workspace, clock: Clock
) -> None:
    old = {key: data for key, data in store.objects.items() if "refs/" in key}
    append(one["cities"]._files, "more")
    assert texts(other) == ["kept", "more"]
    store.objects.update(old)
    clock.time += 2 * DAY
    before, files = set(store.objects), next(iter(other))._files
    with pytest.raises(StoreError, match="does not continue what was seen here"):
        other["cities"].gc()
    with pytest.raises(StoreError, match="does not continue what was seen here"):
        files.shared.collect(files.folder, frozenset, grace=DAY, dry_run=False)
    assert set(store.objects) == before


def test_a_commit_of_new_objects_asks_nothing_more(store: SmallS3, one: Workspace) -> None:
    assert len(one) == 1
    store.requests.clear()
    append(one["cities"]._files, "new")
    assert not [path for _, path, _ in store.requests if "relying" in path or "removing" in path]
    assert len(store.requests) == 8
    killed(store, one, "again")
    store.requests.clear()
    append(one["cities"]._files, "again")
    assert len(store.requests) == 14, (
        "the mark, its time, the other mark; both objects once more; the mark is removed"
    )
