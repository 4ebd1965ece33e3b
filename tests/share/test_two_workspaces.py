"""Two workspaces and a server in a process of its own between them: what is asked for."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import odfchain as odf
from odfchain.api.workspace import Workspace
from tests.kit.processes import ODFCHAIN, TIMEOUT, environment, wait_until
from tests.kit.served_workspace import ask
from tests.kit.shared_store import add, append, texts


class Server:
    """`odfchain serve` in a process of its own; counts what it is asked for."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
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
    command = [ODFCHAIN, "serve", "--port", "0", "--print-address", "--verbose"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield Server(process, log)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (0, "")


def files(workspace: Workspace) -> set[str]:
    """The blocks and objects that are here, as keys."""
    folder, parts = workspace["cities"].path, ("blocks", "data", "checkpoints")
    return {f"{part}/{path.name}" for part in parts for path in (folder / part).glob("f1620*")}


def test_a_pull_asks_for_what_is_new_and_for_nothing_else(tmp_path: Path) -> None:
    owner, friend = odf.init(tmp_path / "owner"), odf.init(tmp_path / "friend")
    append(add(owner), "Lviv", "Graz")
    with serving(tmp_path / "owner", tmp_path / "requests.log") as server:
        assert friend.pull(f"{server.url}cities").status == "created"
        asked = server.requests()
        assert sorted(path for path in asked if "1620" in path) == sorted(files(owner)), "each once"
        before = files(owner)
        assert (files(friend), friend["cities"].head) == (before, owner["cities"].head)

        assert friend.pull("cities").status == "up to date"
        signed = {
            "refs/head.jws",
            "refs/head.checkpoint",
            "attestations/audits.jws",
            "attestations/keys.jws",
            "attestations/snapshots.jws",
        }
        assert sorted(server.requests()) == sorted({"refs/head", *signed})

        append(owner["cities"]._files, "Brno")
        done, new = friend.pull("cities"), files(owner) - before
        assert (done.status, done.blocks, len(new)) == ("updated", 1, 2)
        asked = server.requests()
    assert sorted(path for path in asked if "1620" in path) == sorted(new)
    assert set(asked) - new <= {"refs/head", "hints/chain", *signed}
    assert (files(friend), friend["cities"].head) == (files(owner), owner["cities"].head)
    assert texts(friend) == texts(owner) == ["Lviv", "Graz", "Brno"]
    assert friend["cities"].verify().verdict == "clean"
