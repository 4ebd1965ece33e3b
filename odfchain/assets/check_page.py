"""What came of checking a lock: counted per store while it is checked, and as one HTML page.

The page is one file that asks for nothing and runs nothing (`odfchain.pages`). What is missing or changed
comes first, store by store; what is the same is a number. Ids, keys and answers come from strangers: they are
escaped, cut, and counted where there is no room for them. Source: RFC-047.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from odfchain.assets.checking import CheckedAsset, Status, counts
from odfchain.limits import CHECK_PAGE, CheckPageLimits
from odfchain.pages.one_file import fitted, one_page
from odfchain.pages.page_words import LabelledValue, excerpt, listed, moment
from odfchain.text import counted, cut

StoreName = tuple[str, str | None, str | None]
"""A store: its type, its container, its endpoint."""


@dataclass(frozen=True, slots=True)
class StoreFindings:
    """What was found in one store; of each status but `same` the first assets are kept."""

    place: StoreName | None
    """None: all the stores for which there was no room."""
    counts: Counter[Status] = field(default_factory=Counter)
    kept: dict[Status, list[CheckedAsset]] = field(default_factory=dict)


class CheckSummary:
    """Counts what a check finds, and keeps as much of it as a page shows: its memory is bounded."""

    def __init__(self, limits: CheckPageLimits = CHECK_PAGE) -> None:
        self._limits = limits
        self._stores: dict[StoreName, StoreFindings] = {}
        self._others = StoreFindings(None)
        self.noted = 0
        """Assets that are the same, but for a time."""

    def watched(self, checked: Iterable[CheckedAsset]) -> Iterator[CheckedAsset]:
        """What is found, as it is found."""
        for each in checked:
            self.add(each)
            yield each

    def add(self, checked: CheckedAsset) -> None:
        """Count one asset."""
        location = checked.row.location
        place = location.store, location.container, location.endpoint
        found = self._stores.get(place)
        if found is None:
            roomy = len(self._stores) < self._limits.stores
            found = self._stores.setdefault(place, StoreFindings(place)) if roomy else self._others
        found.counts[checked.status] += 1
        self.noted += checked.status is Status.SAME and bool(checked.note)
        if checked.status is not Status.SAME:
            kept = found.kept.setdefault(checked.status, [])
            if len(kept) < self._limits.assets:
                kept.append(checked)

    @property
    def counts(self) -> Counter[Status]:
        """How many there are of each status."""
        return sum((found.counts for found in self.stores), Counter[Status]())

    @property
    def stores(self) -> list[StoreFindings]:
        """Stores with most that is missing or changed first."""
        every = [*self._stores.values(), *([self._others] if self._others.counts else [])]
        return sorted(every, key=lambda f: (-_bad(f.counts), f.place is None, *map(str, f.place or ())))

    @property
    def line(self) -> str:
        """How many there are of each: `1,202 same, 1 changed, 1 missing`."""
        return counts(self.counts)

    @property
    def exit_code(self) -> int:
        """6 where an asset is changed or missing, 8 where some could only not be reached, else 0."""
        return 6 if _bad(self.counts) else 8 if self.counts[Status.UNREACHABLE] else 0

    def to_html(self, name: str, time: str) -> str:
        """One self-contained HTML page about the check of a lock that the reader calls `name`, at a time."""
        return fitted(lambda limits: _rendered(self, name, time, limits), self._limits)


@dataclass(frozen=True, slots=True)
class AssetLine:
    """An asset as the page has it."""

    item: str
    asset: str
    state: str
    word: str
    text: str
    key: str


@dataclass(frozen=True, slots=True)
class StoreLines:
    """Assets of one store, in one of the parts of a page."""

    label: str
    said: str
    lines: Sequence[AssetLine]
    rest: int


@dataclass(frozen=True, slots=True)
class Section:
    """Those assets of all stores that have one of some statuses."""

    id: str
    title: str
    about: str
    told: str
    """What is told of each asset; empty: nothing."""
    stores: Sequence[StoreLines]
    rest: int
    """Stores that are not shown."""


_PARTS = (
    ("bad", "Missing or changed", "", "What differs", (Status.MISSING, Status.CHANGED)),
    (
        "unreachable",
        "Unreachable",
        "Nothing is known of these: their stores could not be asked, or refused to say.",
        "Why",
        (Status.UNREACHABLE,),
    ),
    (
        "unknown",
        "Nothing to compare",
        "These are there, and the lock and the store have no fact in common.",
        "",
        (Status.UNKNOWN,),
    ),
)
_STATES = {
    Status.MISSING: "faulty",
    Status.CHANGED: "faulty",
    Status.UNREACHABLE: "unchecked",
    Status.UNKNOWN: "none",
    Status.SAME: "ok",
}


def _rendered(summary: CheckSummary, name: str, time: str, limits: CheckPageLimits) -> str:
    found, stores = summary.counts, summary.stores
    state, title, lead = _verdict(found)
    every = excerpt(stores, limits.stores)
    return one_page(
        "assets",
        "check.html.j2",
        "check.css",
        state=state,
        title=title,
        lead=lead,
        name=cut(name, limits.text),
        facts=[
            LabelledValue("Checked", moment(time)),
            LabelledValue("Assets", f"{found.total():,}"),
            *(LabelledValue(s.value.capitalize(), f"{found[s]:,}") for s in _ORDER if found[s]),
        ],
        parts=[part for each in _PARTS if (part := _part(stores, each, limits)).stores],
        stores=[(_label(each, limits), [f"{each.counts[s]:,}" for s in _ORDER], f"{each.counts.total():,}")
                for each in every.shown],
        stores_rest=every.rest,
        columns=[status.value.capitalize() for status in _ORDER],
        same=found[Status.SAME],
        noted=summary.noted,
    )  # fmt: skip


_ORDER = (Status.MISSING, Status.CHANGED, Status.UNREACHABLE, Status.UNKNOWN, Status.SAME)


def _verdict(found: Counter[Status]) -> tuple[str, str, str]:
    """How the check is marked, its headline, and a sentence that does not say more than was compared."""
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


def _part(
    stores: Sequence[StoreFindings],
    described: tuple[str, str, str, str, tuple[Status, ...]],
    limits: CheckPageLimits,
) -> Section:
    name, title, about, told, statuses = described
    concerned = excerpt([each for each in stores if any(each.counts[s] for s in statuses)], limits.stores)
    shown = []
    for each in concerned.shown:
        kept = [found for status in statuses for found in each.kept.get(status, ())][: limits.assets]
        total = sum(each.counts[status] for status in statuses)
        lines = [_line(found, limits) for found in kept]
        shown.append(StoreLines(_label(each, limits), counts(each.counts), lines, total - len(lines)))
    return Section(name, title, about, told, shown, concerned.rest)


def _line(found: CheckedAsset, limits: CheckPageLimits) -> AssetLine:
    row, text = found.row, ", ".join(found.errors)
    return AssetLine(
        cut(row.item_id, limits.text),
        cut(row.asset_key, limits.text),
        _STATES[found.status],
        found.status.value,
        cut(text, limits.text),
        cut(row.location.key, limits.text),
    )


def _label(found: StoreFindings, limits: CheckPageLimits) -> str:
    """A store in words: its type, its container, its endpoint; an origin has its type."""
    if found.place is None:
        return "all other stores"
    store, container, endpoint = found.place
    words = [
        *([] if store in ("http", "https") else [store]),
        *([container] if container else []),
        *([f"at {endpoint}"] if endpoint else []),
    ]
    return cut(" ".join(words), limits.text)


def _bad(found: Counter[Status]) -> int:
    return found[Status.MISSING] + found[Status.CHANGED]
