"""The engine answers the shared cases, and in the same way wherever and however it is run."""

from __future__ import annotations

import copy
import datetime as dt
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.errors import EngineError, QueryError
from odfchain.odf.engine_messages import TransformRequest
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT
from odfchain.spark.session import SparkEngine
from odfchain.transform.engine_protocol import EngineServer, RemoteEngine
from odfchain.transform.engines import Executed
from odfchain.transform.spark_engine import SparkTransformEngine
from tests.kit import case_process
from tests.kit.support import IMPORTABLE, ROOT, conformance
from tests.kit.transform_cases import (
    AT_ONCE,
    SIGNED,
    UNSIGNED,
    Case,
    RawCase,
    UnknownKeyError,
    all_cases,
    all_raw_cases,
    rows_expected,
)

DEVIATIONS = {
    "temporal_table_join": "rows of one event time are ordered by the columns from left to right, and not as "
    "they came (RFC-019)"
}
"""Cases that are answered otherwise, on purpose."""

PATIENCE = 600


def rows_of(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def by_time(rows: list[dict[str, Any]], event_time: str) -> list[dict[str, Any]]:
    def order(row: dict[str, Any]) -> list[str]:
        return [row[event_time].isoformat(), *(repr(v) for k, v in row.items() if k != "offset")]

    ordered = sorted(rows, key=order)
    offsets = sorted(row["offset"] for row in rows)
    return [row | {"offset": offset} for row, offset in zip(ordered, offsets, strict=True)]


def check_step(case: Case, number: int, request: TransformRequest, executed: Executed) -> bool:
    """A step brought what is expected; returns whether the rows are in the expected order."""
    schema = pq.read_schema(request.new_data_path)
    expected, got = rows_expected(case, number, schema), rows_of(request.new_data_path)
    if case.id in DEVIATIONS:
        event_time = case.vocabulary.event_time_column
        assert by_time(got, event_time) == by_time(expected, event_time)
    else:
        assert got == expected
    wanted = case.expected(number)
    assert schema.names[:4] == list(case.vocabulary.columns)
    if "output_columns" in wanted:
        assert schema.names == wanted["output_columns"]
    interval = executed.offset_interval
    assert (None if interval is None else [interval.start, interval.end]) == wanted["offset_interval"]
    assert (executed.facts.rows if executed.facts else 0) == len(expected)
    if "watermark" in wanted and "watermark_note" not in wanted:
        text = wanted["watermark"]
        assert executed.watermark == (None if text is None else Timestamp.parse(text))
    return got == expected


class Answers:
    """What the session of the run answers to each case; every case is executed once."""

    def __init__(self, engine: SparkTransformEngine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self._found: dict[str, list[tuple[TransformRequest, Executed | Exception]]] = {}

    def of(self, case: Case) -> list[tuple[TransformRequest, Executed | Exception]]:
        """The requests of a case, and for each what was executed or raised."""
        if case.id not in self._found:
            folder = self._folder / case.id
            folder.mkdir()
            self._found[case.id] = [self._step(case, number, folder) for number in range(case.steps)]
        return self._found[case.id]

    def _step(self, case: Case, number: int, folder: Path) -> tuple[TransformRequest, Executed | Exception]:
        request = case.request(number, folder, SIGNED)
        try:
            return request, self._engine.execute(request, schema=None, progress=SILENT)
        except Exception as error:
            return request, error
        finally:
            assert not list(folder.glob("step-*"))


@pytest.fixture(scope="module")
def answers(transforms: SparkTransformEngine, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(transforms, tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_a_case_gives_the_expected_rows_offsets_and_watermarks(answers: Answers, case: Case) -> None:
    in_order = True
    for number, (request, answer) in enumerate(answers.of(case)):
        if case.fails(number):
            assert isinstance(answer, QueryError)
            assert "\n" not in str(answer)
            assert not Path(request.new_data_path).exists()
            assert not Path(request.new_checkpoint_path).exists()
        else:
            assert isinstance(answer, Executed), answer
            in_order = check_step(case, number, request, answer) and in_order
    assert in_order == (case.id not in DEVIATIONS), "a deviation that is none is to be removed"


def test_deviations_are_of_cases_that_exist() -> None:
    assert {*DEVIATIONS, *AT_ONCE} <= {case.id for case in all_cases()}
    text = (ROOT / "rfcs" / "019-derivatives.md").read_text(encoding="utf-8")
    assert [name for name in (*DEVIATIONS, *AT_ONCE) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("case", all_raw_cases(), ids=lambda case: case.id)
def test_a_raw_query_gives_the_expected_records(
    transforms: SparkTransformEngine, case: RawCase, tmp_path: Path
) -> None:
    request, result = case.request(tmp_path), tmp_path / "result"
    before = set(tmp_path.iterdir())
    if "error" in case.expected:
        with pytest.raises((QueryError, EngineError)):
            transforms.query(request, progress=SILENT)
        assert set(tmp_path.iterdir()) == before
        return
    count = transforms.query(request, progress=SILENT)
    assert set(tmp_path.iterdir()) == {*before, result}
    assert result.is_file()
    rows = rows_of(str(result))
    assert count == len(rows) == case.expected.get("num_records", count)
    assert rows == case.expected.get("rows", rows)
    assert len([p for p in tmp_path.iterdir() if p not in before]) == case.expected.get("files", 1)


STEPS = range(case_process.last_step() + 1)
EVERY = 9
"""Every ninth case is done in other ways as well; `make soak` does all."""

Hashes = dict[tuple[str, int], list[str]]
"""Of the files that the steps of the cases made."""


def in_other_processes(folder: Path, master: str, *, fresh: bool) -> Hashes:
    """The answers of another process; or of as many as there are steps, for the cases that have several."""
    (folder / "spark").mkdir(parents=True)
    options = ["--master", master, "--every", "1"]
    script = [sys.executable, "-m", case_process.__name__, str(folder), *options]
    for which in [["--step", str(step)] for step in STEPS] if fresh else [[]]:
        done = subprocess.run(
            [*script, *which],
            env=IMPORTABLE, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
    return {
        (case, number): hashes
        for number in STEPS
        for case, hashes in json.loads((folder / f"answers-{number}.json").read_text()).items()
    }


@pytest.fixture(scope="module")
def here(answers: Answers) -> Hashes:
    """Hashes by case and step: one process, four cores, plans interpreted, signed system columns."""
    return {
        (case.id, number): case_process.hashes_of(request)
        for case in case_process.runnable()
        for number, (request, _) in enumerate(answers.of(case))
    }


def check_same(here: Hashes, there: Hashes, asked: set[str]) -> None:
    assert there.keys() == {key for key in here if key[0] in asked} != set()
    assert {key: found for key, found in there.items() if found != here[key]} == {}


@pytest.mark.soak
@pytest.mark.parametrize(("cores", "fresh"), [(1, False), (1, True), (4, True)])
def test_cores_and_processes_make_no_difference(
    here: Hashes, tmp_path: Path, cores: int, fresh: bool
) -> None:
    there = in_other_processes(tmp_path, f"local[{cores}]", fresh=fresh)
    check_same(here, there, {case.id for case in case_process.runnable() if case.steps > 1 or not fresh})


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.soak)])
def test_compiled_plans_other_integer_types_and_the_engine_contract_give_the_same(
    engine: SparkEngine, here: Hashes, tmp_path: Path, every: int
) -> None:
    compiling = SparkTransformEngine(lambda: engine.session, small_rows=-1)
    with tempfile.TemporaryDirectory() as short, EngineServer(compiling, socket=Path(short) / "s") as server:
        remote = RemoteEngine(server.address)
        there: Hashes = {}
        for step in STEPS:
            found = case_process.hashes_of_step(remote, step, tmp_path, UNSIGNED, every=every)
            there |= {(case, step): hashes for case, hashes in found.items()}
    check_same(here, there, {case.id for case in case_process.runnable(every)})


@pytest.mark.parametrize(
    "change",
    [
        lambda case: case.update(extra=1),
        lambda case: case.pop("queries"),
        lambda case: case["queries"][0].update(dialect="x"),
        lambda case: case["inputs"]["readings"].update(vocab={}),
        lambda case: case["steps"][0].update(repeat=2),
        lambda case: case["steps"][0]["inputs"]["readings"].update(changes=[]),
        lambda case: case["steps"][0]["inputs"].update(other={}),
        lambda case: case["steps"][0]["expect"].update(checkpoint="none"),
        lambda case: case["steps"][0]["expect"].update(error="Other"),
        lambda case: case["inputs"]["readings"]["columns"].update(sensor="VARIANT"),
        lambda case: case["steps"][0]["inputs"]["readings"]["files"][0][0].update(unknown=1),
        lambda case: case["steps"][0]["inputs"]["readings"]["files"][0][0].pop("offset"),
    ],
)
def test_what_a_case_says_in_an_unknown_way_is_an_error(
    change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    case = copy.deepcopy(conformance("transform_cases")["transform_cases"][0])
    change(case)
    with pytest.raises(UnknownKeyError):
        Case(case).request(0, tmp_path)


def test_rows_are_compared_with_all_their_columns_and_in_their_order() -> None:
    case = all_cases()[0]
    columns = list(case.expected(0)["rows"][0])
    with pytest.raises(UnknownKeyError):
        rows_expected(case, 0, pa.schema([(name, pa.string()) for name in reversed(columns)]))
    one = {"offset": 1, "t": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "x": 2}
    other = {"offset": 2, "t": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "x": 1}
    assert by_time([one, other], "t") == [other | {"offset": 1}, one | {"offset": 2}]
