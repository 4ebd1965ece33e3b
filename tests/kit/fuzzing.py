"""Inputs for readers of foreign bytes (`tests.kit.foreign_bytes`), by coverage where atheris is, else at random.

    python -m tests.kit.fuzzing --seconds 60 --to DIR [--random] [READER …]

Each reader runs in a process of its own. DIR gets `corpus/READER/`, inputs that reached something new, `faults/`, one
input for each fault, and `report.json`: the executions of each reader. A fault is any end of a reader but those that it
announces: an error of another kind, more than a second, or more memory than ten times the input beyond a base.

Coverage needs `pip install atheris` (Python 3.11 to 3.13); without it inputs of the corpus are mutated at random, and
the report says so. `fixtures/fuzz/corpus.zip` is the corpus that tests begin with; `--keep` makes it anew from DIR.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import importlib.util
import json
import mmap
import os
import random
import re
import resource
import struct
import subprocess
import sys
import time
import traceback
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.kit.foreign_bytes import ForeignReader

FOLDER = Path(__file__).parents[2] / "fixtures" / "fuzz"
CORPUS, FAULTS = FOLDER / "corpus.zip", FOLDER / "faults.json"
SECONDS = 1.0
"""The most that a reader may take, of processor time: the machine may be busy."""
TIMES, BASE_BYTES = 10, 24 << 20
"""The memory that a reader may take: so many times its input, beyond what tables, caches and libraries have."""
LONGEST = 12 << 10
"""Inputs are no longer [bytes]."""
KEPT_BYTES = 3_000
"""What is kept of each reader's corpus [bytes]."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a reader did that it may not."""

    reader: str
    data: bytes
    what: str


class Judge:
    """Runs a reader on inputs, and knows what it did wrong."""

    def __init__(self, reader: ForeignReader) -> None:
        self.reader = reader
        self.executions = 0
        self.refused = False
        """True where the reader refused its last input, as it may."""
        self._resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def judge(self, data: bytes, *, memory: bool = False) -> Fault | None:
        """The fault of the reader at an input; `memory` measures it exactly, and takes ten times as long."""
        self.executions += 1
        if memory:
            tracemalloc.start()
        began = time.process_time()
        try:
            what = self._run(data)
            seconds = time.process_time() - began
            peak = tracemalloc.get_traced_memory()[1] if memory else 0
        finally:
            if memory:
                tracemalloc.stop()
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown, self._resident = (resident - self._resident) << 10, resident
        if what is None and seconds > SECONDS * (5 if memory else 1):
            what = f"{seconds:.1f} s"
        most = TIMES * len(data) + BASE_BYTES
        if what is None and max(peak, grown if self.executions > 1 else 0) > most:
            what = f"{max(peak, grown) >> 20} MiB"
        return None if what is None else Fault(self.reader.name, data, what)

    def _run(self, data: bytes) -> str | None:
        self.refused = False
        try:
            self.reader.read(data)
        except self.reader.expected as error:
            self.refused = True
            try:
                str(error)
            except Exception as other:
                return f"its message cannot be written: {_described(other)}"
        except (Exception, RecursionError, MemoryError) as error:
            return _described(error)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            return _described(error)
        return None


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if "/odfchain/" in each.filename] or frames
    where = (
        f"{ours[-1].filename.partition('/odfchain/')[2] or ours[-1].filename}:{ours[-1].lineno}"
        if ours
        else ""
    )
    return f"{type(error).__name__} at {where}: {str(error)[:200]!a}"


# --- inputs ---------------------------------------------------------------------------------------------

_ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), 10**40, 1e308, float("nan"), float("inf"), "", "\0", "\ud800",
    "a" * 300, "²", "٣", "١٢", "İ", "ß", "\u202e", "1e999999", "0x10", "NaN", "..", "../x", [], {}, [[]], {"": {}}, [None], {"kind": 1},
    "2026-02-30T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "0000-01-01T00:00:00Z", "1970-01-01T00:00:00+99:99",
]  # fmt: skip
_PIECES = [
    b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xff\xff\xff\xff", b"\xff" * 8, b"\x00\x00\x00\x80", b"\x7f", b"\r\n", b"\n\n", b"\t",
    b"'", b'"', b"`", b"\\", b"[" * 200, b"{" * 60, b"(" * 200, b")", b"]", b"}", b"--", b"/*", b"*/", b"%", b"%00", b"%2e%2e", b"//", b"@", b"#", b"?",
    b":", b"::", b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"? ", b"- " * 30, b"9" * 5000, b"1e999999999", b"-", b"+", b"0" * 30,
    "²".encode(), "٣".encode(), "İ".encode(), "\u2028".encode(), b"NULL", b"NaN", b"Infinity", b"true", b" AS OF '", b"${{ ", b" }}",
]  # fmt: skip


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A near relative of an input: bytes are changed, or the values of a JSON document."""
    if rng.random() < 0.4 and (found := _other_values(data, rng)) is not None:
        return found[:LONGEST]
    made = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        at, size = rng.randrange(len(made) + 1), rng.choice((1, 1, 2, 4, 8, rng.randrange(1, 65)))
        match rng.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(made):
                made[at] = rng.randrange(256)
            case 2:
                del made[at : at + size]
            case 3:
                made[at:at] = made[(start := rng.randrange(len(made) + 1)) : start + size] * rng.choice(
                    (1, 1, 2, 30)
                )
            case 4:
                made[at:at] = rng.choice(_PIECES)
            case 5:
                piece = rng.choice(_PIECES)
                made[at : at + len(piece)] = piece
            case _ if others:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                made[at : at + rng.choice((0, size))] = other[start : start + size]
    return bytes(made[:LONGEST])


def _other_values(data: bytes, rng: random.Random) -> bytes | None:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for _ in range(rng.choice((1, 1, 2, 3))):
        tree = _changed(tree, rng)
    try:
        return json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except RecursionError:
        return None


def _changed(tree: Any, rng: random.Random) -> Any:
    if isinstance(tree, dict | list) and tree and rng.random() < 0.85:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = rng.choice(keys)
        match rng.randrange(10):
            case 0:
                del tree[key]
            case 1 if isinstance(tree, dict):
                tree[str(rng.choice((key + "x", "", "kind", "version", key.upper(), "\ud800")))] = tree.pop(
                    key
                )
            case 1 | 2 if isinstance(tree, list):
                tree += tree[key : key + 3] * rng.choice((1, 1, 20))
            case 2:
                tree[key] = [tree[key], tree[key]]
            case _:
                tree[key] = _changed(tree[key], rng)
        return tree
    if isinstance(tree, str) and tree and rng.random() < 0.4:
        return mutated(tree.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")
    return copy.deepcopy(rng.choice(_ODD))


def kept_corpus(name: str) -> list[bytes]:
    """The inputs of a reader in the corpus that is kept with the tests."""
    if not CORPUS.is_file():
        return []
    with zipfile.ZipFile(CORPUS) as archive:
        return [archive.read(each) for each in archive.namelist() if each.startswith(f"{folder_of(name)}/")]


def folder_of(name: str) -> str:
    """What a reader's folder is called."""
    return re.sub(r"\W+", "-", name)[:80]


def known_faults() -> list[Fault]:
    """The inputs that once were faults, all mended, with what they did."""
    listed = json.loads(FAULTS.read_text()) if FAULTS.is_file() else []
    return [Fault(each["reader"], each["input"].encode("latin-1"), each["was"]) for each in listed]


def begin_with(reader: ForeignReader) -> list[bytes]:
    """The inputs that mutations begin with."""
    faults = (each.data for each in known_faults() if each.reader == reader.name)
    return [*dict.fromkeys((*reader.seeds(), *kept_corpus(reader.name), *faults))] or [b""]


def random_inputs(
    start: Sequence[bytes], rng: random.Random, grown: Callable[[], bool] = lambda: False
) -> Iterator[bytes]:
    """Mutations of inputs without end; one after which `grown` is true is mutated, too."""
    known = list(start)
    while True:
        data = mutated(rng.choice(known), rng, known)
        yield data
        if grown():
            known.append(data)


# --- one reader -----------------------------------------------------------------------------------------


def _keep(fault: Fault, folder: Path, seen: set[str]) -> None:
    key = re.sub(r": ('|\").*|[\d.]+ (s|MiB)", "", fault.what)
    if key in seen:
        return
    seen.add(key)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{folder_of(fault.reader)}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"
    text = json.dumps(
        {"reader": fault.reader, "input": fault.data.decode("latin-1"), "was": fault.what}, indent=1
    )
    (folder / name).write_text(text)
    print(f"FAULT {fault.reader}: {fault.what}", flush=True)


class LastWords:
    """The input at which a process is, for whoever finds it dead."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(LONGEST + 200))
        with path.open("r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), LONGEST + 200)

    def keep(self, name: str, data: bytes) -> None:
        """A reader is about to be given an input."""
        data = data[:LONGEST]
        head = struct.pack("<II", len(name), len(data)) + name.encode()
        self._memory[: len(head) + len(data)] = head + data

    @staticmethod
    def read(path: Path) -> tuple[str, bytes]:
        """(reader, input) that a dead process left."""
        raw = path.read_bytes()
        named, size = struct.unpack("<II", raw[:8])
        return raw[8 : 8 + named].decode(), raw[8 + named : 8 + named + size]


def reader_named(name: str) -> ForeignReader:
    """One of `READERS`; `dies` is one for tests."""
    from tests.kit.foreign_bytes import READERS, ForeignReader

    return (
        READERS[name]
        if name != "dies"
        else ForeignReader(name, lambda _: os.abort(), lambda: [b"last words"])
    )


def fuzz_here(names: Sequence[str], seconds: float, to: Path, *, by_coverage: bool) -> None:
    """Feed readers, each for so long, one after the other; with coverage only one, whose end ends the process."""
    last = LastWords(to / "last" / folder_of(",".join(names)))
    if by_coverage:
        import atheris  # type: ignore[import-not-found,unused-ignore]

        with atheris.instrument_imports(include=["odfchain"]):
            reader = reader_named(names[0])
            for seed in reader.seeds():
                with contextlib.suppress(Exception):
                    reader.read(seed)  # what is imported later is followed, too
        feeding = _Feeding(reader, to, last, "coverage")
        feeding.follow_coverage(atheris, seconds)
    else:
        for name in names:
            _Feeding(reader_named(name), to, last, "chance").by_chance(seconds)


class _Feeding:
    """One reader, what it was given so far, and where that is written."""

    def __init__(self, reader: ForeignReader, to: Path, last: LastWords, by: str) -> None:
        self._name, self._judge, self._seen = reader.name, Judge(reader), set[str]()
        self._to, self._last, self._by = to, last, by
        self._count = to / "counts" / f"{folder_of(reader.name)}.json"
        self._start = begin_with(reader)
        for folder in ("counts", "faults"):
            (to / folder).mkdir(parents=True, exist_ok=True)
        for data in self._start:
            self._last.keep(self._name, data)
            with contextlib.suppress(Exception):
                reader.read(data)  # what only the first needs is loaded
        self._began = time.monotonic()
        self._tell()

    def _tell(self) -> None:
        figures = {
            "reader": self._name, "executions": self._judge.executions, "seconds": round(time.monotonic() - self._began, 1),
            "faults": len(self._seen), "by": self._by,
        }  # fmt: skip
        self._count.write_text(json.dumps(figures))

    def _once(self, data: bytes) -> None:
        data = data[:LONGEST]
        self._last.keep(self._name, data)
        if (fault := self._judge.judge(data)) is not None:
            _keep(fault, self._to / "faults", self._seen)
        if self._judge.executions % 500 == 0:
            self._tell()

    def by_chance(self, seconds: float) -> None:
        inputs = random_inputs(self._start, random.Random(int.from_bytes(os.urandom(8))))
        while time.monotonic() - self._began < seconds:
            self._once(next(inputs))
        self._tell()

    def follow_coverage(self, atheris: Any, seconds: float) -> None:
        corpus = self._to / "corpus" / folder_of(self._name)
        corpus.mkdir(parents=True, exist_ok=True)
        for data in self._start:
            (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            local = random.Random(seed)
            if local.random() < 0.5:
                return bytes(atheris.Mutate(data, most))
            return mutated(data, local, self._start)[:most]

        options = [
            f"-max_total_time={max(1, int(seconds))}", f"-max_len={LONGEST}", "-timeout=20", "-rss_limit_mb=3000", "-verbosity=0",
            "-print_final_stats=1", f"-artifact_prefix={self._to / 'artifacts'}-", str(corpus),
        ]  # fmt: skip
        atheris.Setup([sys.argv[0], *options], self._once, custom_mutator=mutate)
        atheris.Fuzz()


# --- all of them ----------------------------------------------------------------------------------------


def coverage_is_here() -> bool:
    """True if atheris is installed."""
    return importlib.util.find_spec("atheris") is not None


def campaign(
    names: Sequence[str], seconds: float, to: Path, *, by_coverage: bool, jobs: int = 1
) -> dict[str, Any]:
    """Feed readers, each for so long, in processes of their own; the report that DIR gets.

    By chance, several names with commas between them are one process.
    """
    root, waiting, running = Path(__file__).parents[2], list(names), dict[str, subprocess.Popen[bytes]]()
    (to / "logs").mkdir(parents=True, exist_ok=True)
    died = []
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            command = [
                sys.executable,
                "-m",
                "tests.kit.fuzzing",
                "--one",
                "--seconds",
                str(seconds),
                "--to",
                str(to),
                name,
            ]
            with (to / "logs" / folder_of(name)).open("wb") as log:
                extra = [] if by_coverage else ["--random"]
                running[name] = subprocess.Popen(
                    [*command, *extra], cwd=root, stdout=log, stderr=subprocess.STDOUT
                )
        name, process = next(iter(running.items()))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        for name, process in [*running.items()]:
            if (code := process.poll()) is not None:
                del running[name]
                if code:
                    died.append(name)
                    found = LastWords.read(to / "last" / folder_of(name))
                    _keep(Fault(*found, f"the process ended with {code}"), to / "faults", set())
                _add_statistics(to, name)
    readers = [json.loads(path.read_text()) for path in sorted((to / "counts").glob("*.json"))]
    report = {
        "by": "coverage" if by_coverage else "chance: atheris is not installed", "executions": sum(each["executions"] for each in readers),
        "seconds": sum(each["seconds"] for each in readers), "died": died, "faults": sorted(path.name for path in (to / "faults").glob("*")),
        "readers": readers,
    }  # fmt: skip
    (to / "report.json").write_text(json.dumps(report, indent=1))
    return report


def _add_statistics(to: Path, name: str) -> None:
    # what libFuzzer counted itself: the process ends within it
    path, log = (
        to / "counts" / f"{folder_of(name)}.json",
        (to / "logs" / folder_of(name)).read_text(errors="replace"),
    )
    found = re.search(r"number_of_executed_units: *(\d+)", log)
    if path.is_file() and found is not None:
        figures = json.loads(path.read_text())
        path.write_text(json.dumps(figures | {"executions": max(int(found[1]), figures["executions"])}))


def keep_corpus(source: Path) -> None:
    """Make the kept corpus of what a campaign found: the shortest inputs of each reader, a few kB."""
    from tests.kit.foreign_bytes import READERS

    FOLDER.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(CORPUS, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in READERS:
            folder, left = source / "corpus" / folder_of(name), KEPT_BYTES
            found = sorted(
                folder.glob("*") if folder.is_dir() else (), key=lambda path: (path.stat().st_size, path.name)
            )
            for path in found[:: max(1, len(found) // 40)]:
                if path.stat().st_size <= left:
                    left -= path.stat().st_size
                    entry = zipfile.ZipInfo(f"{folder_of(name)}/{path.name[:12]}")
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())


def main() -> int:
    """Run what the command line says; 1 where there are faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--seconds", type=float, default=60, help="for each reader")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--random", action="store_true", help="by chance, also where atheris is")
    parser.add_argument("--keep", action="store_true", help="make the kept corpus anew")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    by_coverage = coverage_is_here() and not given.random
    if given.keep:
        keep_corpus(given.to)
        return 0
    if given.one:
        fuzz_here(given.readers[0].split(","), given.seconds, given.to, by_coverage=by_coverage)
        return 0
    from tests.kit.foreign_bytes import READERS

    report = campaign(
        given.readers or list(READERS), given.seconds, given.to, by_coverage=by_coverage, jobs=given.jobs
    )
    print(json.dumps({name: value for name, value in report.items() if name != "readers"}, indent=1))
    return 1 if report["faults"] or report["died"] else 0


if __name__ == "__main__":
    sys.exit(main())
