"""`odfchain revert`: the changes of one block are taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from odfchain.api.branch_points import on_branch
from odfchain.cli.support.changes import print_changes
from odfchain.cli.support.conflict_output import check_conflict_options, conflict_options, conflicts_shown
from odfchain.cli.support.context import open_workspace, options, silence_libraries
from odfchain.cli.support.output import format_option
from odfchain.cli.support.parameters import DATASET_AT, TIMESTAMP, commit_options, given
from odfchain.cli.support.progress_bar import TerminalProgress


@click.command("revert")
@click.argument("dataset", metavar="DATASET[@BRANCH]", type=DATASET_AT)
@click.argument("block")
@conflict_options
@click.option("--message", metavar="TEXT", help="Why; recorded with the block.")
@commit_options
@click.option("--force", is_flag=True, help="Write to the head also where the dataset is a copy.")
@click.option("--system-time", type=TIMESTAMP, hidden=True, help="System time of the block.")
@format_option()
def revert_command(dataset: str, block: str, conflicts: Path | None, output: str, **chosen: Any) -> None:
    """Take the changes of BLOCK, its hash or sequence number, back.

    Nothing is removed from the chain: a new block has the inverse of what BLOCK changed. What was changed
    again since then conflicts, as in `merge`: ours is what is there now, theirs what was there before BLOCK.
    Then nothing is recorded, the conflicts are printed, and the command ends with code 5.
    """
    check_conflict_options(chosen["resolve"], conflicts)
    if not options().debug:
        silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        target = on_branch(workspace, dataset)
        with conflicts_shown(conflicts, output, progress):
            outcome = target.revert(block, progress=progress, **given(**chosen))
        progress.stop()
    print_changes(target.label, outcome, output)
