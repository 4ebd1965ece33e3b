"""`odfchain correct`: some columns of some rows get other values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from odfchain.api.branch_points import on_branch
from odfchain.cli.support.changes import print_changes
from odfchain.cli.support.context import open_workspace, options
from odfchain.cli.support.output import format_option
from odfchain.cli.support.parameters import DATASET_AT, TIMESTAMP, commit_options, given
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.errors import UsageError


@click.command("correct")
@click.argument("dataset", metavar="DATASET[@BRANCH]", type=DATASET_AT)
@click.argument("files", metavar="FILE…", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--remove",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Retract the rows whose keys a file lists; can be given more than once.",
)
@click.option("--allow-new", is_flag=True, help="Add the rows whose keys are not recorded yet.")
@click.option(
    "--input-format",
    type=click.Choice(["csv", "ndjson", "parquet"]),
    help="Format of the files, where their names do not say it.",
)
@click.option("--allow-future", is_flag=True, help="Accept event times far in the future.")
@commit_options
@click.option("--force", is_flag=True, help="Write to the head also where the dataset is a copy.")
@click.option("--system-time", type=TIMESTAMP, hidden=True, help="System time of the block.")
@format_option()
def correct_command(
    dataset: str, files: tuple[Path, ...], remove: tuple[Path, ...], output: str, **chosen: Any
) -> None:
    """Change some columns of some rows of a root dataset.

    Files are CSV with a header, NDJSON or Parquet, with the columns of the primary key and those to change;
    what they do not name stays as it is, the event time too. An empty field of a CSV is null, and "" the
    empty text; what an object of NDJSON does not name stays. Values have to be of the declared types.

    It works where `ingest` does not: on polled datasets, and without the full list that a snapshot needs.
    Correct a branch, look at it with `diff`, and `merge` it. Values that are there already are no change.
    """
    if not files and not remove:
        raise UsageError("name the files of corrections, or --remove a file of keys")
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        target = on_branch(workspace, dataset)
        outcome = target.correct(files, remove=remove, progress=progress, **given(**chosen))
        progress.stop()
    print_changes(target.label, outcome, output)
