"""`odfchain fetch`: the slices that a partial copy lacks are brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from odfchain.cli.support.context import open_workspace, options
from odfchain.cli.support.output import format_option, human_size, print_records
from odfchain.cli.support.parameters import DATASET, PARALLEL_OPTION, part_options
from odfchain.cli.support.peers import token_for
from odfchain.cli.support.progress_bar import TerminalProgress, TransferProgress

if TYPE_CHECKING:
    from odfchain import Timestamp

_FETCHED = ["dataset", "objects", "bytes", "missing"]


@click.command("fetch")
@click.argument("dataset", type=DATASET)
@click.option("--from", "source", metavar="URL", help="Any copy of the dataset; it need not be trusted.")
@part_options
@PARALLEL_OPTION
@format_option()
def fetch_command(
    dataset: str,
    source: str | None,
    since: Timestamp | None,
    last: int | None,
    parallel: int | None,
    output: str,
) -> None:  # fmt: skip
    """Bring the slices that a partial copy lacks, from where it was pulled or from any other copy.

    Every slice is checked against the hash that the dataset's own chain has for it.
    """
    with open_workspace() as workspace:
        found = workspace[dataset]
        token = token_for([workspace.url_of(source)] if source else [])
        with TerminalProgress(quiet=options().quiet) as progress:
            outcome = found.fetch(
                source,
                since=since,
                last=last,
                parallel=parallel,
                token=token,
                progress=TransferProgress(progress),
            )
    row = {
        "dataset": str(found.alias),
        "objects": outcome.objects,
        "bytes": human_size(outcome.bytes) if output == "table" else outcome.bytes,
        "missing": outcome.missing_slices,
    }
    print_records([row], _FETCHED, output, right=_FETCHED[1:])
