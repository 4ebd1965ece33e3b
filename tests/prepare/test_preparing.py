"""Unpacking and piping: every member, real programs, honest errors, nothing half-done, the source untouched."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import shutil
import signal
import struct
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import IngestError, StoreError
from odfchain.ingest import prepare as output
from odfchain.ingest.prepare import glob_matches, prepare
from odfchain.odf.enums import CompressionFormat
from odfchain.odf.sources import PrepStep, PrepStepDecompress, PrepStepPipe
from odfchain.progress import Silent
from tests.kit.processes import is_gone
from tests.kit.support import Notes, conformance

CSV = conformance("polling_cases")["common_input"]["CSV37"].encode()
GZIP, ZIP = CompressionFormat.GZIP, CompressionFormat.ZIP
CASES = {case["id"]: case for case in conformance("polling_cases")["cases"]}
NOISE = random.Random(7).randbytes(3_000_000)
CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


class Counted(Notes):
    """A progress that remembers what it was told."""

    total: int | None = 0
    done = 0

    def phase(self, name: str, total: int | None = None) -> None:
        self.total, self.done = total, 0

    def advance(self, steps: int = 1) -> None:
        self.done += steps


class Bench:
    """A private folder and a user's file."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "run"
        self.folder.mkdir()
        self.source = tmp_path / "input.txt"
        self.outside = tmp_path / "outside"
        self.outside.mkdir()
        self.progress = Counted()

    def run(self, *steps: PrepStep, data: bytes = b"a\nb\n", **kwargs: Any) -> bytes:
        self.source.write_bytes(data)
        kwargs = {"progress": self.progress, "allow_commands": True} | kwargs
        found = prepare(steps, self.source, self.folder, name="input.txt", **kwargs)
        assert self.source.read_bytes() == data, "the source is never changed"
        assert found != self.source
        assert list(self.folder.iterdir()) == [found]
        content = found.read_bytes()
        found.unlink()
        return content

    def unpack(
        self, data: bytes, kind: CompressionFormat = GZIP, sub_path: str | None = None, **limits: int
    ) -> bytes:
        with mock.patch.object(output, "MAX_RATIO", limits.pop("max_ratio", output.MAX_RATIO)):
            return self.run(PrepStepDecompress(format=kind, sub_path=sub_path), data=data, **limits)

    def refused(self, given: bytes | PrepStep, *more: Any, **kwargs: Any) -> str:
        with pytest.raises(IngestError) as caught:
            (self.unpack if isinstance(given, bytes) else self.run)(given, *more, **kwargs)  # type: ignore[arg-type]
        assert list(self.folder.iterdir()) == [], "nothing half-done is left"
        assert self.source.exists()
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith("input.txt: ")
        return str(caught.value)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


# --- the cases ---------------------------------------------------------------------------------------


def test_case_gzip(bench: Bench) -> None:
    assert CASES["prep.gzip"]["confidence"] == "tested"
    assert bench.unpack(gzip.compress(CSV)) == CSV
    assert bench.progress.texts == []
    assert bench.progress.done == bench.progress.total == len(gzip.compress(CSV))


def test_case_zip_single(bench: Bench) -> None:
    assert CASES["prep.zip_single"]["confidence"] == "tested"
    assert bench.unpack(zipped({"data.csv": CSV}, zipfile.ZIP_STORED), ZIP) == CSV


def test_case_derived_7_without_steps_the_source_itself(bench: Bench) -> None:
    bench.source.write_bytes(CSV)
    assert prepare([], bench.source, bench.folder, name="x") == bench.source
    assert list(bench.folder.iterdir()) == []


def test_beyond_derived_0_several_entries_are_refused(bench: Bench) -> None:
    said = bench.refused(zipped({f"{n}.csv": CSV for n in range(7)}), ZIP)
    assert "has 7 files: '0.csv', '1.csv', '2.csv', '3.csv', '4.csv', …" in said


def test_beyond_derived_1_a_sub_path_is_a_name_or_a_glob(bench: Bench) -> None:
    archive = zipped({"a/x.csv": b"1", "a/y.txt": b"2", "a/b/z.csv": b"3", "[a].csv": b"4"})
    for pattern, expected in {
        "a/x.csv": b"1", "a/*.csv": b"1", "**/z.csv": b"3", "z.*": b"3", "a/?.txt": b"2", "[a].csv": b"4",
    }.items():  # fmt: skip
        assert bench.unpack(archive, ZIP, pattern) == expected, pattern


def test_beyond_derived_3_every_member_is_read(bench: Bench) -> None:
    blocked = b"".join(gzip.compress(bytes([byte]) * 70_000) for byte in b"abcd") + gzip.compress(b"")
    assert bench.unpack(blocked) == b"".join(bytes([byte]) * 70_000 for byte in b"abcd")


# --- single-file formats -----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "content", [b"", CSV, NOISE, bytes(5_000_000)], ids=["empty", "csv", "noise", "zeros"]
)
def test_members_and_padding(bench: Bench, codec: str, content: bytes) -> None:
    member = CODECS[codec](content)
    assert bench.unpack(member + member + bytes(1_024)) == content * 2


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", [GZIP, ZIP])
def test_another_format_is_recognised_and_told(bench: Bench, codec: str, kind: CompressionFormat) -> None:
    assert bench.unpack(CODECS[codec](CSV), kind) == CSV
    expected = [] if (codec, kind) == ("gzip", GZIP) else [
        f"input.txt: the manifest says {kind.value}, the file is {codec}: read as such"
    ]  # fmt: skip
    assert bench.progress.texts == expected


def test_a_skippable_zstd_frame_is_skipped(bench: Bench) -> None:
    skippable = struct.pack("<II", 0x184D2A50, 5) + b"hello"
    assert bench.unpack(skippable + CODECS["zstd"](CSV) + skippable) == CSV


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("after", [b"x", b"garbage after the end", bytes(600) + b"x"])
def test_something_after_the_end(bench: Bench, codec: str, after: bytes) -> None:
    member = CODECS[codec](CSV)
    start = len(member) + after.count(0)
    assert f"from byte {start:,} on, the file is not {codec} any more" in bench.refused(member + after)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_short_anywhere(bench: Bench, codec: str) -> None:
    member = CODECS[codec](CSV)
    for size in range(8, len(member)):
        assert f"the {codec} data is corrupt: it ends too early" in bench.refused(member[:size])


@pytest.mark.parametrize("codec", CODECS)
def test_a_second_member_that_is_cut_short(bench: Bench, codec: str) -> None:
    member = CODECS[codec](CSV)
    said = bench.refused(member + member[:-3])
    assert f"corrupt (in the member that begins at byte {len(member)})" in said


@pytest.mark.parametrize("codec", CODECS)
def test_one_flipped_bit_is_never_taken_for_data(bench: Bench, codec: str) -> None:
    content = NOISE[:500]
    member = CODECS[codec](content)
    for position in range(8, len(member)):
        data = bytearray(member)
        data[position] ^= 0x10
        bench.source.write_bytes(data)
        try:
            found = prepare([PrepStepDecompress(format=GZIP)], bench.source, bench.folder, name="input.txt")
        except IngestError as error:
            assert codec in str(error)
        else:
            assert found.read_bytes() == content, "only bits that mean nothing may be ignored"
            found.unlink()


def test_not_compressed_at_all(bench: Bench) -> None:
    assert "is not a Gzip file (it begins with 63 69 74 79 2c 70 6f 70)" in bench.refused(CSV)
    assert "is not a Zip file" in bench.refused(CSV, ZIP)
    assert "is empty, a Gzip file was expected" in bench.refused(b"")
    unpacked_once = (PrepStepDecompress(format=GZIP),) * 2
    assert "not a Gzip file" in bench.refused(*unpacked_once, data=gzip.compress(CSV))
    assert "is a zip archive, Gzip was expected" in bench.refused(zipped({"a": CSV}))
    assert "is gzip, which has no entry 'a.csv'" in bench.refused(gzip.compress(CSV), ZIP, "a.csv")


@pytest.mark.parametrize("codec", CODECS)
def test_bombs(bench: Bench, codec: str) -> None:
    bomb = CODECS[codec](bytes(8 << 20))
    assert "larger than 1,000,000 bytes (limit max_bytes)" in bench.refused(bomb, max_bytes=1_000_000)


def test_a_bomb_is_told_from_data_that_compresses_well(bench: Bench) -> None:
    small, large = gzip.compress(bytes(60 << 20)), gzip.compress(bytes(70 << 20))
    assert "unpacks to more than 100 times its size (limit max_ratio)" in bench.refused(large, max_ratio=100)
    assert len(bench.unpack(small, max_ratio=100)) == 60 << 20


def test_the_limits_are_inclusive(bench: Bench) -> None:
    assert bench.unpack(gzip.compress(CSV), max_bytes=len(CSV), max_ratio=1) == CSV
    assert "limit max_bytes" in bench.refused(gzip.compress(CSV), max_bytes=len(CSV) - 1)


# --- zip ---------------------------------------------------------------------------------------------


PACKED = [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, *PACKED])
def test_methods(bench: Bench, method: int) -> None:
    content = NOISE[:1_500_000]
    assert bench.unpack(zipped({"noise": content}, method), ZIP) == content
    assert 0 < bench.progress.done <= (bench.progress.total or 0)


@pytest.mark.parametrize("method", PACKED)
def test_zip_bombs(bench: Bench, method: int) -> None:
    bomb = zipped({"zeros": bytes(8 << 20)}, method)
    said = bench.refused(bomb, ZIP, max_bytes=1_000_000)
    assert "entry 'zeros': what comes out is larger than 1,000,000 bytes (limit max_bytes)" in said


class Unseekable(io.RawIOBase):
    """What a server writes a zip to: sizes are not known ahead, so data descriptors follow the entries."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


def test_data_descriptors_and_zip64(bench: Bench) -> None:
    sink = Unseekable()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.csv", "w", force_zip64=True) as entry:  # fmt: skip
        entry.write(CSV)
    assert b"PK\x07\x08" in sink.data
    assert bench.unpack(sink.data, ZIP) == CSV


def test_folders_and_resource_forks_are_not_files(bench: Bench) -> None:
    archive = zipped({"a/": b"", "a/data.csv": CSV, "__MACOSX/a/._data.csv": b"fork"})
    assert bench.unpack(archive, ZIP) == CSV


def test_sub_paths_that_name_none_or_many(bench: Bench) -> None:
    archive = zipped({f"{n}/data.csv": CSV for n in range(6)})
    said = bench.refused(archive, ZIP, "*.json")
    assert "subPath '*.json' matches none of its 6 files: '0/data.csv', '1/data.csv'" in said
    assert "matches 6 files" in bench.refused(archive, ZIP, "*/data.csv")
    assert "the archive has no files" in bench.refused(zipped({"a/": b""}), ZIP)
    assert "the archive has no files" in bench.refused(zipped({}), ZIP)


def test_an_encrypted_entry(bench: Bench) -> None:
    data = bytearray(zipped({"a.csv": CSV}))
    data[6] |= 1  # the flag, in the local header and in the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert "entry 'a.csv' is encrypted" in bench.refused(bytes(data), ZIP)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, *PACKED])
def test_corrupt_zips(bench: Bench, method: int) -> None:
    whole = zipped({"a.csv": NOISE[:3_000]}, method)
    flipped = bytearray(whole)
    flipped[1_500] ^= 1
    assert "corrupt" in bench.refused(bytes(flipped), ZIP)
    assert "corrupt" in bench.refused(whole[:1_000], ZIP)
    assert "corrupt" in bench.refused(whole[: -len("PK") - 1], ZIP)


@given(st.data())
def test_whatever_happens_to_a_zip_it_is_one_error_or_the_content(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    archive = bytearray(zipped({"a.csv": CSV, "b.csv": b"x"}))
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    bench = Bench(tmp_path_factory.mktemp("zip"))
    try:
        found = bench.unpack(bytes(archive), ZIP, "a.*")
    except IngestError:
        assert list(bench.folder.iterdir()) == []
    else:
        assert found == CSV or zipfile.ZipFile(io.BytesIO(bytes(archive))).namelist() != ["a.csv", "b.csv"]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.csv", "a.csv", True),
        ("*.csv", "x/y/a.csv", True),
        ("x/*.csv", "x/y/a.csv", False),
        ("x/**/*.csv", "x/a.csv", True),
        ("x/**/*.csv", "x/y/z/a.csv", True),
        ("**", "x/y", True),
        ("[!a].csv", "a.csv", False),
        ("data-[0-9][0-9].csv", "data-07.csv", True),
        ("A.csv", "a.csv", False),
    ],
)
def test_globs(pattern: str, path: str, matches: bool) -> None:
    assert glob_matches(pattern, path) is matches


def test_a_pattern_of_many_folders_takes_no_longer() -> None:
    """Backtracking would try every way to share 40 folders among 30 `**`."""
    assert not glob_matches("**/" * 30 + "x", "a/" * 40 + "y")
    assert glob_matches("**/*/" * 20 + "**", "a/" * 40 + "y")


# --- files -------------------------------------------------------------------------------------------


def test_steps_follow_each_other_and_leave_one_file(bench: Bench) -> None:
    bench.source.write_bytes(zipped({"a.csv.gz": gzip.compress(gzip.compress(CSV))}))
    steps = [PrepStepDecompress(format=ZIP), PrepStepDecompress(format=GZIP), PrepStepDecompress(format=GZIP)]
    found = prepare(steps, bench.source, bench.folder, name="x")
    assert found.read_bytes() == CSV
    assert list(bench.folder.iterdir()) == [found]


def test_files_that_cannot_be_read_or_written(bench: Bench) -> None:
    with pytest.raises(IngestError, match="x: cannot be read: No such file"):
        prepare([PrepStepDecompress(format=GZIP)], bench.source, bench.folder, name="x")
    with pytest.raises(IngestError, match="x: cannot be read: Is a directory"):
        prepare([PrepStepDecompress(format=GZIP)], bench.folder, bench.folder, name="x")
    bench.source.write_bytes(gzip.compress(CSV))
    with pytest.raises(StoreError, match="No such file"):
        prepare([PrepStepDecompress(format=GZIP)], bench.source, bench.folder / "missing", name="x")


def test_a_full_disk() -> None:
    with Path("/dev/full").open("wb", buffering=0) as stream:
        full = output.BoundedOutput(stream, Path("/dev/full"), "x", 1 << 40)
        with pytest.raises(StoreError, match="no space left"):
            full.write(CSV)


# --- Piping: real programs, each failure named with its own last words, nothing left running or written ---


COPY = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"


def python(program: str, *args: str) -> PrepStepPipe:
    return PrepStepPipe(command=(sys.executable, "-S", "-c", textwrap.dedent(program), *args))


def test_case_pipe_jq(bench: Bench) -> None:
    given, expected = CASES["prep.pipe_jq"]["given"], CASES["prep.pipe_jq"]["expect"]
    program = """
        import json, sys
        for row in json.load(sys.stdin):
            print(json.dumps(row, separators=(",", ":")))
    """
    assert bench.run(python(program), data=given["input"].encode()) == expected.encode()


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not on this machine")
def test_case_pipe_jq_with_jq(bench: Bench) -> None:
    given, expected = CASES["prep.pipe_jq"]["given"], CASES["prep.pipe_jq"]["expect"]
    step = PrepStepPipe(command=tuple(given["command"]))
    assert bench.run(step, data=given["input"].encode()) == expected.encode()


def test_several_commands_run_as_one_pipeline(bench: Bench) -> None:
    data = os.urandom(3_000_000)
    upper = python("import sys; sys.stdout.write(sys.stdin.read().upper())")
    hexed = python("import sys; sys.stdout.write(sys.stdin.buffer.read().hex())")
    assert bench.run(python(COPY), hexed, upper, data=data) == data.hex().upper().encode()


def test_unpacking_and_piping_mix(bench: Bench) -> None:
    packed = python("import gzip, sys; sys.stdout.buffer.write(gzip.compress(sys.stdin.buffer.read()))")
    unpack = PrepStepDecompress(format=GZIP)
    twice = python("import sys; sys.stdout.write(sys.stdin.read() * 2)")
    assert bench.run(unpack, twice, packed, unpack, data=gzip.compress(b"x\n")) == b"x\nx\n"


def test_no_shell_and_few_variables(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    program = "import json, os, sys; json.dump([sorted(os.environ), os.getcwd(), sys.argv[1:]], sys.stdout)"
    variables, folder, args = json.loads(bench.run(python(program, "$HOME; ls | *", "a b")))
    assert set(variables) <= {"PATH", "HOME", "LANG", "TMPDIR", "LC_CTYPE"}, "LC_CTYPE is Python's own"
    assert {"PATH", "LANG"} <= set(variables)
    assert folder == str(bench.folder)
    assert args == ["$HOME; ls | *", "a b"]


def test_commands_of_strangers_are_refused_before_any_step(bench: Bench) -> None:
    mark = bench.outside / "ran"
    steps = [PrepStepDecompress(format=GZIP), python("import sys; open(sys.argv[1], 'w')", str(mark))]
    said = bench.refused(*steps, data=b"not gzip", allow_commands=False)
    assert "and commands are not allowed" in said
    assert not mark.exists()


# --- failures ----------------------------------------------------------------------------------------


def test_an_exit_code_and_the_last_words(bench: Bench) -> None:
    program = """
        import sys
        for n in range(10_000):
            print("line", n, file=sys.stderr)
        sys.stderr.buffer.write(b"broken \\xff byte\\n")
        print("partial output")
        sys.exit(3)
    """
    said = "` ended with exit code 3: line 9996 | line 9997 | line 9998 | line 9999 | broken \ufffd byte"
    assert said in bench.refused(python(program))


def test_last_words_without_an_end_are_bounded(bench: Bench) -> None:
    program = "import sys; sys.stderr.write('first ' + 'x' * 5_000_000); sys.exit(1)"
    said = bench.refused(python(program))
    assert len(said) < 4_096 + 400
    assert "first" not in said.rpartition("exit code 1")[2]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGPIPE"])
def test_a_signal_is_named(bench: Bench, name: str) -> None:
    program = (
        "import os, signal, sys; n = int(sys.argv[1]); n == 9 or signal.signal(n, 0); os.kill(os.getpid(), n)"
    )
    said = bench.refused(python(program, str(int(signal.Signals[name]))))
    assert f"was killed by {name}" in said


def test_programs_that_cannot_be_started(bench: Bench) -> None:
    plain = bench.outside / "plain.txt"
    plain.write_text("no program")
    assert "the program of `no-such-program -x` was not found" in bench.refused(
        PrepStepPipe(command=("no-such-program", "-x"))
    )
    assert "cannot be started: Permission denied" in bench.refused(PrepStepPipe(command=(str(plain),)))
    plain.chmod(0o755)
    assert "cannot be started: Exec format error" in bench.refused(PrepStepPipe(command=(str(plain),)))
    assert "cannot be started: embedded null byte" in bench.refused(PrepStepPipe(command=("a\0b",)))
    assert "empty command" in bench.refused(PrepStepPipe(command=()))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_any_stage_can_fail_and_only_its_words_are_told(bench: Bench, position: int) -> None:
    fine = "import sys; print('all is well', file=sys.stderr); sys.stdout.write(sys.stdin.read())"
    failing = "import sys; sys.stdin.read(); sys.exit('this is stage %s' % sys.argv[1])"
    steps = [python(fine), python(fine), python(fine)]
    steps[position] = python(failing, str(position))
    said = bench.refused(*steps)
    assert said.endswith(f"ended with exit code 1: this is stage {position}")
    assert "all is well" not in said.rpartition("exit code 1")[2]


ENDLESS = "import signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nwhile True: print('y' * 1000)"


def test_a_stage_that_has_read_enough_is_no_failure(bench: Bench) -> None:
    head = "import sys; sys.stdout.write(sys.stdin.readline()[:1])"
    assert bench.run(python(ENDLESS), python(head)) == b"y"
    assert bench.run(python(head), data=b"x" * 5_000_000) == b"x", "the same for the input file"


def test_a_broken_pipe_does_not_hide_the_failure_behind_it(bench: Bench) -> None:
    said = bench.refused(python(ENDLESS), python("import sys; sys.exit('no')"))
    assert said.endswith("ended with exit code 1: no")
    assert "SIGPIPE" not in said


def test_a_failure_ends_programs_that_would_run_for_ever(bench: Bench) -> None:
    pid, child = bench.outside / "pid", bench.outside / "child"
    sleeper = """
        import os, signal, subprocess, sys
        open(sys.argv[1], "w").write(str(os.getpid()))
        child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
        open(sys.argv[2], "w").write(str(child.pid))
        print("ready", flush=True)
        signal.pause()
    """
    failing = "import sys; sys.stdin.readline(); sys.exit('enough')"
    assert bench.refused(python(sleeper, str(pid), str(child)), python(failing)).endswith("enough")
    assert is_gone(pid)
    assert is_gone(child)


def test_the_output_is_bounded(bench: Bench) -> None:
    pid = bench.outside / "pid"
    program = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))\nwhile True: print('y' * 1000)"
    said = bench.refused(python(program, str(pid)), max_bytes=100_000)
    assert "larger than 100,000 bytes (limit max_bytes)" in said
    assert is_gone(pid)


class Interrupted(Silent):
    """The user presses Ctrl-C once data flows."""

    def advance(self, steps: int = 1) -> None:
        if steps:
            raise KeyboardInterrupt


def test_an_interrupt_ends_everything(bench: Bench) -> None:
    pid = bench.outside / "pid"
    program = """
        import os, signal, sys
        open(sys.argv[1], "w").write(str(os.getpid()))
        sys.stdout.write(sys.stdin.read()); sys.stdout.flush()
        signal.pause()
    """
    with pytest.raises(KeyboardInterrupt):
        bench.run(python(program, str(pid)), progress=Interrupted())
    assert is_gone(pid)
    assert list(bench.folder.iterdir()) == []


def test_progress_follows_the_input(bench: Bench) -> None:
    data = b"x" * 1_234_567
    assert bench.run(python(COPY), data=data) == data
    assert bench.progress.done == bench.progress.total == len(data)
