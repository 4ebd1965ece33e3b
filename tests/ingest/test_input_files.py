"""Inputs that workers read out of a store are the same rows as those that they read by a path."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import OdfchainError
from odfchain.ingest.read_formats import open_input
from odfchain.odf.sources import (
    ReadStep,
    ReadStepCsv,
    ReadStepGeoJson,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from odfchain.spark import executor_files
from odfchain.spark.executor_files import InputFile, files_of, give_files, session_like, text_ranges
from odfchain.spark.input_frames import ROW_ID, InputFrame
from odfchain.spark.plans import FEW_SETTINGS
from odfchain.spark.session import recording_session
from tests.kit.folder_files import FolderFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.spark.session import SparkEngine

MARK = b"\xef\xbb\xbf"


@pytest.fixture(scope="module")
def sessions(engine: SparkEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SparkSession]]:
    """Two for few rows: one whose workers are given paths, and one whose workers get files elsewhere."""
    by_path = session_like(engine.session, FEW_SETTINGS)
    by_store = recording_session(engine.session)
    for key, value in FEW_SETTINGS.items():
        by_store.conf.set(key, value)
    yield [by_path, give_files(by_store, FolderFiles(str(tmp_path_factory.mktemp("store"))))]
    give_files(by_store, None)


@pytest.fixture(autouse=True)
def through_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also small files, which otherwise go within the plan."""
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", -1)


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files go within the plan."""
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", 256 << 10)


def store_of(session: SparkSession) -> Path:
    """The folder that stands for the store."""
    files = files_of(session)
    assert isinstance(files, FolderFiles)
    return Path(files.root)


# --- where records end -----------------------------------------------------------------------------


LINES = [b"a,b", b"", b"\n", b"\r\n", b"\r", b"xyz", "\u00e4".encode(), b" "]


@given(
    st.lists(st.sampled_from(LINES), max_size=30),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_ranges_hold_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], size: int, marked: bool, header: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "ranges"
    path.write_bytes(MARK * marked + b"".join(pieces))
    ranges = text_ranges(InputFile(path), header=header, size=size)
    found = [line for n in range(len(ranges.cuts) - 1) for line in ranges.bytes_of(n).splitlines() if line]
    lines = [line for line in b"".join(pieces).splitlines() if line]
    assert found == lines[header:]


@given(
    st.lists(st.lists(st.text(alphabet='a",\n \u00e4', max_size=4), min_size=2, max_size=2), max_size=8),
    st.integers(1, 40),
    st.booleans(),
)
def test_ranges_hold_each_quoted_record_once(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], size: int, header: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "quoted"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    path.write_bytes(text.getvalue().encode())
    ranges = text_ranges(InputFile(path), quote='"', header=header, size=size)
    parts = [ranges.bytes_of(n).decode() for n in range(len(ranges.cuts) - 1)]
    assert [row for part in parts for row in csv.reader(io.StringIO(part, newline=""))] == rows[header:]


# --- both ways --------------------------------------------------------------------------------------


class Both:
    """An input that is opened by a path, and once more for workers that see nothing but the store."""

    def __init__(self, content: bytes, step: ReadStep, folder: Path, sessions: list[SparkSession]) -> None:
        folder.mkdir()
        self.resources = contextlib.ExitStack()
        (folder / "in").write_bytes(content)
        self.content, self.step = content, step
        self.opened: list[InputFrame | str | None] = []
        self.notes: list[list[str]] = []
        for session in sessions:
            self.notes.append([])
            try:
                given = {"scratch": folder, "note": self.notes[-1].append, "resources": self.resources}
                self.opened.append(open_input(lambda s=session: s, folder / "in", step, **given))  # type: ignore[misc]
            except OdfchainError as error:
                self.opened.append(str(error))

    def schemas(self) -> list[Any]:
        """What each way says of the columns, or why there are none."""
        return [
            opened if isinstance(opened, str) else (notes, opened and opened.schema)
            for opened, notes in zip(self.opened, self.notes, strict=True)
        ]


def rows_of(opened: list[InputFrame]) -> list[list[list[str | None]]]:
    """The rows of each input in the order of their numbers, by one job."""
    from pyspark.sql import functions as F

    frames: list[DataFrame] = []
    for number, each in enumerate(opened):
        names = [F.col(f"`{name}`").cast("string") for name in each.schema.names]
        frames.append(
            each.frame.select(F.lit(number).alias("n"), F.col(ROW_ID).alias("r"), F.array(*names).alias("v"))
        )
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    found: list[list[list[str | None]]] = [[] for _ in opened]
    for row in sorted(whole.collect(), key=lambda row: (row["n"], row["r"])):
        found[row["n"]].append(list(row["v"]))
    return found


def check_both(cases: list[Both]) -> int:
    """Both ways say the same of every input; returns the number of rows."""
    for case in cases:
        one, other = case.schemas()
        assert one == other, case.content
    read = [case for case in cases if all(isinstance(opened, InputFrame) for opened in case.opened)]
    sides = [rows_of([case.opened[side] for case in read]) for side in (0, 1)]  # type: ignore[misc]
    for case, one, other in zip(read, *sides, strict=True):
        assert one == other, (case.content, case.step)
        assert not any(value and "\r" in value for row in one for value in row), case.content
    return sum(len(rows) for rows in sides[0])


DDL = ("a STRING", "b STRING")
NAMED = ReadStepCsv(header=True, ddl_schema=DDL)
CSV = [
    (b"a,b\r\n1,2\r\na,b\r\n\r\n\n3,4", NAMED),  # a record like the header, empty lines, no last line break
    (MARK + b"a,b\r1,\r,2\r", NAMED),
    (MARK + b"a,b\r\n1,2\r\n", NAMED),
    (b"\n\na,b\n1,2\n", NAMED),
    (b'a,b\n"x\n\ny","""q"""\n"\n",\n', NAMED),
    (b'1;"2,5"\n3;\n', ReadStepCsv(separator=";", ddl_schema=DDL)),
    (b'1,x"y\n2,""\n3,NA\n', ReadStepCsv(null_value="NA", ddl_schema=DDL)),
    ("a,b\n\u00e4\u20ac,\U0001f600\n ,\t\n".encode(), NAMED),
    ("a,b\n\u00e4,1\n".encode("latin1"), ReadStepCsv(header=True, encoding="latin1", ddl_schema=DDL)),
    (b"a,b\n'x','y,z'\n", ReadStepCsv(header=True, quote="'", ddl_schema=DDL)),
    (b"a,b\n", NAMED),
    (b"a,b\n", ReadStepCsv(header=True, infer_schema=True)),
    (b"a,b\n1,x\n2.5,\n", ReadStepCsv(header=True, infer_schema=True)),
    (b"a,b\n" + b"12345678,12345678\n" * 2_000, NAMED),
]
JSON = [
    (b'{"a": "1"}\r\n\n {"b": "2", "c": 3}\r{"a": null}', ReadStepNdJson(ddl_schema=DDL)),
    (MARK + b'{"a": "1"}\n' + b'{"a": "x", "b": "y"}\n' * 1_000, ReadStepNdJson(ddl_schema=DDL)),
    (b'{"a": 1}\n{"b": [1.5]}\n', ReadStepNdJson()),
    (b'[{"a": "1"}, {"b": "2"}]', ReadStepJson(ddl_schema=DDL)),
    (
        b'{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"a": 1}, "geometry": null}]}',
        ReadStepGeoJson(ddl_schema=("a STRING", "geometry STRING")),
    ),
]


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some lines have several ranges, and tasks."""
    monkeypatch.setattr(executor_files, "RANGE_BYTES", 3_000)


def check_files(
    files: list[tuple[bytes, ReadStep]], folder: Path, sessions: list[SparkSession], rows: int
) -> None:
    """Both ways give so many rows, and what was put into the store for them, if it was, is gone at the end."""
    cases = [Both(content, step, folder / str(n), sessions) for n, (content, step) in enumerate(files)]
    assert check_both(cases) == rows
    assert not any(isinstance(opened, str) for case in cases for opened in case.opened)
    store = store_of(sessions[1])
    assert bool(list(store.rglob("input-*"))) == (executor_files.CARRIED_BYTES < 0)
    for case in cases:
        case.resources.close()
    assert not list(store.rglob("input-*"))


def test_the_same_rows_in_the_same_order(sessions: list[SparkSession], tmp_path: Path) -> None:
    check_files([CSV[0], CSV[2], CSV[4], JSON[0]], tmp_path, sessions, 9)


def parquet_file() -> tuple[bytes, ReadStep]:
    parquet = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": list("xyz"), "b": [1, None, 3]}), parquet, row_group_size=1)
    return parquet.getvalue().to_pybytes(), ReadStepParquet(ddl_schema=("a STRING", "b INT"))


@pytest.mark.usefixtures("carried")
def test_the_same_rows_within_the_plan(sessions: list[SparkSession], tmp_path: Path) -> None:
    check_files([CSV[4], JSON[3], parquet_file()], tmp_path, sessions, 7)


@pytest.mark.soak
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("way", ["through_the_store", "carried"])
def test_every_kind_of_file(
    sessions: list[SparkSession], tmp_path: Path, way: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(way)
    check_files([*CSV, *JSON, parquet_file()], tmp_path, sessions, 3_032)


def made_text(rng: random.Random, separator: str) -> bytes:
    """A text of two columns: mostly regular, with all that readers treat in ways of their own."""
    fields = [
        "", "a", "1", "2.5", "x y", " ", "\t", '"q"', '""', '"a\nb"', '"\n\n"', '"x""y"', 'x"y', "\u00e4", "a\\b", "NA",
    ]  # fmt: skip
    fields = [field for field in fields if separator not in field]
    breaks = rng.choice([["\n"], ["\r\n"], ["\r"], ["\n", "\r\n", "\n\n", "\r"]])
    lines = [separator.join(rng.choices(fields, k=2)) + rng.choice(breaks) for _ in range(rng.randrange(40))]
    text = "".join(["a" + separator + "b" + rng.choice(breaks), *lines])
    return MARK * (rng.random() < 0.2) + text.rstrip("\r\n" * (rng.random() < 0.5)).encode()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("ODFCHAIN_SEEDS", "4"))))
def test_made_files_both_ways(
    sessions: list[SparkSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(executor_files, "RANGE_BYTES", rng.choice([20, 100, 1_000]))
    cases = []
    for n in range(40):
        separator = rng.choice([",", ",", ";", "\t"])
        null = rng.choice([None, "NA"])
        step: ReadStep = ReadStepCsv(header=True, separator=separator, null_value=null, ddl_schema=DDL)
        cases.append(Both(made_text(rng, separator), step, tmp_path / str(n), sessions))
    for n in range(20):
        lines = rng.choices(['{"a": "1"}', "", " ", '{"b": "\u00e4"}', '{"a": null, "b": "x"}'], k=30)
        text = MARK * (n % 3 == 0) + rng.choice(["\n", "\r\n", "\r"]).join(lines).encode()
        cases.append(Both(text, ReadStepNdJson(ddl_schema=DDL), tmp_path / f"j{n}", sessions))
    assert check_both(cases) > 300
