"""Today's objects against the facts of a lock: same, changed, missing, unreachable, or nothing to compare.

What both sides have is compared: size; entity tag as a text, weak or not; the time as an instant. Stores
touch the time when they move an object between tiers, so a time that alone has changed is a note. What a
check finds is output and never recorded. Source: RFC-047, asset-lock ADR-003.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from enum import Enum
from typing import Any

from odfchain.assets.lock_table import PATHS, SCHEMA, AssetRow, instant
from odfchain.assets.objects import Facts, Probe
from odfchain.limits import CHECK_PAGE, CheckPageLimits
from odfchain.odf.tree import record_of
from odfchain.profiles.pages import Excerpt, excerpt, fitted, listed, one_page
from odfchain.text import counted


class Status(Enum):
    """Result of comparing an asset with its facts."""

    SAME = "same"
    CHANGED = "changed"
    MISSING = "missing"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    """No fact that both sides have."""


@dataclass(frozen=True, slots=True)
class CheckedAsset:
    """An asset of a lock, and what its store says of it today."""

    row: AssetRow
    status: Status
    errors: tuple[str, ...] = ()
    """The difference, or why nothing is known."""
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
        """True if no difference was found."""
        return self.status in (Status.SAME, Status.UNKNOWN)

    def to_document(self) -> dict[str, Any]:
        """As JSON has it, with the members of the ADR's own tool and `status`."""
        place = [f"{name}:{PATHS[name]}" for name in SCHEMA.names[:6]]
        return record_of(self.row, *place) | record_of(self, "valid:is_valid", "errors", "status", "note")


def compared(row: AssetRow, probe: Probe) -> CheckedAsset:
    """The result of comparing a probe with the facts of a row."""
    if probe.missing:
        return CheckedAsset(row, Status.MISSING, (probe.problem,))
    if probe.facts is None:
        return CheckedAsset(row, Status.UNREACHABLE, (probe.problem,))
    locked, now = row.facts, probe.facts
    if differences := list(_differences(locked, now)):
        return CheckedAsset(row, Status.CHANGED, tuple(differences))
    if not any(None not in pair for pair in zip(astuple(locked), astuple(now), strict=True)):
        return CheckedAsset(row, Status.UNKNOWN, note="there is nothing that both the lock and the store say")
    return CheckedAsset(row, Status.SAME, note=_touched(locked, now))


def counts(checked: Mapping[Status, int]) -> str:
    """The counts as a text: `1,202 same, 1 changed, 1 missing`."""
    shown = [f"{checked[status]:,} {status.value}" for status in Status if checked.get(status)]
    return ", ".join(shown) or "no assets"


def _differences(locked: Facts, now: Facts) -> Iterator[str]:
    if locked.has_other_size(now):
        yield f"size {locked.size_bytes} → {now.size_bytes}"
    tags = [each.etag.removeprefix("W/") for each in (locked, now) if each.etag is not None]
    if len(set(tags)) == 2:
        yield "etag"
    if locked.file_checksum is not None and now.file_checksum is not None:
        if locked.file_checksum != now.file_checksum:
            yield "checksum"
    # where size and tag can both be compared, the time alone proves nothing
    elif None in (locked.size_bytes, now.size_bytes, locked.etag, now.etag) and _touched(locked, now):
        yield f"last modified {locked.last_modified} → {now.last_modified}"


def _touched(locked: Facts, now: Facts) -> str:
    if locked.last_modified is None or now.last_modified is None:
        return ""
    if _instant(locked.last_modified) == _instant(now.last_modified):
        return ""
    return f"last modified {locked.last_modified} → {now.last_modified}"


_instant = functools.lru_cache(instant)


# Findings per store, and as one HTML page without scripts or requests. Ids, keys and answers are untrusted:
# they are escaped, cut and counted (RFC-047).

StoreName = tuple[str, str | None, str | None]
"""A store: its type, its container, its endpoint."""


@dataclass(frozen=True, slots=True)
class StoreFindings:
    """Findings in one store; of each status but `same` the first assets are kept."""

    place: StoreName | None
    """None: all the stores for which there was no room."""
    counts: Counter[Status] = field(default_factory=Counter)
    kept: dict[Status, list[CheckedAsset]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The store's name; an origin has its type only."""
        if self.place is None:
            return "all other stores"
        store, container, endpoint = self.place
        kind = "" if store in ("http", "https") else store
        return " ".join(filter(None, (kind, container, f"at {endpoint}" if endpoint else "")))


class CheckSummary:
    """Counts what a check finds, and keeps as much of it as a page shows: its memory is bounded."""

    def __init__(self, limits: CheckPageLimits = CHECK_PAGE, *, checksums: bool = False) -> None:
        self._limits, self._checksums = limits, checksums
        self._stores: dict[StoreName, StoreFindings] = {}
        self._others = StoreFindings(None)
        self.noted = 0
        """Assets that are the same, but for a time."""
        self.sized = 0
        """Assets that are the same, and of which only the size was compared."""

    def watched(self, checked: Iterable[CheckedAsset]) -> Iterator[CheckedAsset]:
        """Pass checked assets on, and count them."""
        for each in checked:
            self.add(each)
            yield each

    def add(self, checked: CheckedAsset) -> None:
        """Count one asset."""
        location = checked.row.location
        place = location.store, location.container, location.endpoint
        if (found := self._stores.get(place)) is None:
            roomy = len(self._stores) < self._limits.stores
            found = self._stores.setdefault(place, StoreFindings(place)) if roomy else self._others
        found.counts[checked.status] += 1
        facts = checked.row.facts
        if checked.status is Status.SAME:
            self.noted += bool(checked.note)
            hashed = self._checksums and facts.file_checksum is not None
            self.sized += not hashed and facts.etag is None and facts.last_modified is None
        else:
            kept = found.kept.setdefault(checked.status, [])
            if len(kept) < self._limits.assets:
                kept.append(checked)

    @property
    def counts(self) -> Counter[Status]:
        """Count by status."""
        return sum((found.counts for found in self.stores), Counter[Status]())

    @property
    def stores(self) -> list[StoreFindings]:
        """Stores with most that is missing or changed first."""
        every = [*self._stores.values(), *([self._others] if self._others.counts else [])]
        return sorted(every, key=lambda f: (-_bad(f.counts), f.place is None, *map(str, f.place or ())))

    @property
    def line(self) -> str:
        """The counts as a text: `1,202 same, 1 changed, 1 missing`."""
        return counts(self.counts)

    @property
    def exit_code(self) -> int:
        """6 where an asset is changed or missing, 8 where some could only not be reached, else 0."""
        return 6 if _bad(self.counts) else 8 if self.counts[Status.UNREACHABLE] else 0

    def to_html(self, name: str, time: str) -> str:
        """One self-contained HTML page about the check of a lock that the reader calls `name`, at a time."""
        return fitted(lambda limits: _rendered(self, name, time, limits), self._limits)


def _rendered(summary: CheckSummary, name: str, time: str, limits: CheckPageLimits) -> str:
    found, stores = summary.counts, summary.stores
    state, title, lead = _verdict(found)

    def concerned(*names: str) -> Excerpt[tuple[StoreFindings, Excerpt[CheckedAsset]]]:
        # the stores with assets of these statuses, and the first of these assets
        statuses = list(map(Status, names))
        several = excerpt([each for each in stores if any(each.counts[s] for s in statuses)], limits.stores)
        shown = []
        for each in several.shown:
            kept = [found for status in statuses for found in each.kept.get(status, ())][: limits.assets]
            total = sum(each.counts[status] for status in statuses)
            shown.append((each, Excerpt(tuple(kept), total - len(kept))))
        return Excerpt(tuple(shown), several.rest)

    return one_page(
        "assets",
        "check.html.j2",
        state=state,
        title=title,
        lead=lead,
        name=name,
        time=time,
        limits=limits,
        counts=found,
        statuses=(Status.MISSING, Status.CHANGED, Status.UNREACHABLE, Status.UNKNOWN, Status.SAME),
        concerned=concerned,
        stores=excerpt(stores, limits.stores),
        noted=summary.noted,
        sized=summary.sized,
        in_words=counts,
    )


def _verdict(found: Counter[Status]) -> tuple[str, str, str]:
    # the headline must not claim more than was compared
    total = counted(found.total(), "asset")
    if _bad(found):
        kinds = [s for s in (Status.MISSING, Status.CHANGED) if found[s]]
        shown = listed([f"{found[s]:,} {'is' if found[s] == 1 else 'are'} {s.value}" for s in kinds])
        return "faulty", listed([s.value for s in kinds]).capitalize(), f"Of {total} {shown}."
    if found[Status.UNREACHABLE]:
        lead = f"Of {total} {found[Status.UNREACHABLE]:,} could not be asked for; no other differs."
        return "unchecked", "Not all could be reached", lead
    if not found[Status.SAME]:
        return "unchecked", "Nothing was compared", f"Of {total} nothing is known that could be compared."
    rest = f"; of {found[Status.UNKNOWN]:,} nothing could be" if found[Status.UNKNOWN] else ""
    return "ok", "As locked", f"Of {total} all that could be compared is equal{rest}."


def _bad(found: Counter[Status]) -> int:
    return found[Status.MISSING] + found[Status.CHANGED]
