"""Rows that fit in one task and rows in buckets of keys are recorded as the same bytes (RFC-058)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError
from odfchain.ingest import merge_input
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.keyed_inputs import COLUMNS, MERGES, row
from tests.kit.support import manifest


def inputs(kind: str, draw: random.Random) -> list[str]:
    """Newline-delimited rows of two inputs; keys come again, in one input and in several."""
    texts = []
    there: list[dict[str, Any]] = []
    for _ in range(2):
        rows, seen = [], set()
        for key in [draw.randrange(12) for _ in range(draw.randrange(1, 14))]:
            made = row(draw, key)
            if kind == "changelog":
                back = bool(there) and draw.random() < 0.3
                made = there.pop(draw.randrange(len(there))) if back else made
                there += [] if back else [made]
                rows.append({"op": int(back)} | made)
            elif kind == "append" or (key, made["part"]) not in seen:
                seen.add((key, made["part"]))
                rows.append(({"op": draw.randrange(2)} if kind == "upsert" else {}) | made)
        copies = rows[:1] if kind == "snapshot" else []
        texts.append("".join(f"{json.dumps(made)}\n" for made in rows + copies))
    return texts


def slices(dataset: Dataset) -> list[bytes]:
    state = DatasetState.read(dataset._files.chain)
    return [dataset._files.data.verified_path(r.slice.physical_hash).read_bytes() for r in state.slices()]


def ingest(dataset: Dataset, path: Path) -> tuple[Any, ...]:
    """What a run said of itself, or its error."""
    try:
        outcome = dataset.ingest(
            [path], system_time="2050-01-01T00:00:00Z", event_time="2049-01-01T00:00:00Z", allow_retract=True
        )
    except OdfchainError as error:
        return (type(error), str(error), error.hint)
    (found,) = outcome.inputs
    return (found.input_rows, found.operations, found.offsets, outcome.watermark)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 10))])
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=pytest.mark.soak) if k in {"changelog", "upsert"} else k for k in MERGES],
)
def test_the_bytes_are_the_same(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    """Slices, counts and watermarks are the same, whichever way they were made."""
    operations = kind in ("changelog", "upsert")
    schema = json.dumps([*(["op INT"] if operations else []), *COLUMNS])
    one, parts = (
        workspace.add(manifest(MERGES[kind], schema, name=name, kind="NdJson"))[0]
        for name in ("one", "parts")
    )
    path = tmp_path / "input.ndjson"
    for text in inputs(kind, random.Random(f"{kind} {seed}")):
        path.write_text(text)
        said = ingest(one, path)
        with monkeypatch.context() as patched:
            patched.setattr(merge_input, "task_bytes", lambda _: 400)
            assert ingest(parts, path) == said
        assert isinstance(said[0], int), said
    assert slices(one) == slices(parts) != []
    report = one.verify()
    assert report.ok, report.faults


BAD = {
    "a null deep inside": '{"key": 1}\n{"key": 2, "place": {"names": [null]}}\n',
    "a value": '{"key": 1, "price": "1"}\n{"key": 2, "price": "x"}\n',
    "no key": '{"key": 1}\n{"price": "1"}\n',
    "a key twice": '{"key": 1, "price": "1"}\n{"key": 1, "price": "2"}\n',
    "no JSON": '{"key": 1}\n{"key"\n',
    "the far future": '{"key": 1}\n{"key": 2, "event_time": "9000-01-01T00:00:00Z"}\n',
}


@pytest.mark.parametrize(
    "text",
    [
        t if name in {"a key twice", "the far future"} else pytest.param(t, marks=pytest.mark.soak)
        for name, t in BAD.items()
    ],
    ids=list(BAD),
)
def test_refusals_have_the_same_words(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    merge = "{kind: Snapshot, primaryKey: [key]}"
    (dataset,) = workspace.add(manifest(merge, json.dumps(COLUMNS), kind="NdJson"))
    path = tmp_path / "input.ndjson"
    path.write_text(text)
    refused = ingest(dataset, path)
    assert issubclass(refused[0], OdfchainError)
    assert any(where in refused[1] for where in ("row 2", "line 2", "`place.names`"))
    monkeypatch.setattr(merge_input, "task_bytes", lambda _: 1)
    assert ingest(dataset, path) == refused
