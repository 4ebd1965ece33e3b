"""`odfchain branch`: branches of a dataset, made and looked after."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branching import merge_branches, on_branch
from odfchain.api.snapshots import drift_between
from odfchain.cli import parameters as cli
from odfchain.cli import screen
from odfchain.cli.context import open_workspace, report_error, say, silence_libraries
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.rows import TABLE_ROWS, reader_stays
from odfchain.errors import MergeConflictError, OdfchainError, UsageError
from odfchain.query.row_formats import cell_text, numeric_columns, python_values, write_rows
from odfchain.text import counted, human_age, printable, text_width
from odfchain.workspace.options import CorrectOptions, MergeOptions, RevertOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.results import ChangeOutcome, Diff, Drift, DriftLine, MergeOutcome


_CONFLICTS = cli.option(
    "Write the conflicts to this .csv or .ndjson file.", type=click.Path(path_type=Path, dir_okay=False)
)


@cli.group("branch")
def branch_command() -> None:
    """Make, list, rename and delete branches of a dataset.

    A branch is written DATASET@BRANCH wherever a dataset is named. Records on a branch leave the head as it
    is. Nothing is copied: a branch shares everything that was recorded before it was made.
    """


@cli.command("create", branch_command)
def branch_create(
    dataset: str = cli.argument(cli.DATASET),
    name: str = cli.argument(),
    point: str | None = cli.option(
        "Begin at this branch, block (number or hash) or time, instead of the head.", "--at", "POINT"
    ),
) -> None:
    """Make a branch of a dataset.

    A name has lower-case letters and digits, in words joined by '-', like fix-names.
    """
    made = open_workspace()[dataset].create_branch(name, at=point)
    say(f"{made.label} begins at block {made.summary.head_block.sequence_number:,}")


@cli.command("list", branch_command)
def branch_list(dataset: str = cli.argument(cli.DATASET), output: str = cli.formats()) -> None:
    """List the branches of a dataset.

    AHEAD counts the blocks that the head neither has nor has merged. BEHIND counts the blocks of the head
    that the branch lacks. BASE is the newest block that both have. `odfchain diff` shows the changes after
    it.
    """
    found = open_workspace()[dataset]
    people = output == "table"
    if not (branches := list(found.branches())) and people:
        say(f"no branches yet; make one with `odfchain branch create {found.alias} NAME`")
        return
    rows = [branch.to_document() for branch in branches]
    columns = ["name", "block", "ahead", "behind", "base", "lastChange", "signature"]
    if people:
        now = time.time_ns()
        for row, branch in zip(rows, branches, strict=True):
            row["lastChange"] = human_age(branch.last_change.epoch_ns, now)
    else:
        columns += ["blockHash", "baseHash"]
    screen.print_records(rows, columns, output, titles={"lastChange": "last change"}, right=columns[1:5])


@cli.command("delete", branch_command)
def branch_delete(
    dataset: str = cli.argument(cli.DATASET),
    name: str = cli.argument(cli.BRANCH),
    force: bool = cli.option("Delete it even if it is not merged."),
    break_references: bool = cli.BREAK_REFERENCES,
) -> None:
    """Delete a branch that was merged.

    The merged blocks stay, so the merge can still be checked. With --force a branch is deleted before it is
    merged. Its blocks are then kept under refs/overwritten-… until `gc --drop-refs`. A branch that rows refer
    to stays, with --force, too.
    """
    found = open_workspace()[dataset]
    kept = found.delete_branch(name, force=force, break_references=break_references)
    say(f"deleted {name}" + (f"; its blocks are kept as {kept}" if kept else ""))


@cli.command("rename", branch_command)
def branch_rename(
    dataset: str = cli.argument(cli.DATASET),
    name: str = cli.argument(cli.BRANCH),
    to: str = cli.argument(),
    break_references: bool = cli.BREAK_REFERENCES,
) -> None:
    """Give a branch another name."""
    renamed = open_workspace()[dataset].rename_branch(name, to, break_references=break_references)
    say(f"{name} is now {renamed.label}")


@cli.command("correct")
def correct_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@BRANCH]"),
    files: tuple[Path, ...] = cli.argument(metavar="FILE…"),
    chosen: dict[str, Any] = cli.keywords(
        CorrectOptions,
        "remove",
        "allow_new",
        "input_format",
        "allow_future",
        *cli.COMMITTING,
        "force",
        "system_time",
    ),
    output: str = cli.formats(),
) -> None:
    """Change some columns of some rows of a root dataset.

    Files are CSV with a header, NDJSON or Parquet. They have the columns of the primary key and the columns
    to change. All other columns stay as they are, the event time too. An empty field of a CSV is null, and ""
    is the empty text. A field that an object of NDJSON lacks stays. Values have the declared types. A value
    that equals the recorded one is no change.

    The command works where `ingest` does not: on polled datasets, and without the full list of a snapshot.
    Correct a branch, look at it with `odfchain diff`, and merge it.
    """
    if not files and not chosen.get("remove"):
        raise UsageError("name the files of corrections, or --remove a file of keys")
    with open_workspace() as workspace, TerminalProgress() as progress:
        target = on_branch(workspace, dataset)
        outcome = target.correct(files, progress=progress, **chosen)
        progress.stop()
    print_changes(target.label, outcome, output)


@cli.command("diff")
def diff_command(
    dataset: str = cli.argument(cli.DATASET_AT),
    a: str | None = cli.argument(cli.BRANCH, metavar="A"),
    b: str | None = cli.argument(cli.BRANCH, metavar="[B]"),
    stat: bool = cli.option("Show only how many records and cells differ."),
    keys_only: bool = cli.option("Show only which records differ, and not how."),
    profile: bool = cli.option("Compare the profiles of rows: values, nulls, schema."),
    policy: Path | None = cli.option("The limits for --profile, as YAML.", "FILE"),
    no_compute: bool = cli.option("With --profile, compute no profile that is missing."),
    output: str = cli.formats("table", "json", "ndjson", "csv", "html"),
) -> int:
    """Show the differences between two points of a dataset.

    A and B are branches, blocks (number or hash) or times. With one point, the command shows its changes
    since the merge base with the head. Those are the changes that a merge would bring. `diff DATASET@A
    DATASET@B` is the same as `diff DATASET A B`.

    A table and CSV have one line for each value that changed. A record is the same as long as its primary key
    is. Without a primary key, the records are shown that each side has added.

    `diff --profile X [Y]` compares two profiles by their distributions. It ends with exit code 3 if a limit
    is exceeded. X and Y are DATASET@POINT, or files of profiles. A path to a file ends in .json, or begins
    with a dot or a slash. One DATASET alone means its last two blocks with data.
    """
    if profile:
        if stat or keys_only:
            raise UsageError("--stat and --keys-only show records, and not profiles")
        if b is not None:
            raise UsageError("--profile compares two profiles, each DATASET@POINT or a file")

        return print_drift(dataset, a, policy, output, compute=not no_compute)
    if policy is not None or no_compute or output == "html":
        raise UsageError("--policy, --no-compute and -o html are for --profile")
    name, at, point = dataset.partition("@")
    if at:  # DATASET@A DATASET@B
        other = "head" if a == name else a and a.removeprefix(f"{name}@")
        if b is not None or (other and "@" in other):
            raise UsageError(f"the points are of one dataset: odfchain diff {name} A B, or {name}@A {name}@B")
        dataset, a, b = name, point, other
    if a is None:
        raise UsageError("name the point to compare with", hint=f"odfchain diff {dataset} A [B]")
    print_row_diff(dataset, a, b, output, stat=stat, keys_only=keys_only)
    return 0


@cli.command("merge")
def merge_command(
    datasets: tuple[str, ...] = cli.argument(cli.DATASETS, metavar="DATASET…", required=True),
    branch: str = cli.argument(cli.BRANCH),
    into: str = cli.option(
        "Merge into this branch, not the head.", "BRANCH", type=cli.BRANCH, default="head", show_default=False
    ),
    conflicts: Path | None = _CONFLICTS,
    chosen: dict[str, Any] = cli.keywords(
        MergeOptions,
        "dry_run",
        "fast_forward",
        "by_row",
        "resolve",
        "with_metadata",
        "message",
        *cli.COMMITTING,
        "force",
    ),
    output: str = cli.formats(),
) -> None:
    """Merge a branch into the head, or into another branch.

    The changes of the branch become one block, cell by cell. A conflict is a cell that both sides changed
    differently. Then nothing is merged, the conflicts are printed, and the exit code is 5.

    Several datasets that have a branch of this name are all computed before the first is changed.
    """
    check_conflict_options(chosen.get("resolve"), conflicts)
    if conflicts is not None and len(datasets) > 1:
        raise UsageError("--conflicts writes the conflicts of one dataset: merge them one by one")
    for name, at, target in (text.partition("@") for text in datasets):
        if at:
            hint = f"odfchain merge {name} {branch} --into {target}"
            raise UsageError(f"a merge goes into the head: use `--into {target}`", hint=hint)
    silence_libraries()
    with open_workspace() as workspace, TerminalProgress() as progress:
        targets = [on_branch(workspace, f"{name}@{into}") for name in datasets]
        with conflicts_shown(conflicts, output, progress):
            done = merge_branches(targets, MergeOptions(branch, progress=progress, **chosen))
        progress.stop()
        for note in [note for outcome in done for note in outcome.notes]:
            say(f"note: {note}")
        if output != "table":
            records = [_merge_row(outcome) for outcome in done]
            screen.print_records(records, list(records[0]), output)
            return
        for outcome in done:
            screen.echo(outcome.described(dry_run=chosen.get("dry_run", False), named=len(done) > 1))


def _merge_row(outcome: MergeOutcome) -> dict[str, Any]:
    return {
        **screen.record(outcome, "dataset", "into", "status", "source_ref", "source"),
        **{op: outcome.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")},
        "conflicts": sum(outcome.conflicts.values()),
        "block": outcome.number,
        "head": str(outcome.head),
    }


@cli.command("revert")
def revert_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@BRANCH]"),
    block: str = cli.argument(),
    conflicts: Path | None = _CONFLICTS,
    chosen: dict[str, Any] = cli.keywords(
        RevertOptions, "resolve", "message", *cli.COMMITTING, "force", "system_time"
    ),
    output: str = cli.formats(),
) -> None:
    """Take the changes of one block back.

    BLOCK is a hash or a sequence number. Nothing is removed from the chain: a new block has the inverse of
    the changes. A later change of the same cell is a conflict, as in `merge`. There, ours is the present
    value, and theirs is the value before BLOCK. Then nothing is recorded, the conflicts are printed, and the
    exit code is 5.
    """
    check_conflict_options(chosen.get("resolve"), conflicts)
    silence_libraries()
    with open_workspace() as workspace, TerminalProgress() as progress:
        target = on_branch(workspace, dataset)
        with conflicts_shown(conflicts, output, progress):
            outcome = target.revert(block, progress=progress, **chosen)
        progress.stop()
    print_changes(target.label, outcome, output)


_Row = dict[str, Any] | None

# Characters of a hash that say which one is meant.
_SHORT = 12


def print_row_diff(dataset: str, a: str, b: str | None, output: str, *, stat: bool, keys_only: bool) -> None:
    """Compare the states at two points, and print what differs and how far they are from each other."""
    if stat and keys_only:
        raise UsageError("--stat and --keys-only show different things: give one of them")
    with open_workspace() as workspace, TerminalProgress().later("Comparing the two states"):
        found = workspace[dataset].diff(a, b)
    if keys_only and not found.key:
        raise UsageError(f"{dataset} has no primary key", hint="leave --keys-only out to see the records")
    if stat:
        _print_stat(found, output)
    elif output in ("json", "ndjson"):
        shown = found.changes.select(range(len(found.key) + 1)) if keys_only else found.changes
        with reader_stays():
            stream = screen.standard_output()
            write_rows(shown.schema, shown.to_batches(), output, stream, shown=sys.stdout.isatty())
            stream.flush()
    else:
        _print_lines(found, output, keys_only=keys_only)
    say(_summary(found, *(("head", a) if b is None else (a, b))))
    if found.on_trust:
        say(
            f"note: slices before these blocks are not here, so the blocks say what was before them; "
            f"`odfchain fetch {dataset}` brings them"
        )


def _print_stat(found: Diff, output: str) -> None:
    rows: list[dict[str, Any]] = [
        {"change": change.value, "column": None, "records": count}
        for change, count in found.counts.items()
        if count
    ]
    changed = found.changed_columns.items()
    rows += [{"change": "changed", "column": name, "records": count} for name, count in changed]
    screen.print_records(rows, ["change", "column", "records"], output, right=["records"])


def _print_lines(found: Diff, output: str, *, keys_only: bool) -> None:
    people = output == "table"
    data = [field.name for field in found.changes.schema.field(-2).type]
    names = [*found.key, "change"]
    if not keys_only:
        names += ["column", "from", "to"] if found.key else data
    with reader_stays():
        lines = _lines(found, data, people=people, keys_only=keys_only)
        if not people:
            screen.echo_csv(names, lines)
            return
        shown = list(itertools.islice(lines, TABLE_ROWS))
        right = numeric_columns(found.changes.schema) & {*range(len(found.key))}
        screen.echo_table(names, shown, right=right, keys=len(found.key) + 1)
        left = sum(1 for _ in lines)
    if left:
        say(f"{counted(left, 'line')} more; -o csv shows all, --stat how many there are")


def _lines(found: Diff, data: list[str], *, people: bool, keys_only: bool) -> Iterator[list[str]]:
    for key, change, before, after, columns in _rows(found):
        row = before or after or {}
        if keys_only:
            yield [*key, change]
        elif not found.key:
            yield [change, *(cell_text(row[name]) for name in data)]
        else:
            names = columns or [name for name in data if row[name] is not None]
            # people need no values of a removed record
            if not names or (people and not columns and before is not None):
                yield [*key, change, "", "", ""]
                continue
            for name in names:
                values = ("" if side is None else cell_text(side[name]) for side in (before, after))
                yield [*key, change, name, *values]


def _rows(found: Diff) -> Iterator[tuple[list[str], str, _Row, _Row, list[str]]]:
    for batch in found.changes.to_batches():
        *keys, changes, before, after, columns = (python_values(column) for column in batch.columns)
        texts = [[cell_text(value) for value in values] for values in keys]
        rows = zip(*texts, strict=True) if texts else itertools.repeat((), batch.num_rows)
        for key, *rest in zip(rows, changes, before, after, columns, strict=True):
            yield list(key), *rest


def _summary(found: Diff, a: str, b: str) -> str:
    a, b = (f"block {x}" if x.isdecimal() else f"{x[:_SHORT]}…" if len(x) > 64 else x for x in (a, b))
    counts = [f"{count:,} {change.value}" for change, count in found.counts.items() if count]
    number = sum(found.counts.values())
    what = f"{counted(number, 'record')}: {', '.join(counts)}" if counts else "no records differ"
    return (
        f"{what}. After block {found.base:,}, which both have: {counted(found.ahead, 'block')} up to {b}, "
        f"{found.behind:,} up to {a}"
    )


# Output of `diff --profile`: exceeded limits and how near the others are, JSON, or a page.

_FORMATS = ("table", "json", "html")
_EXCEEDED = 3
_LINES = 60
_SAID = 10


def print_drift(a: str, b: str | None, policy: Path | None, output: str, *, compute: bool) -> int:
    """Compare two profiles, print what was found, and return the exit code; errors as `drift_between`."""
    if output not in _FORMATS:
        raise UsageError(f"--profile prints {', '.join(_FORMATS)}, not {output}")
    with TerminalProgress().later("Comparing the two profiles") as progress:
        found = drift_between(a, b, open_workspace, policy=policy, compute=compute, progress=progress)
    if output == "json":
        screen.echo_json(found.to_document())
    elif output == "html":
        screen.echo_page(found.to_html())
    else:
        _print_table(found)
    if not found.breaches:
        return 0
    number = len(found.breaches)
    page = "" if output == "html" else "look at the page (-o html), or "
    exceeded = counted(number, "limit is exceeded", "limits are exceeded")
    report_error(OdfchainError(exceeded, hint=f"{page}raise the limits in a policy (--policy)"))
    return _EXCEEDED


def _print_table(found: Drift) -> None:
    before, after = found.before, found.after
    names = [before.name] if before.dataset_id == after.dataset_id else [before.name, after.name]
    likeness = [f"Jaccard {line.value:.3f}" for line in found.lines if line.metric == "jaccard"]
    blocks = f"block {before.sequence_number:,} → {after.sequence_number:,}"
    rows = f"{before.rows:,} → {after.rows:,} rows"
    screen.echo("   ".join([" → ".join(names), blocks, rows, *likeness]))
    shown = list(_shown(found.lines))
    cells = ([printable(cell) for cell in _cells(line)] for line in shown[:_LINES])
    lines = list(screen.aligned(cells, gap="   "))
    for text in lines:
        screen.echo(screen.shortened(text, screen.table_width()))
    if max(map(text_width, lines), default=0) > screen.table_width():
        screen.echo(screen.CUT)
    if len(shown) > _LINES:
        say(f"{counted(len(shown) - _LINES, 'more line')}; -o json has all")
    for note in [*found.notes, *(f"not compared: {each}" for each in found.not_compared)][:_SAID]:
        say(f"note: {note}")
    if len(found.not_compared) > _SAID:
        say("note: -o json says of all what was not compared, and why")


def _shown(lines: Iterable[DriftLine]) -> Iterator[DriftLine]:
    seen: set[str | None] = set()
    for line in lines:
        # of each column only the value that is nearest to its limit
        near = line.limit is not None and line.value and line.metric != "rows" and line.column not in seen
        if line.breach or near or line.metric.startswith("schema"):
            yield line
            seen.add(line.column)


def _cells(line: DriftLine) -> tuple[str, ...]:
    value = "" if line.value is None else f" {_number(line.value, line.limit)}"
    limit = "" if line.value is None or line.limit is None else f"limit {line.limit:g}"
    column = "(dataset)" if line.column is None else line.column
    return column, f"{line.metric}{value}", limit, line.verdict, line.text


def _number(value: float, limit: float | None) -> str:
    short = f"{value:.3f}"
    # three digits, or more where rounding would hide a breach
    return short if limit is None or abs(float(short)) != limit or abs(value) == limit else f"{value:g}"


# Commands that may end in conflicts: how they are decided, written and printed.


def check_conflict_options(resolve: str | None, conflicts: Path | None) -> None:
    """Conflicts can be written to the file, if there is one, and that is not the one to be read."""
    if conflicts is None:
        return
    from odfchain.branches.conflict_file import check_ending

    check_ending(conflicts)
    if resolve is not None and Path(resolve) == conflicts:
        raise UsageError("--conflicts writes to a file that --resolve does not read")


@contextlib.contextmanager
def conflicts_shown(conflicts: Path | None, output: str, progress: TerminalProgress) -> Iterator[None]:
    """Write and print the conflicts that end what is done within; the error goes on."""
    try:
        yield
    except MergeConflictError as error:
        progress.stop()
        if conflicts is not None:
            from odfchain.branches.conflict_file import write_conflicts

            write_conflicts(error.conflicts, conflicts)
        print_conflicts(error.conflicts, output)
        raise


def print_conflicts(conflicts: pa.Table, output: str) -> None:
    """Print what is open of the conflicts that an error has, as records."""
    from odfchain.branches.conflict_file import DECISION_COLUMNS, values_of

    columns = conflicts.column_names[: conflicts.column_names.index("theirs") + 1]
    undecided = conflicts.filter(conflicts.column("problem").is_valid())
    lines = undecided.drop_columns([*DECISION_COLUMNS, "problem"])
    screen.print_records(map(values_of, lines.to_pylist()), columns, output)


# Changes of a block, for people and programs.


def print_changes(dataset: str, outcome: ChangeOutcome, output: str) -> None:
    """Print what was committed, or that there was nothing to commit."""
    operations = {op: outcome.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")}
    if output != "table":
        row = {"dataset": dataset, **operations, "block": outcome.number, "head": str(outcome.head)}
        screen.print_records([row], list(row), output)
    elif outcome.up_to_date:
        say("nothing to commit: the values are already recorded", fg="yellow")
    else:
        screen.echo(f"{dataset}: {outcome.summary}; it is block {outcome.number:,}")
