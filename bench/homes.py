"""A workspace in a folder of its own and the program that is typed in it: ours, or the reference node."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from processes import PROC, cpu_seconds_of_tree

ODFCHAIN = Path(sys.executable).parent / "odfchain"
LOADED_SECONDS = 60
"""So long a session may take to load what its forks need."""


@dataclass(frozen=True, slots=True)
class Took:
    """What one command took [s]; the CPU of a session that stays is not the command's."""

    wall: float
    cpu: float


class Home:
    """A user's home with a workspace; sessions stay below it where they may."""

    def __init__(self, folder: Path, program: str | Path = ODFCHAIN, *, stays: bool = True) -> None:
        self.folder = folder
        self._program = program
        kept = {k: v for k, v in os.environ.items() if k not in ("CI", "KAMU_WORKSPACE")}
        self._env = kept | ({} if stays else {"CI": "true"})
        self._env |= {"XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}

    def at(self, folder: Path, *, stays: bool = True) -> Home:
        """The same program in another folder; the session that stays is the same."""
        folder.mkdir(exist_ok=True)
        other = Home(folder, self._program, stays=stays)
        names = ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME")
        other._env |= {name: self._env[name] for name in names}
        return other

    def _call(self, *args: object) -> str:
        command = [self._program, *map(str, args)]
        done = subprocess.run(command, cwd=self.folder, env=self._env, capture_output=True, check=False)
        if done.returncode:
            sys.exit(
                f"error: `{' '.join(map(str, command))}` ended with {done.returncode}: {done.stderr.decode()}"
            )
        return done.stdout.decode()

    def run(self, *args: object) -> Took:
        """Type a command."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        self._call(*args)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Took(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def add(self, manifest: str) -> None:
        """Add the datasets of a manifest."""
        path = self.folder / "manifest.yaml"
        path.write_text(manifest, encoding="utf-8")
        self.run("add", path)

    def records(self, name: str) -> int:
        """The number of records of a dataset."""
        for row in json.loads(self._call("list", "-o", "json")):
            tree = {key.lower(): value for key, value in row.items()}
            if tree["name"] == name:
                return int(tree["records"])
        raise KeyError(name)

    def _keeper(self) -> int | None:
        pid: int | None = json.loads(self._call("engine", "status", "-o", "json")).get("pid")
        return pid

    def session_cpu(self) -> float:
        """CPU that the session that stays has used: its keeper, commands in forks, Java and workers [s]."""
        keeper = self._keeper()
        return cpu_seconds_of_tree(keeper) if keeper else 0.0

    def wait_until_loaded(self) -> None:
        """Return when commands run in forks of the session that stays."""
        end = time.monotonic() + LOADED_SECONDS
        while self.run("list").cpu > 0.1 and time.monotonic() < end:
            time.sleep(0.5)

    def stop(self) -> None:
        """End the session that stays, and wait for its end."""
        keeper = self._keeper()
        self.run("engine", "stop")
        while keeper and (PROC / str(keeper)).exists():
            time.sleep(0.1)


@contextlib.contextmanager
def new_home(*, stays: bool = True) -> Iterator[Home]:
    """An empty home; its session ends with it. The path is short, as those of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="odf-", dir="/tmp") as folder:
        home = Home(Path(folder), stays=stays)
        home.run("init")
        try:
            yield home
        finally:
            home.stop()
