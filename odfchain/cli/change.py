"""`odfchain branch`: branches of a dataset, made and looked after."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branching import merge_branches, on_branch
from odfchain.cli.change_output import (
    check_conflict_options,
    conflict_options,
    conflicts_shown,
    print_changes,
)
from odfchain.cli.context import open_workspace, options, say, silence_libraries
from odfchain.cli.output import format_option, human_age, print_records
from odfchain.cli.parameters import (
    BRANCH,
    BREAK_REFERENCES,
    DATASET,
    DATASET_AT,
    DATASETS,
    TIMESTAMP,
    commit_options,
    given,
)
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.screen import echo
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Branch, MergeOutcome


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
@click.option("--force", is_flag=True, help="Delete it even if it is not merged.")
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


# `odfchain correct`: some columns of some rows get other values.


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
    Correct a branch, look at it with `diff`, and `merge` it. Values that equal the recorded ones are no
    change.
    """
    if not files and not remove:
        raise UsageError("name the files of corrections, or --remove a file of keys")
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        target = on_branch(workspace, dataset)
        outcome = target.correct(files, remove=remove, progress=progress, **given(**chosen))
        progress.stop()
    print_changes(target.label, outcome, output)


# `odfchain diff`: what differs between two points of a dataset, and how far profiles are apart.


@click.command("diff")
@click.argument("dataset", type=DATASET_AT)
@click.argument("a", type=BRANCH, metavar="A", required=False)
@click.argument("b", type=BRANCH, metavar="[B]", required=False)
@click.option("--stat", is_flag=True, help="Show only how many records and cells differ.")
@click.option("--keys-only", is_flag=True, help="Show only which records differ, and not how.")
@click.option("--profile", is_flag=True, help="Compare what rows look like: values, nulls, schema.")
@click.option(
    "--policy", metavar="FILE", type=click.Path(path_type=Path), help="The limits for --profile, as YAML."
)
@click.option("--no-compute", is_flag=True, help="With --profile, compute no profile that is missing.")
@format_option("table", "json", "ndjson", "csv", "html")
@click.pass_context
def diff_command(
    ctx: click.Context,
    dataset: str,
    a: str | None,
    b: str | None,
    *,
    stat: bool,
    keys_only: bool,
    profile: bool,
    policy: Path | None,
    no_compute: bool,
    output: str,
) -> int:
    """Show what differs from the state at A to that at B: branches, blocks (number or hash) or times.

    With one point, show what it has changed since its merge base with the head: what a merge would bring.
    Only what was recorded after the two parted is read.

    A table and CSV have one line for each value that changed; a record is the same as long as its primary key
    is. Without a primary key, the records are shown that each side has added.

    `diff --profile X [Y]` compares two profiles by their distributions, and ends with exit code 3 where a
    limit is exceeded. X and Y are DATASET@POINT, or files of profiles: paths that end in .json, or begin
    with a dot or a slash. One DATASET alone means its last two blocks with data.
    """
    if profile:
        if stat or keys_only:
            raise UsageError("--stat and --keys-only show records, and not profiles")
        if b is not None:
            raise UsageError("--profile compares two profiles, each DATASET@POINT or a file")
        from odfchain.cli.change_output import print_drift

        return print_drift(dataset, a, policy, output, compute=not no_compute)
    if policy is not None or no_compute or output == "html":
        raise UsageError("--policy, --no-compute and -o html are for --profile")
    if a is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[1])
    from odfchain.cli.change_output import print_row_diff

    print_row_diff(dataset, a, b, output, stat=stat, keys_only=keys_only)
    return 0


# `odfchain merge`: what a branch changed, in another one.


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
@click.option("--with-metadata", is_flag=True, help="Take over the branch's metadata, too.")
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

    What changed on the branch since both diverged becomes one block, cell by cell. Where both changed one
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
            records = [_merge_row(outcome) for outcome in done]
            print_records(records, list(records[0]), output)
            return
        for outcome in done:
            echo(outcome.described(dry_run=dry_run, named=len(done) > 1))


def _merge_row(outcome: MergeOutcome) -> dict[str, Any]:
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


# `odfchain revert`: the changes of one block are taken back.


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
