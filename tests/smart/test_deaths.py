"""Case 18: a connection, or a process, dies at each message; the next run completes, and sends nothing twice."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from odfchain.errors import OdfchainError
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.open_peer import PeerOptions
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.options import PushOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import smart_site
from tests.kit.cutting_relay import Relay
from tests.kit.scenario import chain_of, install
from tests.kit.support import tree_of

STEPS_OF_A_PUSH = [
    "> GET /{name}/refs/head", "< 404", "> GET /{name}/push", "< 101",
    "> message", "< message", "> message", "< message", "> message", "< message",
    "> PUT /{name}/data/", "> body", "< 201", "> PUT /{name}/checkpoints/", "> body", "< 201",
    "> message", "> message", "< message", "> close",
]  # fmt: skip
STEPS_OF_A_COMMAND = [
    "> GET /{name}/refs/head", "< 404", "> GET /{name}/info", "< 404", "> GET /info", "< 200", *STEPS_OF_A_PUSH
]  # fmt: skip
STEPS_OF_A_PULL = [
    "> GET /{name}/refs/head", "< 200", "> GET /{name}/refs/head.jws", "< 404",
    "> GET /{name}/blocks/", "< 200", "> GET /{name}/pull", "< 101",
    "> message", "< message", "> message", "< message",
    "> GET /{name}/attestations/keys.jws", "< 404", "> GET /{name}/refs/head.checkpoint", "< 404",
    "> GET /{name}/attestations/audits.jws", "< 404", "> GET /{name}/attestations/snapshots.jws", "< 404",
    "> message", "< message",
    "> GET /{name}/data/", "< 200", "> GET /{name}/checkpoints/", "< 200", "> close",
]  # fmt: skip
COMMAND = str(Path(sys.executable).with_name("odfchain"))

Steps = Iterable[int] | None
"""Which of them; None: all."""


def until_none(relay: Relay) -> Iterator[int]:
    """The number of each step, until nothing came so far."""
    for step in count():
        yield step
        if not relay.fired.is_set():
            return


@pytest.fixture
def node(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path / "node")


@pytest.fixture
def ours(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path / "ours")


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


class Transfers:
    """Datasets that are pushed to a node, or pulled from it, through a relay: one for each step."""

    def __init__(self, verb: str, node: WorkspaceFiles, ours: WorkspaceFiles, relay: Relay) -> None:
        self.is_push, self.relay, self.ours = verb == "push", relay, ours
        self.expected = STEPS_OF_A_PUSH if self.is_push else STEPS_OF_A_PULL
        self.source, self.target = (ours, node) if self.is_push else (node, ours)
        self.token = TokenFile(node.root).create("me", ["push:%"], Timestamp.now()).text
        self.died = 0
        self.lost: set[str] = set()
        """Paths of what was sent and did not arrive."""

    def each(self, steps: Steps = None) -> Iterator[tuple[int, str]]:
        """The number of a step and a dataset; all is well after another transfer."""
        for step in steps or until_none(self.relay):
            name, chain = f"cities.{step}", chain_of([f"seed {step}", "schema", "d1"])
            install(self.source, name, chain)
            yield step, name
            self.carry(name)
            folders = [each.dataset(DatasetAlias.parse(name)).folder for each in (self.source, self.target)]
            for part in ("blocks", "data", "checkpoints", "refs"):
                assert tree_of(folders[0] / part) == tree_of(folders[1] / part)
        assert self.died == len(tuple(steps)) if steps else self.died >= len(self.expected)

    def carry(self, name: str) -> None:
        url, options = f"{self.relay.url}{name}", {"retries": 0, "parallel": 1}
        if self.is_push:
            dataset = self.ours.dataset(DatasetAlias.parse(name))
            smart_site.push(dataset, url, PushOptions(parallel=1), token=self.token, **options)
        else:
            smart_site.pull(self.ours, f"odf+{url}", name, PeerOptions(**options), parallel=1)

    def died_at(self, step: int, name: str) -> bool:
        """Whether something died there; if not, all that there is was said in order. No more dies now."""
        relay = self.relay
        relay.disarm()
        dead = relay.fired.is_set()
        said = [line for line in relay.steps if not line.startswith("< close")][: len(self.expected)]
        fits = [line.startswith(e.format(name=name)) for line, e in zip(said, self.expected, strict=False)]
        assert all(fits[: step + 1]), "\n".join(said)
        assert dead or len(said) == len(self.expected), said
        self.died += dead
        if dead and relay.steps[step] == "< 200":
            self.lost.add(relay.steps[step - 1].split()[2])
        return dead

    def sent(self, lines: Iterable[str]) -> Counter[str]:
        """How often each object was sent whole, by the server's own log."""
        what = (
            r"PUT (\S+/(?:data|checkpoints)/\S+) 201"
            if self.is_push
            else r"GET (\S+/(?:data|checkpoints)/\S+) 200"
        )
        found = (re.fullmatch(rf"\S+ {what}", line) for line in lines)
        return Counter(match[1] for match in found if match)

    def sends_lost_ones_again(self, lines: Iterable[str], more: int) -> None:
        """What was sent and did not arrive is sent again, and nothing else."""
        sent = self.sent(lines)
        assert len(sent) == 2 * (self.died + more)
        assert {path for path, times in sent.items() if times > 1} == self.lost & sent.keys()


@pytest.mark.parametrize(
    ("verb", "steps"),
    [
        pytest.param("push", (5, 9, 12, 17), id="few of a push"),
        pytest.param("pull", (9, 17, 19), id="few of a pull"),
        pytest.param("push", None, id="all of a push", marks=pytest.mark.soak),
        pytest.param("pull", None, id="all of a pull", marks=pytest.mark.soak),
    ],
)
def test_a_connection_that_dies_at_a_message(
    verb: str, steps: Steps, node: WorkspaceFiles, ours: WorkspaceFiles, idle: threading.Event
) -> None:
    log = list[str]()
    with (
        RepositoryServer(node, write=verb == "push", on_request=log.append) as server,
        Relay(port_of(server.url)) as relay,
    ):
        transfers = Transfers(verb, node, ours, relay)
        for step, name in transfers.each(steps):
            relay.arm(step)
            with contextlib.suppress(OdfchainError):
                transfers.carry(name)
            transfers.died_at(step, name)
            assert idle.wait(20)
    transfers.sends_lost_ones_again(log, steps is None)


# --- processes ----------------------------------------------------------------------------------------


class Client:
    """A command in a process of its own, that may be killed from another thread."""

    def __init__(self, words: Sequence[str], ours: WorkspaceFiles, env: dict[str, str]) -> None:
        self._words, self._env = [COMMAND, "-q", "-w", str(ours.root.parent), *words], env
        self._process: subprocess.Popen[bytes] | None = None
        self._started = threading.Event()

    def start(self) -> None:
        self._process = subprocess.Popen(self._words, env=self._env, stderr=subprocess.DEVNULL)
        self._started.set()

    def kill(self) -> None:
        assert self._started.wait(20)
        self._process.kill()
        self._process.wait(20)

    def wait(self) -> int:
        return self._process.wait(60)


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_client_that_is_killed_at_each_step(
    verb: str, node: WorkspaceFiles, ours: WorkspaceFiles, tmp_path: Path, idle: threading.Event
) -> None:
    log = list[str]()
    with (
        RepositoryServer(node, write=True, on_request=log.append) as server,
        Relay(port_of(server.url)) as relay,
    ):
        transfers = Transfers(verb, node, ours, relay)
        if verb == "push":
            transfers.expected = STEPS_OF_A_COMMAND
        here = {"ODFCHAIN_TOKEN": transfers.token, "ODFCHAIN_CREDENTIALS": str(tmp_path / "none.json")}
        for step, name in transfers.each():
            place = f"odf+{relay.url}{name}"
            words = ["push", name, "--to", place] if verb == "push" else ["pull", place]
            client = Client([*words, "--parallel", "1"], ours, os.environ | here)
            relay.arm(step, client.kill)
            client.start()
            code = client.wait()
            assert code == (-9 if transfers.died_at(step, name) else 0)
            assert idle.wait(20)
    transfers.sends_lost_ones_again(log, 1)


class Served:
    """`odfchain serve` in a process of its own; its log goes on when it is started again."""

    def __init__(self, node: WorkspaceFiles, relay: Relay, log: Path) -> None:
        self._words = [COMMAND, "-w", str(node.root.parent), "serve", "--write", "--port", "0"]
        self._relay, self._log = relay, log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._words, "--verbose", "--print-address"], stdout=subprocess.PIPE, stderr=log
            )
        self._relay.port = port_of(self._process.stdout.readline().decode().strip())

    def kill(self) -> None:
        gone = self._process  # another one may be started as soon as this one is dead
        gone.kill()
        gone.wait()
        gone.stdout.close()


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_server_that_is_killed_at_each_step(
    verb: str, node: WorkspaceFiles, ours: WorkspaceFiles, tmp_path: Path
) -> None:
    with Relay(0) as relay:
        transfers, served = Transfers(verb, node, ours, relay), Served(node, relay, tmp_path / "log")
        try:
            for step, name in transfers.each():
                relay.arm(step, served.kill)
                with contextlib.suppress(OdfchainError):
                    transfers.carry(name)
                if transfers.died_at(step, name):
                    served.start()
        finally:
            served.kill()
    sent = transfers.sent((tmp_path / "log").read_text().splitlines())
    assert sent
    assert {path for path, times in sent.items() if times > 1} <= transfers.lost
