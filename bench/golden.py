"""What odfchain does, byte for byte, beside what an older commit does.

python bench/golden.py                 what this checkout does, as JSON: blocks, slices, manifests, answers,
                                       pages, what commands print, requests, public names
python bench/golden.py b714276         every difference from what the older tree does
python bench/golden.py b714276 --demo     the blocks of the demo, too, which are more and of every kind
python bench/golden.py b714276 --errors   every error that the tests of each tree provoke, too (two test runs)
python bench/golden.py --self-test     shows that one changed byte of each kind is seen

Ends with 1 where anything differs. How many modules each command loads is printed beside.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from golden_step import START
from golden_tour import FILES, SERVED, STEPS, STORE_STEPS

ROOT = Path(__file__).resolve().parent.parent
BENCH = Path(__file__).resolve().parent
TIMEOUT = 600
LARGEST_TEXT = 4_000
"""A longer text is kept as its hash and its first lines [characters]."""

Section = dict[str, str]
Record = dict[str, Section]
"""Kind of thing, then its name, then its bytes' hash, or a text."""

VARIABLE = (
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|seconds?|KB/s|MB/s)\b"), "<time>"),
    (re.compile(r"127\.0\.0\.1:\d+|localhost:\d+"), "<server>"),
    (re.compile(r" object at 0x[0-9a-f]+"), ""),
)
"""What two runs of one tree do not have in common."""


PUBLIC_NAMES = """
import inspect, json, odfchain

def shown(x):
    try:
        return str(inspect.signature(x))
    except (TypeError, ValueError):
        return type(x).__name__

def public(x):
    return {m: shown(getattr(x, m)) for m in dir(x) if isinstance(x, type) and not m.startswith("_")}

found = {name: getattr(odfchain, name) for name in odfchain.__all__}
for name in {"errors", "events", "results"} & found.keys():
    inner = vars(found[name])
    found |= {f"{name}.{n}": x for n, x in inner.items() if isinstance(x, type) and n[0].isupper()}
print(json.dumps({name: [shown(value), public(value)] for name, value in found.items()}))
"""
"""A program that prints the public names, how they are called, and their methods."""


def digest(data: bytes) -> str:
    """The name under which bytes are compared."""
    return hashlib.sha3_256(data).hexdigest()


@dataclass
class Tour:
    """One run over all commands with the modules of a tree, in a folder of its own."""

    tree: Path
    folder: Path
    record: Record = field(default_factory=dict)
    number: int = 0
    loads: dict[str, int] = field(default_factory=dict)
    """How many modules of odfchain the last call of each command has loaded."""

    def note(self, section: str, name: str, value: str) -> None:
        """Keep one thing that is to be compared."""
        name, value = self._stable(name), self._stable(value)
        if len(value) > LARGEST_TEXT:
            value = f"{digest(value.encode())}\n{value[:LARGEST_TEXT]}"
        self.record.setdefault(section, {})[name] = value

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the user's own, and modules of the tree alone."""
        kept = {k: os.environ[k] for k in ("PATH", "JAVA_HOME", "LANG") if k in os.environ}
        home = self.folder / "home"
        return kept | {
            "PYTHONPATH": str(self.tree), "HOME": str(home), "XDG_RUNTIME_DIR": str(home),
            "XDG_CONFIG_HOME": str(home / "config"), "XDG_CACHE_HOME": str(home / "cache"), "TZ": "UTC",
            "COLUMNS": "120", "NO_COLOR": "1", "PYTHONHASHSEED": "0",
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
        }  # fmt: skip

    def command(self, line: str, folder: Path, **names: str) -> None:
        """Run one line of the tour; what it prints, and how it ends, is kept."""
        self.number += 1
        line = re.sub(r"\$HEAD\((\S+)\)", lambda m: self._head(folder, m[1]), line)
        for name, text in {"PWD": str(folder), **names}.items():
            line = line.replace(f"${name}", text)
        words = shlex.split(line)
        target = words[words.index(">") + 1] if ">" in words else None
        arguments = words[: words.index(">")] if target else words
        facts = self.folder / "facts.json"
        facts.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, str(BENCH / "golden_step.py"), str(self.number), str(facts), *arguments],
            cwd=folder, env=self.environment, input=b"ka_secret\n", capture_output=True, timeout=TIMEOUT,
            check=False,
        )  # fmt: skip
        out = done.stdout
        if target is not None:
            (folder / target).write_bytes(out)
            self.note("pages" if target.endswith(".html") else "answers", line, self._digest(out))
            out = b""
        name = f"{self.number:03} {line}"
        said = [part.decode(errors="replace") for part in (out, done.stderr)]
        self.note("commands", name, f"exit {done.returncode}\n{said[0]}--\n{said[1]}")
        if facts.exists():
            found = json.loads(facts.read_text(encoding="utf-8"))
            self.note("libraries", name, " ".join(found["libraries"]))
            self.loads[arguments[0]] = found["modules"]

    def _stable(self, text: str) -> str:
        for pattern, sign in VARIABLE:
            text = pattern.sub(sign, text)
        return text.replace(str(self.folder), "<folder>").replace(str(self.tree), "<tree>")

    def _digest(self, data: bytes) -> str:
        return digest(data.replace(str(self.folder).encode(), b"<folder>"))

    def _head(self, folder: Path, name: str) -> str:
        """The head of a dataset, from the list of datasets."""
        done = subprocess.run(
            [sys.executable, "-m", "odfchain.cli", "list", "-o", "json"],
            cwd=folder, env=self.environment, capture_output=True, check=False,
        )  # fmt: skip
        heads = {row["name"]: row["head"] for row in json.loads(done.stdout or b"[]")}
        return str(heads.get(name, "no-head"))

    def walk(self) -> None:
        """All steps, then what they have left in folders."""
        work = self.folder / "work"
        for name, text in FILES.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(START, START))
        (self.folder / "home").mkdir(mode=0o700)
        try:
            for line in STEPS:
                self.command(line, work)
            self.serve(work)
            self.store_requests()
        finally:
            self.command("engine stop", work)
        self.files(work)
        self.names()

    def serve(self, folder: Path) -> None:
        """What a server of the workspace answers."""
        process = subprocess.Popen(
            [sys.executable, "-c", "from odfchain.cli.main import run; run()", "serve", "--port", "0"],
            cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            found = next(m for line in process.stdout if (m := re.search(r"http://[\w.]+:\d+", line)))
            for path in SERVED:
                try:
                    with urlopen(f"{found[0]}/{path}", timeout=30) as answer:  # noqa: S310 - our own
                        kind = answer.headers.get("content-type")
                        text = f"{answer.status} {kind} {digest(answer.read())}"
                except HTTPError as error:
                    text = f"{error.code} {digest(error.read())}"
                self.note("pages", f"GET /{path}", text)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)

    def store_requests(self) -> None:
        """How often a store is asked, by method, for each command in a workspace in a store."""
        sys.path.insert(0, str(ROOT))
        from tests.kit.small_s3 import SmallS3  # noqa: PLC0415

        folder = self.folder / "stored"
        folder.mkdir()
        (folder / "vendor.csv").write_text(FILES["vendor.csv"], encoding="utf-8")
        (folder / "vendor2.csv").write_text(FILES["vendor2.csv"], encoding="utf-8")
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(SmallS3())
            for line in STORE_STEPS:
                seen = len(server.requests)
                self.command(line, folder, STORE=server.url("bucket/team"))
                methods = Counter(method for method, *_ in server.requests[seen:])
                self.note("requests", f"{self.number:03} {line}", json.dumps(dict(sorted(methods.items()))))

    def files(self, folder: Path) -> None:
        """What is recorded and written, by its kind."""
        for root in (folder / ".odfchain" / "datasets", folder / "mirror"):
            for path in sorted(root.rglob("*")):
                if path.is_file() and "cache" not in path.parts:
                    kind = path.relative_to(root).parts[1]
                    self.note(kind, str(path.relative_to(folder)), digest(path.read_bytes()))
        for name in ("proof.json", "report.json", "airports.parquet", "scenes.parquet"):
            path = folder / name
            self.note("answers", name, self._digest(path.read_bytes()) if path.exists() else "missing")

    def names(self) -> None:
        """The public names and how they are called."""
        done = subprocess.run(
            [sys.executable, "-c", PUBLIC_NAMES], env=self.environment, cwd=self.folder, capture_output=True,
            check=True,
        )  # fmt: skip
        for name, (called, methods) in json.loads(done.stdout).items():
            self.note("names", name, f"{called}\n" + "\n".join(f"{m}{s}" for m, s in methods.items()))


def demo_blocks(tree: Path) -> Section:
    """The blocks that the demo of a tree records."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "demo"
        command = [sys.executable, str(BENCH / "golden_step.py"), "--demo", str(tree), str(folder)]
        subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(tree)}, cwd=tree, stdout=sys.stderr, check=True
        )
        found = sorted((folder / ".odfchain" / "datasets").glob("*/blocks/*"))
        return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in found}


def errors_of(tree: Path) -> Section:
    """Class, message and hint of every error that the tests of a tree provoke, each once."""
    with tempfile.TemporaryDirectory() as place:
        env = os.environ | {"PYTHONPATH": f"{tree}:{BENCH}", "GOLDEN_ERRORS": place}
        command = [sys.executable, "-m", "pytest", "-p", "golden_errors", "-x", "--maxfail=50"]
        subprocess.run(command, cwd=tree, env=env, stdout=sys.stderr, check=False)
        found = {line for path in Path(place).glob("*") for line in path.read_text("utf-8").splitlines()}
    return dict.fromkeys(sorted(found), "")


def record_of(tree: Path, *, demo: bool, errors: bool) -> tuple[Record, dict[str, int]]:
    """What a tree does, and how many modules its commands load."""
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        tour = Tour(tree, Path(place).resolve())
        tour.walk()
        if demo:
            tour.record["demo"] = demo_blocks(tree)
        if errors:
            tour.record["errors"] = errors_of(tree)
        return tour.record, tour.loads


def differences(old: Mapping[str, Section], new: Mapping[str, Section]) -> Iterator[str]:
    """A line for each thing that is not the same, with what changed in its text."""
    for section in sorted(old.keys() | new.keys()):
        was, now = old.get(section, {}), new.get(section, {})
        same = sum(was[name] == now[name] for name in was.keys() & now.keys())
        total = len(was.keys() | now.keys())
        print(f"{section}: {same} of {total} equal", file=sys.stderr)
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) == now.get(name):
                continue
            lines = difflib.unified_diff(
                was.get(name, "<missing>").split("\n"),
                now.get(name, "<missing>").split("\n"),
                lineterm="",
                n=0,
            )
            yield "\n    ".join(
                [f"{section}: {name}", *[line for line in lines if line[:3] not in ("---", "+++")]]
            )


def self_test(record: Record) -> int:
    """One byte of each kind is changed, and has to be seen."""
    from odfchain.cli.main import COMMANDS  # noqa: PLC0415

    used = {word for step in (*STEPS, *STORE_STEPS) for word in step.split()} | {"serve", "engine"}
    missed = [f"no step for {command}" for command in COMMANDS if command not in used]
    for section, things in record.items():
        name = next(iter(things))
        value = things[name] or "x"
        changed = {**record, section: {**things, name: ("0" if value[0] != "0" else "1") + value[1:]}}
        with contextlib.redirect_stderr(io.StringIO()):
            if len(list(differences(record, changed))) != 1:
                missed.append(section)
    print(f"{len(record)} kinds; not seen:", *missed or ["none"])
    return 1 if missed else 0


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", nargs="?", metavar="COMMIT")
    parser.add_argument("--demo", action="store_true", help="the demo's blocks, too")
    parser.add_argument("--errors", action="store_true", help="errors that tests provoke, too")
    parser.add_argument("--self-test", action="store_true")
    given = parser.parse_args()
    after, loads = record_of(ROOT, demo=given.demo, errors=given.errors)
    if given.self_test:
        return self_test(after)
    if given.before is None:
        print(json.dumps(after, indent=1, ensure_ascii=False))
        return 0
    with tempfile.TemporaryDirectory() as place:
        archive = subprocess.run(["git", "archive", given.before], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", place], input=archive.stdout, check=True)
        before, old_loads = record_of(Path(place).resolve(), demo=given.demo, errors=given.errors)
    found = list(differences(before, after))
    print(*found, sep="\n")
    for command in sorted(loads.keys() & old_loads.keys()):
        print(f"{command}: {old_loads[command]} modules loaded, now {loads[command]}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
