"""Commands that move and show data: ingest, tail, digest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.common import DATASET, TIMESTAMP, merge_options, open_workspace, options
from odfchain.cli.output import format_option, print_records
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.screen import echo, standard_input
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain.ingest.ingest import IngestOutcome
    from odfchain.model.timestamp import Timestamp

FORMATS = ("csv", "json", "ndjson", "geojson", "ndgeojson", "shapefile", "parquet")
"""Of files; the keys of `INPUT_FORMATS`, without loading what reads them."""


@click.command("ingest")
@click.argument("dataset", type=DATASET)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--stdin", "from_stdin", is_flag=True, help="Read one input from standard input.")
@click.option("--source-name", metavar="NAME", help="Push source to use when there are several.")
@click.option(
    "--input-format",
    type=click.Choice(FORMATS),
    help="Format of the files, when it is not the source's.",
)
@click.option("--event-time", type=TIMESTAMP, help="Event time of rows that carry none.")
@click.option(
    "--system-time", type=TIMESTAMP, hidden=True, help="System time of the run, for reproducible chains."
)
@merge_options
@format_option()
def ingest_command(
    dataset: str,
    files: tuple[Path, ...],
    from_stdin: bool,
    source_name: str | None,
    input_format: str | None,
    event_time: Timestamp | None,
    system_time: Timestamp | None,
    allow_empty: bool,
    allow_retract: bool,
    late_edits: str | None,
    duplicate_keys: str | None,
    allow_future: bool,
    output: str,
) -> None:  # fmt: skip
    """Ingest files into a root dataset, in the order given.

    Each file becomes one transaction; all of them are published together, or none when one is refused.
    """
    if bool(files) == from_stdin:
        raise UsageError("name the files to ingest, or use --stdin")
    for file in files:
        if not file.is_file():
            raise UsageError(f"{file}: {'is a folder' if file.is_dir() else 'no such file'}")
    if not options().debug:
        silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        target = workspace.dataset(dataset)
        from odfchain.ingest.ingest import IngestOptions
        from odfchain.repo.workspace_config import DuplicateKeys, LateEdits

        chosen = IngestOptions(
            source_name=source_name,
            input_format=input_format,
            event_time=event_time,
            system_time=system_time,
            allow_empty=allow_empty,
            allow_retract=allow_retract,
            late_edits=LateEdits(late_edits) if late_edits else None,
            duplicate_keys=DuplicateKeys(duplicate_keys) if duplicate_keys else None,
            allow_future=allow_future,
        )
        if from_stdin:
            outcome = target.ingest_stream(standard_input(), chosen, progress=progress)
        else:
            outcome = target.ingest(files, chosen, progress=progress)
        progress.stop()
        print_outcome(outcome, output)


def silence_libraries() -> None:
    """What goes wrong is told by our errors; the log of PySpark's connection would only repeat it."""
    import logging

    logging.getLogger().addHandler(logging.NullHandler())


def print_outcome(outcome: IngestOutcome, output: str) -> None:
    """Print what each file brought, and what was committed."""
    columns = ["file", "rows", "+A", "-R", "-C", "+C", "offsets"]
    rows = [
        {
            "file": Path(item.file).name if output == "table" else item.file,
            "rows": item.input_rows,
            **{op: item.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")},
            "offsets": f"{item.offsets[0]}-{item.offsets[1]}" if item.offsets else None,
        }
        for item in outcome.inputs
    ]
    print_records(rows, columns, output, right=columns[1:])
    if options().quiet:
        return
    if outcome.up_to_date:
        echo("up to date: nothing new to commit", fg="yellow", err=True)
    else:
        plural = "s" if outcome.blocks > 1 else ""
        echo(f"committed {outcome.blocks} block{plural}, head is {outcome.head}", fg="green", err=True)


@click.command("tail")
@click.argument("dataset", type=DATASET)
@click.option("-n", "--num-records", default=10, show_default=True, type=click.IntRange(min=0))
@click.option("-s", "--skip-records", default=0, show_default=True, type=click.IntRange(min=0))
@format_option()
def tail_command(dataset: str, num_records: int, skip_records: int, output: str) -> None:
    """Show the newest records of a dataset. Operations are shown as +A, -R, -C and +C in tables."""
    found = open_workspace().dataset(dataset)
    table = found.tail(num_records, skip=skip_records)
    rows = table.to_pylist()
    names = list(table.schema.names)
    op = found.state.vocabulary.operation_type_column
    if output == "table" and op in names:
        from odfchain.model.enums import OperationType

        for row in rows:
            try:
                row[op] = OperationType.from_code(row[op]).value
            except ValueError:
                continue
    numeric = [
        n
        for n in names
        if str(table.schema.field(n).type).startswith(("int", "uint", "float", "double", "dec"))
    ]
    print_records(rows, names, output, right=numeric)


@click.command("digest")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE.parquet…")
@format_option()
def digest_command(files: tuple[Path, ...], output: str) -> int:
    """Print the physical and the logical hash of Parquet files; no workspace is needed."""
    from odfchain.cli.main import report_error
    from odfchain.digest.physical import hash_file
    from odfchain.slices.hashes import hash_parquet

    rows, code = [], 0
    for file in files:
        try:
            physical, size = hash_file(file)
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}") from None
        row: dict[str, Any] = {
            "file": str(file),
            "physicalHash": str(physical),
            "logicalHash": None,
            "size": size,
        }
        try:
            logical, row["records"] = hash_parquet(file)
            row["logicalHash"] = str(logical)
        except OdfchainError as error:
            report_error(error)
            code = error.exit_code
        rows.append(row)
    if output == "table":
        for row in rows:
            if len(rows) > 1:
                echo(row["file"])
            echo(f"physical  {row['physicalHash']}")
            echo(f"logical   {row['logicalHash'] or '-'}")
    else:
        print_records(rows, ["file", "physicalHash", "logicalHash", "size", "records"], output)
    return code
