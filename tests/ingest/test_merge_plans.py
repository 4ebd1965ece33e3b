"""How recorded rows are joined: what Spark takes for few must not pass through the driver's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from odfchain.ingest import ingesting
from odfchain.ingest.read_formats import FileInput
from tests.kit.support import manifest


class PlanSeenError(Exception):
    """Ends the merge before it is run."""


SCHEMA = '["id BIGINT NOT NULL", "amount DOUBLE"]'


@pytest.mark.parametrize("merge", ["Ledger", "UpsertStream"])
def test_recorded_rows_are_broadcast_only_where_they_are_few(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    text = manifest(f"{{kind: {merge}, primaryKey: [id]}}", SCHEMA, name="a", kind="NdJson")
    (dataset,) = workspace.add(text)
    path = tmp_path / "in"
    path.write_text('{"id": 1, "amount": 2}\n{"id": 3, "amount": 4}\n')
    dataset.ingest(path)

    def note(_: object, frame: Any, *__: object) -> None:
        plans.append(frame._jdf.queryExecution().sparkPlan().toString())
        raise PlanSeenError

    plans: list[str] = []
    monkeypatch.setattr(FileInput, "_is_few", lambda *_: False)
    monkeypatch.setattr(ingesting._Write, "_write_rows", note)
    for most in (2, 1):
        monkeypatch.setattr(ingesting, "_MOST_BROADCAST", most)
        with pytest.raises(PlanSeenError):
            dataset.ingest(path)
    assert ["BroadcastHashJoin" in plan for plan in plans] == [True, False]
    assert ["SortMergeJoin" in plan for plan in plans] == [False, True]
