"""`odfchain push`: a dataset is sent to a folder or object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branch_points import on_branch
from odfchain.cli.support.context import open_workspace, options
from odfchain.cli.support.output import format_option, human_size, print_records
from odfchain.cli.support.parameters import DATASET_AT, PARALLEL_OPTION
from odfchain.cli.support.peers import peer_url, token_for
from odfchain.cli.support.progress_bar import TerminalProgress, TransferProgress
from odfchain.cli.support.screen import echo
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain import PushPlan

_PUSHED = ["dataset", "status", "blocks", "objects", "bytes", "destination"]


@click.command("push")
@click.argument("dataset", type=DATASET_AT)
@click.argument("target", required=False)
@click.option(
    "--to", "url", metavar="URL", help="Where the dataset is to be, such as file:///srv/datasets/name."
)
@click.option("--force", is_flag=True, help="Replace blocks of the destination that are not here.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent; nothing is written.")
@click.option("--no-create", is_flag=True, help="Only update a dataset that is at the destination already.")
@click.option("--no-merged", is_flag=True, help="Leave out what was merged: its merges cannot be checked.")
@click.option(
    "--visibility",
    type=click.Choice(["private", "public"]),
    default="private",
    show_default=True,
    help="Who may see a dataset that is made at a node.",
)
@PARALLEL_OPTION
@format_option()
def push_command(
    dataset: str,
    target: str | None,
    url: str | None,
    force: bool,
    dry_run: bool,
    no_create: bool,
    no_merged: bool,
    visibility: str,
    parallel: int | None,
    output: str,
) -> None:  # fmt: skip
    """Send a dataset to a folder or object store, from where any web server can publish it, or to a node.

    The target is a repository, repository/dataset, or a URL (file, s3, gs, az, or odf+https for a node of
    Open Data Fabric, which wants a token: `odfchain login`); without one it is where the
    dataset was pushed to before. Readers there see all of what is new or nothing of it. DATASET@BRANCH sends
    that branch, and nothing else: branches are drafts, which are there only if they are named.
    """
    if target is not None and url is not None:
        raise UsageError(f"the destination is given twice: {target} and --to")
    with open_workspace() as workspace:
        found = on_branch(workspace, dataset)
        place = target or url
        token = _token(place) if place else None
        if dry_run:
            plan = found.plan_push(
                place, force=force, create=not no_create, merged=not no_merged, token=token
            )
            _print_push(found.label, plan, "up to date" if plan.up_to_date else "would be pushed", output)
            return
        with TerminalProgress(quiet=options().quiet) as progress:
            outcome = found.push(
                place,
                force=force,
                create=not no_create,
                merged=not no_merged,
                public=visibility == "public",
                parallel=parallel,
                token=token,
                progress=TransferProgress(progress),
            )
        if outcome.caveat and not options().quiet:
            echo(f"note: {outcome.caveat}", err=True)
        if outcome.problem:
            echo(f"warning: {outcome.plan.where}: {outcome.problem}; push again", err=True)
        status = (
            "up to date"
            if outcome.up_to_date
            else "overwritten"
            if outcome.plan.overwrites
            else "updated"
            if outcome.plan.old_head
            else "created"
        )
        _print_push(found.label, outcome.plan, status, output, str(outcome.signature))


def _token(place: str) -> str | None:
    try:
        url = peer_url(place if "://" in place else place.partition("/")[0])
    except OdfchainError:
        return None  # what is wrong with it is said when it is opened
    return token_for([url])


def _print_push(name: str, plan: PushPlan, status: str, output: str, signature: str | None = None) -> None:
    people = output == "table"
    row: dict[str, Any] = {
        "dataset": name,
        "status": status,
        "blocks": len(plan.blocks),
        "objects": len(plan.objects),
        "bytes": human_size(plan.bytes) if people else plan.bytes,
        "destination": plan.where,
    }
    if not people:
        row |= {
            "present": plan.present,
            "merged": len(plan.merged),
            "overwrites": plan.overwrites,
            "head": str(plan.new_head),
            "oldHead": str(plan.old_head) if plan.old_head else None,
            "signature": signature,
        }
    print_records([row], _PUSHED, output, right=("blocks", "objects", "bytes"))
