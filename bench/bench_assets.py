"""Asset locks: deriving, probing, relocating, checking offline, deriving again, each beside its least.

The server of objects is a process of its own that costs next to nothing (`object_server.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Figure, tell
from obstore.store import S3Store

from odfchain import AssetLock, StoreOptions, Workspace
from odfchain.assets.lock_table import SCHEMA, AssetRow, LockFile
from odfchain.assets.locks import table_of
from odfchain.assets.objects import Facts, Stores
from odfchain.cli.start import manifest_template
from odfchain.odf.names import DatasetAlias
from odfchain.storage.locations import Location

ROUNDS = 5
ITEMS, PROBES, ROWS, NIGHT = 3_000, 10_000, 1_000_000, 20_000
OBJECTS, OBJECT_BYTES = 12, 64 << 20
JOBS, COPIES = 16, 4
BANDS = ("B02", "B03", "B04", "B08", "B8A", "B11", "B12", "SCL", "visual", "thumbnail")


def in_turns(
    runs: dict[str, Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Times of each [s], one after the other; what slows the machine meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = clock()
            run()
            found[name].append(clock() - start)
    return found


def ratio(
    name: str, over: list[float], under: list[float], target: float, *, at_least: bool = False
) -> Figure:
    """Medians of the ratios of each turn, with the least and the largest."""
    each = [a / b for a, b in zip(over, under, strict=True)]
    shown = f"{min(each):.2f} / {statistics.median(each):.2f} / {max(each):.2f}"
    return Figure(name, statistics.median(each), "×", target, at_least, shown, tuple(each))


def item(number: int) -> dict[str, Any]:
    """An Item as catalogs of satellite scenes have them: 3.5 kB, ten assets."""
    name = f"S2A_33UWP_2024{number:06}_L2A"
    at = f"https://sentinel-cogs.s3.us-west-2.amazonaws.com/sentinel-s2-l2a-cogs/33/U/WP/2024/7/{name}"
    corners = [[15.0, 48.6], [16.5, 48.7], [16.4, 49.6], [15.0, 49.5], [15.0, 48.6]]
    media = "image/tiff; application=geotiff; profile=cloud-optimized"
    return {
        "type": "Feature", "stac_version": "1.1.0", "id": name, "collection": "sentinel-2-l2a",
        "stac_extensions": ["https://stac-extensions.github.io/file/v2.1.0/schema.json"],
        "geometry": {"type": "Polygon", "coordinates": [corners]}, "bbox": [15.0, 48.6, 16.5, 49.6],
        "links": [{"rel": "self", "href": f"https://example.org/items/{name}.json"}],
        "properties": {
            "datetime": "2024-07-01T10:05:59Z", "platform": "sentinel-2a", "instruments": ["msi"],
            "constellation": "sentinel-2", "gsd": 10, "eo:cloud_cover": 12.5, "proj:code": "EPSG:32633",
        },
        "assets": {
            band: {
                "href": f"{at}/{band}.tif", "type": media, "title": f"Band {band}", "roles": ["data"],
                "file:size": 210_763_412 + number,
            }
            for band in BANDS
        },
    }  # fmt: skip


def deriving(folder: Path) -> Iterator[Figure]:
    """Items out of one file, without a request."""
    path = folder / "items.ndjson"
    path.write_text("".join(json.dumps(item(number)) + "\n" for number in range(ITEMS)))
    lines = path.read_bytes().splitlines()
    assert AssetLock.derive([str(path)], probe=False).table.num_rows == ITEMS * len(BANDS)
    runs: dict[str, Callable[[], object]] = {
        "derive": lambda: AssetLock.derive([str(path)], probe=False),
        "json": lambda: [json.loads(line) for line in lines],
    }
    times = in_turns(runs, time.process_time)
    yield ratio("derive without probing ÷ json.loads of the Items, CPU", times["derive"], times["json"], 10)


@contextlib.contextmanager
def object_server(folder: Path) -> Iterator[str]:
    """The origin of a server of the files in a folder."""
    program = str(Path(__file__).with_name("object_server.py"))
    with subprocess.Popen(
        [sys.executable, program, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def bucket(origin: str, name: str) -> S3Store:
    """A bucket of the server."""
    return S3Store(name, endpoint=origin, client_options={"allow_http": True}, skip_signature=True)


def probing(origin: str, folder: Path) -> Iterator[Figure]:
    """Throughput beside the library's own coroutines, as many at a time."""
    keys = [f"k{number}" for number in range(PROBES)]
    locations = [Location("s3", "any", origin, key) for key in keys]
    store = bucket(origin, "any")

    async def bare() -> None:
        waiting = iter(keys)

        async def work() -> None:
            for key in waiting:
                await obstore.head_async(store, key)

        await asyncio.gather(*(work() for _ in range(JOBS)))

    stores = Stores(folder, allow_private=True)
    assert all(each.facts is not None for each in stores.probes(locations, JOBS))
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: stores.probes(locations, JOBS),
        "bare": lambda: asyncio.run(bare()),
    }
    times = in_turns(runs)
    yield ratio("probing ÷ obstore.head_async, speed", times["bare"], times["ours"], 0.8, at_least=True)


def relocating(origin: str, folder: Path) -> Iterator[Figure]:
    """Bytes a second, beside getting and putting the same objects in as many threads."""
    for number in range(OBJECTS):
        with (folder / f"{number}.tif").open("wb") as file:
            file.truncate(OBJECT_BYTES)
    facts = Facts(OBJECT_BYTES, '"abc"', "2015-10-21T07:28:00+00:00")
    names = [f"{number}.tif" for number in range(OBJECTS)]
    rows = [AssetRow(name, "B04", Location("s3", "source", origin, name), facts) for name in names]
    lock = AssetLock(table_of(rows), folder)
    options = StoreOptions(allow_private=True, endpoints=[origin])
    source, target = bucket(origin, "source"), bucket(origin, "target")

    def bare() -> None:
        def copy(name: str) -> None:
            # what is put cannot be read by the library at the same time
            obstore.put(
                target, name, obstore.get(source, name).bytes(), chunk_size=8 << 20, max_concurrency=2
            )

        with ThreadPoolExecutor(COPIES) as pool:
            list(pool.map(copy, names))

    def moved(*, checksum: bool) -> None:
        found = lock.relocate(
            f"s3+{origin}/target", layout="source-key", overwrite=True, checksum=checksum, stores=options
        )
        assert not found.faults, found.faults
        assert found.table.num_rows == OBJECTS

    moved(checksum=True)
    runs: dict[str, Callable[[], object]] = {
        "bare": bare,
        "ours": lambda: moved(checksum=False),
        "hashed": lambda: moved(checksum=True),
    }
    times = in_turns(runs)
    yield ratio(
        "relocation ÷ obstore get and put, throughput", times["bare"], times["ours"], 0.9, at_least=True
    )
    yield ratio("the same with SHA-256", times["bare"], times["hashed"], 0.7, at_least=True)


def checking(folder: Path) -> Iterator[Figure]:
    """CPU of judging every row of a file, beside that of reading it."""
    numbers = range(ROWS)
    at = "sentinel-s2-l2a-cogs/33/U/WP/2024/7"
    columns: dict[str, Any] = {
        "item_id": [f"S2A_33UWP_{number:09}_L2A" for number in numbers],
        "asset_key": ["B04"] * ROWS, "store_type": ["s3"] * ROWS, "store_container": ["sentinel-cogs"] * ROWS,
        "store_endpoint_url": [None] * ROWS,
        "key": [f"{at}/S2A_33UWP_{number:09}_L2A/B04.tif" for number in numbers],
        "size_bytes": [210_763_412 + number for number in numbers],
        "etag": [f'"0f343b0931126a20f133d67c{number:08x}-26"' for number in numbers],
        "last_modified": ["2024-07-02T03:04:05+00:00"] * ROWS,
    }  # fmt: skip
    path = folder / "lock.parquet"
    AssetLock(pa.table(columns, schema=SCHEMA), path.parent).write(path)

    def check() -> None:
        judged = LockFile(path)
        assert list(judged.faults()) == []
        assert judged.rows == ROWS

    times = in_turns({"check": check, "read": lambda: pq.read_table(path)}, time.process_time)
    yield ratio("check --offline of 1,000,000 rows ÷ pq.read_table, CPU", times["check"], times["read"], 5)


def nights(folder: Path) -> Iterator[Figure]:
    """The same lock twice: all rows are new, and none is."""
    rows = [
        AssetRow(f"s{number:06}", "B04", Location("s3", "b", None, f"{number}.tif"), Facts(number, '"1"'))
        for number in range(NIGHT)
    ]
    lock = AssetLock(table_of(rows), folder)
    with Workspace.init(folder / "workspace") as workspace:
        first, again = list[float](), list[float]()
        for number in range(ROUNDS + 1):
            alias = DatasetAlias.parse(f"night{number}.lock")
            (dataset,) = workspace.add(manifest_template(alias, "assets"))
            for times in (first, again):
                start = time.perf_counter()
                outcome = dataset.record_lock(lock)
                times.append(time.perf_counter() - start)
                assert outcome.up_to_date == (times is again)
    # the first of them starts Spark
    yield ratio("derive again into a dataset, nothing new ÷ first", again[1:], first[1:], 1)


def bench_assets() -> Iterator[Figure]:
    """Every result is checked before its time counts."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # without them the library asks the network
        os.environ.setdefault(name, "bench")
    os.environ.setdefault("AWS_REGION", "us-east-1")
    with tempfile.TemporaryDirectory(prefix="odf-") as root:
        folder = Path(root)
        tell("assets: deriving")
        yield from deriving(folder)
        objects = folder / "objects"
        objects.mkdir()
        with object_server(objects) as origin:
            tell("assets: probing")
            yield from probing(origin, folder)
            tell("assets: relocating")
            yield from relocating(origin, objects)
        tell("assets: checking offline")
        yield from checking(folder)
        tell("assets: deriving again")
        yield from nights(folder)
