"""Writers and readers in processes that are killed and stopped at random, and the history of what they did.

python -m tests.kit.history_writers PLAN

The plan is JSON (`Plan`). This process has one thread and has loaded what writers load: each writer is a fork.
A line of a writer's journal is a call ("B"), a return ("E"), or a refusal that nothing is known to remain of
("F"); times are of the machine's monotonic clock. What a killed process has written there stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import mmap
import os
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from odfchain.odf.events import AddData
from tests.kit.linearizability import APPEND, NEVER, READ, Operation

EPOCH = 1_704_067_200_000
"""No watermark is before this [ms]."""
LOADED = (
    "pyarrow.parquet", "odfchain.branches.merging", "odfchain.cli.bring", "odfchain.audit.dataset_checks",
    "odfchain.upkeep.compact", "odfchain.transfer.node_store", "tests.kit.shared_store", "tests.kit.smart_site",
    "odfchain.cli.main", "odfchain.api.definitions", "cryptography.hazmat.primitives.asymmetric.ed25519",
)  # fmt: skip
"""What clients load."""
PAUSE = 0.02
"""Between two reads of a reader [s]."""


@dataclass(frozen=True)
class Client:
    """Somebody who reads or writes some datasets of a folder, again and again."""

    name: str
    kind: str
    folder: str
    datasets: list[str]
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What is to be done until so much is acknowledged, of each client, or the seconds are over."""

    folder: str
    clients: list[Client]
    acknowledged: int
    fault_every: float | None
    """On average [s]; None: there are no faults."""
    seconds: float = 120.0
    seed: int = 0
    counted: Sequence[str] = ("api", "command", "merge", "push")
    """Kinds of clients whose answers are counted."""
    broken: bool = False
    """References are written without a look at what is there."""


# --- a client ---------------------------------------------------------------------------------------------


class Journal:
    """What a client calls, and what it hears."""

    def __init__(self, plan: Plan, client: Client, life: int, counters: mmap.mmap, slot: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(Path(plan.folder, f"{client.name}.log"), flags, 0o600)
        self._count, self._life, self._counters, self._slot = 0, life, counters, slot

    def value(self, client: Client) -> str:
        self._count += 1
        return f"{client.name}.{self._life}.{self._count}"

    def say(self, mark: str, dataset: str, value: str, *answer: object) -> None:
        line = json.dumps([mark, time.monotonic(), dataset, value, *map(str, answer)])
        os.write(self._file, line.encode() + b"\n")
        if mark == "E":
            (before,) = struct.unpack_from("<Q", self._counters, 8 * self._slot)
            struct.pack_into("<Q", self._counters, 8 * self._slot, before + 1)


Work = Callable[[str, str], object]
"""(dataset, value) -> what is kept with the value. It raises `RefusedError` where nothing was done."""


class RefusedError(Exception):
    """It was not done, for sure."""


class UnknownError(Exception):
    """It was done or not."""


def _opened(client: Client) -> dict[str, Any]:
    """Datasets that stay open, as in a program that runs for long."""
    import odfchain as odf

    workspace = odf.open(Path(client.folder))
    return {name: workspace[name] for name in client.datasets}


def append(files: Any, value: str) -> object:
    """A row, or a description, in a transaction of its own on the newest head."""
    from odfchain.odf.events import SetInfo
    from odfchain.progress import SILENT
    from odfchain.workspace.commit import commit, on_the_newest_head
    from odfchain.workspace.dataset_state import DatasetState
    from tests.kit.root_rows import START, append_all, records
    from tests.kit.shared_store import SCHEMA

    def once() -> object:
        state = DatasetState.read(files.chain)
        at = state.next_system_time()
        if value.startswith("api") and value[-1] not in "05":
            return commit(files, state, [SetInfo(description=value)], [], system_time=at)
        table = records(SCHEMA, state.record_count, [0], [START], [0], [value], at=at)
        return append_all(files, [table], at=at, state=state)

    return on_the_newest_head(once, 1_000, SILENT)


def api(client: Client) -> Work:
    """Commits as a program does that uses the API."""
    datasets = _opened(client)

    def once(name: str, value: str) -> object:
        time.sleep(client.more.get("pause", 0) / 4)
        return append(datasets[name]._files, value)

    return once


def command(client: Client) -> Work:
    """A command, which records a watermark: that is its value."""
    from odfchain.cli.main import main
    from odfchain.odf.times import Timestamp

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    (errors := Path(client.folder, f"{client.name}.err")).touch()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)

    def once(name: str, value: str) -> object:
        mark = Timestamp.from_epoch_ms(int(value.removeprefix("w")))
        os.truncate(errors, 0)
        code = main(["-w", client.folder, "pull", name, "--set-watermark", str(mark)])
        if code == 0:
            return ""
        text = errors.read_text(encoding="utf-8")
        if "was committed is not known" in text:
            raise UnknownError(text)
        if code == 5 or "watermark" in text:  # another was faster, or its mark is later
            raise RefusedError(text)
        raise AssertionError(f"{code}: {text}")

    return once


def merge(client: Client) -> Work:
    """A row on a branch, and a merge of it."""
    from odfchain.errors import RefConflictError

    datasets = _opened(client)
    for dataset in datasets.values():
        if client.name not in dataset.branch_names:
            dataset.create_branch(client.name)

    def once(name: str, value: str) -> object:
        append(datasets[name].branch(client.name)._files, value)
        while True:
            with contextlib.suppress(RefConflictError):  # more often than a merge tries again
                return datasets[name].merge(client.name).status

    return once


def _repeated(what: Callable[[], Any]) -> Any:
    """Again and again while the node is dead, or another client is faster."""
    from odfchain.errors import OdfchainError

    while True:
        try:
            return what()
        except (OSError, OdfchainError):
            time.sleep(0.02)


def push(client: Client) -> Work:
    """A commit here, and a push of it to a node."""
    from tests.kit.smart_site import push as pushed

    datasets, token = _opened(client), client.more["token"]

    def once(name: str, value: str) -> object:
        append(files := datasets[name]._files, value)
        return _repeated(lambda: pushed(files, f"{client.more['url']}{name}", token=token, retries=0))

    return once


def pull(client: Client) -> Work:
    """Copies are brought up to date, as schedules do: their heads are what a node had meanwhile."""
    import odfchain as odf
    from odfchain.odf.names import DatasetAlias
    from tests.kit.smart_site import pull as pulled

    ours = odf.open(Path(client.folder))._files

    def once(name: str, value: str) -> object:
        time.sleep(PAUSE)
        _repeated(lambda: pulled(ours, f"odf+{client.more['url']}{name}", name))
        return ours.dataset(DatasetAlias.parse(name)).chain.head()

    return once


def look(client: Client) -> Work:
    """The head that this workspace shows."""
    workspace = next(iter(_opened(client).values()))._workspace

    def once(name: str, value: str) -> object:
        time.sleep(PAUSE)
        return workspace[name].head

    return once


def check(client: Client) -> Work:
    """The newest blocks by their hashes, what an index says of them, and their newest slice; now and then all."""
    from odfchain.workspace.dataset_state import DatasetState
    from odfchain.workspace.read_slices import read_all

    workspace = next(iter(_opened(client).values()))._workspace
    known = {name: workspace[name] for name in client.datasets}

    def once(name: str, value: str) -> object:
        number = int(value.rpartition(".")[2])
        if number % client.more["anew"] == 0:
            known[name] = workspace[name]
        if number % client.more["all"] == 0:
            report = workspace[name].verify()
            assert report.verdict == "clean", report.faults
            state = DatasetState.read(workspace[name]._files.chain)
            assert read_all(workspace[name]._files, state).num_rows == state.record_count
            return report.head
        files = known[name]._files
        head = files.chain.head()
        state = DatasetState.read(files.chain)
        newest = list(itertools.islice(files.chain.walk(head), 4))
        assert [block.sequence_number for _, block in newest] == [
            newest[0][1].sequence_number - back for back in range(len(newest))
        ]
        found = files.chain.nearest("AddData", head=head)
        slow = next((each for each, block in newest if isinstance(block.event, AddData)), None)
        assert slow in (None, found.hash)
        assert files.chain.hash_at(newest[-1][1].sequence_number, head) == newest[-1][0]
        if (new := found.block.event.new_data) is not None:
            assert files.data.verified_path(new.physical_hash).stat().st_size == new.size
        assert state.record_count > 0
        return head

    return once


def compact(client: Client) -> Work:
    """Small slices become larger ones, and the head moves to other blocks."""
    from odfchain.errors import RefConflictError

    datasets = _opened(client)

    def once(name: str, value: str) -> object:
        time.sleep(client.more["pause"])
        try:
            return datasets[name].compact(force=True)
        except RefConflictError as error:
            raise RefusedError(str(error)) from error

    return once


def reindex(client: Client) -> Work:
    """The index of the chain is gone, cut, damaged, or made anew."""
    datasets, draw = _opened(client), random.Random(7)

    def once(name: str, value: str) -> object:
        time.sleep(client.more["pause"])
        path = datasets[name]._files.index_path
        size = path.stat().st_size if path.exists() else 0
        how = draw.choice(("gone", "cut", "damaged", "anew"))
        if how == "gone":
            path.unlink(missing_ok=True)
        elif how == "anew":
            return datasets[name].fsck()
        elif size:
            with path.open("r+b") as stream:
                stream.seek(draw.randrange(size))
                stream.truncate() if how == "cut" else stream.write(b"\xff" * 3)
        return how

    return once


KINDS: dict[str, Callable[[Client], Work]] = {
    each.__name__: each for each in (api, command, merge, push, pull, look, check, compact, reindex)
}
READERS = ("pull", "look")


def _live(plan: Plan, number: int, life: int, counters: mmap.mmap) -> None:
    client = plan.clients[number]
    journal = Journal(plan, client, life, counters, number)
    if plan.broken:
        _break()
    draw, name = random.Random(f"{plan.seed}.{number}.{life}"), ""
    try:
        work = KINDS[client.kind](client)
        while True:
            name, value = draw.choice(client.datasets), journal.value(client)
            if client.kind == "command":
                value = f"w{EPOCH + int(time.monotonic() * 1_000) * 16 + number}"
            journal.say("B", name, value)
            try:
                answer = work(name, value)
            except RefusedError:
                journal.say("F", name, value)
            except UnknownError:
                continue
            else:
                journal.say("E", name, value, answer)
    except BaseException:
        journal.say("X", name, "", traceback.format_exc())


def _break() -> None:
    """The mistake of the reference: what is there is looked at, and then overwritten without a lock."""
    from odfchain.storage import fsio, local

    def careless(self: Any, name: str, expected: Any, new: Any) -> None:
        if (actual := self.get(name)) != expected:
            raise local.conflict(name, expected, actual)
        time.sleep(0.002)
        fsio.replace_file(self._path(name), str(new).encode())

    local.LocalRefStore.compare_and_swap = careless  # type: ignore[method-assign]


# --- the one that kills -----------------------------------------------------------------------------------


def _run(plan: Plan) -> dict[str, Any]:
    from odfchain.storage import fsio

    draw, count = random.Random(plan.seed), len(plan.clients)
    counters = mmap.mmap(-1, 8 * count)
    lives, pids, faults = [0] * count, [0] * count, list[tuple[str, float, str]]()
    places = {Path(each.folder, ".odfchain", "datasets") for each in plan.clients}
    locks, held = [lock for place in places for lock in place.glob("*/info/lock")], [0.0]
    writers = [number for number, each in enumerate(plan.clients) if each.kind in plan.counted]

    def start(number: int) -> None:
        lives[number] += 1
        if (pid := os.fork()) == 0:
            try:
                _live(plan, number, lives[number], counters)
            finally:
                os._exit(1)
        pids[number] = pid

    def is_enough() -> bool:
        counts = [struct.unpack_from("<Q", counters, 8 * number)[0] for number in writers]
        return min(counts) > 0 and sum(counts) >= plan.acknowledged

    late, ends = 0.0, time.monotonic() + plan.seconds
    for number in range(count):
        start(number)
    try:
        while not is_enough() and time.monotonic() < ends:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break  # one has met an error, which its journal has
            if plan.fault_every is None:
                time.sleep(0.05)
                continue
            wait = draw.expovariate(1 / plan.fault_every)
            before = time.monotonic()
            time.sleep(wait)
            late = max(late, time.monotonic() - before - wait)
            number = draw.randrange(count)
            name, pid = plan.clients[number].name, pids[number]
            if draw.random() < 0.25:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(draw.uniform(0.01, 0.2))
                os.kill(pid, signal.SIGCONT)
                faults.append(("stop", time.monotonic(), name))
            else:
                os.kill(pid, signal.SIGKILL)
                faults.append(("kill", time.monotonic(), name))
                os.waitpid(pid, 0)
                begun = time.monotonic()
                for lock in locks:
                    with fsio.locked(lock):
                        pass
                held.append(time.monotonic() - begun)
                start(number)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {"faults": faults, "late": late, "held": max(held)}


# --- what is known afterwards -----------------------------------------------------------------------------


@dataclass
class Recorded:
    """A run, and its history."""

    faults: list[tuple[str, float, str]]
    late: float
    """The longest that the machine let the one that kills wait [s]."""
    held: float
    """The longest that all locks together took after a death [s]."""
    history: list[tuple[str, Operation]]
    """By dataset: appends, and reads whose answers are hashes."""
    crashes: list[str]

    def kills(self) -> int:
        return sum(kind == "kill" for kind, _, _ in self.faults)

    def stops(self) -> int:
        return len(self.faults) - self.kills()

    def acknowledged(self) -> int:
        return len(self._ends())

    def _ends(self) -> list[tuple[float, str]]:
        kept = (each for _, each in self.history if each.asked[0] == APPEND and each.returned != NEVER)
        return sorted((each.returned, each.client) for each in kept)

    def waits(self) -> list[float]:
        """How long after each death it took until another client had something acknowledged [s], sorted."""
        ends, found = self._ends(), list[float]()
        for kind, at, name in self.faults:
            if kind == "kill":
                found += [end - at for end, other in ends if end > at and other != name][:1]
        return sorted(found)


def _journal(client: Client, path: Path) -> Iterator[tuple[str, Operation | str]]:
    called: dict[tuple[str, str], float] = {}
    kind = READ if client.kind in READERS else APPEND
    for line in path.read_text(encoding="utf-8").splitlines():
        mark, at, name, value, *answer = json.loads(line)
        if mark == "X":
            yield name, answer[0]
        elif mark == "B":
            called[name, value] = at
        elif (began := called.pop((name, value))) and mark == "E":
            asked = (kind, None if kind == READ else value)
            yield name, Operation(client.name, asked, answer[0] if kind == READ else None, began, at)
    if kind == APPEND:
        for (name, value), began in called.items():
            yield name, Operation(client.name, (kind, value), None, began)


def recorded(plan: Plan) -> Recorded:
    """Run a plan to its end, in processes of their own."""
    import subprocess

    from tests.kit.support import ROOT

    text = json.dumps(dataclasses.asdict(plan))
    words = [sys.executable, "-m", "tests.kit.history_writers", text]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=plan.seconds + 60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    history, crashes = [], []
    for client in plan.clients:
        for name, each in _journal(client, Path(plan.folder, f"{client.name}.log")):
            if isinstance(each, str):
                crashes.append(f"{client.name}: {name}: {each}")
            else:
                history.append((name, each))
    return Recorded(found["faults"], found["late"], found["held"], history, crashes)


def chain_values(dataset: Any) -> tuple[list[str], dict[str, int]]:
    """What the blocks of a chain say, oldest first, and how many of them each block's hash has."""
    import pyarrow.parquet as pq

    files, values, lengths = dataset._files, list[str](), dict[str, int]()
    mark = None
    for name, block in reversed(list(files.chain.walk())):
        event = block.event
        new = getattr(event, "new_data", None)
        if new is not None:
            path = files.data.verified_path(new.physical_hash)
            values += pq.read_table(path, columns=["text"])["text"].to_pylist()
        if (text := getattr(event, "description", None)) is not None:
            values.append(text)
        following = getattr(event, "new_watermark", None)
        if following is not None and (mark is None or following > mark):
            mark = following
            if new is None:
                values.append(f"w{mark.epoch_ms}")
        lengths[str(name)] = len(values)
    return values, lengths


def history_of(found: Recorded, dataset: str, lengths: dict[str, int]) -> list[Operation]:
    """The part that is about a dataset; reads answer how much of the chain there was."""
    return [
        dataclasses.replace(each, answer=lengths.get(each.answer)) if each.asked[0] == READ else each
        for name, each in found.history
        if name == dataset
    ]


if __name__ == "__main__":
    _plan = json.loads(sys.argv[1])
    from odfchain.startup import put_off_pandas

    put_off_pandas()  # a second of each life, and none of it is used
    for _module in LOADED:
        import_module(_module)

    _plan["clients"] = [Client(**each) for each in _plan["clients"]]
    print(json.dumps(_run(Plan(**_plan))))
