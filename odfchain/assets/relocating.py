"""The objects of a lock copied elsewhere, and the rows that describe the copies.

A copy is made only of what the lock describes: facts are compared first, and where there is a strong entity
tag the request carries it. What passes is counted and, where a checksum is known or wanted, hashed; then the
target is asked for its own facts, and nothing of the source's survives in the new row. What arrived is noted
beside the new lock, so that a second run copies the rest; the old lock stays valid whatever happens.
Source: RFC-047.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from odfchain.assets.access import Stores
from odfchain.assets.checking import Status, compared
from odfchain.assets.checksums import SHA2_256, algorithm_of
from odfchain.assets.hrefs import checked_location, href_of
from odfchain.assets.lock_table import AssetRow, Facts
from odfchain.assets.objects import PIECE, ChangedError, pieces, translated
from odfchain.assets.probing import Probe, probe
from odfchain.assets.stac import AssetFault
from odfchain.errors import AssetError, FetchError, NameCollisionError, OdfchainError, SourceNotFoundError
from odfchain.progress import SILENT, Progress
from odfchain.store import fsio
from odfchain.store.locations import Location
from odfchain.text import one_line

_JOBS = 4
_KEPT = re.compile(rb"[A-Za-z0-9._=-]")


class Layout(Enum):
    """How copies are called."""

    ITEM_ASSET = "item-asset"
    """`<item_id>/<asset_key>`, with the source's suffix."""
    SOURCE_KEY = "source-key"
    """As the source is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocateOptions:
    """How objects are copied."""

    layout: Layout = Layout.ITEM_ASSET
    prefix: Location | None = None
    """With `SOURCE_KEY`: what is left out of the beginnings of sources' keys."""
    overwrite: bool = False
    checksum: bool = False
    """Whether the new rows have SHA-256 of the bytes that were copied."""
    jobs: int = _JOBS
    relative_to: Path | None = None
    """The folder of the new lock: copies in it are named relative to it."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A row, and where its copy goes."""

    row: AssetRow
    target: Location


@dataclass(frozen=True, slots=True)
class Relocated:
    """The rows of the copies, and what was not copied."""

    rows: tuple[AssetRow, ...]
    faults: tuple[AssetFault, ...]
    copied: int
    copied_bytes: int


def plan(rows: Iterable[AssetRow], to: Location, options: RelocateOptions) -> list[Planned]:
    """Where each copy goes.

    Raises:
        AssetError: a key does not begin with the prefix, or would be too long.
        NameCollisionError: two rows would have the same target.
    """
    found, taken = list[Planned](), dict[str, AssetRow]()
    for row in rows:
        key = _key_of(row, options)
        below = to.below(key)
        target = checked_location(below.store, below.container, below.endpoint, below.key)
        other = taken.setdefault(target.key, row)
        if other is not row:
            raise NameCollisionError(
                f"{one_line(row.label)} and {one_line(other.label)} would both become {href_of(target)}",
                hint="--layout item-asset names copies by item and asset",
            )
        found.append(Planned(row, target))
    return found


def described_plan(planned: Sequence[Planned], options: RelocateOptions) -> list[AssetRow]:
    """The rows as they would be: a plan proves nothing, so of the facts only the size stays."""
    return [
        replace(each.row, location=_shown(each.target, options), facts=Facts(each.row.facts.size_bytes))
        for each in planned
    ]


def file_name(item_id: str, asset_key: str, source_key: str) -> str:
    """`<item_id>/<asset_key>` with the source's suffix; other pairs have other names, but for the suffix."""
    suffix = PurePosixPath(source_key).suffix
    name = asset_key if asset_key.lower().endswith(suffix.lower()) else asset_key + suffix
    return f"{_segment(item_id)}/{_segment(name)}"


def _segment(text: str) -> str:
    shown = "".join(
        chr(byte) if _KEPT.match(bytes([byte])) else f"~{byte:02x}"
        for byte in text.encode(errors="surrogatepass")
    )
    return shown.replace(".", "~2e") if not shown.strip(".") else shown


def _key_of(row: AssetRow, options: RelocateOptions) -> str:
    key = row.location.key
    if options.layout is Layout.ITEM_ASSET:
        return file_name(row.item_id, row.asset_key, key)
    prefix = options.prefix
    if prefix is None:
        return key.removeprefix("/")
    same = (prefix.store, prefix.container) == (row.location.store, row.location.container)
    start = f"{prefix.key}/" if prefix.key and not prefix.key.endswith("/") else prefix.key
    if not same or not key.startswith(start):
        raise AssetError(f"{one_line(row.label)}: {href_of(row.location)} does not begin with the prefix")
    return key[len(start) :]


def _shown(target: Location, options: RelocateOptions) -> Location:
    folder = options.relative_to
    if target.store != "file" or folder is None or not Path(target.key).is_relative_to(folder):
        return target
    return replace(target, key=Path(target.key).relative_to(folder).as_posix())


class Arrivals:
    """What has arrived, in a file beside the lock that is to come; removed when all is done."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known = dict(self._read())

    def facts_of(self, item: Planned) -> Facts | None:
        """The facts of a copy that an earlier run made of the same source."""
        return self._known.get(_name_of(item))

    def add(self, item: Planned, facts: Facts) -> None:
        """Durably write down that a copy is there."""
        if self._path is None:
            return
        line = json.dumps({"copy": _name_of(item), "facts": asdict(facts)}).encode() + b"\n"
        with self._lock, fsio.storage_errors(self._path), self._path.open("ab") as file:
            file.write(line)
            file.flush()
        fsio.sync_file(self._path)

    def _read(self) -> Iterator[tuple[str, Facts]]:
        data = None if self._path is None else fsio.read_start(self._path, 1 << 30)
        for line in (data or b"").split(b"\n")[:-1]:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that a crash has cut
                found = json.loads(line)
                yield str(found["copy"]), Facts(**found["facts"])


def _name_of(item: Planned) -> str:
    parts = (item.row.key, asdict(item.row.location), asdict(item.row.facts), asdict(item.target))
    return hashlib.sha3_256(json.dumps(parts).encode()).hexdigest()


def relocate(
    planned: Sequence[Planned],
    sources: Stores,
    targets: Stores,
    arrivals: Arrivals,
    options: RelocateOptions,
    progress: Progress = SILENT,
) -> Relocated:
    """Copy what the plan says; a row whose object changed, or cannot be copied, is a fault and left out."""
    copied, size = 0, 0
    rows, faults = list[AssetRow](), list[AssetFault]()
    progress.phase("Copying", sum(each.row.facts.size_bytes or 0 for each in planned))

    def one(item: Planned) -> tuple[Facts, bool] | OdfchainError:
        try:
            arrived = _arrived(item, targets, arrivals)
            return (
                (arrived, False) if arrived is not None else (_copied(item, sources, targets, options), True)
            )
        except OdfchainError as error:
            return error

    with ThreadPoolExecutor(options.jobs) as pool:
        for item, found in zip(planned, pool.map(one, planned), strict=True):
            if isinstance(found, OdfchainError):
                faults.append(AssetFault(item.row.item_id, item.row.asset_key, found))
                continue
            facts, is_new = found
            if is_new:
                arrivals.add(item, facts)
                copied, size = copied + 1, size + (facts.size_bytes or 0)
            progress.advance(item.row.facts.size_bytes or 0)
            rows.append(replace(item.row, location=_shown(item.target, options), facts=facts))
    return Relocated(tuple(rows), tuple(faults), copied, size)


def _arrived(item: Planned, targets: Stores, arrivals: Arrivals) -> Facts | None:
    known = arrivals.facts_of(item)
    if known is None:
        return None
    now = _asked(item.target, targets)
    row = replace(item.row, location=item.target, facts=known)
    return known if compared(row, now).status is Status.SAME else None


def _copied(item: Planned, sources: Stores, targets: Stores, options: RelocateOptions) -> Facts:
    row, target = item.row, item.target
    found = compared(row, _asked(row.location, sources))
    if found.status is Status.MISSING:
        raise SourceNotFoundError("no such object")
    if found.status is Status.UNREACHABLE:
        raise FetchError(found.errors[0])
    if found.status is Status.CHANGED:
        raise ChangedError(f"changed since it was locked: {', '.join(found.errors)}")
    there = _asked(target, targets)
    locked = row.facts.size_bytes
    if there.facts is not None and not options.overwrite and there.facts.size_bytes not in (None, locked):
        raise NameCollisionError(
            f"{href_of(target)} is there, with {there.facts.size_bytes} bytes instead of {locked}",
            hint="--overwrite replaces it",
        )
    if there.facts is None and not there.missing:
        raise FetchError(f"{href_of(target)}: {there.problem}")
    size, checksum = _carried(item, sources, targets, options)
    now = _asked(target, targets)
    if now.facts is None or now.facts.size_bytes != size:
        _remove(target, targets)
        said = now.problem if now.facts is None else f"{now.facts.size_bytes} bytes instead of {size}"
        raise FetchError(f"the copy at {href_of(target)} is not what was written: {said}")
    return replace(now.facts, file_checksum=checksum)


def _carried(
    item: Planned, sources: Stores, targets: Stores, options: RelocateOptions
) -> tuple[int, str | None]:
    """(bytes, checksum) of what was copied."""
    source, target, locked = item.row.location, item.target, item.row.facts
    algorithm = algorithm_of(locked.file_checksum or "")
    same = (source.store, source.container, source.endpoint) == (
        target.store,
        target.container,
        target.endpoint,
    )
    if same and source.store in ("s3", "gs", "az") and algorithm is None and not options.checksum:
        import obstore  # noqa: PLC0415 - a heavy library

        with translated(source, targets):
            obstore.copy(targets.store_of(target, whole=True), source.key, target.key, overwrite=True)
        return locked.size_bytes if locked.size_bytes is not None else _size(source, sources), None
    locked_hash = hashlib.new(algorithm) if algorithm else None
    own_hash = hashlib.sha256() if options.checksum and algorithm != "sha256" else None
    size = 0

    def passing() -> Iterator[memoryview]:
        nonlocal size
        for piece in pieces(source, sources, etag=locked.strong_etag):
            size += len(piece)
            for each in (locked_hash, own_hash):
                if each is not None:
                    each.update(piece)
            yield piece
        if locked.size_bytes is not None and size != locked.size_bytes:
            raise ChangedError(f"changed since it was locked: {size} bytes came")
        if locked_hash is not None and not (locked.file_checksum or "").endswith(locked_hash.hexdigest()):
            raise ChangedError("its bytes do not have the checksum of the lock")

    write(target, targets, passing())
    if own_hash is not None:
        return size, SHA2_256 + own_hash.hexdigest()
    return size, locked.file_checksum if algorithm else None


def write(target: Location, targets: Stores, content: Iterator[memoryview]) -> None:
    """Write an object whose content comes in pieces; if they end with an error nothing is there.

    Raises:
        FetchError, StoreError: it cannot be written. And what the content raises.
    """
    if target.store == "file":
        path = targets.file_of(target)
        fsio.make_folder(path.parent)
        with fsio.replaced(path) as file:
            for piece in content:
                file.write(piece)
        return
    import obstore  # noqa: PLC0415 - a heavy library

    first, second = next(content, memoryview(b"")), next(content, None)
    failed = list[OdfchainError]()

    def chunks() -> Iterator[Any]:
        try:
            yield from (first, second)
            yield from content
        except OdfchainError as error:
            failed.append(error)
            raise

    try:
        with translated(target, targets):
            store = targets.store_of(target, whole=True)
            if second is None:  # one request is enough
                obstore.put(store, target.key, bytes(first), use_multipart=False)
            else:
                obstore.put(store, target.key, chunks(), chunk_size=PIECE, max_concurrency=2)
    except OdfchainError as error:
        raise (failed or [error])[0] from None


def _asked(location: Location, stores: Stores) -> Probe:
    return asyncio.run(probe(location, stores))


def _size(location: Location, stores: Stores) -> int:
    facts = _asked(location, stores).facts
    return facts.size_bytes or 0 if facts is not None else 0


def _remove(target: Location, targets: Stores) -> None:
    """Remove a copy that is not what was written."""
    if target.store == "file":
        fsio.remove_quietly(targets.file_of(target))
        return
    import obstore  # noqa: PLC0415 - a heavy library

    with contextlib.suppress(OdfchainError), translated(target, targets):
        obstore.delete(targets.store_of(target), target.key)
