"""`odfchain fetch`: the slices that a partial copy lacks are brought."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from odfchain.api.branch_points import on_branch
from odfchain.cli.support.context import open_workspace, options, say
from odfchain.cli.support.output import count_of, format_option, human_size, print_records
from odfchain.cli.support.parameters import DATASET_AT, PARALLEL_OPTION, part_options
from odfchain.cli.support.peers import token_for
from odfchain.cli.support.progress_bar import TerminalProgress, TransferProgress
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Dataset, FetchOutcome, Timestamp, Workspace


@click.command("fetch")
@click.argument("dataset", type=DATASET_AT)
@click.option("--from", "source", metavar="URL", help="Any copy of the dataset; it need not be trusted.")
@click.option(
    "--merged",
    is_flag=True,
    help="Bring what was merged into it, so that its merges can be checked.",
)
@part_options
@click.option("--where", metavar="SQL", help="Leave out slices that hold no record of which this is true.")
@click.option(
    "--lock",
    "locks",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="From wherever this lock of slices says that they are; can be repeated.",
)
@click.option("--trust-files", is_flag=True, help="With --lock: read absolute paths that it names.")
@PARALLEL_OPTION
@format_option()
def fetch_command(
    dataset: str,
    source: str | None,
    merged: bool,
    since: Timestamp | None,
    last: int | None,
    where: str | None,
    locks: tuple[Path, ...],
    trust_files: bool,
    parallel: int | None,
    output: str,
) -> None:  # fmt: skip
    """Bring the slices that a partial copy lacks, from where it was pulled or from any other copy.

    Every slice is checked against the hash that the dataset's own chain has for it. --merged brings instead
    the blocks and slices of branches that were merged: they are no part of the chain, and `verify` computes
    the merges again from them.

    --where is a condition on the columns, like "event_time >= '2026-01-01'". What is in slices that are not
    here is believed of the dataset's owner alone, by a manifest that he signed; a slice of which he says
    nothing is brought.

    --lock takes a lock that `odfchain assets derive --slices` made: the places that it names need no trust.
    """
    if locks and not (source is None and since is None and last is None and where is None and not merged):
        raise UsageError(
            "--lock brings all that is missing from the places of locks, and has no other options"
        )
    if merged and not (since is None and last is None and where is None):
        raise UsageError("--merged brings all that was merged: --since, --last and --where do not apply")
    with open_workspace() as workspace:
        found = on_branch(workspace, dataset)
        token = token_for([workspace.url_of(source)] if source else [])
        if merged:
            with TerminalProgress(quiet=options().quiet) as progress:
                brought = found.fetch_merged(
                    source, parallel=parallel, token=token, progress=TransferProgress(progress)
                )
            row = {"dataset": found.label, "blocks": brought.blocks, "objects": brought.objects}
            row["bytes"] = human_size(brought.bytes) if output == "table" else brought.bytes
            print_records([row], list(row), output, right=list(row)[1:])
            return
        with TerminalProgress(quiet=options().quiet) as progress:
            shown = TransferProgress(progress)
            if locks:
                outcome = _from_locks(workspace, found, locks, trust_files, parallel, shown)
            else:
                outcome = found.fetch(
                    source,
                    since=since,
                    last=last,
                    where=where,
                    parallel=parallel,
                    token=token,
                    progress=shown,
                )
    row = {
        "dataset": found.label,
        "objects": outcome.objects,
        "bytes": human_size(outcome.bytes) if output == "table" else outcome.bytes,
        "missing": outcome.missing_slices,
    }
    if where is not None:
        row |= {"skipped": outcome.skipped, "unknown": outcome.unknown}
        if not outcome.understood:
            say("note: nothing is skipped: no part of the condition compares a column with a literal")
        elif outcome.unknown:
            say(
                f"note: no manifest that the owner signed is here that says what is in "
                f"{count_of(outcome.unknown, 'slice')}"
            )
    print_records([row], list(row), output, right=list(row)[1:])


def _from_locks(
    workspace: Workspace,
    dataset: Dataset,
    locks: tuple[Path, ...],
    trust_files: bool,
    parallel: int | None,
    progress: TransferProgress,
) -> FetchOutcome:
    from odfchain import AssetLock, StoreOptions
    from odfchain.api.asset_locks import trusted_endpoints

    stores = StoreOptions(trust_files=trust_files, endpoints=trusted_endpoints(workspace))
    read = [AssetLock.read(lock) for lock in locks]
    return dataset.fetch_from_locks(read, stores=stores, parallel=parallel, progress=progress)
