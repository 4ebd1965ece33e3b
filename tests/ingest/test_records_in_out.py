"""Records in are records out, or the file is refused: every input format, on changed pieces of real files.

What is read is compared with an oracle that shares no code with the reader (`mutations`). A file that the
oracle refuses has to be refused here as well. Refusals are of the kind that says what is wrong with the file.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odfchain.errors import BadInputError, OdfchainError
from odfchain.ingest.read_formats import open_input
from odfchain.odf.sources import ReadStepCsv, ReadStepNdGeoJson, ReadStepNdJson, ReadStepParquet
from odfchain.spark import json_pieces
from odfchain.spark.documents import DocumentInputError, document_error, record_batches
from odfchain.spark.input_frames import ROW_ID, InputFrame, first_bad_row
from odfchain.spark.jobs import explain
from tests.kit.mutations import Case, data_folder, mutations, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from odfchain.spark.session import SparkEngine

QUICK = {"csv": 90, "ndjson": 60, "json": 45, "geojson": 30, "ndgeojson": 30, "parquet": 20, "shapefile": 25}
assert sum(QUICK.values()) == 300
LONG = {name: count * 34 for name, count in QUICK.items()}
assert sum(LONG.values()) >= 10_000
AT_ONCE = 45
"""Files whose records are collected by one Spark job."""


class Trial:
    """One changed file on its way through the reader."""

    def __init__(self, case: Case, folder: Path, engine: SparkEngine) -> None:
        self.case = case
        self.frame: InputFrame | None = None
        self.found: list[list[Any]] | OdfchainError | None = None
        folder.mkdir()
        (folder / "in").write_bytes(case.content)
        try:
            self.frame = open_input(lambda: engine.session, folder / "in", case.step, scratch=folder)
            if self.frame is None:
                self.found = []
        except OdfchainError as error:
            self.found = error

    def blame(self, error: Exception) -> None:
        """What the writer would say after the job has failed."""
        assert self.frame is not None
        self.found = first_bad_row(self.frame, frozenset()) or explain(error)

    def malformed(self) -> OdfchainError | None:
        """What is wrong with the form of the file."""
        assert self.frame is not None
        assert self.frame.malformed is not None
        return self.frame.malformed()


def union(frames: list[DataFrame]) -> DataFrame:
    """All rows of all frames; by halves, because Spark analyses every step of a union anew."""
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return union(frames[:middle]).unionAll(union(frames[middle:]))


def collect(trials: list[Trial]) -> None:
    """Run all that were opened in one job; halves of it where that fails."""
    from pyspark.sql import functions as F

    waiting = [t for t in trials if t.found is None]
    if not waiting:
        return
    frames = []
    for number, trial in enumerate(waiting):
        assert trial.frame is not None
        names = trial.frame.schema.names
        texts = F.array(*[F.col(f"`{n}`").cast("string") for n in names])
        valid = F.forall(texts, lambda text: text.isNull() | F.is_valid_utf8(text))
        frames.append(
            trial.frame.frame.select(
                F.lit(number).alias("n"), F.col(ROW_ID).alias("r"), texts.alias("v"), valid.alias("ok")
            )
        )
    try:
        rows = union(frames).collect()
    except Exception as error:
        if len(waiting) == 1:
            waiting[0].blame(error)
            return
        middle = len(waiting) // 2
        collect(waiting[:middle])
        collect(waiting[middle:])
        return
    for trial in waiting:
        trial.found = []
    for row in sorted(rows, key=lambda row: (row["n"], row["r"])):
        found = waiting[row["n"]].found
        if not row["ok"]:  # by the writer: tests/slices/test_values.py
            waiting[row["n"]].found = BadInputError("a text is not UTF-8")
        elif isinstance(found, list):
            found.append(list(row["v"]))


def foresee(trial: Trial, folder: Path) -> None:
    """Refuse what the workers' own code refuses, here and without Spark: this spares the halving of jobs."""
    from odfchain.ingest.read_formats import declared_schema, record_source

    if trial.found is not None or isinstance(trial.case.step, ReadStepParquet):
        return
    if isinstance(trial.case.step, ReadStepCsv):
        # it is Spark that has to notice the number of fields: every eighth time it is asked
        wrong = trial.malformed()
        if wrong is not None and len(trial.case.content) % 8 == 0:
            collect([trial])
        else:
            trial.found = wrong
    elif isinstance(trial.case.step, ReadStepNdJson | ReadStepNdGeoJson):
        trial.found = trial.malformed()
    else:
        schema = declared_schema(trial.case.step)
        source, _ = record_source(folder / "in", trial.case.step, schema, folder)
        assert schema is not None
        try:
            for _ in record_batches(source.records(), schema.fields):
                pass
        except DocumentInputError as error:
            trial.found = document_error(error, "in")


def verdict(trial: Trial) -> str:
    """What became of a file: `read`, `refused`, or what is wrong."""
    expected, found = trial.case.expected(), trial.found
    if isinstance(found, OdfchainError):
        kind = "refused" if isinstance(found, BadInputError) else f"{type(found).__name__}: {found}"
        return kind if len(str(found).splitlines()) == 1 else f"several lines: {found}"
    assert found is not None
    if expected is None:
        return f"read, but the oracle refuses it: {found!r:.300}"
    if len(found) != len(expected):
        return f"{len(expected)} records in, {len(found)} out"
    for row, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if len(ours) != len(theirs) or not all(map(same, ours, theirs)):
            return f"record {row + 1}: {ours!r:.300} instead of {theirs!r:.300}"
    return "read"


def run(
    kind: str, count: int, seed: int, tmp_path: Path, engine: SparkEngine, folder: Path | None = None
) -> Counter[str]:
    """The verdicts on so many files; a wrong one fails with the file."""
    verdicts: Counter[str] = Counter()
    cases = mutations(kind, count, seed, folder)
    for start in range(0, count, AT_ONCE):
        trials = []
        for number, case in enumerate(cases[start : start + AT_ONCE], start):
            trials.append(Trial(case, tmp_path / f"{seed}-{number}", engine))
            foresee(trials[-1], tmp_path / f"{seed}-{number}")
        collect(trials)
        for trial in trials:
            found = verdict(trial)
            verdicts["read" if found == "read" else "refused" if found == "refused" else "wrong"] += 1
            if found not in ("read", "refused"):
                _report(kind, trial.case, found)
    return verdicts


WRONG: list[str] = []


def _report(kind: str, case: Case, found: str) -> None:
    WRONG.append(f"{kind} from {case.name}: {found}\n    {case.step}\n    {case.content!r:.3000}")


@pytest.mark.parametrize("kind", QUICK)
def test_records_in_are_records_out_or_a_refusal(kind: str, tmp_path: Path, engine: SparkEngine) -> None:
    WRONG.clear()
    verdicts = run(kind, QUICK[kind], 1, tmp_path, engine)
    assert not WRONG, "\n".join(WRONG)
    assert verdicts["read"] >= QUICK[kind] // 12, "enough of the changed files are still files"
    assert verdicts["refused"] >= QUICK[kind] // 12


@pytest.mark.parametrize("kind", ["json", "geojson"])
def test_documents_in_pieces_as_well(
    kind: str, tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_pieces, "SMALL", 0)
    monkeypatch.setattr(json_pieces, "PIECE", 40)
    WRONG.clear()
    verdicts = run(kind, 20, 3, tmp_path, engine)
    assert not WRONG, "\n".join(WRONG)
    assert verdicts["read"] > 1


@pytest.mark.soak
@pytest.mark.parametrize("kind", LONG)
def test_ten_thousand_of_them(kind: str, tmp_path: Path, engine: SparkEngine) -> None:
    """Over the files of the fixtures, and over those of `data_folder` where there is one; says which."""
    WRONG.clear()
    folder = data_folder()
    print(f"{kind}: real files from fixtures/data{f' and {folder}' if folder else ' only'}")
    verdicts = run(kind, LONG[kind], int(os.environ.get("ODFCHAIN_TEST_SEED", "2")), tmp_path, engine, folder)
    print(f"{kind}: {dict(verdicts)}")
    assert not WRONG, "\n".join(WRONG)
