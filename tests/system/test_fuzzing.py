"""Readers of foreign bytes: what broke one stays mended, and mutations of kept inputs break none.

`tests.kit.foreign_bytes` has the readers, and `tests.kit.fuzzing` makes the inputs. `make soak PROFILE=long` follows
coverage where atheris is installed.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.errors import CodecError
from tests.kit.foreign_bytes import READERS, ForeignReader
from tests.kit.fuzzing import (
    SECONDS,
    Judge,
    begin_with,
    campaign,
    coverage_is_here,
    kept_corpus,
    known_faults,
    random_inputs,
)  # fmt: skip
from tests.kit.run_length import scaled

Record = Callable[[str, object], None]
AT_ONCE = 0.1
"""What a document may take [s of the processor]."""


@pytest.mark.parametrize("name", READERS)
def test_no_kept_input_breaks_its_reader(name: str, record_property: Record) -> None:
    reader = READERS[name]
    judge = Judge(reader)
    inputs = begin_with(reader)
    for data in inputs[:10]:
        judge.judge(data)  # what only the first needs is loaded
    assert [found for data in inputs if (found := judge.judge(data)) is not None] == []
    assert [found for data in inputs[::7] if (found := judge.judge(data, memory=True)) is not None] == []
    record_property("inputs", len(inputs))


def test_each_fault_is_of_a_reader_that_is_there() -> None:
    assert {each.reader for each in known_faults()} <= READERS.keys()
    # a profile has no inputs yet that reached something new
    assert {name for name in READERS if not kept_corpus(name)} == {"profile"}


def test_mutations_break_no_reader(tmp_path: Path, record_property: Record) -> None:
    """By chance, in one process of its own: what ends a process is seen, too."""
    report = campaign([",".join(READERS)], scaled(3, 60, 60) / len(READERS), tmp_path, by_coverage=False)
    assert (report["faults"], report["died"]) == ([], [])
    assert report["executions"] > 1_000
    record_property("executions", report["executions"])


@pytest.mark.soak
def test_inputs_that_follow_coverage_break_no_reader(tmp_path: Path, record_property: Record) -> None:
    seconds = scaled(1, 2, 3)
    report = campaign(list(READERS), seconds, tmp_path, by_coverage=coverage_is_here(), jobs=2)
    assert (report["faults"], report["died"]) == ([], [])
    assert len(report["readers"]) == len(READERS)
    record_property("executions", report["executions"])
    record_property("inputs by", report["by"])


@pytest.mark.soak
def test_millions_of_blocks_break_no_reader(tmp_path: Path, record_property: Record) -> None:
    """FlatBuffers and the Arrow schemas within them, by chance, with the time and the memory of each."""
    report = campaign(
        ["block", "arrow schema of a block"], scaled(1, 10, 400), tmp_path, by_coverage=False, jobs=2
    )
    assert (report["faults"], report["died"]) == ([], [])
    assert report["executions"] > scaled(1_000, 10_000, 2_000_000)
    record_property("executions", report["executions"])


def test_documents_are_read_or_refused_at_once(record_property: Record) -> None:
    """YAML of every kind: none takes a tenth of a second of the processor."""
    names = ("manifest", "block as YAML", "settings", "constraints", "drift policy")
    slowest, read = 0.0, 0
    for name in names:
        reader, judge = READERS[name], Judge(READERS[name])
        inputs = random_inputs(begin_with(reader), random.Random(name))
        for _ in range(count := scaled(300, 4_000, 20_000)):
            data = next(inputs)
            began = time.process_time()
            assert judge.judge(data) is None
            seconds = time.process_time() - began
            if seconds > AT_ONCE:  # something else of this process may have had it
                seconds = min(_seconds_of(judge, data) for _ in range(3))
            slowest, read = max(slowest, seconds), read + (not judge.refused)
            assert seconds < AT_ONCE, data
    assert 0 < read < count * len(names)
    for name, value in {
        "documents": count * len(names),
        "of them read": read,
        "ms of the slowest": slowest * 1_000,
    }.items():
        record_property(name, value)


def _seconds_of(judge: Judge, data: bytes) -> float:
    began = time.process_time()
    judge.judge(data)
    return time.process_time() - began


def broken(read: Callable[[bytes], object]) -> ForeignReader:
    return ForeignReader("broken", read, lambda: [b'{"a": 1}', b"abc"])


def wrong_error(data: bytes) -> None:
    if b"\xff" in data:
        data.decode()


def wrong_message(data: bytes) -> None:
    class BrokenError(CodecError):
        def __str__(self) -> str:
            return data.decode() + str(1 / 0)

    if b"[" in data:
        raise BrokenError("x")


def slow(data: bytes) -> None:
    end = time.process_time() + (SECONDS * 1.1 if len(data) > 20 else 0)
    while time.process_time() < end:
        pass


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (wrong_error, "UnicodeDecodeError"), (lambda data: json.loads(data) if data[:1] == b"[" else None, "JSONDecodeError|RecursionError"),
        (wrong_message, "its message cannot be written: (ZeroDivision|UnicodeDecode)Error"), (slow, r"\d s"),
    ],
)  # fmt: skip
def test_a_reader_that_is_broken_is_found_out(read: Callable[[bytes], object], what: str) -> None:
    reader = broken(read)
    judge, inputs = Judge(reader), random_inputs([*reader.seeds()], random.Random(7))
    found = next(fault for _ in range(5_000) if (fault := judge.judge(next(inputs))) is not None)
    assert re.search(what, found.what), found


def test_a_reader_that_needs_too_much_memory_is_found_out() -> None:
    kept: list[bytearray] = []
    judge = Judge(broken(lambda data: kept.append(bytearray(1 << 26)) if data else None))
    assert judge.judge(b"", memory=True) is None
    found = judge.judge(b"x", memory=True)
    assert found is not None
    assert found.what == "64 MiB"


def test_a_process_that_dies_leaves_its_input(tmp_path: Path) -> None:
    report = campaign(["dies"], 1, tmp_path, by_coverage=False)
    (name,) = report["faults"]
    fault = json.loads((tmp_path / "faults" / name).read_text())
    assert (report["died"], fault["reader"], fault["input"]) == (["dies"], "dies", "last words")
