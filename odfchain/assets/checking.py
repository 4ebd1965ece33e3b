"""Today's objects against the facts of a lock: same, changed, missing, unreachable, or nothing to compare.

What both sides have is compared: size; entity tag as a text, weak or not; the time as an instant. Stores
touch the time when they move an object between tiers, so a time that alone has changed is a note. What a
check finds is output and never recorded. Source: RFC-047, asset-lock ADR-003.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Any

from odfchain.assets.access import Stores
from odfchain.assets.checksums import algorithm_of
from odfchain.assets.lock_rules import instant
from odfchain.assets.lock_table import AssetRow, Facts
from odfchain.assets.objects import checksum_of
from odfchain.assets.probing import JOBS, WINDOW, Probe, probes_of
from odfchain.errors import OdfchainError, SourceNotFoundError
from odfchain.progress import SILENT, Progress


class Status(Enum):
    """What came of comparing an asset with its facts."""

    SAME = "same"
    CHANGED = "changed"
    MISSING = "missing"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    """Nothing that both sides have."""


@dataclass(frozen=True, slots=True)
class CheckedAsset:
    """An asset of a lock, and what its store says of it today."""

    row: AssetRow
    status: Status
    errors: tuple[str, ...] = ()
    """What differs, or why nothing is known."""
    note: str = ""

    @property
    def item_id(self) -> str:
        """Of its row."""
        return self.row.item_id

    @property
    def asset_key(self) -> str:
        """Of its row."""
        return self.row.asset_key

    @property
    def is_valid(self) -> bool:
        """Whether nothing speaks against it."""
        return self.status in (Status.SAME, Status.UNKNOWN)

    def to_document(self) -> dict[str, Any]:
        """As JSON has it, with the members of the ADR's own tool and `status`."""
        location = self.row.location
        return {
            "item_id": self.row.item_id,
            "asset_key": self.row.asset_key,
            "store_type": location.store,
            "store_container": location.container,
            "store_endpoint_url": location.endpoint,
            "key": location.key,
            "valid": self.is_valid,
            "errors": list(self.errors),
            "status": self.status.value,
            "note": self.note,
        }


def check_rows(
    rows: Iterable[AssetRow],
    stores: Stores,
    *,
    jobs: int = JOBS,
    checksums: bool = False,
    total: int | None = None,
    progress: Progress = SILENT,
) -> Iterator[CheckedAsset]:
    """Each row with what its store says today, some thousands in memory; nothing is raised for an asset.

    With `checksums` the objects whose checksums are locked are read, and theirs are compared, too.
    """
    progress.phase("Comparing with the stores", total)
    remaining = iter(rows)
    with ThreadPoolExecutor(jobs) as readers:
        while window := list(islice(remaining, WINDOW)):
            probes: Iterable[Probe] = probes_of([row.location for row in window], stores, jobs)
            if checksums:
                probes = readers.map(functools.partial(_with_checksum, stores), window, probes)
            for row, probe in zip(window, probes, strict=True):
                progress.advance()
                yield compared(row, probe)


def _with_checksum(stores: Stores, row: AssetRow, probe: Probe) -> Probe:
    """A probe and the checksum of the bytes, by the algorithm of the lock; where that can tell anything."""
    locked = row.facts.file_checksum
    if locked is None or probe.facts is None or _sizes_differ(row.facts, probe.facts):
        return probe
    name = algorithm_of(locked)
    if name is None:
        return probe
    try:
        digest = checksum_of(row.location, stores, name)
    except OdfchainError as error:
        return Probe(missing=isinstance(error, SourceNotFoundError), problem=str(error))
    start = locked[: len(locked) - len(digest)]
    return replace(probe, facts=replace(probe.facts, file_checksum=start + digest))


def compared(row: AssetRow, probe: Probe) -> CheckedAsset:
    """What a probe means for the facts of a row."""
    if probe.missing:
        return CheckedAsset(row, Status.MISSING, (probe.problem,))
    if probe.facts is None:
        return CheckedAsset(row, Status.UNREACHABLE, (probe.problem,))
    locked, now = row.facts, probe.facts
    differences = list(_differences(locked, now))
    if differences:
        return CheckedAsset(row, Status.CHANGED, tuple(differences))
    if not _comparable(locked, now):
        return CheckedAsset(row, Status.UNKNOWN, note="there is nothing that both the lock and the store say")
    return CheckedAsset(row, Status.SAME, note=_touched(locked, now))


def counts(checked: Mapping[Status, int]) -> str:
    """How many there are of each: `1,202 same, 1 changed, 1 missing`."""
    shown = [f"{checked[status]:,} {status.value}" for status in Status if checked.get(status)]
    return ", ".join(shown) or "no assets"


def _differences(locked: Facts, now: Facts) -> Iterator[str]:
    if _sizes_differ(locked, now):
        yield f"size {locked.size_bytes} → {now.size_bytes}"
    if locked.etag is not None and now.etag is not None and strong(locked.etag) != strong(now.etag):
        yield "etag"
    if locked.file_checksum is not None and now.file_checksum is not None:
        if locked.file_checksum != now.file_checksum:
            yield "checksum"
    elif not _identified(locked, now) and _touched(locked, now):
        yield f"last modified {locked.last_modified} → {now.last_modified}"


def _sizes_differ(locked: Facts, now: Facts) -> bool:
    return None not in (locked.size_bytes, now.size_bytes) and locked.size_bytes != now.size_bytes


def _identified(locked: Facts, now: Facts) -> bool:
    """Whether size and tag can both be compared: then the time alone says nothing."""
    return None not in (locked.size_bytes, now.size_bytes, locked.etag, now.etag)


def _comparable(locked: Facts, now: Facts) -> bool:
    pairs = zip(_values(locked), _values(now), strict=True)
    return any(one is not None and other is not None for one, other in pairs)


def _values(facts: Facts) -> tuple[object, ...]:
    return facts.size_bytes, facts.etag, facts.last_modified, facts.file_checksum


def _touched(locked: Facts, now: Facts) -> str:
    if locked.last_modified is None or now.last_modified is None:
        return ""
    if _instant(locked.last_modified) == _instant(now.last_modified):
        return ""
    return f"last modified {locked.last_modified} → {now.last_modified}"


_instant = functools.lru_cache(instant)


def strong(etag: str) -> str:
    """An entity tag without the mark of a weak one."""
    return etag.removeprefix("W/")
