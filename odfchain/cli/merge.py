"""`odfchain merge`: what a branch changed, in another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branch_points import on_branch
from odfchain.api.merging_branches import merge_branches
from odfchain.cli.support.conflict_output import check_conflict_options, conflict_options, conflicts_shown
from odfchain.cli.support.context import open_workspace, options, say, silence_libraries
from odfchain.cli.support.output import format_option, print_records
from odfchain.cli.support.parameters import BRANCH, DATASETS, commit_options
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.cli.support.screen import echo
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import MergeOutcome


@click.command("merge")
@click.argument("datasets", metavar="DATASET…", type=DATASETS, nargs=-1, required=True)
@click.argument("branch", type=BRANCH)
@click.option(
    "--into", type=BRANCH, metavar="BRANCH", default="head", help="Merge into this branch, not the head."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--ff", is_flag=True, help="Move to the branch's block instead, where that is ahead.")
@click.option("--rows", is_flag=True, help="Merge no cells: other rows of one key conflict.")
@conflict_options
@click.option("--with-metadata", is_flag=True, help="Take over what the branch says beside data, too.")
@click.option("--message", metavar="TEXT", default="", help="Why; recorded with the merge.")
@commit_options
@click.option("--force", is_flag=True, help="Merge into the head of a copy, and go another way from there.")
@format_option()
def merge_command(
    datasets: tuple[str, ...],
    branch: str,
    into: str,
    dry_run: bool,
    ff: bool,
    rows: bool,
    resolve: str | None,
    conflicts: Path | None,
    output: str,
    **chosen: Any,
) -> None:
    """Merge a branch into the head, or into another branch.

    What changed on the branch since both went apart becomes one block, cell by cell. Where both changed one
    cell differently, nothing is merged: the conflicts are printed, and the command ends with code 5.

    Several datasets that have a branch of this name are all computed before the first is changed.
    """
    check_conflict_options(resolve, conflicts)
    if conflicts is not None and len(datasets) > 1:
        raise UsageError("--conflicts writes the conflicts of one dataset: merge them one by one")
    if not options().debug:
        silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        targets = [on_branch(workspace, f"{name}@{into}") for name in datasets]
        with conflicts_shown(conflicts, output, progress):
            done = merge_branches(
                targets, branch, resolve=resolve, by_row=rows, fast_forward=ff, dry_run=dry_run,
                progress=progress, **chosen,
            )  # fmt: skip
        progress.stop()
        for note in [note for outcome in done for note in outcome.notes]:
            say(f"note: {note}")
        if output != "table":
            records = [_row(outcome) for outcome in done]
            print_records(records, list(records[0]), output)
            return
        for outcome in done:
            echo(outcome.described(dry_run=dry_run, named=len(done) > 1))


def _row(outcome: MergeOutcome) -> dict[str, Any]:
    return {
        "dataset": outcome.dataset,
        "into": outcome.into,
        "status": outcome.status.value,
        "sourceRef": outcome.source_ref,
        "source": str(outcome.source),
        **{op: outcome.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")},
        "conflicts": sum(outcome.conflicts.values()),
        "block": outcome.number,
        "head": str(outcome.head),
    }
