"""The demo's derivatives over excerpts of its data, step by step, beside what plain Python makes of them.

Windows are compared for the rows that are final at each step, which are those strictly older than the watermark;
results that can be taken back for all rows that were recorded until then.
"""

from __future__ import annotations

import csv
import io
import os
import statistics
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.odf.times import Timestamp
from tests.kit.support import FIXTURES, ROOT, nycflights

MANIFESTS = ROOT / "fixtures" / "manifests"
AIRPORTS = FIXTURES / "data" / "airports"
RELEASES = ("2021-12-28", "2026-09-05")
THREE_DAYS = 2_699
"""Flights of the first three days, with which the file begins."""

Row = dict[str, str]


@pytest.fixture(scope="module")
def flights() -> list[Row]:
    """One flight in eight of three days, in the order of the file."""
    with (
        zipfile.ZipFile(nycflights() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="utf-8") as text,
    ):
        return list(islice(csv.DictReader(text), 0, THREE_DAYS, 8))


def table(name: str) -> list[Row]:
    with (nycflights() / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


class Source:
    """A folder from which the roots of a workspace pull, and the datasets made of them."""

    def __init__(self, workspace: Workspace, folder: Path, roots: Iterable[str], derived: str) -> None:
        self._workspace = workspace
        self._folder = folder
        self._writes = 0
        folder.mkdir()
        for name in roots:
            workspace.add(MANIFESTS / f"{name}.yaml")
        workspace.add(MANIFESTS / "derived" / f"{derived.replace('.', '-')}.yaml")
        self.derived = workspace[derived]

    def root(self, name: str) -> Dataset:
        owner = "org.airportsdata" if name == "airports" else "us.nyc"
        return self._workspace[f"{owner}.{name}"]

    def pull(self, name: str, rows: Sequence[Row], file: str | None = None) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        path = self._folder / (file or f"{name}.csv")
        path.write_text(text.getvalue(), encoding="utf-8")
        if name == "flights":
            archive = path.with_suffix(".csv.zip")
            with zipfile.ZipFile(archive, "w") as sink:
                sink.write(path, path.name)
            path.unlink()
            path = archive
        self._writes += 1
        os.utime(path, (1_700_000_000 + self._writes, 1_700_000_000 + self._writes))
        variables = {"FLIGHTS": str(self._folder), "AIRPORTS": str(self._folder)}
        assert self.root(name).pull(variables=variables).blocks

    def over(self, time: str, *names: str) -> None:
        """Nothing older than `time` will come any more."""
        for name in names:
            self.root(name).set_watermark(Timestamp.parse(time))

    def watermark(self, *names: str) -> str:
        """What is older than this is final."""
        return min(str(self.root(name).summary.watermark) for name in names)

    def step(self, *columns: str) -> tuple[Counter[tuple[Any, ...]], int]:
        """(all that holds after the next step, how many rows that took back)."""
        self.derived.pull()
        rows = self.derived.scan(["op", *columns]).to_arrow().to_pylist() if self.derived.schema else []
        held: Counter[tuple[Any, ...]] = Counter()
        for row in rows:
            values = tuple(_plain(row[c]) for c in columns)
            held[values] += {0: 1, 1: -1}[row["op"]]
        assert min(held.values(), default=1) >= 0, "nothing is taken back that was not there"
        return +held, sum(row["op"] == 1 for row in rows)


def _plain(value: Any) -> Any:
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if hasattr(value, "hour") else value


def on(rows: Sequence[Row], *days: int) -> list[Row]:
    return [row for row in rows if int(row["day"]) in days]


def final(rows: Iterable[Row], watermark: str) -> list[Row]:
    return [row for row in rows if row["time_hour"] < watermark]


def test_flights_get_what_was_known_when_they_left(
    workspace: Workspace, tmp_path: Path, flights: list[Row]
) -> None:
    source = Source(workspace, tmp_path / "nyc", ["flights", "airlines", "planes"], "flights.enriched")
    names = {row["carrier"]: row["name"] for row in table("airlines")}
    register = table("planes")
    flown = {row["tailnum"] for row in on(flights, 3)}
    registered_late = [row for row in register if row["tailnum"] in flown][:20]
    known = [row for row in register if row not in registered_late]
    seats = {row["tailnum"]: int(row["seats"]) for row in register}

    late = {row["tailnum"] for row in registered_late}

    def expected(given: Iterable[Row], changed: str) -> Counter[tuple[Any, ...]]:
        """With what is known from the day of the change on."""
        return Counter(
            (
                row["time_hour"],
                "United" if row["carrier"] == "UA" and row["time_hour"] >= changed else names[row["carrier"]],
                int(row["flight"]), None if row["tailnum"] == "NA" else row["tailnum"],
                None if row["tailnum"] in late and row["time_hour"] < changed else seats.get(row["tailnum"]),
            )
            for row in given
        )  # fmt: skip

    columns = ("time_hour", "airline", "flight", "tailnum", "seats")
    all_three = ("flights", "airlines", "planes")
    source.pull("airlines", table("airlines"), "airlines-2013-01-01.csv")
    source.pull("planes", known, "planes-2013-01-01.csv")
    source.over("2013-01-03T00:00:00Z", "airlines", "planes")
    source.pull("flights", on(flights, 1, 2))
    assert source.step(*columns) == (expected(on(flights, 1, 2), "never"), 0)

    renamed = [row | {"name": "United"} if row["carrier"] == "UA" else row for row in table("airlines")]
    source.pull("airlines", renamed, "airlines-2013-01-03.csv")
    source.pull("planes", register, "planes-2013-01-03.csv")
    source.pull("flights", flights)
    source.over("2013-01-04T06:00:00Z", *all_three)
    held, taken_back = source.step(*columns)
    assert held == expected(flights, "2013-01-03T00:00:00Z")
    assert taken_back, "some flights of the second day left after the change, which was not known then"
    assert sum(n for row, n in held.items() if row[3] in late) >= 20
    assert {row[1] for row in held} >= {"United", "United Air Lines Inc."}


def test_a_day_appears_when_it_is_over(workspace: Workspace, tmp_path: Path, flights: list[Row]) -> None:
    source = Source(workspace, tmp_path / "nyc", ["flights"], "delays.daily")
    columns = ("day", "origin", "flights", "departed", "mean_delay", "max_delay")

    def expected(*days: int) -> list[tuple[Any, ...]]:
        found = []
        for day in days:
            for origin in ("EWR", "JFK", "LGA"):
                rows = [row for row in on(flights, day) if row["origin"] == origin]
                delays = [int(row["dep_delay"]) for row in rows if row["dep_delay"] != "NA"]
                mean = pytest.approx(statistics.fmean(delays), abs=0.0051)
                found.append((f"2013-01-{day:02}", origin, len(rows), len(delays), mean, max(delays)))
        return found

    def step() -> list[tuple[Any, ...]]:
        held, taken_back = source.step(*columns)
        assert taken_back == 0
        return sorted((str(day), *rest) for day, *rest in held.elements())

    source.pull("flights", on(flights, 1))
    assert step() == []
    source.pull("flights", flights)
    assert step() == expected(1, 2)
    source.over("2013-01-04T05:00:00Z", "flights")
    assert step() == expected(1, 2, 3)


def test_an_hour_appears_with_its_weather(workspace: Workspace, tmp_path: Path, flights: list[Row]) -> None:
    source = Source(workspace, tmp_path / "nyc", ["flights", "weather"], "delays.hourly-weather")
    weather = {(row["origin"], row["time_hour"]): row for row in table("weather")}
    wanted = {(row["origin"], row["time_hour"]) for row in flights}
    observed = sorted((row for key, row in weather.items() if key in wanted), key=lambda r: r["time_hour"])
    observed = [row for n, row in enumerate(observed) if n % 10]  # some hours were not observed
    temperature = {(row["origin"], row["time_hour"]): float(row["temp"]) for row in observed}

    def expected(given: Iterable[Row]) -> Counter[tuple[Any, ...]]:
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in given:
            groups[row["origin"], row["time_hour"]].append(row)
        return Counter(
            (
                time, origin, len(rows), sum(row["dep_delay"] != "NA" for row in rows),
                temperature.get((origin, time)),
            )
            for (origin, time), rows in groups.items()
        )  # fmt: skip

    columns = ("time_hour", "origin", "flights", "departed", "temp")
    both = ("flights", "weather")
    source.pull("flights", on(flights, 1, 2))
    source.pull("weather", on(observed, 1))
    done = final(flights, source.watermark(*both))
    assert 0 < len(done) < len(on(flights, 1, 2))
    assert source.step(*columns) == (expected(done), 0)

    source.pull("weather", observed)
    assert source.step(*columns) == (expected(final(flights, source.watermark(*both))), 0)

    source.pull("flights", flights)
    source.over("2013-01-04T06:00:00Z", *both)
    held, taken_back = source.step(*columns)
    assert (held, taken_back) == (expected(flights), 0)
    assert None in {temp for *_, temp in held}


def airports() -> list[dict[str, Row]]:
    """For each release, airports with a code; among them all kinds of changes."""
    releases = []
    for day in RELEASES:
        with (AIRPORTS / f"{day}.csv").open(encoding="utf-8", newline="") as stream:
            releases.append({row["iata"]: row for row in csv.DictReader(stream)})
    codes = set(sorted(releases[0])[:100])
    for old, new in pairwise(releases):
        codes |= set(sorted(new.keys() - old.keys())[:20]) | set(sorted(old.keys() - new.keys())[:20])
        both = sorted(old.keys() & new.keys())
        codes |= set([code for code in both if old[code]["country"] != new[code]["country"]][:20])
        codes |= set([code for code in both if old[code]["name"] != new[code]["name"]][:20])
    return [{code: row for code, row in release.items() if code in codes} for release in releases]


def test_countries_follow_additions_removals_and_corrections(workspace: Workspace, tmp_path: Path) -> None:
    source = Source(workspace, tmp_path / "airports", ["airports"], "airports.by-country")
    releases = airports()

    def expected(rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
        return Counter(dict.fromkeys(Counter(row["country"] for row in rows).items(), 1))

    columns = ("country", "airports")
    for day, release in zip(RELEASES, releases, strict=True):
        source.pull("airports", [*release.values()], f"{day}.csv")
        held, taken_back = source.step(*columns)
        assert held == expected(release.values()), "also what was added on the day of the watermark"
    assert taken_back > 20
    source.over("2026-09-06T00:00:00Z", "airports")
    assert source.step(*columns) == (held, taken_back), "the watermark changes nothing"


def test_the_busiest_routes_change_places(workspace: Workspace, tmp_path: Path, flights: list[Row]) -> None:
    source = Source(workspace, tmp_path / "nyc", ["flights"], "routes.top10")

    def expected(given: Iterable[Row]) -> Counter[tuple[Any, ...]]:
        counts = Counter((row["origin"], row["dest"]) for row in given)
        busiest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
        return Counter((place, *route, n) for place, (route, n) in enumerate(busiest, start=1))

    columns = ("place", "origin", "dest", "flights")
    last = 0
    for days in ((1,), (1, 2), (1, 2, 3)):
        source.pull("flights", on(flights, *days))
        held, taken_back = source.step(*columns)
        assert held == expected(on(flights, *days))
        assert taken_back > last or days == (1,)
        last = taken_back
