"""The objects of a lock copied elsewhere, and the rows that describe the copies.

A copy is made only of what the lock describes: facts are compared first, and where there is a strong entity
tag the request carries it. What passes is counted and, where a checksum is known or wanted, hashed; then the
target is asked for its own facts, and nothing of the source's survives in the new row. What arrived is noted
next to the new lock, so that a second run copies the rest; the old lock always stays valid.
Source: RFC-047.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
import threading
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from odfchain import errors
from odfchain.assets.checking import Status, compared
from odfchain.assets.hrefs import checked_location
from odfchain.assets.lock_table import AssetRow
from odfchain.assets.objects import JOBS, SHA2_256, Facts, Stores, algorithm_of
from odfchain.assets.stac import AssetFault
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.locations import Location
from odfchain.text import counted, one_line

# Targets of a relocation, computed without requests. Names are escaped so that two pairs of ids never give
# one object; a loss of an object is refused before anything is copied (RFC-047).

_REQUESTS = 4
_KEPT = re.compile(rb"[A-Za-z0-9._=-]")


class Layout(Enum):
    """Naming of copies."""

    ITEM_ASSET = "item-asset"
    """`<item_id>/<asset_key>`, with the source's suffix."""
    SOURCE_KEY = "source-key"
    """The source's name."""

    @classmethod
    def usual(cls, rows: Iterable[AssetRow]) -> Layout:
        """The default names of copies: those of a dataset's own slices as their sources."""
        return cls.SOURCE_KEY if all(map(_is_own_slice, rows)) else cls.ITEM_ASSET


def _is_own_slice(row: AssetRow) -> bool:
    if (checksum := row.facts.file_checksum) is None or not row.item_id.startswith("did:odf:"):
        return False
    return row.asset_key.endswith(f"/f{checksum}")


@dataclass(frozen=True, slots=True)
class Planned:
    """A row, and where its copy goes."""

    row: AssetRow
    target: Location


def place_of(location: Location, folder: Path | None) -> Location:
    """A location as it is named from anywhere; `folder` is that of its lock."""
    if location.store != "file" or folder is None:
        return location
    return replace(location, key=str(folder / location.key))


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


# Journal of a relocation, in a file next to the new lock, so that a second run copies the rest. A line counts
# if it is complete and names the same row and target; its copy is checked again (RFC-047).

_LONGEST = 1 << 30
"""Bytes that are read of such a file."""


class Arrivals:
    """Journal of finished copies; without a path it is not kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        data = (None if path is None else fsio.read_start(path, _LONGEST)) or b""
        self._known = dict(_believed(data))
        self._is_cut = not data.endswith(b"\n") and data != b""

    def facts_of(self, item: Planned) -> Facts | None:
        """The facts of a copy that an earlier run made of the same source."""
        return self._known.get(_name_of(item))

    def add(self, item: Planned, facts: Facts) -> None:
        """Durably write down that a copy is there."""
        if self._path is None:
            return
        entry = {"copy": _name_of(item), "facts": asdict(facts)}
        line = json.dumps(entry | {"sum": _sum(entry)}).encode() + b"\n"
        fsio.make_folder(self._path.parent)
        with self._lock, fsio.storage_errors(self._path), self._path.open("ab") as file:
            file.write(b"\n" + line if self._is_cut else line)  # a line that a crash has cut stays alone
            self._is_cut = False
            file.flush()
        fsio.sync_file(self._path)


def _believed(data: bytes) -> Iterator[tuple[str, Facts]]:
    for line in data.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # cut, or damaged
            found = json.loads(line)
            if found.pop("sum") == _sum(found):
                yield str(found["copy"]), Facts(**found["facts"])


def _sum(entry: dict[str, Any]) -> str:
    return hashlib.sha3_256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _name_of(item: Planned) -> str:
    parts = (item.row.key, asdict(item.row.location), asdict(item.row.facts), asdict(item.target))
    return hashlib.sha3_256(json.dumps(parts).encode()).hexdigest()


_COPIED_AT_ONCE = 5 << 30
"""Bytes of the largest object that S3 copies in one request; larger ones pass through here."""


@dataclass(frozen=True, slots=True)
class Relocated:
    """The rows of the copies, and what was not copied."""

    rows: tuple[AssetRow, ...]
    faults: tuple[AssetFault, ...]
    copied: int
    copied_bytes: int

    @property
    def summary(self) -> str:
        """Like `copied 3 objects, 21 bytes; 2 were there`."""
        shown = f"copied {counted(self.copied, 'object')}, {counted(self.copied_bytes, 'byte')}"
        there = len(self.rows) - self.copied
        return f"{shown}; {there:,} were there" if there else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """Objects that are copied, and how."""

    layout: Layout = Layout.ITEM_ASSET
    prefix: Location | None = None
    """With `SOURCE_KEY`: what is left out of the beginnings of sources' keys."""
    overwrite: bool = False
    checksum: bool = False
    """True if the new rows have SHA-256 of the bytes that were copied."""
    relative_to: Path | None = None
    """The folder of the new lock: copies in it are named relative to it."""
    sources_in: Path | None = None
    """The folder of the lock whose objects are copied."""
    jobs: int = JOBS
    """Requests at a time; each copy, which reads ahead and writes two pieces at once, takes four."""

    def plan(self, rows: Iterable[AssetRow], to: Location) -> list[Planned]:
        """The target of each copy.

        Raises:
            NameCollisionError: two rows would have the same target, or a copy would replace another's source.
        """
        chosen = list(rows)
        sources = {place_of(row.location, self.sources_in): row for row in chosen}
        found, taken = list[Planned](), dict[str, AssetRow]()
        for row in chosen:
            target = self._target_of(row, to)
            if (other := taken.setdefault(target.key, row)) is not row:
                raise errors.NameCollisionError(
                    f"{one_line(row.label)} and {one_line(other.label)} would both become {target.href()}",
                    hint="--layout item-asset names copies by item and asset",
                )
            if target in sources and target != place_of(row.location, self.sources_in):
                raise errors.NameCollisionError(
                    f"{one_line(row.label)} would replace the source of {one_line(sources[target].label)}",
                    hint="name another place with --to",
                )
            found.append(Planned(row, target))
        return found

    def described(self, planned: Sequence[Planned]) -> list[AssetRow]:
        """The rows as they would be: a plan proves nothing, so of the facts only the size stays."""
        return [self._described(each, Facts(each.row.facts.size_bytes)) for each in planned]

    def _described(self, item: Planned, facts: Facts) -> AssetRow:
        return replace(item.row, location=item.target.relative_to(self.relative_to), facts=facts)

    def _target_of(self, row: AssetRow, to: Location) -> Location:
        key = self._key_of(row)
        try:
            below = to.below(key)
            return checked_location(below.store, below.container, below.endpoint, below.key)
        except (errors.AssetError, errors.InvalidIdError) as error:
            raise errors.AssetError(
                f"{one_line(row.label)}: what its copy would be called: {error.message}"
            ) from None

    def _key_of(self, row: AssetRow) -> str:
        key, prefix = row.location.key, self.prefix
        if self.layout is Layout.ITEM_ASSET:
            return file_name(row.item_id, row.asset_key, key)
        if prefix is None:
            return key.removeprefix("/")
        same = (prefix.store, prefix.container) == (row.location.store, row.location.container)
        start = f"{prefix.key}/" if prefix.key and not prefix.key.endswith("/") else prefix.key
        if not same or not key.startswith(start):
            raise errors.AssetError(
                f"{one_line(row.label)}: {row.location.href()} does not begin with the prefix"
            )
        return key[len(start) :]

    def run(
        self,
        planned: Sequence[Planned],
        sources: Stores,
        targets: Stores,
        arrivals: Arrivals,
        progress: Progress = SILENT,
    ) -> Relocated:
        """Copy what was planned; a row whose object changed, or cannot be copied, is a fault and left out."""
        _check_letters(planned)
        copied, size = 0, 0
        rows, faults = list[AssetRow](), list[AssetFault]()
        progress.phase("Copying", sum(each.row.facts.size_bytes or 0 for each in planned))

        def one(item: Planned) -> tuple[Facts, bool] | errors.OdfchainError:
            try:
                if (known := self._arrived(item, targets, arrivals)) is not None:
                    return known, False
                found = self._copied(item, sources, targets)
                arrivals.add(item, found[0])
            except errors.OdfchainError as error:
                return error
            return found

        with ThreadPoolExecutor(max(1, self.jobs // _REQUESTS)) as pool:
            for item, found in zip(planned, pool.map(one, planned), strict=True):
                if isinstance(found, errors.OdfchainError):
                    faults.append(AssetFault(item.row.item_id, item.row.asset_key, found))
                    continue
                facts, is_new = found
                if is_new:
                    copied, size = copied + 1, size + (facts.size_bytes or 0)
                progress.advance(item.row.facts.size_bytes or 0)
                rows.append(self._described(item, facts))
        return Relocated(tuple(rows), tuple(faults), copied, size)

    def _arrived(self, item: Planned, targets: Stores, arrivals: Arrivals) -> Facts | None:
        known = arrivals.facts_of(item)
        if known is None or (self.checksum and known.file_checksum is None):
            return None
        row = replace(item.row, location=item.target, facts=known)
        return known if compared(row, targets.probe(item.target)).status is Status.SAME else None

    def _copied(self, item: Planned, sources: Stores, targets: Stores) -> tuple[Facts, bool]:
        # (the facts of the copy, whether it had to be made)
        row, target = item.row, item.target
        found = _unchanged(row, sources)
        source = place_of(row.location, sources.folder)
        if source == target:  # it is there already
            passing = _Passing(row, sources, own=self.checksum)
            deque(passing if passing.hashes else (), maxlen=0)
            return replace(found, file_checksum=passing.checksum), False
        if not self.overwrite and (there := _facts_there(target, row, sources, targets)) is not None:
            known = row.facts.file_checksum
            return (there if self.checksum else replace(there, file_checksum=known)), False
        passing = _Passing(row, sources, own=self.checksum)
        in_one = source.store in ("s3", "gs", "az") and replace(source, key="") == replace(target, key="")
        if in_one and not passing.hashes and (found.size_bytes or 0) <= _COPIED_AT_ONCE:
            targets.copy(source, target)
            size = found.size_bytes
            try:
                _unchanged(row, sources)  # a copy within a store has no condition
            except errors.OdfchainError:
                targets.remove(target)
                raise
        else:
            targets.write(target, iter(passing))
            size = passing.size
        now = targets.probe(target)
        if now.facts is None or now.facts.size_bytes != size:
            targets.remove(target)
            said = now.problem if now.facts is None else f"{now.facts.size_bytes} bytes instead of {size}"
            raise errors.FetchError(f"the copy at {target.href()} is not what was written: {said}")
        return replace(now.facts, file_checksum=passing.checksum), True


def _check_letters(planned: Sequence[Planned]) -> None:
    # two copies whose names are one where a file system does not tell letters' case or forms apart
    taken = dict[str, Planned]()
    for item in planned:
        name = unicodedata.normalize("NFC", item.target.key).casefold()
        other = taken.setdefault(name, item) if item.target.store == "file" else item
        if other is not item:
            if not _ignores_case(Path(item.target.key).parent):
                return
            one, two = one_line(other.row.label), one_line(item.row.label)
            raise errors.NameCollisionError(
                f"{one} and {two} would be one file: the file system here does not tell their names apart",
                hint="name another place with --to",
            )


def _ignores_case(folder: Path) -> bool:
    # a temporary file in the nearest existing folder is looked up in other letters
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=there, prefix=".case-") as file:
        return Path(file.name.replace(".case-", ".CASE-")).exists()
    return False


def _unchanged(row: AssetRow, sources: Stores) -> Facts:
    # the source must still be as the lock says
    now = sources.probe(row.location)
    found = compared(row, now)
    if found.status is Status.MISSING:
        raise errors.SourceNotFoundError("no such object")
    if now.facts is None:
        raise errors.FetchError(found.errors[0])
    if found.status is Status.CHANGED:
        raise errors.ObjectCorruptedError(f"changed since it was locked: {', '.join(found.errors)}")
    return now.facts


def _facts_there(target: Location, row: AssetRow, sources: Stores, targets: Stores) -> Facts | None:
    # the facts of a target with the bytes of the source, which are read; other bytes are refused; None: it
    # is to be made
    there, locked = targets.probe(target), row.facts.size_bytes
    if there.missing:
        return None
    if there.facts is None:
        raise errors.FetchError(f"{target.href()}: {there.problem}")
    size = there.facts.size_bytes
    said = f"with {size} bytes instead of {locked}"
    if None in (size, locked) or size == locked:
        passing, said = _Passing(row, sources, own=True), "with other bytes"
        deque(passing, maxlen=0)
        if passing.checksum == SHA2_256 + targets.checksum(target, "sha256"):
            return replace(there.facts, file_checksum=passing.checksum)
    raise errors.NameCollisionError(f"{target.href()} is there, {said}", hint="--overwrite replaces it")


class _Passing:
    """The bytes of a row's object, counted and hashed as they pass; others end with an error."""

    def __init__(self, row: AssetRow, sources: Stores, *, own: bool) -> None:
        self._row, self._sources = row, sources
        self._algorithm = algorithm_of(row.facts.file_checksum or "")
        wanted = {self._algorithm or "", "sha256" if own else ""} - {""}
        self._is_own = own
        self.hashes = {name: hashlib.new(name) for name in wanted}
        self.size = 0

    def __iter__(self) -> Iterator[memoryview]:
        locked = self._row.facts
        for piece in self._sources.pieces(self._row.location, etag=locked.strong_etag):
            self.size += len(piece)
            for each in self.hashes.values():
                each.update(piece)
            yield piece
        if locked.size_bytes is not None and self.size != locked.size_bytes:
            raise errors.ObjectCorruptedError(f"changed since it was locked: {self.size} bytes came")
        if self._algorithm is not None and not (locked.file_checksum or "").endswith(
            self.hashes[self._algorithm].hexdigest()
        ):
            raise errors.ObjectCorruptedError("its bytes do not have the checksum of the lock")

    @property
    def checksum(self) -> str | None:
        # SHA-256 if wanted, else the lock's own checksum if the bytes match it
        if self._is_own:
            return SHA2_256 + self.hashes["sha256"].hexdigest()
        return self._row.facts.file_checksum if self._algorithm is not None else None
