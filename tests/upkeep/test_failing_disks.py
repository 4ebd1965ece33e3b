"""Every call that changes a file fails, once and for ever: of commits, merges, pulls, pushes, compactions, resets, gc, ingests.

After each: datasets are whole and verify, heads are old or new, the same once more ends well, and so does a commit.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError, StorageFullError
from odfchain.odf import events as ev
from odfchain.odf.times import Timestamp
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import PushOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import smart_site
from tests.kit.branch_cases import made_scene
from tests.kit.faults import FailingFolder, failing
from tests.kit.run_length import scaled
from tests.kit.sharing import Sharing
from tests.kit.support import ingest_rows, manifest
from tests.kit.upkeep_scenes import OPERATIONS, everything, head_of, new_workspace, root
from tests.kit.verified import verify_dataset

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

Record = Callable[[str, object], None]
Work = Callable[[Path], object]
SIGNATURE, UNREADABLE = 16, 7
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE)
ERRORS = (*FULL, errno.EIO, errno.ENOMEM, errno.EROFS)
HERE = ("transaction", "merge", "hard", "soft", "reset", "gc")
SHARING = ("pull", "push", "received")
QUICK = ("transaction", "pull")
ONCE = ("merge", "transaction", "hard", "soft", "reset", "ingest")
"""What is a step of its own: done again after it was done it is another one, or nothing."""


def state_of(folder: Path) -> dict[str, int]:
    """The number of each dataset's newest block, in the workspaces there; all of them are whole and verified."""
    found = {}
    for path in sorted(folder.rglob(".odfchain")):
        workspace = WorkspaceFiles.find(path.parent)
        for dataset in workspace.datasets():
            assert everything(dataset), dataset.folder
            faults = verify_dataset(dataset).faults
            if [fault.check for fault in faults] == [
                SIGNATURE
            ] and "the signature is of a newer head" in faults[0].message:
                workspace.sign_head(dataset)  # a warning named the command
                faults = verify_dataset(dataset).faults
            # what `transaction` appends is no Parquet
            assert {fault.check for fault in faults} <= {UNREADABLE}, faults
            newest = dataset.chain.get(head_of(dataset))
            found[f"{path.parent.relative_to(folder)}/{dataset.alias}"] = newest.sequence_number
    return found


def append(folder: Path) -> None:
    """One more block for every dataset."""
    for path in folder.rglob(".odfchain"):
        for dataset in WorkspaceFiles.find(path.parent).datasets():
            state = DatasetState.read(dataset.chain)
            commit(
                dataset, state, [ev.SetInfo(description="after")], [], system_time=state.next_system_time()
            )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: a disk that syncs takes most of the time."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as found:
        yield Path(found)


@dataclass(frozen=True)
class Scene:
    """A folder with workspaces, what is done in it, and the part of it whose files fail."""

    name: str
    template: Path
    work: Work
    below: str = "."


def scene_of(name: str, folder: Path) -> Scene:
    template = folder / "template"
    if name == "merge":
        case = {"base": ["1xy", "2uv"], "ours": ["-C 1xy", "+C 1qy"], "theirs": ["-C 2uv", "+C 2uw"]}
        made_scene(folder, **case).workspace.close()
        (folder / "workspace").rename(template)
    elif name in SHARING:
        ours = new_workspace(template / "ours")
        root(ours, slices=2)
        node = new_workspace(template / "node")
        if name == "pull":
            Sharing(ours).push("cities", (template / "there").as_uri())
        if name == "received":
            token = TokenFile(node.root).create("me", ["push:%"], Timestamp.now()).text
            (template / "token").write_text(token)
        return Scene(name, template, {"pull": pull, "push": push, "received": received}[name], "node")
    else:
        root(new_workspace(template), slices=0 if name == "transaction" else 5)
        if name == "gc":
            OPERATIONS["reset"](WorkspaceFiles.find(template))
    return Scene(name, template, lambda folder: OPERATIONS[name](WorkspaceFiles.find(folder)))


def pull(folder: Path) -> None:
    Sharing(WorkspaceFiles.find(folder / "node")).pull((folder / "there").as_uri(), "cities")


def push(folder: Path) -> None:
    Sharing(WorkspaceFiles.find(folder / "ours")).push("cities", (folder / "node" / "there").as_uri())


def received(folder: Path) -> None:
    """A push to a node of this process."""
    node, ours = WorkspaceFiles.find(folder / "node"), WorkspaceFiles.find(folder / "ours")
    token = (folder / "token").read_text()
    with RepositoryServer(node, write=True) as server:
        smart_site.push(
            ours.dataset("cities"), f"{server.url}cities", PushOptions(parallel=1), token=token, retries=0
        )


def attempt(
    scene: Scene, folder: Path, fail_at: int | None, error: int = 0, *, forever: bool = False
) -> FailingFolder:
    """The work, with a failing call; what it raises is an error of ours that says so in one line."""
    with failing(folder / scene.below, fail_at, error, forever=forever) as faults:
        try:
            scene.work(folder)
        except OSError as raised:
            # about the slice, which the test writes itself
            assert scene.name == "transaction", raised
        except OdfchainError as raised:
            assert faults.fired, raised
            assert "\n" not in str(raised), raised
            if forever and error in FULL and scene.name in (*HERE, "ingest"):
                assert isinstance(raised, StorageFullError), repr(raised)
    assert not faults.synced_again
    return faults


def fail_everywhere(scene: Scene, folder: Path, most: int, record: Record) -> None:
    old, whole = state_of(scene.template), shutil.copytree(scene.template, folder / "whole")
    calls = attempt(scene, whole, None).calls
    new, count = state_of(whole), len(calls)
    assert count > 3
    assert scene.name == "gc" or any(name == "write" for name, _ in calls)
    every = [
        (n, error, forever) for n in range(1, count + 1) for error in ERRORS for forever in (False, True)
    ]
    step, fired, kept = max(1, -(-len(every) // most)), 0, 0
    for number, (fail_at, error, forever) in enumerate(every[:: step + (step % 2 == 0)]):
        copy = shutil.copytree(scene.template, folder / str(number))
        fired += attempt(scene, copy, fail_at, error, forever=forever).fired > 0
        found = state_of(copy)
        assert found in (old, new), (calls[fail_at - 1], errno.errorcode[error], forever)
        kept += found == old
        if found == old or scene.name not in ONCE:
            scene.work(copy)
            assert state_of(copy).keys() == new.keys()
        append(copy)
        state_of(copy)
        shutil.rmtree(copy)
    assert fired > min(most, len(every)) / 3, "the faults did not fire"
    record("calls", count)
    record("faults", fired)
    record("old", kept)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.soak) for name in (*HERE, *SHARING)],
)
def test_every_call_that_changes_a_file_fails(name: str, folder: Path, record_property: Record) -> None:
    fail_everywhere(scene_of(name, folder), folder, scaled(20, 60, 250), record_property)


@pytest.mark.soak
def test_every_call_of_an_ingest_that_changes_a_file_fails(
    folder: Path, engine: SparkEngine, record_property: Record
) -> None:
    """Of the process that commands run in: Spark's own only reads."""

    def ingest(folder: Path) -> None:
        with Workspace.open(folder) as workspace:
            workspace._engines.spark = engine
            ingest_rows(workspace["cities"], "event_time,city,population", ["2020-01-01T00:00:00Z,A,1"])

    template = folder / "template"
    with Workspace.init(template) as workspace:
        schema = '["event_time TIMESTAMP", "city STRING", "population BIGINT"]'
        workspace.add(manifest(schema=schema))
    ingest(shutil.copytree(template, folder / "warm"))  # the session starts before calls are counted
    shutil.rmtree(folder / "warm")
    fail_everywhere(Scene("ingest", template, ingest), folder, scaled(4, 4, 16), record_property)
