"""What happened to which airport, told from the recorded operations alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
Corrected = tuple[Row, list[tuple[str, str]]]
"""The corrected row, and the reasons."""

EARTH_KM = 6371.0
NEAR_KM = 0.5
FAR_KM = 50.0


@dataclass(frozen=True)
class Changes:
    """The operations of one slice, with corrections paired."""

    appeared: list[Row]
    gone: list[Row]
    corrected: list[tuple[Row, Row]]

    @classmethod
    def of(cls, rows: list[Row]) -> Changes:
        """`-C` stands right before its `+C` (specification "Retractions and corrections")."""
        pairs = [(a, b) for a, b in pairwise(rows) if (a["op"], b["op"]) == (2, 3)]
        return cls([r for r in rows if r["op"] == 0], [r for r in rows if r["op"] == 1], pairs)


def label(row: Row) -> str:
    """`BER  Berlin Brandenburg Airport, Berlin (DE)`."""
    place = row["city"] or row["subd"]
    return f"{row['iata']}  {row['name']}{f', {place}' if place else ''} ({row['country']})"


def distance_km(a: Row, b: Row) -> float:
    """Great-circle distance between two rows."""
    lat1, lon1, lat2, lon2 = (math.radians(v) for v in (a["lat"], a["lon"], b["lat"], b["lon"]))
    h = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * EARTH_KM * math.asin(math.sqrt(min(1.0, h)))


def reasons(old: Row, new: Row) -> Iterator[tuple[str, str]]:
    """(kind, sentence) for everything that differs, the weightiest first."""
    moved = distance_km(old, new)
    if moved > FAR_KM:
        # everything else differs because it is another place
        yield "code given to another airport", f"the code moved {moved:,.0f} km, from {label(old)[5:]}"
        return
    if moved > NEAR_KM:
        yield "location corrected", f"location corrected by {moved:,.1f} km"
    if old["country"] != new["country"]:
        yield "country corrected", f"country {old['country']} → {new['country']}"
    if old["icao"] != new["icao"]:
        yield "ICAO code changed", f"ICAO code {old['icao']} → {new['icao']}"
    if old["name"] != new["name"]:
        yield "renamed", f"renamed from “{old['name']}”"
    if (old["city"], old["subd"]) != (new["city"], new["subd"]):
        before = ", ".join(v for v in (old["city"], old["subd"]) if v) or "nowhere"
        after = ", ".join(v for v in (new["city"], new["subd"]) if v) or "nowhere"
        yield "place name corrected", f"place {before} → {after}"
    if old["tz"] != new["tz"]:
        yield "time zone corrected", f"time zone {old['tz']} → {new['tz']}"
    if old["elevation"] != new["elevation"]:
        yield "elevation corrected", f"elevation {old['elevation']:g} → {new['elevation']:g} ft"
    if 0 < moved <= NEAR_KM:
        yield "location refined", f"location refined by {moved * 1000:,.0f} m"


def story(changes: Changes, examples: int) -> Iterator[str]:
    """Lines that tell what happened: totals, why, and the most telling examples."""
    told = [(old, new, list(reasons(old, new))) for old, new in changes.corrected]
    yield f"{len(changes.appeared):,} appeared, {len(changes.gone):,} are gone, {len(told):,} were corrected"
    kinds = Counter(kind for *_, why in told for kind, _ in why)
    if kinds:
        yield "why corrected: " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
    for row in changes.appeared[:examples] if changes.corrected or changes.gone else []:
        yield f"  + {label(row)}"
    for row in changes.gone[:examples]:
        yield f"  - {label(row)}: no longer in the release"
    for new, why in _telling([(new, why) for _, new, why in told], kinds, examples):
        yield f"  ~ {label(new)}: {'; '.join(text for _, text in why)}"


def _telling(told: list[Corrected], kinds: Counter[str], count: int) -> Iterator[Corrected]:
    """One correction of each kind, rare kinds first: what is unusual is what a reader wants to see."""
    left = list(told)
    for kind, _ in sorted(kinds.items(), key=lambda item: item[1]):
        found = next((item for item in left if any(k == kind for k, _ in item[1])), None)
        if found is not None and count:
            left.remove(found)
            count -= 1
            yield found
