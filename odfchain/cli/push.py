"""`odfchain push`: datasets are sent to folders, object stores and nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.api.push_targets import split_target
from odfchain.cli.support.context import open_workspace, options, say
from odfchain.cli.support.output import format_option, human_size, print_records
from odfchain.cli.support.parameters import DATASET_AT, PARALLEL_OPTION
from odfchain.cli.support.peers import peer_url, token_for
from odfchain.cli.support.progress_bar import TerminalProgress, TransferProgress
from odfchain.cli.support.rounds import one_by_one
from odfchain.cli.support.screen import echo
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain import PushOutcome, PushPlan, PushTarget

_PUSHED = ["dataset", "status", "blocks", "objects", "bytes", "destination"]


@click.command("push")
@click.argument("datasets", metavar="[DATASET]... [TARGET]", nargs=-1, type=DATASET_AT)
@click.option(
    "--to", "url", metavar="URL", help="Where the dataset is to be, such as file:///srv/datasets/name."
)
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Push every dataset; without --to those pushed before."
)
@click.option("-r", "--recursive", is_flag=True, help="Push what the datasets come from first.")
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
    datasets: tuple[str, ...],
    url: str | None,
    everything: bool,
    recursive: bool,
    force: bool,
    dry_run: bool,
    no_create: bool,
    no_merged: bool,
    visibility: str,
    parallel: int | None,
    output: str,
) -> int:  # fmt: skip
    """Send datasets to a folder or object store, from where any web server can publish them, or to a node.

    The target is a repository, repository/dataset, or a URL (file, s3, gs, az, or odf+https for a node of
    Open Data Fabric, which wants a token: `odfchain login`); without one it is where the
    dataset was pushed to before. Readers there see all of what is new or nothing of it. DATASET@BRANCH sends
    that branch, and nothing else: branches are drafts, which are there only if they are named.

    Several datasets (names, % patterns, --all, --recursive) go to a repository, by its name or URL, and keep
    their names there. One that fails does not stop the others.
    """
    with open_workspace() as workspace:
        names, target = split_target(workspace, datasets, everything=everything)
        if target is not None and url is not None:
            raise UsageError(f"the destination is given twice: {target} and --to")
        place = target or url
        token = _token(place) if place else None
        targets = workspace.push_targets(None if everything else names, place, recursive=recursive)
        if not targets:
            say("no dataset was pushed before; `odfchain push --all --to REPOSITORY` pushes all")
            return 0
        shared: Any = {"force": force, "create": not no_create, "merged": not no_merged, "token": token}
        public = visibility == "public"
        with TerminalProgress(quiet=options().quiet) as progress:

            def send(each: PushTarget) -> dict[str, Any]:
                if dry_run:
                    plan = each.dataset.plan_push(each.to, **shared)
                    status = "up to date" if plan.up_to_date else "would be pushed"
                    return _row(str(each), plan, status, output)
                outcome = each.dataset.push(
                    each.to, public=public, parallel=parallel, progress=TransferProgress(progress), **shared
                )
                _remark(outcome, progress, f"{each}: " if len(targets) > 1 else "")
                signature = str(outcome.signature)
                return _row(str(each), outcome.plan, _status(outcome), output, signature)

            rows, code = one_by_one(targets, send, progress)
        if rows:
            print_records(rows, _PUSHED, output, right=("blocks", "objects", "bytes"))
        return code


def _remark(outcome: PushOutcome, progress: TerminalProgress, about: str) -> None:
    if outcome.caveat and not options().quiet:
        progress.stop()
        echo(f"note: {about}{outcome.caveat}", err=True)
    if outcome.problem:
        progress.stop()
        echo(f"warning: {outcome.plan.where}: {outcome.problem}; push again", err=True)


def _status(outcome: PushOutcome) -> str:
    if outcome.up_to_date:
        return "up to date"
    if outcome.plan.overwrites:
        return "overwritten"
    return "updated" if outcome.plan.old_head else "created"


def _token(place: str) -> str | None:
    try:
        url = peer_url(place if "://" in place else place.partition("/")[0])
    except OdfchainError:
        return None  # what is wrong with it is said when it is opened
    return token_for([url])


def _row(name: str, plan: PushPlan, status: str, output: str, signature: str | None = None) -> dict[str, Any]:
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
    return row
