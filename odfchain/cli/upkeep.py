"""Commands that keep datasets in order: reset, gc, fsck, compact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.common import DATASET, DurationParam, confirm, open_workspace, options
from odfchain.cli.copies import token_for
from odfchain.cli.output import format_option, human_size, print_records
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.screen import echo
from odfchain.errors import BrokenChainError, OdfchainError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from odfchain.api import Dataset, Workspace
    from odfchain.ids.multihash import Multihash
    from odfchain.upkeep.batches import BatchLimits
    from odfchain.upkeep.compact import CompactPlan
    from odfchain.upkeep.downstream import Dependent, Place
    from odfchain.upkeep.fsck import Finding, FsckReport
    from odfchain.upkeep.gc import Collected, GcOptions
    from odfchain.upkeep.reset import ResetPlan
    from odfchain.upkeep.soft import SoftPlan

INTEGRITY_FAULT = 6

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; nothing is changed.")


def _say(text: str) -> None:
    if not options().quiet:
        echo(text, err=True)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# --- reset ---------------------------------------------------------------------------------------------


@click.command("reset")
@click.argument("dataset", type=DATASET)
@click.argument("block")
@click.option("--force", is_flag=True, help="Drop blocks also if no repository is known to have them.")
@_DRY_RUN
@format_option("table", "json", "ndjson")
def reset_command(dataset: str, block: str, force: bool, dry_run: bool, output: str) -> None:
    """Move the head of a dataset back to BLOCK, its hash or sequence number.

    The places where the dataset was pulled from or pushed to are asked whether they have what would be
    dropped; if that is not sure of every block, nothing is done without --force. The old head stays under
    refs/ until `gc --drop-refs`, and a reset to it undoes this one.
    """
    with open_workspace() as workspace:
        found = workspace.dataset(dataset)
        plan = workspace.upkeep.plan_reset(found.id, block)
        if dry_run or plan.nothing:
            _tell_consequences(plan.places, plan.dependents)
            _print_reset(plan, "nothing to do" if plan.nothing else "would be reset", None, output)
            return
        if plan.unsaved and not force:
            _tell_consequences(plan.places, plan.dependents)
            workspace.upkeep.reset(found.id, plan)  # says why not
        if not plan.returns:
            _tell_consequences(plan.places, plan.dependents)
            _tell_of_proof(workspace, found)
            confirm(
                f"Drop {_count(len(plan.dropped), 'block')} with {_count(plan.records, 'record')} "
                f"of {plan.dataset}?"
            )
        kept = workspace.upkeep.reset(found.id, plan, force=force)
    _print_reset(plan, "returned" if plan.returns else "reset", kept, output)


def _tell_consequences(places: Sequence[Place], dependents: Sequence[Dependent]) -> None:
    for place in places:
        known = f"has {len(place.has):,} of these blocks" if place.has else place.answer.value
        _say(f"  {' and '.join(place.kinds)} {place.alias}: {place.problem or known}")
    for item in dependents:
        _say(f"  breaks {item.alias}: {_count(item.transactions, 'transaction')} read what is given up")


def _tell_of_proof(workspace: Workspace, dataset: Dataset) -> None:
    if workspace.signing.has_key(dataset.id):
        _say("  the old head was signed: whoever saw it and sees the new one has proof of two histories")


def _print_reset(plan: ResetPlan, status: str, kept: str | None, output: str) -> None:
    people = output == "table"
    row: dict[str, Any] = {
        "dataset": plan.dataset,
        "status": status,
        "block": plan.new_number,
        "blocks": len(plan.dropped),
        "records": plan.records,
        "unsaved": len(plan.unsaved),
        "breaks": ", ".join(d.alias for d in plan.dependents) if people else _dependents(plan.dependents),
    }
    if not people:
        row |= {
            "head": str(plan.new_head),
            "oldHead": str(plan.old_head),
            "keptAs": kept,
            "dropped": [str(name) for name in plan.dropped],
            "places": _places(plan.places),
        }
    columns = ["dataset", "status", "block", "blocks", "records", "unsaved", "breaks"]
    print_records([row], columns, output, right=("block", "blocks", "records", "unsaved"))


def _places(places: Sequence[Place]) -> list[dict[str, Any]]:
    return [
        {
            "alias": place.alias,
            "kinds": list(place.kinds),
            "answer": place.answer.value,
            "blocks": len(place.has),
            "problem": place.problem,
        }
        for place in places
    ]


def _dependents(found: Sequence[Dependent]) -> list[dict[str, Any]]:
    return [{"dataset": item.alias, "transactions": item.transactions} for item in found]


# --- gc ------------------------------------------------------------------------------------------------


@click.command("gc")
@click.argument("datasets", nargs=-1, type=DATASET)
@_DRY_RUN
@click.option(
    "--grace",
    type=DurationParam(),
    default="24h",
    show_default=True,
    help="Keep what was written or used in this time; at least 10m.",
)
@click.option(
    "--drop-refs",
    is_flag=True,
    help="Give up heads that were overwritten, reset or compacted before the grace period.",
)
@format_option()
def gc_command(datasets: tuple[str, ...], dry_run: bool, grace: float, drop_refs: bool, output: str) -> int:
    """Remove what no reference of a dataset needs any more, and what interrupted commands left.

    Nothing that is needed is removed, whoever writes at the same time. Without DATASET all datasets are
    looked at, and the workspace itself.
    """
    from odfchain.cli.main import report_error
    from odfchain.upkeep.gc import GcOptions

    chosen = GcOptions(grace=grace, drop_refs=drop_refs, dry_run=dry_run)
    workspace = open_workspace()
    code = 0
    found: list[Collected] = []
    for dataset in _chosen(workspace, datasets):
        try:
            found.append(workspace.upkeep.gc(dataset.alias, chosen))
        except OdfchainError as error:  # one damaged dataset must not keep the others from being cleared
            report_error(error)
            code = code or error.exit_code
    if not datasets:
        found.append(workspace.upkeep.gc_workspace(chosen))
    _print_gc(found, chosen, output)
    return code


def _chosen(workspace: Workspace, datasets: tuple[str, ...]) -> list[Dataset]:
    if not datasets:
        return workspace.datasets()
    named = {d.path: d for text in datasets for d in workspace.matching(text)}
    return list(named.values())


def _print_gc(found: list[Collected], chosen: GcOptions, output: str) -> None:
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
        _tell_gc(found, chosen)
        return
    if output == "csv":
        print_records(rows, ["dataset", "kind", "files", "bytes"], output)
        return
    print_records([_gc_tree(item, dry_run=chosen.dry_run) for item in found], [], output)


def _gc_tree(item: Collected, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dataset": item.dataset,
        "dryRun": dry_run,
        "removed": [{"kind": g.kind, "files": g.files, "bytes": g.bytes} for g in item.removed],
        "young": {"files": item.young.files, "bytes": item.young.bytes},
        "droppedRefs": list(item.refs),
        "keptRefs": list(item.kept_refs),
    }


def _tell_gc(found: list[Collected], chosen: GcOptions) -> None:
    word = "would be removed" if chosen.dry_run else "removed"
    files = sum(kind.files for item in found for kind in item.removed)
    _say(f"{_count(files, 'file')} {word}, {human_size(sum(item.bytes for item in found))}")
    young = sum(item.young.files for item in found)
    if young:
        size = human_size(sum(item.young.bytes for item in found))
        _say(f"{_count(young, 'object')} ({size}) not needed, but too young")
    for item in found:
        for name in item.refs:
            _say(f"{item.dataset}: {'would give' if chosen.dry_run else 'gave'} up refs/{name}")
    kept = sum(len(item.kept_refs) for item in found)
    if kept:
        _say(f"{_count(kept, 'overwritten head')} kept; --drop-refs gives up the old ones")


# --- fsck ----------------------------------------------------------------------------------------------


@click.command("fsck")
@click.argument("datasets", nargs=-1, type=DATASET)
@click.option(
    "--from", "source", metavar="URL", help="Any copy of the dataset to repair from; it need not be trusted."
)
@click.option("--head", metavar="BLOCK", help="What a lost head is to be (a hash), when you know it.")
@_DRY_RUN
@format_option("table", "json", "ndjson")
def fsck_command(
    datasets: tuple[str, ...], source: str | None, head: str | None, dry_run: bool, output: str
) -> int:
    """Find damaged and missing files of datasets, and put good copies in their place.

    A copy is good when it hashes to its name; it may come from other datasets here or from --from. Damaged
    files are kept in info/quarantine of the dataset. Exit code 0: everything is good (now); 6: something is
    broken.
    """
    from odfchain.upkeep.fsck import FsckOptions

    workspace = open_workspace()
    found = _chosen(workspace, datasets)
    if (source is not None or head is not None) and (not datasets or len(found) != 1):
        raise UsageError(f"--from and --head are for one dataset, these are {len(found)}")
    chosen = FsckOptions(dry_run=dry_run, head=_block(head))
    token = token_for([workspace.sharing.url_of(source)] if source else [])
    with TerminalProgress(quiet=options().quiet) as progress:
        # by name, because the id of a damaged dataset cannot be read
        reports = [
            workspace.upkeep.fsck(dataset.alias, source, chosen, token=token, progress=progress)
            for dataset in found
        ]
    if not datasets:
        reports += workspace.upkeep.unopenable()
    _print_fsck(reports, output)
    return 0 if all(report.whole for report in reports) else INTEGRITY_FAULT


def _block(text: str | None) -> Multihash | None:
    from odfchain.ids.multihash import Multihash

    return None if text is None else Multihash.parse(text)


def _print_fsck(reports: list[FsckReport], output: str) -> None:
    if output != "table":
        print_records([_fsck_tree(report) for report in reports], [], output)
        return
    for report in reports:
        word, colour = ("ok    ", "green") if report.whole else ("BROKEN", "red")
        echo(f"{word} ", fg=colour, bold=True, nl=False)
        absent = f", {_count(report.absent, 'file')} not here (a partial copy)" if report.absent else ""
        echo(f"{report.dataset}: {_count(report.objects, 'object')}, {human_size(report.bytes)}{absent}")
        for finding in report.findings:
            echo(f"  {finding.kind} {finding.state.value}: {_where(finding)}")
            echo(f"    {finding.message.removeprefix(f'{finding.file}: ')}")
            if finding.hint and finding.state.value == "broken":
                echo(f"    {finding.hint}")
        for note in report.notes:
            echo(f"  note: {note}")


def _where(finding: Finding) -> str:
    return f"{finding.file} (from {finding.source})" if finding.source else finding.file


def _fsck_tree(report: FsckReport) -> dict[str, Any]:
    return {
        "dataset": report.dataset,
        "whole": report.whole,
        "objects": report.objects,
        "bytes": report.bytes,
        "absent": report.absent,
        "findings": [
            {
                "kind": f.kind,
                "file": f.file,
                "message": f.message,
                "state": f.state.value,
                "source": f.source,
                "hint": f.hint,
            }
            for f in report.findings
        ],
        "notes": report.notes,
    }


# --- compact -------------------------------------------------------------------------------------------


@click.command("compact")
@click.argument("dataset", type=DATASET)
@click.option("--hard", "mode", flag_value="hard", help="Write the history of the dataset anew.")
@click.option("--soft", "mode", flag_value="soft", help="Make a new dataset with the same records (--as).")
@click.option("--as", "name", metavar="NAME", help="What to call the new dataset of --soft.")
@click.option("--keep-metadata-only", "metadata_only", is_flag=True, help="With --hard: give up all data.")
@click.option("--verify", is_flag=True, help="Verify the dataset before.")
@click.option(
    "--max-slice-size", type=click.IntRange(min=1), metavar="BYTES", help="Of merged slices; 300000000."
)
@click.option("--max-slice-records", type=click.IntRange(min=1), metavar="N", help="Of merged slices; 10000.")
@click.option("--force", is_flag=True, help="Give up data also if no repository is known to have them.")
@_DRY_RUN
@format_option("table", "json", "ndjson")
def compact_command(
    dataset: str,
    mode: str | None,
    name: str | None,
    metadata_only: bool,
    verify: bool,
    max_slice_size: int | None,
    max_slice_records: int | None,
    force: bool,
    dry_run: bool,
    output: str,
) -> None:  # fmt: skip
    """Merge small slices of a dataset into larger ones.

    --soft makes a new root dataset that says what it was made from; nobody breaks. --hard changes the hashes
    of the dataset's blocks, so derivatives and copies that have read the old ones must start over: they are
    listed before it starts. The old head stays under refs/ until `gc --drop-refs`.
    """
    if mode is None:
        raise UsageError("say which: --hard or --soft")
    if (mode == "soft") != (name is not None):
        raise UsageError("--soft makes a new dataset: name it with --as NAME (--hard does not)")
    if mode == "soft" and (metadata_only or force):
        raise UsageError("--keep-metadata-only and --force are for --hard")
    from odfchain.upkeep.batches import MAX_SLICE_BYTES, MAX_SLICE_RECORDS, BatchLimits

    limits = BatchLimits(
        bytes=max_slice_size or MAX_SLICE_BYTES, records=max_slice_records or MAX_SLICE_RECORDS
    )
    with open_workspace() as workspace:
        found = workspace.dataset(dataset)
        if verify:
            _verify(workspace, found)
        if mode == "soft":
            assert name is not None  # noqa: S101 - checked above
            _soft(workspace, found, name, limits, output, dry_run=dry_run)
        else:
            _hard(
                workspace, found, limits, output,
                metadata_only=metadata_only, force=force, dry_run=dry_run,
            )  # fmt: skip


def _verify(workspace: Workspace, dataset: Dataset) -> None:
    with TerminalProgress(quiet=options().quiet) as progress:
        (report,) = workspace.verify([dataset], progress=progress)
    if report.faults:
        first = report.faults[0]
        raise BrokenChainError(
            f"{dataset.alias}: verification found {_count(len(report.faults), 'fault')}; the first one: "
            f"{first.file}: {first.message}",
            hint=f"`odfchain verify {dataset.alias}` lists all of them",
        )


def _hard(
    workspace: Workspace,
    dataset: Dataset,
    limits: BatchLimits,
    output: str,
    *,
    metadata_only: bool,
    force: bool,
    dry_run: bool,
) -> None:
    from odfchain.upkeep.compact import CompactOptions

    chosen = CompactOptions(limits=limits, metadata_only=metadata_only)
    plan = workspace.upkeep.plan_compact(dataset.id, chosen)
    if plan.nothing or dry_run:
        _tell_consequences(plan.places, plan.dependents)
        _print_hard(plan, "nothing to do" if plan.nothing else "would be compacted", plan.old_head, output)
        return
    _tell_consequences(plan.places, plan.dependents)
    _tell_of_proof(workspace, dataset)
    what = "give up all data" if metadata_only else f"merge {_count(plan.slices_before, 'slice')}"
    confirm(
        f"Replace {_count(len(plan.replaced), 'block')} of {plan.dataset} ({what})? "
        "Everybody who has read them must start over."
    )
    with TerminalProgress(quiet=options().quiet) as progress:
        head = workspace.upkeep.compact(dataset.id, plan, force=force, progress=progress)
    _print_hard(plan, "compacted", head, output)


def _print_hard(plan: CompactPlan, status: str, head: Multihash, output: str) -> None:
    people = output == "table"
    row: dict[str, Any] = {
        "dataset": plan.dataset,
        "status": status,
        "blocks": f"{plan.blocks_before:,} to {plan.blocks_after:,}" if people else plan.blocks_after,
        "slices": f"{plan.slices_before:,} to {plan.slices_after:,}" if people else plan.slices_after,
        "records": plan.records,
        "breaks": ", ".join(d.alias for d in plan.dependents) if people else _dependents(plan.dependents),
    }
    if not people:
        row |= {
            "blocksBefore": plan.blocks_before,
            "slicesBefore": plan.slices_before,
            "replaced": [str(name) for name in plan.replaced],
            "oldHead": str(plan.old_head),
            "head": str(head),
            "places": _places(plan.places),
        }
    print_records([row], ["dataset", "status", "blocks", "slices", "records", "breaks"], output)


def _soft(
    workspace: Workspace, dataset: Dataset, name: str, limits: BatchLimits, output: str, *, dry_run: bool
) -> None:
    plan = workspace.upkeep.plan_soft(dataset.id, name, limits)
    if dry_run:
        _print_soft(plan, "would be made", None, output)
        return
    with TerminalProgress(quiet=options().quiet) as progress:
        made = workspace.upkeep.soft_compact(dataset.id, plan, progress=progress)
    _print_soft(plan, "made", str(made.id), output)


def _print_soft(plan: SoftPlan, status: str, made: str | None, output: str) -> None:
    people = output == "table"
    row: dict[str, Any] = {
        "dataset": str(plan.alias),
        "status": status,
        "from": plan.dataset,
        "slices": f"{plan.slices_before:,} to {plan.slices_after:,}" if people else plan.slices_after,
        "records": plan.records,
    }
    if not people:
        row |= {"slicesBefore": plan.slices_before, "fromHead": str(plan.head), "id": made}
    print_records([row], ["dataset", "status", "from", "slices", "records"], output)
