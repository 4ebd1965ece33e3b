"""`odfchain compact`: small slices of a dataset are merged into larger ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.consequences import dependents_tree, places_tree, tell_consequences, tell_of_proof
from odfchain.cli.support.context import confirm, open_workspace, options
from odfchain.cli.support.output import count_of, format_option, print_records
from odfchain.cli.support.parameters import BREAK_REFERENCES, DATASET, DRY_RUN, given
from odfchain.cli.support.progress_bar import TerminalProgress
from odfchain.errors import BrokenChainError, UsageError

if TYPE_CHECKING:
    from odfchain import BatchLimits, CompactPlan, Dataset, Multihash, SoftPlan


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
@BREAK_REFERENCES
@DRY_RUN
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
    break_references: bool,
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
    if mode == "soft" and (metadata_only or force or break_references):
        raise UsageError("--keep-metadata-only, --force and --break-references are for --hard")
    from odfchain import BatchLimits

    limits = BatchLimits(**given(bytes=max_slice_size, records=max_slice_records))
    with open_workspace() as workspace:
        found = workspace[dataset]
        if verify:
            _verify(found)
        if mode == "soft":
            assert name is not None  # noqa: S101 - checked above
            _soft(found, name, limits, output, dry_run=dry_run)
        else:
            _hard(
                found, limits, output,
                metadata_only=metadata_only, force=force, break_references=break_references, dry_run=dry_run,
            )  # fmt: skip


def _verify(dataset: Dataset) -> None:
    with TerminalProgress(quiet=options().quiet) as progress:
        report = dataset.verify(progress=progress)
    if report.faults:
        first = report.faults[0]
        raise BrokenChainError(
            f"{dataset.alias}: verification found {count_of(len(report.faults), 'fault')}; the first one: "
            f"{first.file}: {first.message}",
            hint=f"`odfchain verify {dataset.alias}` lists all of them",
        )


def _hard(
    dataset: Dataset,
    limits: BatchLimits,
    output: str,
    *,
    metadata_only: bool,
    force: bool,
    break_references: bool,
    dry_run: bool,
) -> None:
    plan = dataset.plan_compact(limits=limits, metadata_only=metadata_only)
    if plan.nothing or dry_run:
        tell_consequences(plan.places, plan.dependents)
        _print_hard(plan, "nothing to do" if plan.nothing else "would be compacted", plan.old_head, output)
        return
    tell_consequences(plan.places, plan.dependents)
    if plan.referrers and not break_references:
        dataset.compact(plan, force=force)  # says why not
    tell_of_proof(dataset)
    what = "give up all data" if metadata_only else f"merge {count_of(plan.slices_before, 'slice')}"
    confirm(
        f"Replace {count_of(len(plan.replaced), 'block')} of {plan.dataset} ({what})? "
        "Everybody who has read them must start over."
    )
    with TerminalProgress(quiet=options().quiet) as progress:
        head = dataset.compact(plan, force=force, break_references=break_references, progress=progress)
    _print_hard(plan, "compacted", head, output)


def _print_hard(plan: CompactPlan, status: str, head: Multihash, output: str) -> None:
    people = output == "table"
    row: dict[str, Any] = {
        "dataset": plan.dataset,
        "status": status,
        "blocks": f"{plan.blocks_before:,} to {plan.blocks_after:,}" if people else plan.blocks_after,
        "slices": f"{plan.slices_before:,} to {plan.slices_after:,}" if people else plan.slices_after,
        "records": plan.records,
        "breaks": ", ".join(d.alias for d in plan.dependents) if people else dependents_tree(plan.dependents),
    }
    if not people:
        row |= {
            "blocksBefore": plan.blocks_before,
            "slicesBefore": plan.slices_before,
            "replaced": [str(name) for name in plan.replaced],
            "oldHead": str(plan.old_head),
            "head": str(head),
            "places": places_tree(plan.places),
            "referrers": list(plan.referrers),
        }
    print_records([row], ["dataset", "status", "blocks", "slices", "records", "breaks"], output)


def _soft(dataset: Dataset, name: str, limits: BatchLimits, output: str, *, dry_run: bool) -> None:
    plan = dataset.plan_soft_compact(name, limits)
    if dry_run:
        _print_soft(plan, "would be made", None, output)
        return
    with TerminalProgress(quiet=options().quiet) as progress:
        made = dataset.soft_compact(plan, progress=progress)
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
