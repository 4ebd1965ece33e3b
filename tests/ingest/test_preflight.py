"""The first look at a text file, beside a slow and obvious one."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfchain.errors import BadInputError
from odfchain.ingest import read_csv
from odfchain.ingest.read_csv import LONGEST_SHORT_LINE, scan_text


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("preflight") / "in.csv"


@pytest.fixture(scope="module", autouse=True)
def _small_chunks() -> object:
    """Everything happens at the seams of chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_csv, "_CHUNK", 3)
        yield


@pytest.mark.parametrize("chunk", [3, 1_000, 4_096, 4_097, 1 << 20])
@pytest.mark.parametrize(
    ("lengths", "long"),
    [
        ([LONGEST_SHORT_LINE], False),
        ([LONGEST_SHORT_LINE + 1], True),
        ([5, LONGEST_SHORT_LINE, 0, 7], False),
        ([LONGEST_SHORT_LINE - 1, LONGEST_SHORT_LINE + 1, 3], True),
        ([1] * 9_000, False),
        ([], False),
    ],
)
def test_long_lines(
    path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, lengths: list[int], long: bool
) -> None:
    monkeypatch.setattr(read_csv, "_CHUNK", chunk)
    path.write_bytes(b"\n".join(b"x" * n for n in lengths))
    assert scan_text(path).long_lines is long


@pytest.mark.parametrize("before", range(4))
def test_a_broken_byte_is_found_at_every_place_of_a_chunk(path: Path, before: int) -> None:
    path.write_bytes(b"x" * before + b"\n\xc3abc\n")
    with pytest.raises(BadInputError, match="line 2: byte 0xc3 is not valid utf-8"):
        scan_text(path)
