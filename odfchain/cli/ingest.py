"""`odfchain ingest`: files into a root dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from odfchain.api.branch_points import on_branch
from odfchain.api.executing import start_spark_ahead
from odfchain.cli.support.context import open_workspace, options, silence_libraries
from odfchain.cli.support.ingested import print_outcome
from odfchain.cli.support.output import format_option
from odfchain.cli.support.parameters import DATASET_AT, FORMATS, TIMESTAMP, given, merge_options
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import standard_input
from odfchain.errors import UsageError


@click.command("ingest")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@BRANCH]")
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
    output: str,
    **chosen: Any,
) -> None:
    """Ingest files into a root dataset, in the order given.

    Each file becomes one transaction; all of them are published together, or none when one is refused.
    A file beyond `slice.maxBytes` becomes several blocks.
    DATASET@BRANCH records them on a branch, and the head stays where it is.
    """
    if bool(files) == from_stdin:
        raise UsageError("name the files to ingest, or use --stdin")
    for file in files:
        if not file.is_file():
            raise UsageError(f"{file}: {'is a folder' if file.is_dir() else 'no such file'}")
    if not options().debug:
        silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        target = on_branch(workspace, dataset)
        start_spark_ahead(workspace)
        outcome = target.ingest(
            standard_input() if from_stdin else files, progress=progress, **given(**chosen)
        )
        progress.stop()
        print_outcome(outcome, output)
