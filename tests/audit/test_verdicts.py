"""What `odfchain verify` prints: lines for programs, tables for people, a page, and what it wants to be told."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from odfchain.audit.report import CHECKS
from odfchain.chain.signed_heads import HEAD_SIGNATURE_KEY
from odfchain.cli.main import main
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.derived_dataset import Made
from tests.kit.support import Run

Show = Callable[..., list[str]]


@pytest.fixture
def in_terminal(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> Show:
    """The lines that a terminal of some width shows of `odfchain verify`."""

    def run(*args: object, width: int = 80) -> list[str]:
        terminal, side = os.openpty()
        shown = bytearray()

        def read() -> None:
            try:
                while data := os.read(terminal, 1 << 16):
                    shown.extend(data)
            except OSError:
                return  # nobody writes any more

        reader = threading.Thread(target=read)
        reader.start()
        with monkeypatch.context() as patch, os.fdopen(side, "w", encoding="utf-8") as out:
            patch.setenv("COLUMNS", str(width))
            patch.setenv("TERM", "xterm")
            patch.setattr(sys, "stdout", out)
            main(["-w", str(tmp_path), "verify", *map(str, args)])
        reader.join()
        os.close(terminal)
        lines = [click.unstyle(line).rstrip() for line in shown.decode().splitlines()]
        # what is copied stays whole: a path, a message about it, an id
        assert (
            max(len(line) for line in lines if not line.startswith("    ") and "did:odf" not in line) <= width
        )
        return lines

    return run


def slice_file(dataset: DatasetFiles) -> Path:
    return Path(dataset.data.locate(DatasetState.read(dataset.chain).slices()[0].slice.physical_hash))


def test_lines_tell_faults_first_and_what_was_not_checked(verify: Run, made: Made) -> None:
    lines = verify("copied").out.splitlines()
    assert lines[0].startswith("ok    copied")
    said = (
        "  not run, or not everywhere: check 15 (replayed transformations): it was not asked for (--replay)"
    )
    assert said in lines
    assert not any(line.startswith(" 1 head reference ") for line in lines)
    assert any(line.startswith(" 1 head reference ") for line in verify("copied", "-v").out.splitlines())
    path = slice_file(made[0])
    path.unlink()
    lines = verify("%").out.splitlines()
    assert lines[0].startswith("FAULT readings")
    assert lines[1:4] == [
        "  check 5 (files present, sizes), block 2",
        f"    {path}",
        "    the slice is missing: no such object",
    ]


def test_in_a_terminal_what_is_clean_is_short(in_terminal: Show, made: Made) -> None:
    lines = in_terminal("readings", width=130)
    assert lines[0].startswith("ok    readings: 4 blocks, 2 slices, 6 records, ")
    assert lines[1].startswith("  signed at ")
    assert lines[1].endswith(f" by {made[0].id}")
    assert len(lines) == 2
    lines = in_terminal("copied", width=130)
    said = "not run, or not everywhere: check 15 (replayed transformations): it was not asked for (--replay)"
    assert lines[1] == f"  {said}"
    assert lines[2].startswith("  signed at ")
    assert len(lines) == 3


def test_in_a_terminal_all_checks_are_a_table_where_they_are_asked_for(in_terminal: Show) -> None:
    lines = in_terminal("readings", "--verbose", width=130)
    head = next(n for n, line in enumerate(lines) if line.startswith("check "))
    assert lines[head].split() == ["check", "state", "checked", "faults", "section"]
    table = lines[head + 1 : head + 1 + len(CHECKS)]
    assert [int(line[:2]) for line in table] == list(CHECKS)
    assert "10 corrections, retractions" in table[9]
    assert table[1].split() == ["2", "block", "bytes", "passed", "4", "0", "Metadata", "Block", "Hashing"]


@pytest.mark.parametrize("width", [80, 120])
def test_in_a_terminal_faults_come_first_and_names_fold(in_terminal: Show, made: Made, width: int) -> None:
    path = slice_file(made[0])
    path.unlink()
    lines = in_terminal("%", width=width)
    assert lines[0].startswith("FAULT readings: ")
    assert lines[1:4] == [
        "  check 5 (files present, sizes), block 2",
        f"    {path}",
        "    the slice is missing: no such object",
    ]
    assert any(line.startswith("check ") for line in lines)
    assert any(line.startswith("  not run, or not everywhere") for line in lines)
    assert sum(line.startswith("ok    copied") for line in lines) == 1


def test_in_a_terminal_the_signature_is_told_in_a_line(in_terminal: Show, made: Made) -> None:
    path = made[0].folder / HEAD_SIGNATURE_KEY
    path.unlink()
    lines = in_terminal("readings")
    assert lines[1:] == ["  unsigned commits since block 0: there is no signature, or it was stripped"]
    path.write_text("nonsense\n")
    assert any(line.startswith("  invalid signature: ") for line in in_terminal("readings"))
    (made[0].folder / "refs" / "head").unlink()
    assert "  signature not checked: there is no chain that could be read" in in_terminal("readings")


def test_a_report_is_a_page_as_well_in_utf_8_whatever_the_locale_is(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    with page.open("w", encoding="ascii") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert main(["-w", str(tmp_path), "verify", "%", "-o", "html"]) == 0
    text = page.read_bytes().decode("utf-8")
    assert text.lower().startswith("<!doctype html>")
    assert "<title>Clean" in text
    assert str(made[0].id) in text
    assert not text.isascii()


def test_what_is_to_be_verified_has_to_be_said(verify: Run, made: Made) -> None:
    result = verify()
    assert (result.code, "`odfchain verify %`" in result.err) == (2, True)
    assert verify("readings", "--remote", made[0].folder.as_uri()).code == 2
    assert verify("copied", "--integrity").code == 0
    assert verify("copied", "--integrity", "--replay").code == 2
