"""What is asked of a dataset every day, as its chain grows from ten blocks to a million.

The datasets are copies of metadata only (`long_chain.py`). Making the longest takes minutes and, where a file
takes a block of the disk, 4 GB; `SCALE_FOLDER` names a folder where they stay for the next run.
"""

from __future__ import annotations

import functools
import http.server
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from figures import Figure, seconds, tell
from long_chain import lengthen, long_chain

import odfchain
from odfchain import Dataset, Timestamp
from odfchain.errors import ObjectNotFoundError
from odfchain.odf.events import SetInfo
from odfchain.storage.local import HEAD
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

LENGTHS = (10, 1_000, 1_000_000)
SAMPLE = 31
NEWEST = 1_000
_LATER = Timestamp.parse("2100-01-01T00:00:00Z")
_EMPTY = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: long, kind: Root, metadata: []}\n"
_VERIFY = """
import resource, sys, time, odfchain
begin = time.process_time()
report = odfchain.open(sys.argv[1])["long"].verify()
assert not report.faults, report.faults[0]
print(time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def bench_scale() -> Iterator[Figure]:
    """Medians at each length, and the longest as a multiple of a thousand blocks."""
    kept = os.environ.get("SCALE_FOLDER")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(kept or temporary)
        found: dict[str, list[float]] = {}
        for length in LENGTHS:
            workspace = folder / f"w{length}"
            if not workspace.exists():
                tell(f"making {length:,} blocks")
                took = seconds(functools.partial(long_chain, workspace, "long", length))
                yield Figure(f"making {length:,} blocks", length / took, "blocks/s")
            tell(f"asking the chain of {length:,} blocks")
            for name, each in _everyday(workspace).items():
                found.setdefault(name, []).append(each * 1e3)
        for name, times in found.items():
            for length, each in zip(LENGTHS, times, strict=True):
                target = 5.0 if name.startswith("head move") else None
                yield Figure(f"{name}, {length:,} blocks", each, "ms", target)
            yield Figure(f"{name}, longest ÷ 1,000", times[-1] / times[1], "×", 1.5, remark="1 is flat")
        for length in LENGTHS:
            tell(f"moving the head of {length:,} blocks in a store")
            yield from _in_store(length)
        tell("verifying all blocks")
        peaks = []
        for length in LENGTHS[1:]:
            command = [sys.executable, "-c", _VERIFY, str(folder / f"w{length}")]
            cpu, peak = map(float, subprocess.run(command, check=True, capture_output=True).stdout.split())
            peaks.append(peak)
            yield Figure(f"verify of all streams, {length:,} blocks", cpu, "s CPU")
            yield Figure(f"peak memory of that, {length:,} blocks", peak, "MiB")
        yield Figure("peak memory, longest − 1,000", peaks[-1] - peaks[0], "MiB", 100, remark="0 is constant")


def _everyday(workspace: Path) -> dict[str, float]:
    """Median times [s]; each run opens the workspace anew, and a first one builds what is kept."""
    files = odfchain.open(workspace)["long"]._files
    length = DatasetState.read(files.chain).head_block.sequence_number + 1

    def dataset() -> Dataset:
        return odfchain.open(workspace)["long"]

    def log() -> None:
        assert len(list(islice(dataset().log(), 20))) == min(20, length)

    def tail() -> None:
        try:
            dataset().tail(5)
        except ObjectNotFoundError:
            return
        raise AssertionError("no slice is here")

    def listed() -> None:
        found = dataset()
        assert found.summary.record_count == 10 * length
        counts = found.local_slices()
        assert counts is not None
        assert (counts.present, counts.total, found.data_size) == (0, length // 10, 0)

    def pull() -> None:
        assert dataset().pull()

    def verify_newest() -> None:
        assert not dataset().verify(last=NEWEST).faults

    def schema() -> None:
        assert dataset().schema is not None

    found = {
        "log -n 20": _median(log),
        "list": _median(listed),
        "tail -n 5": _median(tail),
        "inspect schema": _median(schema),
        f"verify of the newest {NEWEST:,}": _median(verify_newest, 5),
    }
    with _pulled_from(files.folder.as_uri() + "/", workspace):
        found["pull with nothing new, folder"] = _median(pull, 11)
    with _served(files.folder) as url, _pulled_from(url, workspace):
        found["pull with nothing new, http"] = _median(pull, 11)
    return found | _commits(files.folder)


@contextmanager
def _pulled_from(url: str, workspace: Path) -> Iterator[None]:
    """The dataset is known as a copy of what is at the URL, which is itself."""
    dataset = odfchain.open(workspace)["long"]
    dataset.add_alias("pull", url)
    try:
        yield
    finally:
        dataset.delete_alias("pull", url)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Nothing."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def _commits(folder: Path) -> dict[str, float]:
    """A commit as a whole, and the head move in it alone; the head is where it was afterwards."""
    files = DatasetFiles.open(folder)
    first = state = DatasetState.read(files.chain)
    commits, moves = [], []
    for number in range(SAMPLE):
        event = SetInfo(description=f"one more {number} {time.time_ns()}")
        begin = time.perf_counter()
        (head,) = commit(files, state, [event], [], system_time=_LATER)
        commits.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        files.chain.set_ref(HEAD, state.head, expected=head)
        moves.append(time.perf_counter() - begin)
        files.chain.set_ref(HEAD, head, expected=state.head)
        state = DatasetState.read(files.chain)
    made = [name for name, _ in files.chain.walk(tail=first.head)]
    files.chain.set_ref(HEAD, first.head, expected=state.head)
    for name in made:
        (folder / "blocks" / str(name)).unlink()
    return {
        "append, the whole commit": statistics.median(commits),
        "head move p50": statistics.median(moves),
        "what the disk asks for that": _median(functools.partial(_synced, folder / "refs" / "bench")),
    }


def _in_store(length: int) -> Iterator[Figure]:
    """Requests of a head move at a server that speaks like S3, and the whole commit there."""
    from tests.kit.small_s3 import SmallS3  # noqa: PLC0415 - of this repository, beside the package

    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    with tempfile.TemporaryDirectory() as folder, SmallS3() as store:
        workspace = odfchain.init(folder, store=store.url("bucket/bench"))
        (dataset,) = workspace.add(_EMPTY)
        where = f"bucket/bench/datasets/{dataset.path.name}"
        store.objects[f"{where}/refs/head"] = str(lengthen(dataset.path, length)).encode()
        files = odfchain.open(folder)["long"]._files
        requests, took = [], []
        for number in range(SAMPLE):
            state = DatasetState.read(files.chain)
            store.requests.clear()
            event = SetInfo(description=f"one more {number}")
            took.append(seconds(functools.partial(commit, files, state, [event], [], system_time=_LATER)))
            requests.append(sum("/refs/head" in path for _, path, _ in store.requests))
    assert min(requests) == max(requests)
    yield Figure(f"head move at a store, {length:,} blocks", requests[0], "requests", 3)
    yield Figure(f"commit at a store on loopback, {length:,} blocks", statistics.median(took) * 1e3, "ms")


def _synced(path: Path) -> None:
    """A small file and its folder are written and synced, without anything of ours."""
    with path.open("wb") as stream:
        stream.write(bytes(69))
        stream.flush()
        os.fsync(stream.fileno())
    path.unlink()
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _median(run: Callable[[], object], rounds: int = SAMPLE) -> float:
    run()
    return statistics.median(seconds(run) for _ in range(rounds))
