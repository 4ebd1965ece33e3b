"""Two people and a real server between them: from the first record to a fork, and a mirror nobody trusts."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.kit.processes import ODFCHAIN, TIMEOUT, environment, wait_until
from tests.kit.served_workspace import ask
from tests.kit.servers import closed_port
from tests.kit.support import Result, Run, manifest


class Server:
    """`odfchain serve` in a process of its own; counts what it is asked for."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        self._process = process
        self._log = log
        self._read = 0
        self._marks = itertools.count()

    def requests(self) -> list[str]:
        """Paths that were asked for since the last call, the dataset's name left out."""
        mark = f"/mark-{next(self._marks)}"
        assert ask(self.url, mark).status == 404
        # lines are in the order of the requests: behind the mark there is nothing of before
        wait_until(lambda: f" {mark} " in self._log.read_text(), self._process)
        lines = self._log.read_text().splitlines()
        paths = [line.split()[2] for line in lines if line.startswith("127.0.0.1 GET /")]
        new, self._read = paths[self._read :], len(paths)
        assert new.pop() == mark
        return [path.removeprefix("/cities/") for path in new]


@contextmanager
def serving(folder: Path, log: Path) -> Iterator[Server]:
    with log.open("w") as errors:
        process = subprocess.Popen(
            [ODFCHAIN, "serve", "--port", "0", "--print-address", "--verbose"],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield Server(process, log)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (0, "")


class Person:
    """Somebody with a workspace."""

    def __init__(self, run: Run, home: Path) -> None:
        self._run = run
        self.home = home
        home.mkdir()
        assert self("init").code == 0

    def __call__(self, *args: object) -> Result:
        return self._run("-w", self.home, *args)

    def row(self, *args: object) -> dict[str, Any]:
        """The one record that a command prints."""
        result = self(*args, "-o", "json")
        assert result.code == 0, result.err
        (row,) = json.loads(result.out)
        return dict(row)

    def ingest(self, *cities: str) -> None:
        path = self.home / "in.csv"
        path.write_text("city,population\n" + "".join(f"{city},1\n" for city in cities))
        assert self("ingest", "cities", path).code == 0

    @property
    def dataset(self) -> Path:
        (folder,) = (self.home / ".odfchain" / "datasets").iterdir()
        return folder

    def files(self) -> set[str]:
        """The blocks and objects that are here, as keys."""
        parts = ("blocks", "data", "checkpoints")
        return {f"{part}/{path.name}" for part in parts for path in (self.dataset / part).glob("f1620*")}

    def head(self) -> str:
        return (self.dataset / "refs" / "head").read_text()


@pytest.fixture
def owner(run_cli: Run, tmp_path: Path) -> Person:
    """Has a dataset with one slice."""
    owner = Person(run_cli, tmp_path / "owner")
    (owner.home / "cities.yaml").write_text(manifest())
    assert owner("add", owner.home / "cities.yaml").code == 0
    owner.ingest("Lviv", "Graz")
    return owner


@pytest.fixture
def friend(run_cli: Run, tmp_path: Path) -> Person:
    return Person(run_cli, tmp_path / "friend")


@pytest.fixture
def server(owner: Person, tmp_path: Path) -> Iterator[Server]:
    with serving(owner.home, tmp_path / "requests.log") as server:
        yield server


def test_a_pull_asks_for_what_is_new_and_for_nothing_else(
    owner: Person, friend: Person, server: Server
) -> None:
    assert friend.row("pull", f"{server.url}cities")["status"] == "created"
    asked = server.requests()
    assert sorted(path for path in asked if "1620" in path) == sorted(owner.files()), "each once"
    assert (friend.files(), friend.head()) == (owner.files(), owner.head())
    before = owner.files()

    assert friend.row("pull", "cities")["status"] == "up to date"
    signed = {"refs/head.jws", "attestations/audits.jws", "attestations/snapshots.jws"}
    assert sorted(server.requests()) == sorted({"refs/head", *signed})

    owner.ingest("Brno")
    row = friend.row("pull", "cities")
    new = owner.files() - before
    assert row.items() >= {"status": "updated", "blocks": 1, "objects": len(new) - 1}.items()
    asked = server.requests()
    assert sorted(path for path in asked if "1620" in path) == sorted(new)
    assert set(asked) - new <= {"refs/head", "hints/chain", *signed}
    assert (friend.files(), friend.head()) == (owner.files(), owner.head())
    assert friend("tail", "cities").out == owner("tail", "cities").out
    assert friend.row("verify", "cities")["verdict"] == "clean"


def test_a_folder_is_a_peer_and_a_mirror(owner: Person, friend: Person, run_cli: Run, tmp_path: Path) -> None:
    owner.ingest("Brno")
    public = (tmp_path / "public" / "cities").as_uri()
    with serving(owner.home, tmp_path / "requests.log") as server:
        assert friend.row("pull", f"{server.url}cities", "--metadata-only")["objects"] == 0
        asked = server.requests()
    assert [path for path in asked if path.startswith(("data/", "checkpoints/"))] == []
    assert friend("verify", "cities").code == 7
    assert owner.row("push", "cities", "--to", public)["status"] == "created"

    third = Person(run_cli, tmp_path / "third")
    assert third.row("pull", public)["status"] == "created"
    assert third.files() == owner.files()
    owner.ingest("Bern")
    assert owner.row("push", "cities").items() >= {"status": "updated", "blocks": 1}.items()
    assert third.row("pull", "--all").items() >= {"status": "updated", "blocks": 1}.items()

    # the server that the friend knows is gone; what lacks comes from the folder, and only what is its own
    with closed_port(urlsplit(server.url).port or 0):
        assert friend("fetch", "cities").code == 8
    assert friend.row("fetch", "cities", "--from", public)["missing"] == 0
    report = friend.row("verify", "cities")
    assert report["verdict"] == "clean"
    assert report["counts"].items() >= {"slices": 2, "records": 3}.items()
