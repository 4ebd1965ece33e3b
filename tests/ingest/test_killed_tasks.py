"""A worker that dies while it merges: nothing is lost, nothing half-done is seen, the next command works (RFC-058)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError
from odfchain.ingest import merge_input, merge_task
from odfchain.spark.plans import map_in_arrow
from tests.kit.support import manifest

KEPT = '{"k": 1, "v": 1}\n{"k": 2, "v": 1}\n'
LOST = '{"k": 1, "v": 2}\n{"k": 3, "v": 1}\n'


def dies(function: Callable[..., Any], when: str) -> Callable[..., Any]:
    # sent by value, so that no worker has to find this module
    def killed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        made = list(function(batches))
        os.kill(os.getpid(), signal.SIGKILL)
        yield from made

    return killed


@pytest.mark.parametrize("plan", ["one task", "buckets"])
@pytest.mark.parametrize("when", ["before", "after its slice is written"])
def test_a_worker_that_is_killed(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str, when: str
) -> None:
    merge = "{kind: Snapshot, primaryKey: [k]}" if plan == "one task" else "{kind: Append}"
    (dataset,) = workspace.add(manifest(merge, '["k INT", "v INT"]', kind="NdJson"))
    path = tmp_path / "in.ndjson"
    path.write_text(KEPT)
    dataset.ingest([path])
    if plan == "buckets":
        monkeypatch.setattr(merge_input, "task_bytes", lambda _: 1)
    head, files = dataset.head, {p for p in dataset._files.folder.rglob("*") if p.is_file()}
    path.write_text(LOST)
    with monkeypatch.context() as patched:
        patched.setattr(
            merge_task, "map_in_arrow", lambda frame, f, *a: map_in_arrow(frame, dies(f, when), *a)
        )
        with pytest.raises(EngineError, match="a worker of Spark's has ended") as failed:
            dataset.ingest([path])
    assert str(failed.value.hint).endswith("a smaller merge.taskBytes")
    assert dataset.head == head
    assert {p for p in dataset._files.folder.rglob("*") if p.is_file()} == files
    dataset.ingest([path], allow_retract=True)
    assert dataset.head != head
    report = dataset.verify()
    assert report.ok, report.faults
