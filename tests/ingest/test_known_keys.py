"""Slices that cannot hold a key of the input are not read, and nothing recorded depends on it (RFC-032)."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.ingest import history, merge_input
from odfchain.ingest.merge_input import InputMerge
from odfchain.ingest.merge_task import MergeRules
from odfchain.odf.events import OffsetInterval
from odfchain.odf.identity import Multihash
from odfchain.workspace.config import LateEdits
from odfchain.workspace.read_slices import RecordedRows, RecordedSlice
from tests.kit.support import manifest

KEY = ["id", "share", "day"]
COLUMNS = ["id BIGINT", "share DOUBLE", "day TIMESTAMP", "amount DECIMAL(10, 2)", "name STRING"]
SHARES = ["0", "-0.0", "NaN", "0.5", None]
DAYS = [None, "2020-01-01T00:00:00.123Z", "1969-12-31T23:59:59Z"]


def ledger(workspace: Workspace, name: str, key: list[str]) -> Dataset:
    merge = f"{{kind: Ledger, primaryKey: [{', '.join(key)}]}}"
    return workspace.add(manifest(merge, json.dumps(COLUMNS), name=name, kind="NdJson"))[0]


def push(dataset: Dataset, path: Path, rows: list[dict[str, object]], **options: LateEdits) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset.ingest(
        path, system_time="2050-01-01T00:00:00Z", event_time="2049-01-01T00:00:00Z", duplicate_keys="first",
        **options,
    )  # fmt: skip


def numbered(*ids: int) -> list[dict[str, object]]:
    return [{"id": n, "name": f"row {n}"} for n in ids]


def recorded(dataset: Dataset) -> list[tuple[object, ...]]:
    table = dataset.scan(["offset", "op", *[c.split()[0] for c in COLUMNS]]).to_arrow()
    return [tuple(map(repr, row.values())) for row in table.to_pylist()]


def files_of(dataset: Dataset) -> list[Path]:
    return sorted((dataset.path / "info" / "keys").glob("*"))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Every ledger is indexed; what comes out are the first offsets of the slices that each merge reads."""
    seen: list[list[int]] = []

    def note(merge: InputMerge, rules: MergeRules, rows: RecordedRows) -> RecordedRows:
        found = original(merge, rules, rows)
        seen.append([piece.offsets.start for piece in found.slices])
        return found

    original = InputMerge.relevant
    monkeypatch.setattr(history, "INDEXED_ROWS", 1)
    monkeypatch.setattr(InputMerge, "relevant", note)
    return seen


@pytest.fixture
def dataset(workspace: Workspace, tmp_path: Path, read: list[list[int]]) -> Dataset:
    """Three slices of two rows, the first two of them indexed; their footers leave every key between open."""
    made = ledger(workspace, "a", ["id"])
    for ids in ((1, 20), (3, 18), (5, 16)):
        push(made, tmp_path / "in", numbered(*ids))
    return made


def test_only_slices_with_such_a_key_are_read(
    dataset: Dataset, tmp_path: Path, read: list[list[int]]
) -> None:
    path = tmp_path / "in"
    assert read == [[], []], "new keys need no slice at all"
    push(dataset, path, numbered(3, 7))
    assert read[2:] == [[2]]
    assert len(recorded(dataset)) == 7
    push(dataset, path, numbered(7, 1, 8))
    assert read[3:] == [[0, 6]]
    assert [row[2] for row in recorded(dataset)] == ["1", "20", "3", "18", "5", "16", "7", "8"]
    assert len(files_of(dataset)) == 4, "the newest slice is indexed by the next merge"
    assert dataset.verify().ok


def test_slices_whose_footers_leave_out_the_keys_are_not_even_indexed(
    dataset: Dataset, tmp_path: Path, read: list[list[int]]
) -> None:
    push(dataset, tmp_path / "in", numbered(100, 200))
    push(dataset, tmp_path / "in", numbered(150, 200))
    assert read[2:] == [[], [6]]
    assert len(files_of(dataset)) == 3, "the third slice is not"
    assert len(recorded(dataset)) == 9


@pytest.mark.parametrize("edits", [pytest.param(LateEdits.IGNORE, marks=pytest.mark.soak), LateEdits.CORRECT])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 12))])
def test_the_rows_are_those_without(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, edits: LateEdits
) -> None:
    """Keys of several columns with nulls, NaN, zeros of both signs, that come again in any slice."""
    draw = random.Random(seed)
    key = draw.sample([*KEY, "amount", "name"], draw.randrange(1, 4))
    indexed, plain = ledger(workspace, "indexed", key), ledger(workspace, "plain", key)
    for _ in range(5):
        rows = [
            {
                "id": draw.choice([None, *range(4)]) if len(key) > 1 else draw.randrange(4),
                "share": draw.choice(SHARES[: None if len(key) > 1 else -1]),
                "day": draw.choice(DAYS if len(key) > 1 else DAYS[1:]),
                "amount": draw.choice(["1.10", "1.1", "-3"]),
                "name": draw.choice(["", "a", "ä"]),
            }
            for _ in range(draw.randrange(1, 5))
        ]
        rows = [row for row in rows if any(row[name] is not None for name in key)] or numbered(1)
        push(plain, tmp_path / "in", rows, late_edits=edits)
        with monkeypatch.context() as patched:
            patched.setattr(history, "INDEXED_ROWS", 1)
            push(indexed, tmp_path / "in", rows, late_edits=edits)
    assert files_of(indexed)
    assert not files_of(plain)
    assert recorded(indexed) == recorded(plain) != []


@pytest.mark.parametrize("damage", ["gone", "cut", "longer", "a bit", "another slice's", "a folder"])
def test_a_damaged_index_is_made_again(dataset: Dataset, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "in"
    files = files_of(dataset)
    before = [file.read_bytes() for file in files]
    for file in files:
        content = file.read_bytes()
        match damage:
            case "gone":
                file.unlink()
            case "cut":
                file.write_bytes(content[:-8])
            case "longer":
                file.write_bytes(content + content[-8:])
            case "a bit":
                file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            case "another slice's":
                file.write_bytes(before[1 - before.index(content)])
            case _:
                file.unlink()
                file.mkdir()
    push(dataset, path, numbered(1, 3, 5, 7))
    assert [row[2] for row in recorded(dataset)] == ["1", "20", "3", "18", "5", "16", "7"]
    if damage != "a folder":
        assert [file.read_bytes() for file in files] == before


def test_files_of_slices_that_are_gone_are_removed(dataset: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "in"
    dataset.reset([entry.hash for entry in dataset.log()][1], force=True)
    push(dataset, path, numbered(3))
    assert len(recorded(dataset)) == 4
    push(dataset, path, numbered(5, 9))
    assert [row[2] for row in recorded(dataset)] == ["1", "20", "3", "18", "5", "9"]
    names = {file.name.partition(".")[0] for file in files_of(dataset)}
    assert names <= {file.name for file in (dataset.path / "data").iterdir()}


def test_small_ledgers_and_large_inputs_have_no_index(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, path = ledger(workspace, "a", ["id"]), tmp_path / "in"
    push(dataset, path, numbered(1))
    push(dataset, path, numbered(1, 2))
    assert not files_of(dataset)
    monkeypatch.setattr(history, "INDEXED_ROWS", 1)
    monkeypatch.setattr(merge_input, "LARGEST_INPUT", 10)
    push(dataset, path, numbered(2, 3))
    assert not files_of(dataset)
    assert len(recorded(dataset)) == 3


def test_hashes_are_kept_and_looked_up_a_piece_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PIECE_ROWS", 3)
    draw = random.Random(7)
    hashes = np.array([draw.getrandbits(64) for _ in range(8)], np.uint64)
    piece = RecordedSlice(OffsetInterval(start=10, end=17), lambda: tmp_path, Multihash.sha3_256(bytes(32)))
    files = history.KeyFiles(tmp_path, "id")
    files.write(piece, [hashes[:5], hashes[5:5], hashes[5:]])
    assert all(files.holds_any(piece, np.array([value], np.uint64)) for value in hashes)
    assert files.holds_any(piece, np.array([1, 2**64 - 1], np.uint64)) is False
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (whole[:-8], whole + bytes(8), whole[:-1] + bytes([whole[-1] ^ 1]), whole[:16]):
        path.write_bytes(damaged)
        assert files.holds_any(piece, hashes) is None
