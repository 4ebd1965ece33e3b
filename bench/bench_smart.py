"""The smart protocol beside the simple one and beside curl: blocks in one piece, pushes, and memory.

Clients and servers are processes of their own, started for each measurement; the two sides of a comparison
take turns. The remarks say the processor time of both sides.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench_share import BIG_SLICE_BYTES, SLICES, extended, nginx, with_blocks, with_slices
from figures import Figure, seconds, tell
from processes import cpu_seconds, peak_mib

from odfchain.limits import SMART
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.schema import DataField, DataSchema, DataTypeInt64
from odfchain.odf.times import Timestamp
from odfchain.storage.store import RawBlock
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.block_batch import packed
from odfchain.transfer.smart_messages import PulledBlocks, text_of
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

BLOCKS = 10_000
TINY_OBJECTS = 4_000
ROUNDS = 5
DELAY = 0.02
"""From a request to its answer, beside what the server needs [s]."""
LARGE_BLOCKS = 9_000
"""Of the batch that fills a message."""

FAR_TARGET = 0.05
NEAR_TARGET = 1.3
PUSH_TARGET = 0.7
MEMORY_TARGET = 200.0

SIDES = Path(__file__).with_name("smart_sides.py")


@dataclass(frozen=True)
class Spent:
    """What one client needed, and its server meanwhile."""

    seconds: float
    cpu: float
    """Of the client [s]."""
    peak: float
    """Of the client [MiB]."""
    server_cpu: float = 0.0
    server_peak: float = 0.0


@dataclass(frozen=True)
class Server:
    """A server in a process of its own."""

    url: str
    pid: int
    log: Path

    @property
    def requests(self) -> list[str]:
        """What was asked of it so far."""
        return self.log.read_text(encoding="utf-8").splitlines()


@contextlib.contextmanager
def side(*arguments: str | Path) -> Iterator[tuple[str, int]]:
    """A part of `smart_sides.py` that serves: where it is, and its process."""
    command = [sys.executable, str(SIDES), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


@contextlib.contextmanager
def served(root: Path) -> Iterator[Server]:
    """A workspace behind `odfchain serve --write`."""
    log = root / "requests"
    log.unlink(missing_ok=True)
    with side("serve", root, log) as (url, pid):
        yield Server(url, pid, log)


@contextlib.contextmanager
def far(url: str) -> Iterator[str]:
    """The same server at the end of a long way."""
    with side("delay", url.rstrip("/").rpartition(":")[2], str(DELAY)) as (there, _):
        yield there


def client(*arguments: str | Path, server: Server | None = None) -> Spent:
    """What a pull or a push needs."""
    before = cpu_seconds(server.pid) if server else 0.0
    command = [sys.executable, str(SIDES), *map(str, arguments)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    after, peak = (cpu_seconds(server.pid), peak_mib(server.pid)) if server else (0.0, 0.0)
    return Spent(found["seconds"], found["cpu"], found["peak_mib"], after - before, peak)


def pulled(url: str, root: Path, server: Server | None = None) -> Spent:
    """A pull into a new workspace, which goes away again."""
    try:
        return client("pull", url, root, server=server)
    finally:
        shutil.rmtree(root)


def spread(found: Sequence[float]) -> str:
    """The smallest, the middle and the largest."""
    return f"{min(found):.2f}/{statistics.median(found):.2f}/{max(found):.2f}"


def used(found: Sequence[Spent]) -> str:
    """Times, and processor time of the client and of the server."""
    cpu, there = (
        statistics.median(each) for each in zip(*((s.cpu, s.server_cpu) for s in found), strict=True)
    )
    return f"{spread([s.seconds for s in found])} s, CPU {cpu:.1f}" + (f" + {there:.1f}" if there else "")


# --- what is sent -------------------------------------------------------------------------------------


def with_tiny_objects(root: Path) -> DatasetFiles:
    """A dataset of as many blocks, some of which bring a slice of a few bytes."""
    dataset = WorkspaceFiles.init(root).create(
        DatasetSnapshot(name=DatasetAlias.parse("tiny"), kind=DatasetKind.ROOT, metadata=())
    )
    schema = DataSchema(fields=(DataField(name="x", type=DataTypeInt64()),))
    events: list[ev.MetadataEvent] = [ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(schema))]
    for number in range(TINY_OBJECTS):
        content = b"%d" % number
        name = hash_bytes(content)
        dataset.data.path(name).write_bytes(content)
        made = ev.DataSlice(
            logical_hash=name,
            physical_hash=name,
            offset_interval=ev.OffsetInterval(start=number, end=number),
            size=len(content),
        )
        events.append(ev.AddData(prev_offset=number - 1 if number else None, new_data=made))
    last = TINY_OBJECTS - 1
    for number in range(BLOCKS - len(events) - 1):
        mark = Timestamp.from_epoch_ms(1_700_000_000_000 + number)
        events.append(ev.AddData(prev_offset=last, new_watermark=mark))
    return extended(dataset, events)


def described(root: Path, blocks: int, letters: int) -> DatasetFiles:
    """A dataset whose descriptions cannot be compressed much, and which has nothing else."""
    dataset = WorkspaceFiles.init(root).create(
        DatasetSnapshot(name=DatasetAlias.parse("described"), kind=DatasetKind.ROOT, metadata=())
    )
    noise = random.Random(3)  # noqa: S311 - no secret
    text = partial(noise.randbytes, letters * 3 // 4)
    infos = [ev.SetInfo(description=base64.b64encode(text()).decode()) for _ in range(blocks - 1)]
    return extended(dataset, infos)


def of_a_full_message(root: Path) -> tuple[DatasetFiles, int]:
    """A dataset whose blocks fill a message nearly as far as one may be filled, and the size of that."""
    letters, found = 500, 0
    for number in range(3):
        dataset = described(root / str(number), LARGE_BLOCKS, letters)
        chain = dataset.chain
        names = [name for name, _ in chain.walk()]
        batch = packed(RawBlock(name, chain.get_bytes(name)) for name in names)
        found = len(text_of(PulledBlocks(blocks=batch)))
        if 0.97 * SMART.message_bytes < found <= SMART.message_bytes:
            return dataset, found
        # what the letters do not explain stays; a byte of a batch is 3.57 letters of a message
        letters += int((0.985 * SMART.message_bytes - found) / LARGE_BLOCKS / 3.57 * 4 / 3)
    raise AssertionError(f"no message of the right size was made: {found:,} bytes")


def token(root: Path) -> str:
    """What lets everybody who has it push to a workspace."""
    return TokenFile(WorkspaceFiles.find(root).root).create("bench", ["push:%"], Timestamp.now()).text


# --- blocks -------------------------------------------------------------------------------------------


def bench_far() -> Iterator[Figure]:
    """A chain at the end of a long way: in one piece, with the hint, and block by block."""
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        dataset = with_blocks(root / "source")
        tell(f"smart: a chain of {BLOCKS:,} blocks, {DELAY * 1e3:g} ms away, {ROUNDS} times, once by walking")
        smart, hinted = [], []
        with (
            served(root / "source") as server,
            nginx(dataset.folder, root / "nginx") as plain,
            far(server.url) as there,
            far(plain) as plain_there,
        ):
            walk = pulled(plain_there, root / "copy")
            for _ in range(ROUNDS):
                smart.append(pulled(f"odf+{there}long/", root / "copy", server))
                hinted.append(pulled(f"{there}long/", root / "copy", server))
    yield Figure(
        f"odf+ pull of {BLOCKS:,} blocks, {DELAY * 1e3:g} ms, share of the plain walk's time",
        statistics.median(s.seconds for s in smart) / walk.seconds,
        "×",
        FAR_TARGET,
        remark=f"{used(smart)} against {walk.seconds:.0f} s by walking, {used(hinted)} with the hint",
        samples=tuple(round(s.seconds / walk.seconds, 4) for s in smart),
    )


def bench_near() -> Iterator[Figure]:
    """The same on this machine, beside a pull from the same server with the hint."""
    for make, what in ((with_blocks, "no objects"), (with_tiny_objects, f"{TINY_OBJECTS:,} tiny objects")):
        with tempfile.TemporaryDirectory() as text:
            root = Path(text)
            name = make(root / "source").alias
            tell(f"smart: a chain of {BLOCKS:,} blocks, {what}, {ROUNDS} times")
            smart, hinted = [], []
            with served(root / "source") as server:
                for _ in range(ROUNDS):
                    hinted.append(pulled(f"{server.url}{name}/", root / "copy", server))
                    smart.append(pulled(f"odf+{server.url}{name}/", root / "copy", server))
        shares = [s.seconds / h.seconds for s, h in zip(smart, hinted, strict=True)]
        yield Figure(
            f"odf+ pull of {BLOCKS:,} blocks, {what}, share of a hinted pull's time",
            statistics.median(shares),
            "×",
            NEAR_TARGET,
            remark=f"{spread(shares)}: {used(smart)} against {used(hinted)}",
            samples=tuple(round(share, 3) for share in shares),
        )


# --- pushes -------------------------------------------------------------------------------------------


def curl(paths: Sequence[Path], url: str, pipelines: int) -> None:
    """The files to a server by curl, in one process or side by side."""
    running = []
    for start in range(pipelines):
        part = [word for path in paths[start::pipelines] for word in ("-T", str(path), f"{url}{path.name}")]
        running.append(subprocess.Popen(["curl", "-sS", "-f", *part], stdout=subprocess.DEVNULL))
    assert [process.wait() for process in running] == [0] * pipelines


def bench_push() -> Iterator[Figure]:
    """The speed of a push as a share of curl's to a server that only hashes; then one with nothing new."""
    assert shutil.which("curl"), "curl is missing: apt-get install curl"
    size = SLICES * BIG_SLICE_BYTES
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        dataset = with_slices(root / "source")
        paths = [dataset.data.path(name) for name in dataset.data.names()]
        tell(f"smart: pushing {SLICES} slices of {BIG_SLICE_BYTES >> 20} MiB, {ROUNDS} times")
        once, twice, pushed = [], [], []
        again: list[str] = []
        with side("take") as (sink, _):
            for number in range(ROUNDS):
                once.append(seconds(partial(curl, paths, sink, 1)))
                twice.append(seconds(partial(curl, paths, sink, 2)))
                node = root / f"node-{number}"
                WorkspaceFiles.init(node)
                with served(node) as server:
                    what = ("push", root / "source", "large", f"odf+{server.url}large", token(node))
                    pushed.append(client(*what, server=server))
                    before = len(server.requests)
                    client(*what)
                    again = server.requests[before:]
                shutil.rmtree(node)
    shares = [curled / each.seconds for curled, each in zip(once, pushed, strict=True)]
    yield Figure(
        f"push of {size >> 20:,} MiB, share of the speed of curl -T | sha3-256",
        statistics.median(shares),
        "×",
        PUSH_TARGET,
        at_least=True,
        remark=f"{spread(shares)}: {used(pushed)} against {spread(once)} s, two at a time {spread(twice)} s",
        samples=tuple(round(share, 3) for share in shares),
    )
    assert all(" GET " in line for line in again), again
    yield Figure(
        "push with nothing new: requests", len(again), "", 1, remark=f"no socket: {'; '.join(again)}"
    )


# --- memory -------------------------------------------------------------------------------------------


def bench_memory_of_sessions() -> Iterator[Figure]:
    """The most that both processes had resident, Python and all modules included."""
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        tell("smart: memory of pulls and pushes")
        with_blocks(root / "long")
        with_slices(root / "large")
        described(root / "most", SMART.blocks, 30)
        full, message = of_a_full_message(root / "full")
        full_root = full.folder.parents[2]
        yield from _peaks(f"pull of {BLOCKS:,} blocks", root / "long", "long", root, pushes=False)
        yield from _peaks(f"push of {SMART.blocks:,} blocks", root / "most", "described", root)
        yield from _peaks(f"push of {SLICES * BIG_SLICE_BYTES >> 20:,} MiB", root / "large", "large", root)
        filled = f"a message of {message / (1 << 20):.1f} MiB"
        yield from _peaks(f"pull of {filled}", full_root, "described", root, pushes=False)
        node = root / "node"
        WorkspaceFiles.init(node)
        with served(node) as server:
            found = client("frame", f"{server.url}described/", token(node), server=server)
        yield Figure(
            f"a message of {SMART.message_bytes >> 20} MiB without blocks: server",
            found.server_peak,
            "MiB",
            MEMORY_TARGET,
            remark=f"{found.seconds:.1f} s",
        )


def _peaks(what: str, source: Path, name: str, root: Path, *, pushes: bool = True) -> Iterator[Figure]:
    served_from = root / "node" if pushes else source
    if pushes:
        WorkspaceFiles.init(served_from)
    with served(served_from) as server:
        idle = peak_mib(server.pid)
        url = f"odf+{server.url}{name}"
        if pushes:
            found = client("push", source, name, url, token(served_from), server=server)
        else:
            found = pulled(f"{url}/", root / "copy", server)
    if pushes:
        shutil.rmtree(served_from)
    yield Figure(f"{what}: client", found.peak, "MiB", MEMORY_TARGET, remark=f"{found.seconds:.1f} s")
    yield Figure(
        f"{what}: server", found.server_peak, "MiB", MEMORY_TARGET, remark=f"{idle:.0f} before anybody came"
    )


def bench_smart() -> Iterator[Figure]:
    """All figures of the smart protocol; the delayed walk takes four minutes by itself."""
    yield from bench_near()
    yield from bench_push()
    yield from bench_memory_of_sessions()
    yield from bench_far()
