"""Commands that move and check data: ingest, tail, verify, digest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.common import DATASET, TIMESTAMP, merge_options, open_workspace, options
from odfchain.cli.output import format_option, human_size, print_records
from odfchain.cli.progress import TerminalProgress
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain.audit.report import Report
    from odfchain.ids.multihash import Multihash
    from odfchain.ingest.ingest import IngestOutcome
    from odfchain.metadata.timestamp import Timestamp

INTEGRITY_FAULT = 6
UNCHECKED = 7
"""What was asked for needs what is not here: an environment's fault, and no proof against the dataset."""


@click.command("ingest")
@click.argument("dataset", type=DATASET)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--stdin", "from_stdin", is_flag=True, help="Read one input from standard input.")
@click.option("--source-name", metavar="NAME", help="Push source to use when there are several.")
@click.option(
    "--input-format",
    type=click.Choice(["csv", "json", "ndjson", "geojson", "ndgeojson", "shapefile", "parquet"]),
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
        from odfchain.workspace.config import LateEdits

        chosen = IngestOptions(
            source_name=source_name,
            input_format=input_format,
            event_time=event_time,
            system_time=system_time,
            allow_empty=allow_empty,
            allow_retract=allow_retract,
            late_edits=LateEdits(late_edits) if late_edits else None,
        )
        if from_stdin:
            outcome = target.ingest_stream(sys.stdin.buffer, chosen, progress=progress)
        else:
            outcome = target.ingest(files, chosen, progress=progress)
        progress.stop()
        _print_outcome(outcome, output)


def silence_libraries() -> None:
    """What goes wrong is told by our errors; the log of PySpark's connection would only repeat it."""
    import logging

    logging.getLogger().addHandler(logging.NullHandler())


def _print_outcome(outcome: IngestOutcome, output: str) -> None:
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
        click.secho("up to date: nothing new to commit", fg="yellow", err=True)
    else:
        plural = "s" if outcome.blocks > 1 else ""
        click.secho(f"committed {outcome.blocks} block{plural}, head is {outcome.head}", fg="green", err=True)


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
        from odfchain.metadata.enums import OperationType

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


@click.command("verify")
@click.argument("datasets", nargs=-1, required=True, type=DATASET)
@click.option(
    "--replay", is_flag=True, help="Compute the transactions of derivative datasets again, and compare."
)
@click.option("--recursive", is_flag=True, help="Verify what the datasets come from first.")
@click.option("--from", "after", metavar="BLOCK", help="Replay what comes after this block (its hash).")
@click.option("--to", "upto", metavar="BLOCK", help="Replay up to this block (its hash), which is included.")
@click.option(
    "--jobs",
    default=2,
    show_default=True,
    type=click.IntRange(min=1),
    help="Slices hashed, or transactions replayed, side by side.",
)
@format_option("table", "json", "ndjson")
def verify_command(
    datasets: tuple[str, ...],
    replay: bool,
    recursive: bool,
    after: str | None,
    upto: str | None,
    jobs: int,
    output: str,
) -> int:  # fmt: skip
    """Verify datasets: chain links, append rules, sizes, and both hashes of every slice.

    With --replay, what derivative datasets record must also come out when their inputs are put through their
    queries again. No other way of verifying starts an engine.

    All faults are listed with the file they are in. Exit code 0: clean; 6: faults; 7: no faults, but
    something that was asked for could not be checked here.
    """
    if not replay and (after or upto):
        raise UsageError("--from and --to are for --replay")
    from odfchain.audit.run import VerifyOptions

    chosen = VerifyOptions(
        recursive=recursive, jobs=jobs, replay=replay, after=_block(after), upto=_block(upto)
    )
    if replay and not options().debug:
        silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        found = [d for text in datasets for d in workspace.matching(text)]
        reports = workspace.verify(found, chosen, progress=progress)
    if output == "table":
        for report in reports:
            _print_report(report)
    else:
        from odfchain.metadata.yaml_writer import dump_json

        trees = [_report_tree(report) for report in reports]
        if output == "json":
            click.echo(dump_json(trees))
        else:
            for tree in trees:
                click.echo(dump_json(tree, indent=None))
    if any(report.faults for report in reports):
        return INTEGRITY_FAULT
    return 0 if all(report.ok for report in reports) else UNCHECKED


def _block(text: str | None) -> Multihash | None:
    from odfchain.ids.multihash import Multihash

    return None if text is None else Multihash.parse(text)


def _report_tree(report: Report) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "dataset": report.alias,
        "id": report.dataset_id,
        "head": report.head,
        "ok": report.ok,
        "blocks": report.blocks,
        "slices": report.slices,
        "records": report.records,
        "dataBytes": report.data_bytes,
        "checks": [{"number": n, "name": name} for n, name in report.checks.items()],
        "faults": [
            {
                "check": f["check"],
                "file": f["file"],
                "message": f["message"],
                "sequenceNumber": f["sequence_number"],
            }
            for f in map(asdict, report.faults)
        ],
        "unchecked": [{"message": u.message, "sequenceNumbers": list(u.blocks)} for u in report.unchecked],
        "notes": report.notes,
        "replay": (
            {"transactions": report.replay.transactions, "engines": report.replay.engines}
            if report.replay is not None
            else None
        ),
    }


def _print_report(report: Report) -> None:
    word, colour = (
        ("FAULT ", "red") if report.faults else ("ok    ", "green") if report.ok else ("PART  ", "yellow")
    )
    click.secho(word, fg=colour, bold=True, nl=False)
    click.echo(
        f"{report.alias}: {report.blocks:,} blocks, {report.slices:,} slices, {report.records:,} records, "
        f"{human_size(report.data_bytes)}{_replayed(report)}"
    )
    for fault in report.faults:
        block = f", block {fault.sequence_number}" if fault.sequence_number is not None else ""
        click.echo(f"  check {fault.check} ({report.checks[fault.check]}){block}")
        click.echo(f"    {fault.file}")
        click.echo(f"    {fault.message}")
    for item in report.unchecked:
        click.echo(f"  not checked{', ' + item.where if item.where else ''}: {item.message}")
    for note in report.notes:
        click.echo(f"  note: {note}")


def _replayed(report: Report) -> str:
    if report.replay is None:
        return ""
    count, engines = report.replay.transactions, report.replay.engines
    said = f", replayed {count:,} transaction{'' if count == 1 else 's'}"
    return f"{said} with {' and '.join(engines)}" if engines else said


@click.command("digest")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE.parquet…")
@format_option()
def digest_command(files: tuple[Path, ...], output: str) -> int:
    """Print the physical and the logical hash of Parquet files; no workspace is needed."""
    from odfchain.cli.main import report_error
    from odfchain.digest.parquet import hash_parquet
    from odfchain.digest.physical import hash_file

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
                click.echo(row["file"])
            click.echo(f"physical  {row['physicalHash']}")
            click.echo(f"logical   {row['logicalHash'] or '-'}")
    else:
        print_records(rows, ["file", "physicalHash", "logicalHash", "size", "records"], output)
    return code
