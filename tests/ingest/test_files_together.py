"""Files of a source that one job merges are recorded as if each had been pulled by itself (RFC-058)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError
from odfchain.ingest import ingesting, merge_input, merge_task
from odfchain.odf import events as ev
from odfchain.progress import Silent
from odfchain.workspace import read_slices
from tests.kit.keyed_inputs import MERGES, inputs, schema_of
from tests.kit.polled_sources import ABC, APPEND, LEDGER, SNAPSHOT, polled, rows
from tests.kit.support import manifest

FILES = 8
TIMES: dict[str, Any] = {"system_time": "2050-01-01T00:00:00Z"}


def added(dataset: Dataset) -> list[ev.MetadataEvent]:
    """What is recorded, oldest first; the hashes of slices and checkpoints included."""
    events = [found.block.event for found in dataset._files.chain.walk()]
    return [event for event in events if isinstance(event, ev.AddData | ev.SetDataSchema)][::-1]


def pulled(dataset: Dataset, folder: Path, texts: Iterable[str], each: int, **options: Any) -> list[Any]:
    """Files come so many at a time; refusals, after which a file is removed, or what pulls say where none is."""
    said, refused = list[Any](), list[Any]()
    folder.mkdir(exist_ok=True)
    texts = list(texts)
    for start in range(0, len(texts), each):
        for number, text in enumerate(texts[start : start + each], start):
            (folder / f"{number}.txt").write_text(text)
        for _ in range(each + 1):
            if not any(folder.iterdir()):  # all that came was refused
                break
            try:
                outcome = dataset.pull(**TIMES, **options)
            except OdfchainError as error:
                refused.append((type(error), str(error).replace(str(folder), ""), error.hint))
                last = dataset.summary.source_state
                bad = min(p for p in folder.iterdir() if last is None or p.name > last.value)
                bad.unlink()
                continue
            said += [(i.input_rows, i.operations, i.offsets, i.slices) for i in outcome.details.inputs]
            break
        else:
            raise AssertionError(refused)
    return refused or said


def pair(
    workspace: Workspace, tmp_path: Path, merge: str, read: str, **given: str
) -> list[tuple[Dataset, Path]]:
    """Two datasets with sources alike: one for files pulled by themselves, one for files together."""
    found = []
    for name in ("alone", "together"):
        fetch = f"kind: FilesGlob, path: '{tmp_path / name}/*.txt'"
        polled(workspace, fetch, merge=merge, read=read, **given)
        workspace.rename("cities", name)
        found.append((workspace[name], tmp_path / name))
    return found


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs each job was given."""
    seen: list[int] = []

    def run(session: Any, frame: Any, task: merge_task.MergeTask, **given: Any) -> Any:
        seen.append(len(task.steps))
        return original(session, frame, task, **given)

    original = merge_task.run_in_task
    monkeypatch.setattr(merge_input, "run_in_task", run)
    return seen


@pytest.mark.hypothesis  # a property, though not by that library: `make soak` runs it longer
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 50))])
@pytest.mark.parametrize("kind", MERGES)
def test_the_same_is_recorded(
    workspace: Workspace,
    tmp_path: Path,
    kind: str,
    seed: int,
    jobs: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = random.Random(f"{kind} {seed}")
    if seed % 3 == 0:
        monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 5)
    read = f"kind: NdJson, schema: {schema_of(kind)}"
    (one, there), (other, here) = pair(workspace, tmp_path, MERGES[kind], read)
    texts = inputs(kind, draw, FILES, faults=True)
    options = {
        "allow_retract": draw.random() < 0.8,
        "allow_empty": draw.random() < 0.5,
        "duplicate_keys": draw.choice(["refuse", "first", "last"]),
        "late_edits": draw.choice(["ignore", "warn", "refuse", "correct"]),
    }
    expected = pulled(one, there, texts, 1, **options)
    assert set(jobs) <= {1}
    jobs.clear()
    found = pulled(other, here, texts, draw.choice([3, FILES]), **options)
    assert found == expected
    assert max(jobs) > 1
    assert added(other) == added(one)
    report = other.verify()
    assert report.ok, report.faults


CSV = "kind: Csv, header: true"
FIVE = [ABC.replace("3000", f"300{number}") for number in range(5)]


def write(folder: Path, texts: Iterable[str]) -> None:
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text)


def check_nothing_is_staged(dataset: Dataset) -> None:
    assert [path.name for path in (dataset.path / "staging").iterdir()] == [".lock"]


@pytest.mark.parametrize("merge", [APPEND, LEDGER, SNAPSHOT])
def test_a_column_that_comes_with_the_second_file(
    workspace: Workspace, tmp_path: Path, merge: str, jobs: list[int]
) -> None:
    (one, there), (other, here) = pair(workspace, tmp_path, merge, CSV)
    grown = "city,population,mayor\nA,1000,\nB,2,M\nC,3000,N\n"
    texts = [ABC, grown, ABC.replace("3000", "3"), "city,population\n"]
    for dataset, folder, each in ((one, there, 1), (other, here, 4)):
        jobs.clear()
        said = pulled(dataset, folder, texts, each, allow_empty=True)
        assert len(said) == 4
        assert jobs == ([1] * 4 if each == 1 else [4])
    assert added(other) == added(one)
    assert sum(isinstance(event, ev.SetDataSchema) for event in added(other)) == 2
    assert other.verify().ok


def test_a_guard_refuses_the_third_file(workspace: Workspace, tmp_path: Path, jobs: list[int]) -> None:
    ((dataset, folder), _) = pair(workspace, tmp_path, SNAPSHOT, CSV)
    texts = [ABC, ABC.replace("1", "2"), "city,population\nD,1\n", ABC, ABC]
    said = pulled(dataset, folder, texts, 5, max_retract_ratio=0.5)
    assert "the snapshot would retract 3 of 3 recorded rows" in said[0][1]
    assert jobs[0] == 5, "the guard is asked when the job has ended"
    assert rows(dataset, "op", "city")[:5] == [[0, "A"], [0, "B"], [0, "C"], [2, "A"], [3, "A"]]
    check_nothing_is_staged(dataset)


@pytest.mark.parametrize(
    "bad", ["city,population\nA,x\n", "city,population,mayor\nA,1,B\n", "city,population\nA\n"]
)
def test_the_third_of_five_cannot_be_read(
    workspace: Workspace, tmp_path: Path, bad: str, jobs: list[int]
) -> None:
    read = f'{CSV}, schema: ["city STRING", "population BIGINT"]'
    (one, there), (other, here) = pair(workspace, tmp_path, APPEND, read)
    texts = [ABC, ABC, bad, ABC, ABC]
    expected = pulled(one, there, texts, 1)
    jobs.clear()
    assert pulled(other, here, texts, 5) == expected
    assert "/2.txt" in expected[0][1]
    assert len(jobs) < 5
    assert added(other) == added(one)


def test_another_writer_is_faster_in_the_middle(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[int]
) -> None:
    """What was merged ahead of its block is thrown away, and made anew on the new head."""
    ((dataset, folder), _) = pair(workspace, tmp_path, SNAPSHOT, CSV)
    write(folder, FIVE)
    original, calls = ingesting.commit, []

    def another() -> None:
        state = dataset.summary
        info = ev.SetInfo(description=f"{len(calls)}")
        original(dataset._files, state, [info], [], system_time=state.next_system_time())

    def commit(*given: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) in (2, 5):
            another()
        made = original(*given, **options)
        if len(calls) == 4:
            another()
        return made

    monkeypatch.setattr(ingesting, "commit", commit)
    outcome = dataset.pull(retries=2)
    assert len(outcome.details.inputs) == 5
    assert jobs == [5, 4, 2, 2], "after each block of the other writer"
    assert [row[1] for row in rows(dataset, "op", "population")][-2:] == ["3003", "3004"]
    assert dataset.verify().ok
    check_nothing_is_staged(dataset)


def test_killed_in_the_middle(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are there stay, nothing half done is seen, and the next pull goes on."""
    (one, there), (other, here) = pair(workspace, tmp_path, SNAPSHOT, CSV)
    pulled(one, there, FIVE, 1)
    write(here, FIVE)
    original, calls = ingesting.commit, []

    def commit(*given: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ingesting, "commit", commit)
        with pytest.raises(KeyboardInterrupt):
            other.pull(**TIMES)
    assert added(other) == added(one)[:3], "a schema and two blocks"
    check_nothing_is_staged(other)
    other.pull(**TIMES)
    assert added(other) == added(one)


def test_a_task_takes_what_fits(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[int]
) -> None:
    (one, there), (other, here) = pair(workspace, tmp_path, SNAPSHOT, CSV)
    texts = [*FIVE, ABC.replace("3000", "3005")]
    pulled(one, there, texts, 1)
    jobs.clear()
    with monkeypatch.context() as patched:
        patched.setattr(merge_input, "task_bytes", lambda _: 6 * len(ABC))
        patched.setattr(merge_input, "bytes_of", lambda *_: len(ABC) + 1)
        pulled(other, here, texts[:4], 4)
    assert jobs == [3, 1]
    jobs.clear()
    with monkeypatch.context() as patched:
        for module in (ingesting, merge_input):
            patched.setattr(module, "MOST_INPUTS", 1)
        pulled(other, here, texts, 6)
    assert jobs == [1, 1]
    assert added(other) == added(one)


def test_notes_and_phases_come_in_the_order_of_files(workspace: Workspace, tmp_path: Path) -> None:
    said: list[str] = []

    class Heard(Silent):
        def phase(self, name: str, total: int | None = None) -> None:
            said.append(name)

        def note(self, text: str) -> None:
            said.append(f"note {text}")

    read = f'{CSV}, schema: ["city STRING", "population BIGINT"]'
    ((dataset, folder), _) = pair(workspace, tmp_path, LEDGER, read)
    write(folder, ["population,city\n1,A\n1,A\n"] * 3)
    dataset.pull(progress=Heard())
    said = [text.replace(str(folder), "") for text in said]
    notes = [text for text in said if text.startswith("note")]
    order = "columns are in another order than the schema; matched by name: population, city"
    copies = "rows that are copies of others in every column: 1; each is recorded once"
    known = "rows with a recorded key: 1; they were ignored (--late-edits compares values)"
    told = [(order, copies), (order, known, copies), (order, known, copies)]
    assert notes == [f"note /{n}.txt: {text}" for n in range(3) for text in told[n]]
    merging = [text for text in said if text.startswith(("Merging", "Committing"))]
    assert merging == [text for n in range(3) for text in (f"Merging /{n}.txt", "Committing")]


def test_pushed_files_are_merged_by_one_job(workspace: Workspace, tmp_path: Path, jobs: list[int]) -> None:
    one, other = (workspace.add(manifest(SNAPSHOT, name=name))[0] for name in ("alone", "together"))
    paths = [tmp_path / f"{number}.csv" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_text(ABC.replace("3000", f"300{number}"))
        one.ingest([path], event_time="2049-01-01T00:00:00Z", **TIMES)
    jobs.clear()
    outcome = other.ingest(paths, event_time="2049-01-01T00:00:00Z", **TIMES)
    assert jobs == [4]
    assert [found.offsets for found in outcome.inputs] == [(0, 2), (3, 4), (5, 6), (7, 8)]
    assert added(other) == added(one)
