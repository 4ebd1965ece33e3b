"""The objects of a lock copied elsewhere, and the rows that describe the copies.

A copy is made only of what the lock describes: facts are compared first, and where there is a strong entity
tag the request carries it. What passes is counted and, where a checksum is known or wanted, hashed; then the
target is asked for its own facts, and nothing of the source's survives in the new row. What arrived is noted
beside the new lock, so that a second run copies the rest; the old lock stays valid whatever happens.
Source: RFC-047.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from odfchain.assets.access import Stores
from odfchain.assets.arrivals import Arrivals
from odfchain.assets.checking import Status, compared
from odfchain.assets.checksums import SHA2_256, algorithm_of
from odfchain.assets.hrefs import href_of
from odfchain.assets.lock_table import AssetRow, Facts
from odfchain.assets.objects import ChangedError, checksum_of, pieces, remove, translated, write
from odfchain.assets.probing import probe
from odfchain.assets.relocation_plan import Planned, RelocateOptions, alike_in_folders, place_of, shown
from odfchain.assets.stac import AssetFault
from odfchain.errors import FetchError, NameCollisionError, OdfchainError, SourceNotFoundError
from odfchain.progress import SILENT, Progress
from odfchain.store.locations import Location
from odfchain.text import one_line

_COPIED_AT_ONCE = 5 << 30
"""Bytes of the largest object that S3 copies in one request; larger ones pass through here."""


@dataclass(frozen=True, slots=True)
class Relocated:
    """The rows of the copies, and what was not copied."""

    rows: tuple[AssetRow, ...]
    faults: tuple[AssetFault, ...]
    copied: int
    copied_bytes: int


def relocate(
    planned: Sequence[Planned],
    sources: Stores,
    targets: Stores,
    arrivals: Arrivals,
    options: RelocateOptions,
    progress: Progress = SILENT,
) -> Relocated:
    """Copy what the plan says; a row whose object changed, or cannot be copied, is a fault and left out."""
    _check_letters(planned)
    copied, size = 0, 0
    rows, faults = list[AssetRow](), list[AssetFault]()
    progress.phase("Copying", sum(each.row.facts.size_bytes or 0 for each in planned))

    def one(item: Planned) -> tuple[Facts, bool] | OdfchainError:
        try:
            known = _arrived(item, targets, arrivals, options)
            if known is not None:
                return known, False
            facts = _copied(item, sources, targets, options)
            arrivals.add(item, facts)
        except OdfchainError as error:
            return error
        return facts, True

    with ThreadPoolExecutor(options.jobs) as pool:
        for item, found in zip(planned, pool.map(one, planned), strict=True):
            if isinstance(found, OdfchainError):
                faults.append(AssetFault(item.row.item_id, item.row.asset_key, found))
                continue
            facts, is_new = found
            if is_new:
                copied, size = copied + 1, size + (facts.size_bytes or 0)
            progress.advance(item.row.facts.size_bytes or 0)
            rows.append(replace(item.row, location=shown(item.target, options), facts=facts))
    return Relocated(tuple(rows), tuple(faults), copied, size)


def _check_letters(planned: Sequence[Planned]) -> None:
    alike = alike_in_folders(planned)
    if alike is not None and _ignores_case(Path(alike[1].target.key).parent):
        one, other = (one_line(each.row.label) for each in alike)
        raise NameCollisionError(
            f"{one} and {other} would be one file: the file system here does not tell their names apart",
            hint="name another place with --to",
        )


def _ignores_case(folder: Path) -> bool:
    """Whether a file is found by its name in other letters, in the nearest folder that is there."""
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=there, prefix=".case-") as file:
        return Path(file.name.replace(".case-", ".CASE-")).exists()
    return False


def _arrived(item: Planned, targets: Stores, arrivals: Arrivals, options: RelocateOptions) -> Facts | None:
    known = arrivals.facts_of(item)
    if known is None or (options.checksum and known.file_checksum is None):
        return None
    now = probe(item.target, targets)
    row = replace(item.row, location=item.target, facts=known)
    return known if compared(row, now).status is Status.SAME else None


def _copied(item: Planned, sources: Stores, targets: Stores, options: RelocateOptions) -> Facts:
    row, target = item.row, item.target
    found = _unchanged(row, sources)
    source = place_of(row.location, sources.access.folder)
    if source == target:  # it is there already
        passing = _Passing(row, sources, options)
        for _ in passing if passing.hashes else ():
            pass
        return replace(found, file_checksum=passing.checksum)
    _check_target(item, targets, options)
    passing = _Passing(row, sources, options)
    if _one_store(source, target) and not passing.hashes and (found.size_bytes or 0) <= _COPIED_AT_ONCE:
        import obstore  # noqa: PLC0415 - a heavy library

        with translated(source, targets):
            obstore.copy(targets.store_of(target, whole=True), source.key, target.key, overwrite=True)
        size = found.size_bytes
        try:
            _unchanged(row, sources)  # a copy within a store has no condition
        except OdfchainError:
            remove(target, targets)
            raise
    else:
        write(target, targets, iter(passing))
        size = passing.size
    now = probe(target, targets)
    if now.facts is None or now.facts.size_bytes != size:
        remove(target, targets)
        said = now.problem if now.facts is None else f"{now.facts.size_bytes} bytes instead of {size}"
        raise FetchError(f"the copy at {href_of(target)} is not what was written: {said}")
    return replace(now.facts, file_checksum=passing.checksum)


def _unchanged(row: AssetRow, sources: Stores) -> Facts:
    """What the source's store says now.

    Raises:
        ChangedError, SourceNotFoundError: it is not what the lock says, or not there.
        FetchError: it cannot be asked.
    """
    now = probe(row.location, sources)
    found = compared(row, now)
    if found.status is Status.MISSING:
        raise SourceNotFoundError("no such object")
    if now.facts is None:
        raise FetchError(found.errors[0])
    if found.status is Status.CHANGED:
        raise ChangedError(f"changed since it was locked: {', '.join(found.errors)}")
    return now.facts


def _check_target(item: Planned, targets: Stores, options: RelocateOptions) -> None:
    """Nothing else is at the target, or it may be replaced.

    Raises:
        NameCollisionError: something else is there.
        FetchError: nobody says whether.
    """
    target, locked = item.target, item.row.facts
    there = probe(target, targets)
    if there.missing:
        return
    if there.facts is None:
        raise FetchError(f"{href_of(target)}: {there.problem}")
    if options.overwrite:
        return
    size, checksum = there.facts.size_bytes, locked.file_checksum or ""
    algorithm = algorithm_of(checksum)
    if size not in (None, locked.size_bytes):
        said = f"with {size} bytes instead of {locked.size_bytes}"
    elif algorithm is not None and not checksum.endswith(checksum_of(target, targets, algorithm)):
        said = "with another checksum than the lock's"
    else:
        return
    raise NameCollisionError(f"{href_of(target)} is there, {said}", hint="--overwrite replaces it")


class _Passing:
    """The bytes of a row's object, counted and hashed as they pass; others end with an error."""

    def __init__(self, row: AssetRow, sources: Stores, options: RelocateOptions) -> None:
        self._row, self._sources = row, sources
        self._algorithm = algorithm_of(row.facts.file_checksum or "")
        wanted = {self._algorithm or "", "sha256" if options.checksum else ""} - {""}
        self._is_own = options.checksum
        self.hashes = {name: hashlib.new(name) for name in wanted}
        self.size = 0

    def __iter__(self) -> Iterator[memoryview]:
        locked = self._row.facts
        for piece in pieces(self._row.location, self._sources, etag=locked.strong_etag):
            self.size += len(piece)
            for each in self.hashes.values():
                each.update(piece)
            yield piece
        if locked.size_bytes is not None and self.size != locked.size_bytes:
            raise ChangedError(f"changed since it was locked: {self.size} bytes came")
        if self._algorithm is not None and not (locked.file_checksum or "").endswith(
            self.hashes[self._algorithm].hexdigest()
        ):
            raise ChangedError("its bytes do not have the checksum of the lock")

    @property
    def checksum(self) -> str | None:
        """Of what passed: SHA-256 if that is wanted, else what the lock has and the bytes have, too."""
        if self._is_own:
            return SHA2_256 + self.hashes["sha256"].hexdigest()
        return self._row.facts.file_checksum if self._algorithm is not None else None


def _one_store(source: Location, target: Location) -> bool:
    return source.store in ("s3", "gs", "az") and replace(source, key="") == replace(target, key="")
