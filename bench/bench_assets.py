"""Asset locks: deriving and probing, each beside the least that it can be.

The server of objects is a process of its own that costs next to nothing (`object_server.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
from figures import Figure, tell
from obstore.store import S3Store

from odfchain import AssetLock
from odfchain.assets.access import Access, Stores
from odfchain.assets.probing import probes_of
from odfchain.store.locations import Location

ROUNDS = 5
ITEMS, PROBES, JOBS = 3_000, 10_000, 16
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
        "json": lambda: deque(map(json.loads, lines), maxlen=0),  # kept, they would cost collections
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
        yield process.stdout.readline().strip()
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

    stores = Stores(Access(folder=folder, allow_private=True))
    assert all(each.facts is not None for each in probes_of(locations, stores, JOBS))
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: probes_of(locations, stores, JOBS),
        "bare": lambda: asyncio.run(bare()),
    }
    times = in_turns(runs)
    yield ratio("probing ÷ obstore.head_async, speed", times["bare"], times["ours"], 0.8, at_least=True)


def bench_assets() -> Iterator[Figure]:
    """Every result is checked before its time counts."""
    with tempfile.TemporaryDirectory(prefix="odf-") as root:
        folder = Path(root)
        tell("assets: deriving")
        yield from deriving(folder)
        objects = folder / "objects"
        objects.mkdir()
        with object_server(objects) as origin:
            tell("assets: probing")
            yield from probing(origin, folder)
