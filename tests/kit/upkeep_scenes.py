"""Workspaces with small real datasets, and what is needed to damage, age and kill them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from odfchain.api.workspace import Workspace
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias, RemoteDatasetId
from odfchain.odf.times import Timestamp
from odfchain.storage.local import SIGNED_ENDINGS
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import read_all
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.recorded_dataset import add, add_slice, schema_event
from tests.kit.support import IMPORTABLE, set_transform

T0 = Timestamp.parse("2000-01-01T00:00:00Z")
DAY = 86_400.0


def later() -> float:
    """The day after tomorrow: everything that exists is old then."""
    return time.time() + 2 * DAY


def new_workspace(folder: Path) -> WorkspaceFiles:
    folder.mkdir(parents=True, exist_ok=True)
    return WorkspaceFiles.init(folder)


def root(workspace: WorkspaceFiles, name: str = "cities", slices: int = 0) -> DatasetFiles:
    """A root dataset whose slices have one, two, three … records."""
    snapshot = DatasetSnapshot(
        name=DatasetAlias.parse(name), kind=DatasetKind.ROOT, metadata=(schema_event(),)
    )
    dataset = workspace.create(snapshot, system_time=T0)
    for index in range(slices):
        add_slice(dataset, [f"{name} {index}.{row}" for row in range(index + 1)])
    return dataset


def head_of(dataset: DatasetFiles) -> Multihash:
    head = dataset.chain.head()
    assert head is not None
    return head


def hashes(dataset: DatasetFiles) -> list[Multihash]:
    return [found.hash for found in dataset.chain.walk()][::-1]


def records(dataset: DatasetFiles) -> pa.Table:
    return read_all(dataset, DatasetState.read(dataset.chain))


def objects_of(dataset: DatasetFiles) -> set[str]:
    """The files of its objects, below its folder."""
    folders = [dataset.folder / part for part in ("blocks", "data", "checkpoints")]
    return {f"{folder.name}/{path.name}" for folder in folders for path in folder.iterdir()}


def everything(dataset: DatasetFiles) -> bool:
    """Whether all that the references need is there and good."""
    names = [path.name for path in (dataset.folder / "refs").iterdir()]
    refs = [name for name in names if not name.startswith(".") and not name.endswith(SIGNED_ENDINGS)]
    for ref in refs:
        for _, block in dataset.chain.walk(dataset.chain.head(ref)):
            if isinstance(event := block.event, ev.AddData):
                if event.new_data is not None:
                    dataset.data.verified_path(event.new_data.physical_hash)
                if event.new_checkpoint is not None:
                    dataset.checkpoints.verified_path(event.new_checkpoint.physical_hash)
    return "head" in refs


def reader_of(
    workspace: WorkspaceFiles, input_id: DatasetId, blocks: list[Multihash], name: str = "derived"
) -> DatasetFiles:
    """A derivative dataset whose transactions have read up to these blocks of its input."""
    inputs = (ev.TransformInput(dataset_ref=RemoteDatasetId(None, input_id), alias="x"),)
    transform = dataclasses.replace(set_transform("x"), inputs=inputs)
    snapshot = DatasetSnapshot(
        name=DatasetAlias.parse(name), kind=DatasetKind.DERIVATIVE, metadata=(transform,)
    )
    dataset = workspace.create(snapshot, system_time=T0)
    prev: Multihash | None = None
    for number, block in enumerate(blocks):
        read = ev.ExecuteTransformInput(dataset_id=input_id, prev_block_hash=prev, new_block_hash=block)
        mark = Timestamp.from_epoch_ms(T0.epoch_ms + number)
        add(dataset, ev.ExecuteTransform(query_inputs=(read,), new_watermark=mark))
        prev = block
    return dataset


# --- killing -------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[WorkspaceFiles], object]] = {}
"""What can be killed, by name."""


def operation(work: Callable[[WorkspaceFiles], object]) -> Callable[[WorkspaceFiles], object]:
    OPERATIONS[work.__name__] = work
    return work


@operation
def gc(workspace: WorkspaceFiles) -> None:
    from odfchain.upkeep.garbage import collect
    from odfchain.workspace.options import GcOptions

    collect(workspace.dataset("cities"), GcOptions(drop_refs=True), now=later)


@operation
def reset(workspace: WorkspaceFiles) -> None:
    cities = Workspace(workspace)["cities"]
    cities.reset(cities.plan_reset("3"), force=True)


@operation
def hard(workspace: WorkspaceFiles) -> None:
    cities = Workspace(workspace)["cities"]
    cities.compact(cities.plan_compact())


@operation
def soft(workspace: WorkspaceFiles) -> None:
    cities = Workspace(workspace)["cities"]
    cities.soft_compact(cities.plan_soft_compact("fewer"))


@operation
def merge(workspace: WorkspaceFiles) -> None:
    Workspace(workspace)["d"].merge("theirs")


@operation
def transaction(workspace: WorkspaceFiles) -> None:
    from tests.kit.commits import run

    run(workspace.dataset("cities"), b"data", b"rest")


@operation
def fsck(workspace: WorkspaceFiles) -> None:
    Workspace(workspace)["cities"].fsck((workspace.root.parent / "copy").as_uri())


_LOOP = """
    import json, os, shutil, signal, sys
    from pathlib import Path
    from tests.kit import upkeep_scenes as scenes
    import odfchain.slices.writer, odfchain.upkeep.compact, odfchain.upkeep.fsck, odfchain.upkeep.garbage  # once, not in each child
    import odfchain.api.branching, odfchain.branches.merging, odfchain.audit.dataset_checks
    import odfchain.chain.statements, odfchain.slices.reader, odfchain.storage.folder_store, odfchain.transfer.sharing
    from odfchain.workspace.workspace_files import WorkspaceFiles

    template, target, work = Path(sys.argv[1]), Path(sys.argv[2]), scenes.OPERATIONS[sys.argv[3]]
    CALLS = ("link", "replace", "rename", "unlink", "mkdir", "rmdir", "utime", "fsync")

    def arm(stop):
        count = 0
        def wrap(real):
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == stop:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)
            return call
        for name in CALLS:
            setattr(os, name, wrap(getattr(os, name)))

    stop = 0
    step = int(sys.argv[4])
    while True:
        stop += step
        folder = target / str(stop)
        shutil.copytree(template, folder)
        child = os.fork()
        if child == 0:
            workspace = WorkspaceFiles.find(folder)
            arm(stop)
            try:
                work(workspace)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    print(stop)
"""


def killed_everywhere(template: Path, target: Path, work: str, step: int = 1) -> list[WorkspaceFiles]:
    """Copies of the workspace in `template`, each after the work was killed at another system call.

    With `step` only each so many-th call. The last copy is that of the work that was not killed.
    """
    target.mkdir()
    result = subprocess.run(
        [
            sys.executable, "-c", textwrap.dedent(_LOOP),
            str(template), str(target), work, str(step),
        ],
        capture_output=True, text=True, check=False, timeout=300, env=IMPORTABLE,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    count = int(result.stdout.split()[-1])
    assert count > 3
    return [WorkspaceFiles.find(target / str(n)) for n in range(step, count + 1, step)]
