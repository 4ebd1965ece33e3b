"""Witnessed heads: what checkpoints add to commits, witnesses to pushes, and what a witness takes."""

from __future__ import annotations

import os
import secrets
import shutil
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

from bench_memory import COMMAND
from figures import Figure, per_call, spread, tell

from odfchain import Workspace
from odfchain.chain import checkpoints
from odfchain.chain.checkpoints import Checkpoint, Note, NoteKey, read_note, sign_note, write_note
from odfchain.chain.transparency_log import FRONTIER_KEY, Frontier
from odfchain.odf.identity import DatasetId, DatasetKey, Multihash
from odfchain.odf.times import Timestamp
from odfchain.transfer.witnesses import ADD, Request, WitnessLog

BLOCKS, ROUNDS, WITNESSES = 200, 15, 3
REQUESTS, CONNECTIONS = 3_000, 16
LOGS, DATASETS = 100_000, 1_000


@contextmanager
def _witness(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """A witness in a process of its own: its URL and key."""
    Workspace.init(folder)
    command = [*COMMAND, "-w", str(folder), "-q", "witness", "serve", "--name", name, "--port", "0"]
    with subprocess.Popen(
        [*command, "--print-address"], stdout=subprocess.PIPE, text=True, env=os.environ | {"CI": "true"}
    ) as process:
        try:
            assert process.stdout is not None
            url, key = process.stdout.readline().split()
            yield url, key
        finally:
            process.terminate()


def _note(key: DatasetKey) -> Note:
    log = Frontier().append(Multihash.sha3_256(secrets.token_bytes(32)))
    return sign_note(Checkpoint.of(key.dataset_id, log), key)


def bench_trust() -> Iterator[Figure]:
    """The figures of RFC-064."""
    with tempfile.TemporaryDirectory() as root:
        yield from _checkpoints(Path(root))
        yield from _pushes(Path(root))
        yield _datasets(Path(root))
        yield _rate(Path(root))
        yield _size(Path(root))


def _checkpoints(root: Path) -> Iterator[Figure]:
    from tests.kit.served_workspace import add_slice, make_dataset  # noqa: PLC0415 - as in bench_scale

    files = Workspace.init(root / "commits")._files
    dataset = make_dataset(files, "d", *[10] * BLOCKS)
    dataset_id, took = dataset.id, list[float]()
    key = files.key(dataset_id)
    for _ in range(ROUNDS):
        before = (dataset.folder / FRONTIER_KEY).read_bytes()
        add_slice(dataset, 10)
        (dataset.folder / FRONTIER_KEY).write_bytes(before)
        head = dataset.chain.head()
        assert head is not None
        began = perf_counter()
        write_note(dataset.folder, key, dataset_id, head)
        took.append(1_000 * (perf_counter() - began))
    yield Figure("checkpoint at a commit", statistics.median(took), "ms", 2.0, remark=spread(took))
    owner, keys = DatasetKey.generate(), [DatasetKey.generate() for _ in range(WITNESSES)]
    note, names = _note(owner), [NoteKey.of(each, f"w{n}") for n, each in enumerate(keys)]
    lines = [n.sign(note.checkpoint.body(), k, Timestamp.now()) for n, k in zip(names, keys, strict=True)]
    data = note.with_lines(lines, names).data()
    assert len(read_note(data).times(names)) == WITNESSES

    def verified() -> None:
        checkpoints._verify.cache_clear()  # as if it was met for the first time
        read_note(data, owner.dataset_id).times(names)

    cost = per_call(verified, calls=200, rounds=5)
    yield Figure("note with 3 cosignatures verified", cost / 1_000, "ms", 1.0)


@contextmanager
def _both(root: Path) -> Iterator[dict[str, Workspace]]:
    """A workspace without witnesses, and one that asks some."""
    root.mkdir()
    places = {name: Workspace.init(root / name) for name in ("plain", "witnessed")}
    with ExitStack() as stack:
        for name in (f"w{n}.example" for n in range(WITNESSES)):
            places["witnessed"].add_witness(*stack.enter_context(_witness(root / name, name)))
        yield places


def _push(place: Workspace, name: str) -> float:
    """How long a push to a folder beside the workspace takes [s]."""
    folder, began = place.path.parent, perf_counter()
    outcome = place[name].push((folder.with_name(f"at-{folder.name}") / name).as_uri())
    assert outcome.problem is None, outcome.problem
    return perf_counter() - began


def _pushes(root: Path) -> Iterator[Figure]:
    from tests.kit.shared_store import add, append  # noqa: PLC0415

    with _both(root / "one") as places:
        roots = {name: add(place, "d") for name, place in places.items()}
        times = {name: list[float]() for name in places}
        for turn in range(ROUNDS + 1):
            for name, place in places.items():
                append(roots[name], str(turn))
                took = _push(place, "d")
                if turn:  # the first one connects
                    times[name].append(took)
    plain, witnessed = (statistics.median(each) for each in times.values())
    remark = f"{1_000 * plain:.0f} and {1_000 * witnessed:.0f} ms"
    yield Figure("push of a block with 3 witnesses ÷ without", witnessed / plain, "×", 1.3, remark=remark)


def _datasets(root: Path) -> Figure:
    from tests.kit.shared_store import add  # noqa: PLC0415

    tell(f"pushing {DATASETS:,} datasets with and without witnesses")
    with _both(root / "many") as places:
        times = dict.fromkeys(places, 0.0)
        for number in range(DATASETS):
            for name, place in places.items():
                add(place, f"d{number}")
                times[name] += _push(place, f"d{number}")
    plain, witnessed = times.values()
    name, remark = f"{DATASETS:,} pushes with 3 witnesses ÷ without", f"{plain:.0f} and {witnessed:.0f} s"
    return Figure(name, witnessed / plain, "×", 3.0, remark=remark)


def _rate(root: Path) -> Figure:
    tell(f"signing {REQUESTS:,} requests")
    bodies = [b"old 0\n\n" + _note(DatasetKey.generate()).data() for _ in range(REQUESTS)]
    statuses = list[int]()
    with _witness(root / "rate", "w.example") as (url, _):
        target = urlsplit(url)

        def send(mine: Sequence[bytes]) -> None:
            with closing(HTTPConnection(str(target.hostname), target.port)) as connection:
                for body in mine:
                    connection.request("POST", f"/{ADD}", body)
                    with connection.getresponse() as answer:
                        answer.read()
                    statuses.append(answer.status)

        threads = [threading.Thread(target=send, args=[bodies[n::CONNECTIONS]]) for n in range(CONNECTIONS)]
        began = perf_counter()
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        took = perf_counter() - began
    assert statuses == [200] * REQUESTS
    return Figure("a witness cosigns", REQUESTS / took, "1/s", 500.0, at_least=True)


def _size(root: Path) -> Figure:
    folder = root / "logs"
    folder.mkdir()
    tell(f"cosigning for {LOGS:,} logs")
    block = Multihash.sha3_256(bytes(32))
    with closing(WitnessLog(folder / "w.db", DatasetKey.generate(), "w.example")) as log:
        for start in range(0, LOGS, 1_000):
            ids = [DatasetId(secrets.token_bytes(32)) for _ in range(start, start + 1_000)]
            notes = [Note(Checkpoint(each, 1, secrets.token_bytes(32), block), each, ()) for each in ids]
            answers = log.cosign([Request(0, (), note) for note in notes])
            assert {status for status, _ in answers} == {200}
    size = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    return Figure(f"memory of a witness of {LOGS:,} logs", size / 1e6, "MB", 20.0)
