"""Work in forks of one process that has loaded all, killed by strace on entry of a chosen system call.

`python -m tests.kit.killed_calls` is that process: a line of JSON (work, folder) comes in, the id of a fork goes
out. It waits for `go`, so that strace can be there first; with `reap` its exit code goes out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from odfchain.api.workspace import Workspace
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import upkeep_scenes
from tests.kit.support import IMPORTABLE, ROOT

STRACE = shutil.which("strace") or ""
WRITES = [
    "openat",
    "write",
    "writev",
    "pwrite64",
    "ftruncate",
    "fallocate",
    "sendfile",
    "copy_file_range",
    "fsync",
    "fdatasync",
    "sync",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "chmod",
    "fchmod",
    "fchmodat",
    "utimensat",
    "flock",
]
"""System calls that change a disk, or lock."""
KILLED, FAILED = -9, 3

Work = Callable[[Path], object]
WORKS: dict[str, Work] = {}
"""What can be killed, by name; given the folder of a workspace."""


def work(made: Work) -> Work:
    WORKS[made.__name__] = made
    return made


def on_files(made: Callable[[WorkspaceFiles], object]) -> Work:
    return lambda folder: made(WorkspaceFiles.find(folder))


WORKS |= {name: on_files(made) for name, made in upkeep_scenes.OPERATIONS.items()}


@work
def commit(folder: Path) -> None:
    from tests.kit.recorded_dataset import add_slice

    add_slice(WorkspaceFiles.find(folder).dataset("cities"), ["data", "rest"])


@work
def ingest(folder: Path) -> None:
    from odfchain.cli.main import main

    os.chdir(folder)
    files = [f"{number}.csv" for number in range(8)]
    assert main(["-q", "ingest", "d", *files, "--input-format", "csv"]) == 0


@work
def pull(folder: Path) -> None:
    from odfchain.odf.names import DatasetAlias
    from odfchain.storage.locations import PeerUrl
    from odfchain.transfer.open_peer import open_peer
    from odfchain.transfer.pulling import SyncOptions, pull_dataset

    text = (folder / "url").read_text()
    with contextlib.closing(open_peer(PeerUrl.parse(text))) as peer:
        pull_dataset(
            WorkspaceFiles.find(folder), peer, DatasetAlias.parse(text.rpartition("/")[2]), SyncOptions()
        )


@work
def torn(folder: Path) -> None:
    """What no writer may do: half of an object under its name."""
    from odfchain.odf.physical_hash import hash_bytes

    data = WorkspaceFiles.find(folder).dataset("cities").folder / "data"
    for content in (b"one half", b"two half"):
        with (data / str(hash_bytes(content))).open("wb", buffering=0) as stream:
            stream.write(content[:4])
            stream.write(content[4:])


@work
def young_gc(folder: Path) -> None:
    """What was not used for a second is old, as if it were a day."""
    from odfchain.errors import StoreError
    from odfchain.upkeep.garbage import collect
    from odfchain.workspace.options import SHORTEST_GRACE, GcOptions

    options = GcOptions(grace=SHORTEST_GRACE)
    for dataset in WorkspaceFiles.find(folder).datasets():
        with contextlib.suppress(StoreError):  # something is pulled in
            collect(dataset, options, now=lambda: time.time() + SHORTEST_GRACE - 1)


@work
def serve(folder: Path) -> None:
    """A node that takes pushes, until it is killed; its address is beside the workspace."""
    from odfchain.transfer.server import RepositoryServer

    with RepositoryServer(WorkspaceFiles.find(folder), write=True, port=0) as server:
        address = folder.with_name(f"{folder.name}.url")
        draft = address.with_suffix(".draft")
        draft.write_text(server.url)
        draft.rename(address)
        time.sleep(60)


@work
def secrets(folder: Path) -> None:
    """A key that signs heads and a token; both are files."""
    from odfchain.odf.times import Timestamp
    from odfchain.storage.locations import PeerUrl
    from odfchain.transfer.access_tokens import TokenFile
    from odfchain.transfer.credentials import Credentials

    files = WorkspaceFiles.find(folder)
    if not any(token.name == "me" for token in TokenFile(files.root).list()):
        TokenFile(files.root).create("me", ["push:%"], Timestamp.now())
    Credentials(folder / "home" / "credentials.json").put(PeerUrl.parse("https://example.com/"), "t" * 20)
    upkeep_scenes.root(files, f"keyed.{sum(1 for _ in files.datasets())}")


@work
def schedule(folder: Path) -> None:
    from odfchain.api.settings import DatasetConfiguration
    from odfchain.node.schedule import Schedule

    with Workspace.open(folder) as workspace:
        DatasetConfiguration.of(workspace["cities"]).set("pull.every", ["2h"])
    assert len(Schedule(folder)._settled()) == 1


@work
def footers(folder: Path) -> None:
    from odfchain.workspace.dataset_state import DatasetState
    from odfchain.workspace.read_slices import KeptFooters

    dataset = WorkspaceFiles.find(folder).dataset("cities")
    kept = KeptFooters(dataset)
    for ref in DatasetState.read(dataset.chain).slices():
        kept.stats(ref)


class Call(NamedTuple):
    """The n-th call of a kind that a thread makes; `path` is what it is about."""

    name: str
    number: int
    path: str = ""


_LINE = re.compile(r"^(\d+) +(\w+)\((.*)")
_PATH = re.compile(r'[<"](/[^>"]*)[>"]')


def calls_in(log: Path, folder: Path) -> list[Call]:
    """The calls of a traced run that change files in a folder, once each, in their order."""
    seen, found = Counter[tuple[str, str]](), dict[tuple[str, int], Call]()
    for line in log.read_text(errors="replace").splitlines():
        if not (match := _LINE.match(line)):
            continue
        thread, name, rest = match.groups()
        seen[thread, name] += 1
        inside = next((path for path in _PATH.findall(rest) if path.startswith(f"{folder}/")), None)
        if name == "sync" or (inside and (name != "openat" or "O_CREAT" in rest or "O_TRUNC" in rest)):
            call = Call(name, seen[thread, name], (inside or "").removeprefix(f"{folder}/"))
            found.setdefault(call[:2], call)
    return list(found.values())


class Fork:
    """One that waits for `go`."""

    def __init__(self, forks: Forks, pid: int, errors: Path) -> None:
        self.pid, self.errors, self._forks = pid, errors, forks
        self._pidfd = os.pidfd_open(pid)
        self._strace: subprocess.Popen[bytes] | None = None

    def trace(self, *options: str, log: Path | None = None) -> None:
        """From here on strace sees each of its calls, and of its threads; not of a program that it starts."""
        self._strace = subprocess.Popen(
            [
                STRACE,
                "-f",
                "-b",
                "execve",
                "-y",
                "-s",
                "256",
                *options,
                "-o",
                str(log or "/dev/null"),
                "-p",
                str(self.pid),
            ],
            stderr=subprocess.PIPE,
        )
        assert b"attached" in (line := self._strace.stderr.readline()), line

    def go(self) -> None:
        self._forks.say("go", self.pid)

    def over(self, seconds: float) -> bool:
        return bool(select.select([self._pidfd], [], [], seconds)[0])

    def kill(self) -> None:
        """It has not been reaped, so the id is its own."""
        os.kill(self.pid, 9)

    def wait(self) -> int:
        code = self._forks.say("reap", self.pid)
        os.close(self._pidfd)
        if self._strace is not None:
            self._strace.communicate(timeout=20)
        assert code in (0, KILLED), self.errors.read_text()
        return code


class Forks:
    """Starts forks."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.killed_calls"], env=(env or IMPORTABLE) | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def say(self, *words: Any) -> int:
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def fork(self, name: str, folder: Path) -> Fork:
        errors = folder.with_name(f"{folder.name}.err")
        return Fork(self, self.say("fork", name, str(folder), str(errors)), errors)

    def run(self, name: str, folder: Path) -> float:
        """The seconds of one that nobody kills."""
        begun = time.perf_counter()
        fork = self.fork(name, folder)
        fork.go()
        assert fork.wait() == 0
        return time.perf_counter() - begun

    def calls(self, name: str, folder: Path, until: Callable[[Fork], object] = lambda _: None) -> list[Call]:
        """What a run changes in the folder; `until` is what happens meanwhile."""
        log = folder.with_name(f"{folder.name}.trace")
        fork = self.fork(name, folder)
        fork.trace("-e", f"trace={','.join(f'?{each}' for each in WRITES)}", "-e", "signal=none", log=log)
        fork.go()
        until(fork)
        fork.wait()
        return calls_in(log, folder)

    def stopped(self, name: str, folder: Path, number: int) -> Fork | None:
        """A run that was stopped in the moment it got its so many-th lock; None where it ended before."""
        log = folder.with_name(f"{folder.name}.trace")
        fork = self.fork(name, folder)
        fork.trace("-e", "trace=flock", "-e", f"inject=flock:signal=STOP:when={number}", log=log)
        fork.go()
        while "stopped by SIGSTOP" not in log.read_text():
            if fork.over(0.002):
                fork.wait()
                return None
        return fork

    def killed(
        self, name: str, folder: Path, call: Call, until: Callable[[Fork], object] = lambda _: None
    ) -> bool:
        """Whether a run was killed on entry of that call, which then did nothing."""
        fork = self.fork(name, folder)
        fork.trace("-e", f"trace={call.name}", "-e", f"inject={call.name}:signal=KILL:when={call.number}")
        fork.go()
        until(fork)
        return fork.wait() == KILLED

    def close(self) -> None:
        self._process.communicate()


@contextlib.contextmanager
def forks(env: dict[str, str] | None = None) -> Iterator[Forks]:
    made = Forks(env)
    try:
        yield made
    finally:
        made.close()


def _serve() -> None:
    waiting: dict[int, int] = {}
    for line in sys.stdin:
        word, *rest = json.loads(line)
        answer = 0
        if word == "fork":
            go, say = os.pipe()
            if (answer := os.fork()) == 0:
                _child(go, (say, *waiting.values()), *rest)
            os.close(go)
            waiting[answer] = say
        elif word == "go":
            os.close(waiting.pop(rest[0]))
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1])
        print(answer, flush=True)


def _child(go: int, others: tuple[int, ...], name: str, folder: str, errors: str) -> None:
    code = FAILED
    try:
        for each in others:
            os.close(each)
        target = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.read(go, 1)
        WORKS[name](Path(folder))
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import gc

    from odfchain.startup import put_off_pandas

    put_off_pandas()
    import pyarrow.parquet  # noqa: F401

    import odfchain.cli.main
    import odfchain.upkeep.compact
    import odfchain.upkeep.garbage  # noqa: F401
    from tests.kit.upkeep_scenes import new_workspace, reader_of, root  # noqa: F401

    with tempfile.TemporaryDirectory() as warm:  # loads what each would load
        root(new_workspace(Path(warm)), slices=4)
        for name in ("commit", "footers", "schedule", "secrets", "soft", "hard", "reset", "gc"):
            with contextlib.suppress(Exception):
                WORKS[name](Path(warm))
    gc.collect()
    gc.freeze()
    _serve()
