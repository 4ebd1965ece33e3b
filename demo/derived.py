"""The second half of the demo: datasets that are functions of others, step by step and replayed.

Results that can be taken back count every row at once. A window only uses what is final: rows strictly older
than the watermark, the time before which nothing more will come. That a year is over only its user can know,
so the watermarks at its end are set by hand.
"""

from __future__ import annotations

from pathlib import Path

from shell import command, derive, title

from odfchain import Workspace

COMPLETE = ("us.nyc.flights", "us.nyc.airlines", "us.nyc.planes")
"""What the year brings no more of; the weather's file ends a day earlier, so its last hours wait."""

DERIVED = ("airports.by-country", "delays.daily", "delays.hourly-weather", "flights.enriched", "routes.top10")
YEAR_IS_OVER = "2014-01-01T06:00:00Z"


def add_derived(folder: Path) -> None:
    """Five definitions; nothing is computed yet."""
    for name in DERIVED:
        command(folder, "add", f"fixtures/manifests/derived/{name.replace('.', '-')}.yaml")


def derive_all(workspace: Workspace, folder: Path) -> None:
    """Every derivative, before and after its inputs are known to be complete."""
    title("Airports by country: later releases take counts back")
    countries = workspace["airports.by-country"]
    derive(countries)
    command(folder, "tail", str(countries.alias), "-n", "4")

    title("Delays by day: a day appears when it is over")
    days = workspace["delays.daily"]
    derive(days)
    print("  the last day may still go on, as far as the flights tell. It is over, and so is the year:")
    for name in COMPLETE:
        command(folder, "pull", name, "--set-watermark", YEAR_IS_OVER)
    derive(days)
    command(folder, "tail", str(days.alias), "-n", "4")

    title("Delays by hour beside the weather, flights with airlines and planes, the busiest routes")
    for name in ("delays.hourly-weather", "flights.enriched", "routes.top10"):
        derive(workspace[name])
        command(folder, "tail", name, "-n", "10" if name == "routes.top10" else "4")

    title("Once more: there is nothing to do")
    command(folder, "pull", *DERIVED)
