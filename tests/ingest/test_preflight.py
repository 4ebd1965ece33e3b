"""The first look at a text file, beside a slow and obvious one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import BadInputError
from odfchain.ingest import read_csv
from odfchain.ingest.read_csv import LONGEST_SHORT_LINE, CsvDialect, scan_text

PIECES = st.lists(
    st.sampled_from([b"a", b"b,c", b'"', b'""', b"\n", b"\r\n", b"\t", b"\x7f", b"\x01", "é".encode(), b" ", b";"]),
    max_size=24,
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("preflight") / "in.csv"


@pytest.fixture(scope="module", autouse=True)
def _small_chunks() -> object:
    """Everything happens at the seams of chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_csv, "_CHUNK", 3)
        yield


@given(pieces=PIECES, separator=st.sampled_from([",", "\t", ";"]))
def test_only_files_without_controls_are_plain(path: Path, pieces: list[bytes], separator: str) -> None:
    data = b"".join(pieces)
    path.write_bytes(data)
    found = scan_text(path, csv=CsvDialect(separator))
    outside = re.sub(rb'"[^"]*"', b"", data) if data.count(b'"') % 2 == 0 else data
    allowed = b"\r\n" + separator.encode()
    controls = any(byte in (*range(32), 127) and byte not in allowed for byte in data)
    quoted_separator = separator == "\t" and b'"' in data
    spans = b"\n" in data and len(outside) < len(data) and outside.count(b"\n") < data.count(b"\n")
    if controls or quoted_separator or spans:
        assert not found.plain
    elif data.count(b'"') % 2 == 0 and b"\\" not in data:
        assert found.plain


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


def test_other_encodings_are_never_plain(path: Path) -> None:
    path.write_bytes(b"a\x85b\n")
    assert not scan_text(path, encoding="cp037").plain


@pytest.mark.parametrize("before", range(4))
def test_a_broken_byte_is_found_at_every_place_of_a_chunk(path: Path, before: int) -> None:
    path.write_bytes(b"x" * before + b"\n\xc3abc\n")
    with pytest.raises(BadInputError, match="line 2: byte 0xc3 is not valid utf-8"):
        scan_text(path)
