"""Every fault of a store, at every object that is written or read: one commit, no duplicate, or a clear message.

`FAULTS` are what happens to an answer, `WRITTEN` and `READ` the objects that it happens to. A trap counts that
the fault was there, and where. What else can fail is in `ELSEWHERE`, with the tests that make it.
"""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import AccessError, TransferError
from odfchain.odf.times import Timestamp
from odfchain.storage.bucket_store import STORE_LIMITS
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.object_workspace import SharedWorkspace, make_workspace_at
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.processes import odfchain
from tests.kit.shared_store import PREFIX, add, append, machine, texts
from tests.kit.small_s3 import RESET, Fault, SmallS3
from tests.kit.support import ROOT
from tests.kit.turned_clock import TurnedClock

LIMITS = replace(STORE_LIMITS, retries=2, first_wait=0.001, idle_timeout=0.2)

FAULTS = {
    "503": Fault(503),
    "503 with Retry-After": Fault(503, {"Retry-After": "1"}),
    "429 with Retry-After": Fault(429, {"Retry-After": "1"}),
    "500": Fault(500),
    "reset after the body of the request": Fault(RESET),
    "answer cut short": Fault(cut=True),
    "reset after the answer": Fault(reset=True),
    "silent": Fault(silent=True),
    "drip": Fault(drip=True),
}
"""What may happen to one answer."""

HARMLESS = ("reset after the answer", "drip")
"""What brings the whole answer all the same."""

WRITTEN = {
    "workspace.json": r"workspace\.json",
    "name": "names/.+",
    "slice": "datasets/[^/]+/data/.+",
    "block": "datasets/[^/]+/blocks/.+",
    "head": "datasets/[^/]+/refs/head",
    "signature": r"datasets/[^/]+/refs/head\.jws",
}
"""The objects that an `init`, a new dataset and a commit write."""

READ = {
    "workspace.json": r"workspace\.json",
    "listing of names": "",
    "name": "names/.+",
    "head": "datasets/[^/]+/refs/head",
    "block": "datasets/[^/]+/blocks/.+",
    "slice": "datasets/[^/]+/data/.+",
}
"""What a machine reads that joins, and reads the rows."""

ELSEWHERE = {
    "an executor is killed": "system/test_clusters.py::test_an_executor_is_killed_while_it_writes_a_slice",
    "the driver is killed": "system/test_clusters.py::test_the_driver_is_killed_while_a_slice_is_written",
    "another writer, at every request": "share/test_shared_writers.py::test_who_writes_at_whatever_moment_loses_nothing",
    "a fault, at every request": "share/test_shared_writers.py::test_a_store_that_fails_at_whatever_moment_has_each_commit_once",
    "a lost answer, and another writer": "share/test_shared_writers.py::test_an_answer_that_is_lost_is_no_conflict",
    "a store that is gone from then on": "share/test_shared_writers.py::test_what_nobody_knows_is_said",
    "a process dies before the head": "share/test_shared_writers.py::test_a_process_that_dies_before_the_head_leaves_no_trace",
    "a process dies after it": "share/test_shared_writers.py::test_a_process_that_dies_between_the_heads",
    "a listing that lags": "share/test_shared_workspace.py::test_a_listing_that_lags_hides_nothing",
    "a store that was set back": "share/test_shared_workspace.py::test_a_store_that_was_set_back_is_not_followed",
    "objects that are damaged": "share/test_shared_workspace.py::test_what_the_store_has_is_hashed_and_checked",
}  # fmt: skip

ONCE = list(zip(FAULTS, itertools.cycle(WRITTEN), strict=False))
"""Pairs that have each fault and each object that is written."""


@dataclass
class Trap:
    """Lets requests of a kind have a fault; `fired` are those that had it."""

    store: SmallS3
    method: str
    key: str
    fault: Fault
    carried_out: bool = True
    times: float = 1
    fired: list[str] = field(default_factory=list)

    def __enter__(self) -> Trap:
        if self.carried_out:
            self.store.after = self.hook
        else:
            self.store.before = self.hook
        return self

    def __exit__(self, *_: object) -> None:
        self.store.before = self.store.after = lambda *_: None

    def hook(self, method: str, path: str) -> Fault | None:
        found = re.fullmatch(r"bucket(?:/[^/]+/(.*))?", path)
        key = (found[1] or "") if found else path
        if method != self.method or not re.fullmatch(self.key, key) or len(self.fired) >= self.times:
            return None
        self.fired.append(key)
        return self.fault


def joined(store: SmallS3, folder: Path, prefix: str = PREFIX) -> Workspace:
    """A machine that makes or joins a workspace, as `init --store` does, with little patience."""
    url = PeerUrl.parse(f"{store.url(prefix)}/")
    make_workspace_at(url, LIMITS)
    folder.mkdir(exist_ok=True)

    def connect(root: Path, _: str) -> SharedWorkspace:
        return SharedWorkspace(root, url, LIMITS)

    return Workspace(WorkspaceFiles.init(folder, exists_ok=True, store=url.text, connect=connect))


class World:
    """Two machines of one store: one that has the faults, and one that looks at what came of it."""

    def __init__(self, store: SmallS3, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.one, self.other = joined(store, folder / "one"), joined(store, folder / "other")
        add(self.one)
        self.rows: list[str] = []
        self.names = ["cities"]
        self.places = 0

    def write(self, name: str) -> None:
        """Writes an object of a kind, among others."""
        if name == "workspace.json":
            self.places += 1
            joined(self.store, self.folder / f"place {self.places}", f"bucket/place{self.places}")
        elif name == "name":
            self.names.append(f"lakes{len(self.names)}")
            add(self.one, self.names[-1])
        else:
            self.rows.append(str(len(self.rows)))
            append(self.one["cities"]._files, self.rows[-1])

    def check(self) -> None:
        """All that was done is there once, for both machines."""
        for workspace in (self.one, self.other):
            assert texts(workspace) == self.rows
            assert [str(dataset.alias) for dataset in workspace] == sorted(self.names)
        kinds = [block.event.KIND for _, block in self.other["cities"]._files.chain.walk()]
        assert kinds.count("AddData") == len(self.rows)
        for number in range(1, self.places + 1):
            assert f"bucket/place{number}/workspace.json" in self.store.objects


@pytest.fixture
def world(store: SmallS3, tmp_path: Path) -> World:
    return World(store, tmp_path)


def check_once(world: World, fault: str, name: str, *, carried_out: bool) -> None:
    """A write whose answer has a fault is made, and made once."""
    with Trap(world.store, "PUT", WRITTEN[name], FAULTS[fault], carried_out) as trap:
        world.write(name)
    assert len(trap.fired) == 1, (fault, name)
    world.check()


def test_a_write_that_fails_once_is_made_once(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    assert {name for _, name in ONCE} == set(WRITTEN)
    for fault, name in ONCE:
        check_once(world, fault, name, carried_out=True)
    assert capfd.readouterr().err == ""


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("carried_out", [False, True], ids=["refused", "carried out"])
def test_each_write_that_fails_once_is_made_once(world: World, fault: str, carried_out: bool) -> None:
    if not carried_out and (fault in HARMLESS or FAULTS[fault].cut):
        pytest.skip("an answer is needed for that")
    for name in WRITTEN:
        check_once(world, fault, name, carried_out=carried_out)
    assert [not report.faults for report in world.other.verify()] == [True] * len(world.names)


@pytest.mark.parametrize(
    "fault",
    [f if f in ("answer cut short", "drip") else pytest.param(f, marks=pytest.mark.soak) for f in FAULTS],
)
def test_a_read_that_fails_once_is_repeated(
    world: World, tmp_path: Path, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    world.write("slice")
    for number, (name, key) in enumerate(READ.items()):
        with Trap(world.store, "GET", key, FAULTS[fault]) as trap:
            third = joined(world.store, tmp_path / str(number))
            assert texts(third) == world.rows, name
        assert len(trap.fired) == 1, name
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("fault", "error", "hint"),
    [
        ("503 with Retry-After", "503 Service Unavailable", "too much to do: run the command again later"),
        ("429 with Retry-After", "429 Too Many Requests", "too much to do: run the command again later"),
        ("500", "500 Internal", "run the command again when the store can be reached"),
        ("reset after the body of the request", "error sending", "again when the store can be reached"),
        ("silent", "error sending request", "again when the store can be reached"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["head", *(pytest.param(name, marks=pytest.mark.soak) for name in WRITTEN if name != "head")]
)
def test_a_fault_that_stays_is_an_error_and_the_next_run_works(
    world: World, name: str, fault: str, error: str, hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Trap(world.store, "PUT", WRITTEN[name], FAULTS[fault], carried_out=False, times=99) as trap:
        if name == "signature":  # the commit stands
            world.write(name)
            said = f"the signature of the head was not written: {world.store.url('')}"
            assert said in capfd.readouterr().err
        else:
            with pytest.raises(TransferError, match=error) as caught:
                world.write(name)
            assert caught.value.exit_code == 8
            assert hint in str(caught.value.hint)
            if name in ("slice", "block", "head"):
                world.rows.pop()
            elif name == "name":
                world.names.pop()
            else:
                world.places -= 1
    assert len(trap.fired) > 1, "it was tried again"
    world.check()
    world.write(name)
    world.check()


def test_what_else_fails_is_tested_elsewhere() -> None:
    for test in ELSEWHERE.values():
        path, name = test.split("::")
        tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


# --- clocks --------------------------------------------------------------------------------------------

HOUR = 3_600


@pytest.fixture
def ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TurnedClock:
    """A clock that is an hour ahead of the machine's, for processes that are started from now on."""
    (tmp_path / "clock").mkdir()
    clock = TurnedClock(tmp_path / "clock")
    clock.turn(HOUR)
    for name, value in clock.variables.items():
        monkeypatch.setenv(name, value)
    return clock


def now() -> float:
    """The time of this process [s]."""
    return Timestamp.now().epoch_ms / 1_000


@pytest.mark.soak
def test_a_machine_whose_clock_is_ahead_commits_and_the_others_go_on(
    one: Workspace, other: Workspace, tmp_path: Path, ahead: TurnedClock
) -> None:
    add(one)
    done = odfchain(tmp_path / "one", "pull", "cities", "--set-watermark", "2024-06-01T00:00:00Z")
    assert done.code == 0, done.err
    late = other["cities"].summary.head_block.system_time
    assert late.epoch_ms / 1_000 - now() > HOUR / 2, "the clock was ahead"
    other["cities"].set_watermark("2024-07-01T00:00:00Z")
    blocks = [block for _, block in one["cities"]._files.chain.walk()]
    assert [block.system_time for block in blocks[:2]] == [late, late], "it stands still until it is reached"
    assert [not report.faults for report in one.verify()] == [True]


def test_a_store_that_refuses_a_clock_says_what_to_do(
    store: SmallS3, tmp_path: Path, ahead: TurnedClock
) -> None:
    one = machine(store, tmp_path / "one")
    add(one)
    store.looks_at_clocks = True
    assert len(one) == 1, "the clock of this process is right"
    failed = odfchain(tmp_path / "one", "list")
    assert failed.code == AccessError.exit_code
    assert "RequestTimeTooSkewed" in failed.err
    assert "hint: set the clock of this machine" in failed.err
    assert "Traceback" not in failed.err
