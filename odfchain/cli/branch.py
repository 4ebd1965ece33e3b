"""`odfchain branch`: branches of a dataset, made and looked after."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.output import format_option, human_age, print_records
from odfchain.cli.support.parameters import BRANCH, BREAK_REFERENCES, DATASET

if TYPE_CHECKING:
    from odfchain import Branch


@click.group("branch")
def branch_command() -> None:
    """Make, list, rename and delete branches of a dataset.

    A branch is written DATASET@BRANCH wherever a dataset is named, and what is recorded there leaves the head
    as it is. Nothing is copied: a branch shares all that was recorded before it was made.
    """


@branch_command.command("create")
@click.argument("dataset", type=DATASET)
@click.argument("name")
@click.option(
    "--at",
    "point",
    metavar="POINT",
    help="Begin at this branch, block (number or hash) or time, instead of the head.",
)
def branch_create(dataset: str, name: str, point: str | None) -> None:
    """Make a branch of a dataset.

    A name is lower-case letters and digits, in words joined by '-', like fix-names.
    """
    made = open_workspace()[dataset].create_branch(name, at=point)
    say(f"{made.label} begins at block {made.summary.head_block.sequence_number:,}")


@branch_command.command("list")
@click.argument("dataset", type=DATASET)
@format_option()
def branch_list(dataset: str, output: str) -> None:
    """List the branches of a dataset, and how far each is ahead of the head and behind it.

    A branch is ahead by the blocks that the head neither has nor has merged, and behind by those that it
    lacks itself. BASE is the newest block that both have: `diff` shows what came after it.
    """
    found = open_workspace()[dataset]
    people = output == "table"
    rows = [_row(branch, people=people) for branch in found.branches()]
    if not rows and people:
        say(f"no branches yet; make one with `odfchain branch create {found.alias} NAME`")
        return
    columns = ["name", "block", "ahead", "behind", "base", "lastChange", "signature"]
    print_records(
        rows,
        columns if people else [*columns, "blockHash", "baseHash"],
        output,
        titles={"lastChange": "last change"},
        right=columns[1:5],
    )


def _row(branch: Branch, *, people: bool) -> dict[str, Any]:
    row = branch.to_document()
    if people:
        row["lastChange"] = human_age(branch.last_change.epoch_ns, time.time_ns())
    return row


@branch_command.command("delete")
@click.argument("dataset", type=DATASET)
@click.argument("name", type=BRANCH)
@click.option("--force", is_flag=True, help="Delete it also if nobody has merged it.")
@BREAK_REFERENCES
def branch_delete(dataset: str, name: str, *, force: bool, break_references: bool) -> None:
    """Delete a branch that the head, or another branch, has merged.

    What was merged stays, so the merge can still be checked. With --force, what was not merged is kept under
    refs/overwritten-… until `gc --drop-refs`. A branch that rows refer to stays, with --force, too.
    """
    found = open_workspace()[dataset]
    kept = found.delete_branch(name, force=force, break_references=break_references)
    say(f"deleted {name}" + (f"; its blocks are kept as {kept}" if kept else ""))


@branch_command.command("rename")
@click.argument("dataset", type=DATASET)
@click.argument("name", type=BRANCH)
@click.argument("to")
@BREAK_REFERENCES
def branch_rename(dataset: str, name: str, to: str, *, break_references: bool) -> None:
    """Give a branch another name."""
    renamed = open_workspace()[dataset].rename_branch(name, to, break_references=break_references)
    say(f"{name} is now {renamed.label}")
