"""`odfchain gc`: what no reference needs any more is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import named_or_all, open_workspace, say
from odfchain.cli.support.faults import report_error
from odfchain.cli.support.output import count_of, format_option, human_size, print_records
from odfchain.cli.support.parameters import BREAK_REFERENCES, DATASET, DRY_RUN, DurationParam
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain import Collected


@click.command("gc")
@click.argument("datasets", nargs=-1, type=DATASET)
@DRY_RUN
@click.option(
    "--grace",
    type=DurationParam(),
    default="24h",
    show_default=True,
    help="Keep what was written or used in this time; at least 10m, of datasets in a store 1h.",
)
@click.option(
    "--drop-refs",
    is_flag=True,
    help="Give up heads that were overwritten, reset or compacted before the grace period.",
)
@BREAK_REFERENCES
@format_option()
def gc_command(
    datasets: tuple[str, ...],
    dry_run: bool,
    grace: float,
    drop_refs: bool,
    break_references: bool,
    output: str,
) -> int:
    """Remove what no reference of a dataset needs any more, and what interrupted commands left.

    Nothing that is needed is removed, whoever writes at the same time. Without DATASET all datasets are
    looked at, and the workspace itself. Of datasets in a store, what nothing needs there goes as well.
    Changes that rows of this workspace name stay; these rows are named.
    """
    workspace = open_workspace()
    code = 0
    found: list[Collected] = []
    for dataset in named_or_all(workspace, datasets):
        try:
            chosen = {"drop_refs": drop_refs, "break_references": break_references}
            found.append(dataset.gc(grace=grace, dry_run=dry_run, **chosen))
        except UsageError:
            raise
        except OdfchainError as error:  # one damaged dataset must not keep the others from being cleared
            report_error(error)
            code = code or error.exit_code
    if not datasets:
        found += workspace.gc([], grace=grace, drop_refs=drop_refs, dry_run=dry_run)
    _print_gc(found, output, dry_run=dry_run)
    return code


def _print_gc(found: list[Collected], output: str, *, dry_run: bool) -> None:
    people = output == "table"
    rows = [
        {
            "dataset": item.dataset,
            "kind": kind.kind,
            "files": kind.files,
            "bytes": human_size(kind.bytes) if people else kind.bytes,
        }
        for item in found
        for kind in item.removed
    ]
    if people:
        for row in rows:
            row["dataset"] = row["dataset"] or "(workspace)"
        if rows:
            print_records(rows, ["dataset", "kind", "files", "bytes"], output, right=("files", "bytes"))
        _tell_gc(found, dry_run=dry_run)
        return
    if output == "csv":
        print_records(rows, ["dataset", "kind", "files", "bytes"], output)
        return
    print_records([_gc_tree(item, dry_run=dry_run) for item in found], [], output)


def _gc_tree(item: Collected, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dataset": item.dataset,
        "dryRun": dry_run,
        "removed": [{"kind": g.kind, "files": g.files, "bytes": g.bytes} for g in item.removed],
        "young": {"files": item.young.files, "bytes": item.young.bytes},
        "droppedRefs": list(item.refs),
        "keptRefs": list(item.kept_refs),
        "referrers": list(item.referrers),
    }


def _tell_gc(found: list[Collected], *, dry_run: bool) -> None:
    word = "would be removed" if dry_run else "removed"
    files = sum(kind.files for item in found for kind in item.removed)
    say(f"{count_of(files, 'file')} {word}, {human_size(sum(item.bytes for item in found))}")
    young = sum(item.young.files for item in found)
    if young:
        size = human_size(sum(item.young.bytes for item in found))
        say(f"{count_of(young, 'object')} ({size}) not needed, but too young")
    for item in found:
        for name in item.refs:
            say(f"{item.dataset}: {'would give' if dry_run else 'gave'} up refs/{name}")
        if item.referrers:
            who = ", ".join(item.referrers)
            say(f"{item.dataset}: changes stay that {who} refers to; --break-references gives them up")
    kept = sum(len(item.kept_refs) for item in found)
    if kept:
        say(f"{count_of(kept, 'overwritten head')} kept; --drop-refs gives up the old ones")
