"""Sharing: pulling beside curl, cloning long chains, and what `odfchain serve` answers beside nginx."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from figures import Figure, seconds, tell

from odfchain.chain.chain import link_blocks
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot, SetInfo
from odfchain.odf.names import DatasetAlias
from odfchain.odf.schema import DataField, DataSchema, DataTypeInt64
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import HINT_KEY
from odfchain.transfer.open_peer import open_peer
from odfchain.transfer.pulling import SyncOutcome, pull_dataset
from odfchain.transfer.server_app import HintCache
from odfchain.workspace.dataset_files import PUBLIC_FOLDERS, DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

WRK = ("wrk", "-t2", "-c64", "-d5s")
SLICE_BYTES = 1 << 20
SLICES, BIG_SLICE_BYTES = 64, 16 << 20
BLOCKS = 10_000
ROUNDS = 3

CURL_TARGET = 0.6
"""At least this share of the speed of curl and a hash."""

CLONE_TARGET = 1_000.0
"""At least so many blocks a second with the hint."""
PROGRAM = """\
import sys
from odfchain import Workspace
Workspace.open(sys.argv[1]).serve(port=0, listening=lambda url: print(url, flush=True))
"""
NGINX = """\
daemon on; worker_processes 2; pid {run}/pid; error_log {run}/error.log; user {user};
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
"""


def made(root: Path) -> tuple[DatasetFiles, dict[str, str]]:
    """A dataset to be served, and what is asked of it."""
    workspace = WorkspaceFiles.init(root)
    name = DatasetAlias.parse("bench")
    dataset = workspace.create(DatasetSnapshot(name=name, kind=DatasetKind.ROOT, metadata=()))
    head = dataset.chain.head()
    assert head is not None
    events = [SetInfo(description="for the benchmark")]
    blocks = link_blocks(events, prev=head, next_sequence_number=1, system_time=Timestamp.now())
    dataset.chain.publish(blocks, expected_head=head)
    content = dataset.data.put(random.Random(1).randbytes(SLICE_BYTES))  # noqa: S311 - noise, no secret
    return dataset, {
        "refs/head": "refs/head",
        "a block": f"blocks/{blocks[0].hash}",
        "a slice of 1 MiB": f"data/{content}",
    }


@contextlib.contextmanager
def ours(root: Path) -> Iterator[str]:
    """`odfchain serve` in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.contextmanager
def nginx(folder: Path, run: Path) -> Iterator[str]:
    """nginx with as many processes as there are cores here."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    assert program is not None, "nginx is missing: apt-get install nginx-light"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    user = "root" if os.geteuid() == 0 else "nobody"  # of a folder that only its owner can read
    run.mkdir()
    (run / "nginx.conf").write_text(NGINX.format(run=run, port=port, folder=folder, user=user))
    command = [program, "-c", str(run / "nginx.conf"), "-p", str(run), "-e", str(run / "error.log")]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        subprocess.run([*command, "-s", "stop"], check=True)


def per_second(url: str) -> float:
    """Requests per second under load; any error ends the benchmark."""
    report = subprocess.run([*WRK, url], check=True, capture_output=True, text=True).stdout
    assert "Socket errors" not in report, report
    assert "Non-2xx" not in report, report
    found = re.search(r"Requests/sec:\s+([0-9.]+)", report)
    assert found is not None, report
    return float(found[1])


def bench_serve() -> Iterator[Figure]:
    """Requests per second for the smallest things and for a slice, ours and nginx's in turn."""
    assert shutil.which("wrk"), "wrk is missing: apt-get install wrk"
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        dataset, asked = made(root)
        for part in PUBLIC_FOLDERS:
            shutil.copytree(dataset.folder / part, root / "exported" / "bench" / part)
        with ours(root) as served, nginx(root / "exported", root / "nginx") as plain:
            for what, key in asked.items():
                tell(f"share: {what} under {' '.join(WRK)}")
                there = per_second(f"{plain}bench/{key}")
                here = per_second(f"{served}bench/{key}")
                yield Figure(
                    f"serve: {what}, 64 clients, no errors", here, "req/s", remark=f"nginx: {there:,.0f}"
                )


def with_slices(root: Path) -> DatasetFiles:
    """A dataset of 1 GiB of noise."""
    dataset = WorkspaceFiles.init(root).create(
        DatasetSnapshot(name=DatasetAlias.parse("large"), kind=DatasetKind.ROOT, metadata=())
    )
    schema = DataSchema(fields=(DataField(name="x", type=DataTypeInt64()),))
    events: list[ev.MetadataEvent] = [ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(schema))]
    noise = random.Random(2)  # noqa: S311 - no secret
    for number in range(SLICES):
        name = dataset.data.put(noise.randbytes(BIG_SLICE_BYTES))
        interval = ev.OffsetInterval(start=number, end=number)
        made = ev.DataSlice(
            logical_hash=name, physical_hash=name, offset_interval=interval, size=BIG_SLICE_BYTES
        )
        events.append(ev.AddData(prev_offset=number - 1 if number else None, new_data=made))
    return extended(dataset, events)


def with_blocks(root: Path) -> DatasetFiles:
    """A dataset of many blocks and nothing else."""
    dataset = WorkspaceFiles.init(root).create(
        DatasetSnapshot(name=DatasetAlias.parse("long"), kind=DatasetKind.ROOT, metadata=())
    )
    watermarks = [
        ev.AddData(new_watermark=Timestamp.from_epoch_ms(1_700_000_000_000 + n)) for n in range(BLOCKS - 1)
    ]
    return extended(dataset, watermarks)


def extended(dataset: DatasetFiles, events: Sequence[ev.MetadataEvent]) -> DatasetFiles:
    """The dataset with these events at the end of its chain; nothing is synced, which takes minutes."""
    head = dataset.chain.head()
    assert head is not None
    time = dataset.chain.get(head).system_time
    blocks = link_blocks(events, prev=head, next_sequence_number=1, system_time=time)
    for block in blocks:
        (dataset.folder / "blocks" / str(block.hash)).write_bytes(block.data)
    dataset.chain.set_ref(HEAD, blocks[-1].hash, expected=head)
    return dataset


def pulled(url: str, root: Path) -> SyncOutcome:
    """The dataset behind a URL in a new workspace."""
    peer = open_peer(PeerUrl.parse(url))
    try:
        return pull_dataset(WorkspaceFiles.init(root), peer, DatasetAlias.parse("copy"))
    finally:
        peer.close()


def curl(urls: Sequence[str], pipelines: int) -> None:
    """The files through curl into SHA3-256, in one pipeline or side by side."""
    parts = [urls[start::pipelines] for start in range(pipelines)]
    running = [
        subprocess.Popen(  # noqa: S602 - our own words
            f"curl -sS {' '.join(part)} | openssl dgst -sha3-256", shell=True, stdout=subprocess.DEVNULL
        )
        for part in parts
    ]
    assert [process.wait() for process in running] == [0] * pipelines


def bench_pull() -> Iterator[Figure]:
    """The speed of a pull as a share of that of curl with a hash, in turns."""
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        tell(f"share: pulling {SLICES} slices of {BIG_SLICE_BYTES >> 20} MiB, {ROUNDS} times")
        dataset = with_slices(root / "source")
        found: dict[str, list[float]] = {"curl": [], "curl twice": [], "pull": []}
        with nginx(dataset.folder, root / "nginx") as base:
            urls = [f"{base}data/{name}" for name in dataset.data.names()]
            for number in range(ROUNDS):
                found["curl"].append(seconds(partial(curl, urls, 1)))
                found["curl twice"].append(seconds(partial(curl, urls, 2)))
                target = root / f"copy-{number}"
                found["pull"].append(seconds(partial(pulled, base, target)))
                shutil.rmtree(target)
    took = {name: statistics.median(times) for name, times in found.items()}
    best = min(took["curl"], took["curl twice"])
    yield Figure(
        f"pull of {SLICES} × {BIG_SLICE_BYTES >> 20} MiB, share of the speed of curl | sha3-256",
        best / took["pull"],
        "×",
        CURL_TARGET,
        at_least=True,
        remark=f"{took['pull']:.1f} s against {took['curl']:.1f} s in one pipeline, "
        f"{took['curl twice']:.1f} s in two",
        samples=tuple(round(t, 2) for t in found["pull"]),
    )


def bench_clone() -> Iterator[Figure]:
    """Blocks per second of a clone, with the hint and by walking."""
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        tell(f"share: cloning a chain of {BLOCKS:,} blocks, with and without the hint, {ROUNDS} times")
        dataset = with_blocks(root / "source")
        hint = dataset.folder / HINT_KEY
        hint.parent.mkdir()
        found: dict[str, list[float]] = {"hint": [], "walk": [], "serve": []}
        with nginx(dataset.folder, root / "nginx") as base, ours(root / "source") as served:
            for number in range(ROUNDS):
                for how, rates in found.items():
                    hint.unlink(missing_ok=True)
                    if how == "hint":
                        head = dataset.chain.head()
                        assert head is not None
                        hint.write_bytes(HintCache().get(dataset.chain, head))
                    url = f"{served}long/" if how == "serve" else base  # it makes the hint itself
                    target = root / f"copy-{number}-{how}"
                    rates.append(BLOCKS / seconds(partial(pulled, url, target)))
                    shutil.rmtree(target)
    with_hint, walk, from_serve = map(statistics.median, found.values())
    yield Figure(
        f"clone of {BLOCKS:,} blocks with the hint",
        with_hint,
        "1/s",
        CLONE_TARGET,
        at_least=True,
        remark=f"plain walk: {walk:,.0f}",
        samples=tuple(round(rate) for rate in found["hint"]),
    )
    yield Figure(
        f"clone of {BLOCKS:,} blocks from odfchain serve",
        from_serve,
        "1/s",
        CLONE_TARGET,
        at_least=True,
        remark="client and server on the same cores",
        samples=tuple(round(rate) for rate in found["serve"]),
    )


def bench_share() -> Iterator[Figure]:
    """All figures about sharing."""
    yield from bench_pull()
    yield from bench_clone()
    yield from bench_serve()
