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
from tests.kit.scenario import Chain, chain_of, install
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
    "> GET /{name}/attestations/audits.jws", "< 404", "> GET /{name}/attestations/snapshots.jws", "< 404",
    "> message", "< message",
    "> GET /{name}/data/", "< 200", "> GET /{name}/checkpoints/", "< 200", "> close",
]  # fmt: skip
COMMAND = str(Path(sys.executable).with_name("odfchain"))

Steps = Iterable[int] | None
"""Which of them; None: all."""


def dataset(step: int) -> tuple[str, Chain]:
    """One of its own for each step."""
    return f"cities.{step}", chain_of([f"seed {step}", "schema", "d1"])


def until_none(relay: Relay) -> Iterator[int]:
    """The number of each step, until nothing came so far."""
    for step in count():
        yield step
        if not relay.fired.is_set():
            return


def died_at(relay: Relay, step: int, expected: list[str], name: str) -> bool:
    """Whether something died there; if not, all that there is was said in order. No more dies now."""
    relay.disarm()
    said = [line for line in relay.steps if not line.startswith("< close")][: len(expected)]
    fits = [line.startswith(e.format(name=name)) for line, e in zip(said, expected, strict=False)]
    assert all(fits[: step + 1]), "\n".join(said)
    if not relay.fired.is_set():
        assert len(said) == len(expected), said
    return relay.fired.is_set()


def lost_at(relay: Relay, step: int) -> set[str]:
    """The path of what was sent there and did not arrive."""
    return {relay.steps[step - 1].split()[2]} if relay.steps[step] == "< 200" else set()


def objects_sent(lines: Iterable[str], method: str, status: str) -> Counter[str]:
    """How often each object was sent whole, by the server's own log."""
    found = (re.fullmatch(rf"\S+ {method} (\S+/(?:data|checkpoints)/\S+) {status}", line) for line in lines)
    return Counter(match[1] for match in found if match)


@pytest.fixture
def node(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path / "node")


@pytest.fixture
def ours(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path / "ours")


def token_of(node: WorkspaceFiles) -> str:
    return TokenFile(node.root).create("me", ["push:%"], Timestamp.now()).text


def push(ours: WorkspaceFiles, name: str, url: str, token: str) -> None:
    dataset = ours.dataset(DatasetAlias.parse(name))
    smart_site.push(dataset, f"{url}{name}", PushOptions(parallel=1), token=token, retries=0, parallel=1)


def pull(ours: WorkspaceFiles, name: str, url: str) -> None:
    smart_site.pull(ours, f"odf+{url}{name}", name, PeerOptions(retries=0, parallel=1), parallel=1)


def carry(verb: str, ours: WorkspaceFiles, name: str, url: str, token: str) -> None:
    push(ours, name, url, token) if verb == "push" else pull(ours, name, url)


def same(one: WorkspaceFiles, other: WorkspaceFiles, name: str) -> None:
    """Both have the dataset, with the same files."""
    folders = [each.dataset(DatasetAlias.parse(name)).folder for each in (one, other)]
    for part in ("blocks", "data", "checkpoints", "refs"):
        assert tree_of(folders[0] / part) == tree_of(folders[1] / part)


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


FEW_OF_A_PUSH = pytest.param((5, 9, 12, 17), id="few")
FEW_OF_A_PULL = pytest.param((9, 17, 19), id="few")
ALL = pytest.param(None, id="all", marks=pytest.mark.soak)


@pytest.mark.parametrize("steps", [FEW_OF_A_PUSH, ALL])
def test_a_connection_that_dies_at_a_message_of_a_push(
    steps: Steps, node: WorkspaceFiles, ours: WorkspaceFiles, idle: threading.Event
) -> None:
    token, log, died = token_of(node), list[str](), 0
    with (
        RepositoryServer(node, write=True, on_request=log.append) as server,
        Relay(port_of(server.url)) as relay,
    ):
        for step in steps or until_none(relay):
            name, chain = dataset(step)
            install(ours, name, chain)
            relay.arm(step)
            with contextlib.suppress(OdfchainError):
                push(ours, name, relay.url, token)
            died += died_at(relay, step, STEPS_OF_A_PUSH, name)
            assert idle.wait(20)
            push(ours, name, relay.url, token)
            same(node, ours, name)
    assert died == len(tuple(steps)) if steps else died >= len(STEPS_OF_A_PUSH)
    sent = objects_sent(log, "PUT", "201")
    assert len(sent) == 2 * (died + (steps is None))
    assert set(sent.values()) == {1}, "an object was sent twice"


@pytest.mark.parametrize("steps", [FEW_OF_A_PULL, ALL])
def test_a_connection_that_dies_at_a_message_of_a_pull(
    steps: Steps, node: WorkspaceFiles, ours: WorkspaceFiles
) -> None:
    log, died, lost = list[str](), 0, set[str]()
    with RepositoryServer(node, on_request=log.append) as server, Relay(port_of(server.url)) as relay:
        for step in steps or until_none(relay):
            name, chain = dataset(step)
            install(node, name, chain)
            relay.arm(step)
            with contextlib.suppress(OdfchainError):
                pull(ours, name, relay.url)
            if died_at(relay, step, STEPS_OF_A_PULL, name):
                died, lost = died + 1, lost | lost_at(relay, step)
            pull(ours, name, relay.url)
            same(node, ours, name)
    assert died == len(tuple(steps)) if steps else died >= len(STEPS_OF_A_PULL)
    sent = objects_sent(log, "GET", "200")
    assert len(sent) == 2 * (died + (steps is None))
    # what was sent and did not arrive is sent again, and nothing else
    assert {path for path, times in sent.items() if times > 1} == lost & sent.keys()


# --- processes ----------------------------------------------------------------------------------------


def environment(tmp_path: Path, token: str) -> dict[str, str]:
    return os.environ | {"ODFCHAIN_TOKEN": token, "ODFCHAIN_CREDENTIALS": str(tmp_path / "none.json")}


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
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(60)


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_client_that_is_killed_at_each_step(
    verb: str, node: WorkspaceFiles, ours: WorkspaceFiles, tmp_path: Path, idle: threading.Event
) -> None:
    token, log, died, lost = token_of(node), list[str](), 0, set[str]()
    source, target = (ours, node) if verb == "push" else (node, ours)
    steps = STEPS_OF_A_COMMAND if verb == "push" else STEPS_OF_A_PULL
    with (
        RepositoryServer(node, write=True, on_request=log.append) as server,
        Relay(port_of(server.url)) as relay,
    ):
        for step in until_none(relay):
            name, chain = dataset(step)
            install(source, name, chain)
            place = f"odf+{relay.url}{name}"
            words = ["push", name, "--to", place] if verb == "push" else ["pull", place]
            client = Client([*words, "--parallel", "1"], ours, environment(tmp_path, token))
            relay.arm(step, client.kill)
            client.start()
            code = client.wait()
            if died_at(relay, step, steps, name):
                assert code == -9
                died, lost = died + 1, lost | lost_at(relay, step)
            else:
                assert code == 0
            assert idle.wait(20)
            carry(verb, ours, name, relay.url, token)
            same(source, target, name)
    assert died >= len(steps)
    sent = objects_sent(log, *(("PUT", "201") if verb == "push" else ("GET", "200")))
    assert len(sent) == 2 * (died + 1)
    assert {path for path, times in sent.items() if times > 1} == lost & sent.keys()


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
        assert self._process.stdout is not None
        self._relay.port = port_of(self._process.stdout.readline().decode().strip())

    def kill(self) -> None:
        gone = self._process  # another one may be started as soon as this one is dead
        gone.kill()
        gone.wait()
        assert gone.stdout is not None
        gone.stdout.close()


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_server_that_is_killed_at_each_step(
    verb: str, node: WorkspaceFiles, ours: WorkspaceFiles, tmp_path: Path
) -> None:
    token, died, lost = token_of(node), 0, set[str]()
    source, target = (ours, node) if verb == "push" else (node, ours)
    steps = STEPS_OF_A_PUSH if verb == "push" else STEPS_OF_A_PULL
    with Relay(0) as relay:
        served = Served(node, relay, tmp_path / "log")
        try:
            for step in until_none(relay):
                name, chain = dataset(step)
                install(source, name, chain)
                relay.arm(step, served.kill)
                with contextlib.suppress(OdfchainError):
                    carry(verb, ours, name, relay.url, token)
                if died_at(relay, step, steps, name):
                    died, lost = died + 1, lost | lost_at(relay, step)
                    served.start()
                carry(verb, ours, name, relay.url, token)
                same(source, target, name)
        finally:
            served.kill()
    assert died >= len(steps)
    lines = (tmp_path / "log").read_text().splitlines()
    sent = objects_sent(lines, *(("PUT", "201") if verb == "push" else ("GET", "200")))
    assert sent
    assert {path for path, times in sent.items() if times > 1} <= lost
