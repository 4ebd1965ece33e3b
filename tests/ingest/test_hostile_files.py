"""The archives and texts of `fixtures/hostile`: each is refused in one line, soon, with little memory and disk."""

from __future__ import annotations

import contextlib
import re
import runpy
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.errors import BadInputError, OdfchainError
from odfchain.ingest.prepare import prepare
from odfchain.ingest.read_formats import open_input
from odfchain.odf.enums import CompressionFormat
from odfchain.odf.sources import (
    PrepStepDecompress,
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepNdJson,
)
from odfchain.progress import SILENT
from odfchain.spark.documents import DocumentInputError, LineFile, record_batches
from odfchain.spark.json_values import JsonArray, parse_object
from odfchain.spark.shapefile import ShapefileLayer
from tests.kit.support import FIXTURES, no_session

MADE = runpy.run_path(str(FIXTURES / "hostile" / "make.py"))["MADE"]
SOON = 30
"""Seconds that a refusal may take on a machine that does other things as well."""

UNPACKED = {
    "zeros.zip": "more than 1,000 times",
    "zeros.csv.gz": "more than 1,000 times",
    "overlapping.zip": "the archive has 200 files",
    "many.zip": "20,000 members in the archive, at most 10,000 are read",
    "paths.zip": "the archive has 3 files",
    "lying.zip": "the zip archive is corrupt",
}
READ: dict[str, tuple[ReadStep, str]] = {
    "wide.csv": (ReadStepCsv(header=True), "300,000 columns (c0, c1, c2, …), at most 10,000 are read"),
    "open-quote.csv": (
        ReadStepCsv(header=True),
        "line 2: a quoted field that begins here has more than 64 MiB",
    ),
    "one-line.ndjson": (ReadStepNdJson(), "line 1 has more than 64 MiB"),
    "many.zip": (ReadStepEsriShapefile(), "20,000 members in the archive, at most 10,000 are read"),
}
BY_WORKERS = {
    "zeros.shp.zip": "unpacks to more than 1,000 times its size",
    "deep.json": "nested more than 200 levels deep",
    "digits.json": "a number of more than 1,000 digits",
    "deep.ndjson": "line 1: nested more than 200 levels deep",
    "wide.ndjson": "line 1: 300,000 keys, at most 10,000 are read",
}
ELSEWHERE = {"nested.zip": "one level is unpacked", "widening.csv": "Spark reads it"}
assert {*UNPACKED, *READ, *BY_WORKERS, *ELSEWHERE} == set(MADE)


def put(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.write_bytes(MADE[name]())
    return path


def unpack(source: Path, folder: Path, sub_path: str | None = None) -> Path:
    folder.mkdir(parents=True)
    kind = CompressionFormat.GZIP if source.suffix == ".gz" else CompressionFormat.ZIP
    step = PrepStepDecompress(format=kind, sub_path=sub_path)
    return prepare([step], source, folder, name="x", progress=SILENT)


@contextlib.contextmanager
def refused_soon(error: type[Exception], message: str, *, whole: bool = False) -> Iterator[None]:
    """With these words, which the message begins with where they are all of it."""
    began = time.monotonic()
    with pytest.raises(error, match="^" * whole + re.escape(message)):
        yield
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("name", UNPACKED)
def test_unpacking(tmp_path: Path, name: str) -> None:
    source, folder = put(tmp_path, name), tmp_path / "run"
    with refused_soon(OdfchainError, UNPACKED[name]):
        unpack(source, folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("sub_path", ["../../escaped.csv", "/etc/escaped.csv", "**/escaped.csv"])
def test_the_name_of_a_member_is_never_a_path(tmp_path: Path, sub_path: str) -> None:
    folder = tmp_path / "a" / "b" / "run"
    try:
        assert unpack(put(tmp_path, "paths.zip"), folder, sub_path).parent == folder
    except OdfchainError as error:
        assert "matches 2 files" in str(error)
    assert not list(tmp_path.rglob("escaped.csv"))


def test_one_level_is_unpacked(tmp_path: Path) -> None:
    assert unpack(put(tmp_path, "nested.zip"), tmp_path / "run").stat().st_size < 100_000


@pytest.mark.parametrize("name", READ)
def test_reading(tmp_path: Path, name: str) -> None:
    step, message = READ[name]
    path = put(tmp_path, name)
    with refused_soon(BadInputError, f"{path}: {message}", whole=True):
        open_input(no_session, path, step, scratch=tmp_path)


@pytest.mark.parametrize("name", BY_WORKERS)
def test_what_workers_refuse(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, name)
    with refused_soon(OdfchainError if name.endswith(".ndjson") else DocumentInputError, BY_WORKERS[name]):
        if name.endswith(".ndjson"):
            raise LineFile(path, parse_object).first_bad(None, "f")
        layer = (
            ShapefileLayer.find(path, None, tmp_path)[0] if name.endswith(".zip") else JsonArray(str(path))
        )
        list(record_batches(layer.records()))
