"""Names never become paths: 200 of them at every entry, with a watch over what Python opens, makes, moves and removes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError
from odfchain.ingest.prepare import prepare
from odfchain.odf.enums import CompressionFormat
from odfchain.odf.identity import Multihash
from odfchain.odf.sources import PrepStepDecompress
from odfchain.progress import SILENT
from odfchain.storage.local import LocalRefStore
from odfchain.storage.public_layout import ref_key
from tests.kit.root_rows import add_root
from tests.kit.run_length import scaled
from tests.kit.running_node import running_node
from tests.kit.shared_store import SCHEMA, append
from tests.kit.support import Run, tree_of

RISES = ("..", "../..", "./..", "a/../..", "../../..", "..\\..", "%2e%2e", "%2e%2e%2f..", "..%2f..", "%252e%252e", "..;", "...", "....//",
         "\uff0e\uff0e", "\u2025", "..%c0%af", "..%00", "~", "~root", "$HOME")  # fmt: skip
ENDS = (
    "",
    "/outside/secret",
    "/outside/new",
    "\\outside\\new",
    "%2foutside%2fsecret",
    "/outside/secret\0",
    "/outside/.lock",
)
PLAIN = (
    "", ".", "/", "//", "///outside", "\0", "a\0b", "CON", "NUL.txt", "COM1", "aux", "head.lock", "head.jws", ".head.lock", ".git", "-", "--help", "-rf",
    "HEAD", "Head", "h\u0435ad", "head ", " head", "head\n", "head\r\n", "head\t", "h\u00adead", "\u202edaeh", "\ufeffhead", "\uff48ead", "/dev/null", "/etc/passwd",
    "/proc/self/environ", "/proc/self/fd/0", "file:///etc/passwd", "C:\\x", "\\\\host\\x", "c:x", "x:y", "a" * 256, "a" * 300, "é" * 200, "a/" * 200, "../" * 100,
    "refs/head", "../refs/head", "../info/alias", "../../keys", "../../config.yaml", "blocks/..", "*", "?", "[a]", "{a,b}", "`id`", "$(id)", "|id", ";id",
    "f1620", "f1620" + "0" * 64, "f1620" + "0" * 63 + "/", "f1620../" + "0" * 61, "F1620" + "0" * 64, "f1620" + "0" * 65,
)  # fmt: skip
NAMES = tuple(dict.fromkeys([rise + end for rise in RISES for end in ENDS] + list(PLAIN)))
WRITES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.utime",
    "os.chown",
}


class Watch:
    """What Python's files calls touch, while it is on: hooks cannot be taken away, so there is one for all."""

    def __init__(self) -> None:
        self.home: Path | None = None
        self.touched: list[str] = []
        self.calls = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.home is None or (event != "open" and event not in WRITES):
            return
        self.calls += 1
        flags = args[2] if event == "open" else os.O_WRONLY
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        for path in args[: 2 if event in ("os.rename", "os.link") else 1]:
            if isinstance(path, str | bytes | os.PathLike):
                real = os.path.realpath(os.fsdecode(path).replace("\0", "?"))
                within = real.startswith(f"{self.home}/home/") or real == "/dev/null"
                if "/outside" in real or real == "/etc/passwd" or (writes and not within):
                    self.touched.append(f"{event} {real}")

    @contextlib.contextmanager
    def over(self, home: Path) -> Iterator[None]:
        self.home = home
        try:
            yield
        finally:
            self.home = None


WATCH = Watch()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a dataset; beside it is what nobody may touch. Temporary files lie in its folder."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("s3cret")
    folder = tmp_path / "home"
    (folder / "tmp").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a module that is imported within is compiled
    append(add_root(Workspace.init(folder), "cities", SCHEMA), "a")
    monkeypatch.chdir(folder)
    return tmp_path


def entries(workspace: Workspace, run: Run) -> dict[str, Callable[[str], object]]:
    """Every way in for a name, by what it is called."""
    dataset = workspace["cities"]
    files = dataset._files
    refs, head = LocalRefStore(files.folder), dataset.head

    def unpacked(member: bytes, sub_path: str | None) -> object:
        data, spelled = io.BytesIO(), b"\1" * len(member)
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr(spelled.decode(), "a,b\n")  # which writes no hostile name by itself
        source, folder = workspace.path / "run" / "in.zip", workspace.path / "run" / "unpacked"
        source.parent.mkdir(exist_ok=True)
        source.write_bytes(data.getvalue().replace(spelled, member))
        folder.mkdir(exist_ok=True)
        step = PrepStepDecompress(format=CompressionFormat.ZIP, sub_path=sub_path)
        return prepare([step], source, folder, name="x", progress=SILENT)

    return {
        "hash": lambda name: files.data.locate(Multihash.parse(name)),
        "reference": lambda name: refs.compare_and_swap(name, None, head),
        "reference read": refs.get,
        "key of a reference": ref_key,
        "branch": dataset.create_branch,
        "branch read": dataset.branch,
        "branch renamed": lambda name: dataset.rename_branch("side", name),
        "merge": dataset.merge,
        "point": dataset.at,
        "alias": lambda name: workspace[name],
        "alias new": lambda name: add_root(workspace, name, SCHEMA),
        "alias renamed": lambda name: workspace.rename("cities", name),
        "member": lambda name: unpacked(name.encode() or b"x", None),
        "pattern of members": lambda name: unpacked(name.encode() or b"x", name or "x"),
        "command log": lambda name: run("log", "--", name),
        "command point": lambda name: run("log", f"cities@{name}"),
        "command branch": lambda name: run("branch", "cities", "--", name),
        "command rename": lambda name: run("rename", "cities", "--", name),
    }


def test_names_at_every_entry(home: Path, run: Run, record_property: Callable[[str, object], None]) -> None:
    workspace = Workspace.open(home / "home")
    workspace["cities"].create_branch("side")
    before, refused, taken = tree_of(home / "outside"), 0, list[str]()
    names, given = NAMES[:: scaled(4, 1, 1)], entries(workspace, run)
    calls, touched = WATCH.calls, len(WATCH.touched)
    with WATCH.over(home):
        for entry, give in given.items():
            for name in names:
                try:
                    done = give(name)
                except OdfchainError:
                    refused += 1
                else:
                    assert "Traceback" not in str(getattr(done, "err", "")), (entry, name)
                    taken.append(f"{entry} {name!r}")
            if "cities" not in workspace:  # it was given one of the names
                workspace.rename(str(next(iter(Workspace.open(home / "home"))).alias), "cities")
    assert WATCH.touched[touched:] == []
    assert tree_of(home / "outside") == before
    assert sorted(path.name for path in home.iterdir()) == ["home", "outside"]
    record_property("names", len(names))
    record_property("entries", len(given))
    record_property("refused", refused)
    record_property("calls watched", WATCH.calls - calls)
    assert len(NAMES) >= 200
    assert WATCH.calls > calls
    for dataset in Workspace.open(home / "home"):
        assert dataset.verify().ok


def test_names_at_a_node(home: Path, record_property: Callable[[str, object], None]) -> None:
    """As they are and with each byte escaped, in every page, in REST, and where peers ask."""
    places = ("/{}", "/cities/{}", "/cities/refs/{}", "/cities/blocks/{}", "/cities/data/{}", "/datasets/{}", "/datasets/cities/{}",
              "/static/{}", "/{}/cities/tail", "/api/{}", "/cities/ingest?ref={}", "/sql?at={}")  # fmt: skip
    before, asked, statuses = tree_of(home / "outside"), 0, dict[int, int]()
    touched = len(WATCH.touched)
    with running_node(home / "home") as node, WATCH.over(home):
        for place in places:
            for name in NAMES[:: scaled(10, 1, 1)]:
                for written in dict.fromkeys((quote(name, safe="/.\\%;~*"), quote(name, safe=""))):
                    reply = node.ask(place.format(written)[:4_000])
                    asked += 1
                    statuses[reply.status] = statuses.get(reply.status, 0) + 1
                    assert reply.status < 500, (place, name, reply.body[:300])
                    assert b"s3cret" not in reply.body
                    assert b"root:" not in reply.body
                    assert str(home).encode() not in reply.body, (place, name)
    assert WATCH.touched[touched:] == []
    assert tree_of(home / "outside") == before
    record_property("requests", asked)
    record_property("statuses", statuses)
    assert node.problems == []


def test_the_watch_sees(home: Path) -> None:
    touched = len(WATCH.touched)
    with WATCH.over(home):
        (home / "outside" / "secret").read_text()
        (home / "new").mkdir()
    assert [text.split()[0] for text in WATCH.touched[touched:]] == ["open", "os.mkdir"]
    del WATCH.touched[touched:]
