"""`odfchain reset`: the head of a dataset goes back to a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branch_points import on_branch
from odfchain.cli.support.consequences import dependents_tree, places_tree, tell_consequences, tell_of_proof
from odfchain.cli.support.context import confirm, open_workspace
from odfchain.cli.support.output import count_of, format_option, print_records
from odfchain.cli.support.parameters import BREAK_REFERENCES, DATASET_AT, DRY_RUN

if TYPE_CHECKING:
    from odfchain import Dataset, ResetPlan, Workspace


@click.command("reset")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@BRANCH]")
@click.argument("block")
@click.option("--force", is_flag=True, help="Drop blocks also if no repository is known to have them.")
@BREAK_REFERENCES
@DRY_RUN
@format_option("table", "json", "ndjson")
def reset_command(
    dataset: str, block: str, force: bool, break_references: bool, dry_run: bool, output: str
) -> None:
    """Move the head of a dataset back to BLOCK, its hash or sequence number.

    The places where the dataset was pulled from or pushed to are asked whether they have what would be
    dropped; if that is not sure of every block, nothing is done without --force. The old head stays under
    refs/ until `gc --drop-refs`, and a reset to it undoes this one. DATASET@BRANCH moves a branch.

    Where datasets are in a store, the head moves there, for all machines. On a machine that has seen more
    BLOCK may be the hash of the head that the store has now: this machine follows, and writes nothing there.
    """
    with open_workspace() as workspace:
        found = _opened(workspace, dataset, block)
        plan = found.plan_reset(block)
        if dry_run or plan.nothing:
            tell_consequences(plan.places, plan.dependents)
            _print_reset(plan, "nothing to do" if plan.nothing else "would be reset", None, output)
            return
        if (plan.unsaved and not force) or (plan.referrers and not break_references):
            tell_consequences(plan.places, plan.dependents)
            found.reset(plan, force=force, break_references=break_references)  # says why not
        if not plan.returns:
            tell_consequences(plan.places, plan.dependents)
            if not plan.follows:
                tell_of_proof(found)
            confirm(
                f"Drop {count_of(len(plan.dropped), 'block')} with {count_of(plan.records, 'record')} "
                f"of {plan.dataset}{' here, as the store has' if plan.follows else ''}?"
            )
        kept = found.reset(plan, force=force, break_references=break_references)
    _print_reset(plan, _status(plan), kept, output)


def _opened(workspace: Workspace, dataset: str, block: str) -> Dataset:
    """The dataset; where the store does not continue what was seen here, only for who names its head."""
    from odfchain import SetBackError

    try:
        return on_branch(workspace, dataset)
    except SetBackError as error:
        name, _, branch = dataset.partition("@")
        if block != error.head or branch not in ("", "head"):
            raise
        return workspace.last_seen(name)


def _status(plan: ResetPlan) -> str:
    if plan.follows:
        return "followed"
    return "returned" if plan.returns else "reset"


def _print_reset(plan: ResetPlan, status: str, kept: str | None, output: str) -> None:
    people = output == "table"
    row: dict[str, Any] = {
        "dataset": plan.dataset,
        "status": status,
        "block": plan.new_number,
        "blocks": len(plan.dropped),
        "records": plan.records,
        "unsaved": len(plan.unsaved),
        "breaks": ", ".join(d.alias for d in plan.dependents) if people else dependents_tree(plan.dependents),
    }
    if not people:
        row |= {
            "head": str(plan.new_head),
            "oldHead": str(plan.old_head),
            "keptAs": kept,
            "dropped": [str(name) for name in plan.dropped],
            "places": places_tree(plan.places),
            "referrers": list(plan.referrers),
        }
    columns = ["dataset", "status", "block", "blocks", "records", "unsaved", "breaks"]
    print_records([row], columns, output, right=("block", "blocks", "records", "unsaved"))
