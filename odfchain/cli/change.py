"""`odfchain branch`: branches of a dataset, made and looked after."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branching import merge_branches, on_branch
from odfchain.api.options import CommitKeywords, MergeKeywords
from odfchain.cli.change_output import (
    check_conflict_options,
    conflicts_shown,
    print_changes,
)
from odfchain.cli.context import open_workspace, options, say, silence_libraries
from odfchain.cli.output import human_age, print_records
from odfchain.cli.parameters import (
    BRANCH,
    BREAK_REFERENCES,
    DATASET,
    DATASET_AT,
    DATASETS,
    argument,
    command,
    formats,
    keyword,
    keywords,
    option,
)
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.screen import echo
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Timestamp
    from odfchain.results import Branch, MergeOutcome


_FORCE = option("Write to the head also where the dataset is a copy.")
_RESOLVE = option("Decide conflicts: ours, theirs, or a file of --conflicts, filled in.", "WHO")
_CONFLICTS = option(
    "Write the conflicts to this .csv or .ndjson file.", type=click.Path(path_type=Path, dir_okay=False)
)


@click.group("branch")
def branch_command() -> None:
    """Make, list, rename and delete branches of a dataset.

    A branch is written DATASET@BRANCH wherever a dataset is named, and what is recorded there leaves the head
    as it is. Nothing is copied: a branch shares all that was recorded before it was made.
    """


@command("create", branch_command)
def branch_create(
    dataset: str = argument(DATASET),
    name: str = argument(),
    point: str | None = option(
        "Begin at this branch, block (number or hash) or time, instead of the head.", "--at", "POINT"
    ),
) -> None:
    """Make a branch of a dataset.

    A name is lower-case letters and digits, in words joined by '-', like fix-names.
    """
    made = open_workspace()[dataset].create_branch(name, at=point)
    say(f"{made.label} begins at block {made.summary.head_block.sequence_number:,}")


@command("list", branch_command)
def branch_list(
    dataset: str = argument(DATASET),
    output: str = formats(),
) -> None:
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


@command("delete", branch_command)
def branch_delete(
    dataset: str = argument(DATASET),
    name: str = argument(BRANCH),
    force: bool = option("Delete it even if it is not merged."),
    break_references: bool = BREAK_REFERENCES,
) -> None:
    """Delete a branch that the head, or another branch, has merged.

    What was merged stays, so the merge can still be checked. With --force, what was not merged is kept under
    refs/overwritten-… until `gc --drop-refs`. A branch that rows refer to stays, with --force, too.
    """
    found = open_workspace()[dataset]
    kept = found.delete_branch(name, force=force, break_references=break_references)
    say(f"deleted {name}" + (f"; its blocks are kept as {kept}" if kept else ""))


@command("rename", branch_command)
def branch_rename(
    dataset: str = argument(DATASET),
    name: str = argument(BRANCH),
    to: str = argument(),
    break_references: bool = BREAK_REFERENCES,
) -> None:
    """Give a branch another name."""
    renamed = open_workspace()[dataset].rename_branch(name, to, break_references=break_references)
    say(f"{name} is now {renamed.label}")


# `odfchain correct`: some columns of some rows get other values.


@command("correct")
def correct_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@BRANCH]"),
    files: tuple[Path, ...] = argument(metavar="FILE…"),
    remove: tuple[Path, ...] = option(
        "Retract the rows whose keys a file lists; can be given more than once.", "FILE"
    ),
    allow_new: bool = option("Add the rows whose keys are not recorded yet."),
    input_format: str | None = option(
        "Format of the files, where their names do not say it.", choices=["csv", "ndjson", "parquet"]
    ),
    allow_future: bool = option("Accept event times far in the future."),
    committing: CommitKeywords = keywords(CommitKeywords),
    force: bool = _FORCE,
    system_time: Timestamp | None = keyword(MergeKeywords, "system_time"),
    output: str = formats(),
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
        outcome = target.correct(
            files, remove=remove, allow_new=allow_new, input_format=input_format, allow_future=allow_future,
            force=force, system_time=system_time, progress=progress, **committing,
        )  # fmt: skip
        progress.stop()
    print_changes(target.label, outcome, output)


# `odfchain diff`: what differs between two points of a dataset, and how far profiles are apart.


@command("diff")
def diff_command(
    dataset: str = argument(DATASET_AT),
    a: str | None = argument(BRANCH, metavar="A"),
    b: str | None = argument(BRANCH, metavar="[B]"),
    stat: bool = option("Show only how many records and cells differ."),
    keys_only: bool = option("Show only which records differ, and not how."),
    profile: bool = option("Compare what rows look like: values, nulls, schema."),
    policy: Path | None = option("The limits for --profile, as YAML.", "FILE"),
    no_compute: bool = option("With --profile, compute no profile that is missing."),
    output: str = formats("table", "json", "ndjson", "csv", "html"),
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
        ctx = click.get_current_context()
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[1])
    from odfchain.cli.change_output import print_row_diff

    print_row_diff(dataset, a, b, output, stat=stat, keys_only=keys_only)
    return 0


# `odfchain merge`: what a branch changed, in another one.


@command("merge")
def merge_command(
    datasets: tuple[str, ...] = argument(DATASETS, metavar="DATASET…", required=True),
    branch: str = argument(BRANCH),
    into: str = option(
        "Merge into this branch, not the head.", "BRANCH", type=BRANCH, default="head", show_default=False
    ),
    dry_run: bool = option("Only say what would be done."),
    ff: bool = option("Move to the branch's block instead, where that is ahead."),
    rows: bool = option("Merge no cells: other rows of one key conflict."),
    resolve: str | None = _RESOLVE,
    conflicts: Path | None = _CONFLICTS,
    with_metadata: bool = option("Take over the branch's metadata, too."),
    message: str = option("Why; recorded with the merge.", "TEXT", default=""),
    committing: CommitKeywords = keywords(CommitKeywords),
    force: bool = option("Merge into the head of a copy, and go another way from there."),
    output: str = formats(),
) -> None:
    """Merge a branch into the head, or into another branch.

    What changed on the branch since both diverged becomes one block, cell by cell. Where both changed one
    cell differently, nothing is merged: the conflicts are printed, and the command ends with code 5.

    Several datasets that have a branch of this name are all computed before the first is changed.
    """
    check_conflict_options(resolve, conflicts)
    if conflicts is not None and len(datasets) > 1:
        raise UsageError("--conflicts writes the conflicts of one dataset: merge them one by one")
    silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        targets = [on_branch(workspace, f"{name}@{into}") for name in datasets]
        with conflicts_shown(conflicts, output, progress):
            done = merge_branches(
                targets, branch, resolve=resolve, by_row=rows, fast_forward=ff, dry_run=dry_run,
                with_metadata=with_metadata, message=message, force=force, progress=progress, **committing,
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


@command("revert")
def revert_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@BRANCH]"),
    block: str = argument(),
    resolve: str | None = _RESOLVE,
    conflicts: Path | None = _CONFLICTS,
    message: str = option("Why; recorded with the block.", "TEXT", default=""),
    committing: CommitKeywords = keywords(CommitKeywords),
    force: bool = _FORCE,
    system_time: Timestamp | None = keyword(MergeKeywords, "system_time"),
    output: str = formats(),
) -> None:
    """Take the changes of BLOCK, its hash or sequence number, back.

    Nothing is removed from the chain: a new block has the inverse of what BLOCK changed. What was changed
    again since then conflicts, as in `merge`: ours is what is there now, theirs what was there before BLOCK.
    Then nothing is recorded, the conflicts are printed, and the command ends with code 5.
    """
    check_conflict_options(resolve, conflicts)
    silence_libraries()
    with open_workspace() as workspace, TerminalProgress(quiet=options().quiet) as progress:
        target = on_branch(workspace, dataset)
        with conflicts_shown(conflicts, output, progress):
            outcome = target.revert(
                block, resolve=resolve, message=message, force=force, system_time=system_time,
                progress=progress, **committing,
            )  # fmt: skip
        progress.stop()
    print_changes(target.label, outcome, output)
