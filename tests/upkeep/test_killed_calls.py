"""SIGKILL on entry of each system call that changes a disk, while a lock is held, and at random moments.

After each: all opens and verifies, heads are old or new, no file has half of its content under its name; the same
once more ends well, and so does a commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.storage.local import SIGNED_ENDINGS
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.credentials import Credentials
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.options import PushOptions
from odfchain.workspace.points import keep_reachable
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import smart_site
from tests.kit.branch_cases import made_scene
from tests.kit.killed_calls import STRACE, Call, Fork, Forks, calls_in, forks
from tests.kit.processes import one_session
from tests.kit.recorded_dataset import add_slice
from tests.kit.run_length import scaled
from tests.kit.support import manifest
from tests.kit.upkeep_scenes import everything, head_of, new_workspace, root

traced = pytest.mark.skipif(not STRACE, reason="strace kills at a system call; it is not installed")
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def warm() -> Iterator[Forks]:
    with forks() as found:
        yield found


def state_of(folder: Path) -> list[tuple[str, str, int]]:
    """Each dataset with its references, by the numbers of their blocks; all of it is verified."""
    found = []
    with Workspace.open(folder) as workspace:
        for dataset in workspace:
            report = dataset.verify()
            assert report.ok, (report.faults, folder)
            files = dataset._files
            for part in ("blocks", "data", "checkpoints"):
                for path in (files.folder / part).glob("f1620*"):
                    assert str(hash_bytes(path.read_bytes())) == path.name, str(path)
            for path in sorted((files.folder / "refs").glob("[a-z]*")):
                if path.suffix not in SIGNED_ENDINGS and not path.name.startswith("overwritten"):
                    head = Multihash.parse(path.read_text())
                    found.append((str(dataset.alias), path.name, files.chain.get(head).sequence_number))
    for token in TokenFile(WorkspaceFiles.find(folder).root).list():
        found.append(("token", token.name, 0))
    kept = Credentials(folder / "home" / "credentials.json").origins()
    return sorted(found + [("kept", origin, 0) for origin in kept])


def made(folder: Path, slices: int) -> WorkspaceFiles:
    workspace = new_workspace(folder)
    root(workspace, slices=slices)
    return workspace


@dataclass(frozen=True)
class Scene:
    """A workspace, and what is killed in it."""

    work: str
    template: Path
    again: bool = True
    """Whether it is done again where it had been done."""


def scene_of(work: str, folder: Path) -> Scene:
    template = folder / "template"
    if work == "merge":
        case = {"base": ["1xy", "2uv"], "ours": ["-C 1xy", "+C 1qy"], "theirs": ["-C 2uv", "+C 2uw"]}
        made_scene(folder, **case).workspace.close()
        (folder / "workspace").rename(template)
    elif work in ("pull", "serve"):
        new_workspace(template)
    elif work == "ingest":
        with Workspace.init(template) as workspace:
            workspace.add(manifest(name="d"))
        for number in range(8):
            (template / f"{number}.csv").write_text(f"city,population\nx,{number}\n")
    else:
        files = made(template, {"commit": 0, "secrets": 0, "schedule": 0}.get(work, 4)).dataset("cities")
        if work == "gc":
            keep_reachable(files, head_of(files))
            target = next(b.hash for b in files.chain.walk() if b.block.sequence_number == 3)
            files.set_head(target, expected=head_of(files))
            files.data.put(b"garbage")
    # what is a step of its own, and cannot be done twice
    return Scene(work, template, work not in ("hard", "soft", "reset", "ingest", "merge", "commit"))


def old_or_new(work: str, folder: Path, old: Any, new: Any) -> Any:
    found = state_of(folder)
    # some make two files or datasets; each of them is there or not
    assert found in (old, new) or (work == "secrets" and set(old) <= set(found) <= set(new)), found
    return found


def check(
    forks: Forks, scene: Scene, folder: Path, old: Any, new: Any, until: Callable[[Fork], object]
) -> bool:
    """Whether the head is the old one; all is sound, before and after the same is done again."""
    found = old_or_new(scene.work, folder, old, new)
    if found != new or scene.again:
        fork = forks.fork(scene.work, folder)
        fork.go()
        until(fork)
        fork.wait()
        after = state_of(folder)
        assert after == new or (scene.work == "secrets" and set(new) <= set(after)), (found, after, new)
    files = WorkspaceFiles.find(folder)
    if scene.work in ("commit", "hard", "reset", "footers", "gc", "soft", "schedule"):
        add_slice(files.dataset("cities"), ["after"])
        assert state_of(folder)
    return found == old


@contextlib.contextmanager
def surroundings(scene: Scene, folder: Path) -> Iterator[Callable[[Fork], object]]:
    """Peers that the work needs, and what they do while it runs."""
    if scene.work == "pull":
        peer = made(folder / "peer", 3)
        with RepositoryServer(peer) as server:
            (scene.template / "url").write_text(f"{server.url}cities")
            yield lambda fork: None
    elif scene.work == "serve":
        ours = made(folder / "ours", 3)
        token = (
            TokenFile(WorkspaceFiles.find(scene.template).root).create("me", ["push:%"], Timestamp.now()).text
        )

        def until(fork: Fork) -> None:
            address = fork.errors.with_suffix(".url")
            while not address.exists() and not fork.over(0.002):
                pass
            if address.exists():
                url = address.read_text()
                address.unlink()
                with contextlib.suppress(OdfchainError):
                    smart_site.push(
                        ours.dataset("cities"),
                        f"{url}cities",
                        PushOptions(parallel=1),
                        token=token,
                        retries=0,
                    )
            fork.kill()

        yield until
    else:
        yield lambda fork: None


WORKS = ("commit", "pull", "serve", "merge", "reset", "hard", "soft", "gc", "secrets", "schedule", "footers")
QUICK = ("commit", "pull")


def chosen(calls: list[Call], most: int) -> list[Call]:
    """So many of them, evenly; all where there are no more."""
    count = min(most, len(calls))
    return [calls[(2 * n + 1) * len(calls) // (2 * count)] for n in range(count)]


def killed_at_calls(forks: Forks, scene: Scene, folder: Path, most: int, record: Record) -> None:
    with surroundings(scene, folder) as until:
        old = state_of(scene.template)
        complete = shutil.copytree(scene.template, folder / "complete")
        calls = forks.calls(scene.work, complete, until)
        new = state_of(complete)
        assert len(calls) > 5, calls
        fired = 0
        seen: Counter[bool] = Counter()
        for n, call in enumerate(chosen(calls, most)):
            copy = shutil.copytree(scene.template, folder / str(n))
            fired += forks.killed(scene.work, copy, call, until)
            if scene.work == "ingest" and n % 4:  # a second run of it takes longer than all the rest
                seen[old_or_new(scene.work, copy, old, new) == old] += 1
            else:
                seen[check(forks, scene, copy, old, new, until)] += 1
            shutil.rmtree(copy)
    assert fired >= 0.8 * min(most, len(calls)), (fired, len(calls))
    record("calls", len(calls))
    record("kills", fired)
    record("old", seen[True])


@traced
@pytest.mark.parametrize(
    "work", [pytest.param(each, marks=() if each in QUICK else pytest.mark.soak) for each in WORKS]
)
def test_killed_at_each_system_call(warm: Forks, work: str, tmp_path: Path, record_property: Record) -> None:
    killed_at_calls(warm, scene_of(work, tmp_path), tmp_path, scaled(4, 40, 1_000), record_property)


@traced
def test_half_of_an_object_is_found(warm: Forks, tmp_path: Path) -> None:
    """The checks can fail: a writer that gives half of a file its name is found out by a kill."""
    with pytest.raises(AssertionError, match="data/f1620"):
        killed_at_calls(warm, scene_of("torn", tmp_path), tmp_path, 1_000, lambda *_: None)


@traced
@pytest.mark.soak
def test_an_ingest_of_eight_files_is_killed_at_each_system_call(
    tmp_path: Path, record_property: Record
) -> None:
    with one_session() as env, forks(env) as found:
        scene = scene_of("ingest", tmp_path)
        found.run("ingest", shutil.copytree(scene.template, tmp_path / "first"))  # which starts the session
        killed_at_calls(found, scene, tmp_path, scaled(2, 12, 200), record_property)


def test_killed_at_random_moments(warm: Forks, tmp_path: Path, record_property: Record) -> None:
    draw, kills, seen = random.Random(26), Counter[str](), Counter[bool]()
    works = ("commit", "hard", "gc", "reset", "secrets", "footers", "pull")
    for work in works[: scaled(2, 7, 7)]:
        scene = scene_of(work, tmp_path / work)
        with surroundings(scene, tmp_path / work):
            old = state_of(scene.template)
            complete = shutil.copytree(scene.template, tmp_path / f"{work}-complete")
            seconds = warm.run(work, complete)
            new, tries, goal = state_of(complete), 0, scaled(3, 40, 286)
            while kills[work] < goal:
                tries += 1
                assert tries < 4 * goal, kills
                copy = shutil.copytree(scene.template, tmp_path / "copy")
                fork = warm.fork(work, copy)
                fork.go()
                fork.over(draw.uniform(0, seconds))
                fork.kill()
                if killed := fork.wait() != 0:
                    kills[work] += 1
                if tries % 5 == 0:
                    is_old = check(warm, scene, copy, old, new, lambda _: None)
                else:
                    is_old = old_or_new(work, copy, old, new) == old
                seen[is_old] += killed
                shutil.rmtree(copy)
    record_property("kills", kills.total())
    record_property("old", seen[True])


# --- locks -----------------------------------------------------------------------------------------------

LOCKERS = ("commit", "pull", "secrets", "schedule", "gc")


def kind_of(path: str) -> str:
    """A lock without the names of what it is for."""
    path = re.sub(r"^home/|^\.odfchain/|datasets/fed0\w+/", "", path)
    return re.sub(r"[0-9a-f]{32,}", "*", path)


def is_held(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@traced
@pytest.mark.parametrize(
    "work", [pytest.param(each, marks=() if each == "commit" else pytest.mark.soak) for each in LOCKERS]
)
def test_who_dies_with_a_lock_stops_nobody(
    warm: Forks, work: str, tmp_path: Path, record_property: Record
) -> None:
    """It is stopped with the lock, readers go on, the next writer waits; once it is killed that one is done."""
    scene = scene_of(work, tmp_path)
    goal, kills, seconds, waited = scaled(2, 20, 100), Counter[str](), [], 0
    with surroundings(scene, tmp_path):
        calls = warm.calls(work, shutil.copytree(scene.template, tmp_path / "complete"))
        locks = [call for call in calls if call.name == "flock"]
        alone = warm.run(work, shutil.copytree(scene.template, tmp_path / "alone"))
        for n in range(goal):
            call = locks[n * len(locks) // goal if goal < len(locks) else n % len(locks)]
            folder = shutil.copytree(scene.template, tmp_path / "copy")
            holder = warm.stopped(work, folder, call.number)
            assert holder is not None, call
            # names that were drawn are others than in the run before
            seen = calls_in(folder.with_name("copy.trace"), folder)
            path = folder / next(found.path for found in seen if found.number == call.number)
            held = path.exists() and is_held(path)
            kills[kind_of(str(path.relative_to(folder))) if held else "not held"] += 1
            state_of(folder)  # readers do not wait
            # a second collection says at once that there is one, and ends
            follower = warm.fork("commit" if work == "gc" else work, folder)
            follower.go()
            if n % 10 == 0:
                waited += not follower.over(2 * alone)
            begun = time.perf_counter()
            holder.kill()
            assert follower.over(20), call
            seconds.append(time.perf_counter() - begun)
            assert follower.wait() == 0
            holder.wait()
            state_of(folder)
            shutil.rmtree(folder)
    assert kills["not held"] <= goal // 3, kills
    assert sorted(seconds)[-1 - len(seconds) // 20] < 1, seconds
    record_property("kills", goal)
    record_property("locks", dict(kills))
    record_property("waited", waited)
    record_property("median and longest [s]", f"{sorted(seconds)[len(seconds) // 2]:.2f} {max(seconds):.2f}")


# --- collections -----------------------------------------------------------------------------------------


def test_collections_that_are_killed_beside_writers_lose_nothing(
    warm: Forks, tmp_path: Path, record_property: Record
) -> None:
    draw, goal, done = random.Random(29), scaled(3, 60, 500), Counter[str]()
    here, peer = made(tmp_path / "here", 2), made(tmp_path / "peer", 1)
    towns, cities, folder = root(peer, "towns", slices=1), here.dataset("cities"), tmp_path / "here"
    with RepositoryServer(peer) as server:
        (folder / "url").write_text(f"{server.url}towns")
        longest, n = min(warm.run("young_gc", folder) for _ in range(3)), -1
        while done["young_gc killed"] < goal:
            n += 1
            assert n < 4 * goal, done
            cities.data.put(b"garbage %d" % n)
            add_slice(towns, [f"town {n}"])
            before = {name: number for name, _, number in heads_of(folder)}
            running = {work: warm.fork(work, folder) for work in ("commit", "pull", "young_gc")}
            for fork in running.values():
                fork.go()
            running["young_gc"].over(draw.uniform(0, longest))
            running["young_gc"].kill()
            for work in ("commit", "pull"):
                if draw.random() < 0.3:
                    running[work].over(draw.uniform(0, longest))
                    running[work].kill()
            codes = {work: fork.wait() for work, fork in running.items()}
            for work, code in codes.items():
                done[f"{work} {'killed' if code else 'ended'}"] += 1
            after = {name: number for name, _, number in heads_of(folder)}
            assert after["cities"] >= before["cities"] + (codes["commit"] == 0)
            assert codes["pull"] or after["towns"] == towns.chain.get(head_of(towns)).sequence_number
            if n % 20 == 9 or done["young_gc killed"] == goal:
                assert state_of(folder)
                assert all(everything(dataset) for dataset in here.datasets())
    rounds = n + 1
    left = sum(cities.data.contains(hash_bytes(b"garbage %d" % n)) for n in range(rounds))
    assert left < rounds or rounds < 20, "something was collected"
    record_property("rounds", dict(done))
    record_property("garbage removed", rounds - left)


def heads_of(folder: Path) -> list[tuple[str, str, int]]:
    """As `state_of`, without a look at anything but heads."""
    return [
        (str(files.alias), "head", files.chain.get(head).sequence_number)
        for files in WorkspaceFiles.find(folder).datasets()
        if (head := files.chain.head()) is not None
    ]
