"""Workspaces on a little S3: machines that have nothing in common but the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.api.workspace import Workspace
from odfchain.odf import events as ev
from odfchain.odf.times import Timestamp
from odfchain.spark.session import SparkEngine, recording_session
from odfchain.storage.bucket_store import STORE_LIMITS
from odfchain.storage.local import HEAD
from odfchain.storage.locations import PeerUrl
from odfchain.transfer.object_workspace import SharedWorkspace
from odfchain.transfer.store_files import StoreFiles
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.root_rows import MADE, START, add_root, append_all, records, schema_with
from tests.kit.small_s3 import SmallS3

PREFIX = "bucket/team"
QUICK = replace(STORE_LIMITS, retries=0, first_wait=0.001)
"""What fails once is not repeated, but for writes."""
WATERMARK = Timestamp.parse("2024-01-01T00:00:00Z")
SCHEMA = schema_with(pa.field("id", pa.int64()), pa.field("text", pa.string()))


def environment(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Credentials for a store on loopback, and a user's folder of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")


@contextlib.contextmanager
def credentials_of_workers(engine: SparkEngine) -> Iterator[None]:
    """The same for workers, whose environment is that of Java's start, and what Spark's context adds to it."""
    environment = engine.session.sparkContext.environment
    before = dict(environment)
    environment.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="s3cret")  # noqa: S106 - not one
    environment.update(dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1"))
    try:
        yield
    finally:
        environment.clear()
        environment.update(before)


def machine(store: SmallS3, folder: Path) -> Workspace:
    """A workspace folder of its own with the datasets of the store."""
    folder.mkdir(exist_ok=True)
    return odf.init(folder, store=store.url(PREFIX))


def wide_machine(store: SmallS3, folder: Path, engine: SparkEngine) -> Workspace:
    """As `machine`, with the session of the tests, whose executors are told of no folder."""
    workspace = machine(store, folder)
    session = recording_session(engine.session, StoreFiles(store.url(f"{PREFIX}/")))
    workspace._engines.spark = cast("Any", SimpleNamespace(session=session, started=True, close=lambda: None))
    return workspace


def add(workspace: Workspace, name: str = "cities") -> DatasetFiles:
    """A root with a schema and no rows."""
    return add_root(workspace, name, SCHEMA)


def append(root: DatasetFiles, *texts: str) -> None:
    """One commit with a row for each text, on the head that is here."""
    state, count = DatasetState.read(root.chain), len(texts)
    start = state.record_count
    table = records(SCHEMA, start, [0] * count, [START] * count, range(start, start + count), texts)
    append_all(root, [table], WATERMARK, at=MADE, state=state)


def append_slices(root: DatasetFiles, count: int) -> None:
    """One commit of so many slices with a row each."""
    start = DatasetState.read(root.chain).record_count
    offsets = range(start, start + count)
    tables = [records(SCHEMA, offset, [0], [START], [offset], [str(offset)]) for offset in offsets]
    append_all(root, tables, WATERMARK, at=MADE)


def texts(workspace: Workspace, name: str = "cities", ref: str = HEAD) -> Sequence[str]:
    """The rows of a dataset, as this machine sees them."""
    dataset = workspace[name] if ref == HEAD else workspace[name].at(ref)
    return dataset.scan().to_arrow()["text"].to_pylist()


def requests(store: SmallS3) -> int:
    """How many there were since the last time."""
    count = len(store.requests)
    store.requests.clear()
    return count


def objects(store: SmallS3, part: str = "") -> dict[str, bytes]:
    """What is in the store below the workspace, by key."""
    held = {key.removeprefix(f"{PREFIX}/"): data for key, data in store.objects.items()}
    return {key: data for key, data in held.items() if part in key}


def recorded(folder: Path, name: str) -> list[ev.AddData]:
    """What blocks say of rows, oldest first: hashes, offsets, watermarks."""
    with Workspace.open(folder) as workspace:
        dataset = workspace[name]
        found = dataset._files.chain.nearest_all("AddData", head=dataset.head)
        events = [each.block.event for each in reversed(list(found))]
        return [event for event in events if isinstance(event, ev.AddData)]


def reopened(workspace: Workspace, limits: object = QUICK) -> Workspace:
    """The workspace of a folder as another process sees it."""
    return Workspace(opened(workspace.path, limits))


def opened(folder: Path, limits: Any = QUICK) -> WorkspaceFiles:
    """The same without what a session brings."""
    return WorkspaceFiles.find(folder, lambda root, url: SharedWorkspace(root, PeerUrl.parse(url), limits))


def at(store: SmallS3, number: int, do: Callable[[], int | None], *, after: bool = False) -> list[str]:
    """`do` something once, at the request of this number; the request is in the list when it did."""
    count, fired = iter(range(1_000)), list[str]()

    def hook(method: str, path: str) -> int | None:
        if fired or next(count) != number:
            return None
        fired.append(f"{method} {path.removeprefix(f'{PREFIX}/')}")
        return do()

    calm(store)
    if after:
        store.after = hook
    else:
        store.before = hook
    return fired


def calm(store: SmallS3) -> None:
    """Nothing happens in between any more."""
    store.before = store.after = lambda *_: None
